//! What the cluster reports about itself: members, release, alarms, free space, and how far its clocks differ.

use super::connection::{Connections, Reply};
use super::parsed;
use super::wire::{Alarms, Members, Status};
use crate::phase::Phase;
use futures_util::future::join_all;
use leasehold_core::store::{Class, Survey};
use leasehold_core::{Kind, Result, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;

/// How far members' clocks may seem to differ: the grain, and the duration of the exchanges.
const SKEW: Duration = Duration::from_secs(2);
/// The share of the quota, in percent, above which it is time to compact.
const FULL: u64 = 80;

pub(super) async fn survey(connections: &Connections) -> Result<Survey> {
    let mut survey = Survey::plain(Class::A);
    survey = match ask::<Status>(connections, "maintenance/status", &json!({})).await? {
        Some(status) => space(survey.fine("version", status.version.clone()), &status),
        None => hidden(survey, "version"),
    };
    survey = match ask::<Members>(connections, "cluster/member/list", &json!({})).await? {
        Some(members) => counted(survey, members.members.iter().filter(|member| !member.is_learner).count()),
        None => hidden(survey, "voting members"),
    };
    survey = match ask::<Alarms>(connections, "maintenance/alarm", &json!({ "action": "GET" })).await? {
        Some(alarms) => alarmed(survey, &alarms),
        None => hidden(survey, "alarms"),
    };
    survey = clocks(survey, connections).await?;
    Ok(survey.fine("fsync", "each member's own; `--unsafe-no-fsync` cannot be seen from here and makes it class B"))
}

/// None if this user may not ask.
async fn ask<T: DeserializeOwned>(connections: &Connections, path: &str, body: &Value) -> Result<Option<T>> {
    match connections.call(path, body, Phase::Reading).await? {
        Reply::Answer(answer, endpoint) => parsed(&answer, Phase::Reading, endpoint).map(Some),
        Reply::Refused(error) => match error.to_error(Phase::Reading) {
            error if error.kind() == Kind::Unsupported => Ok(None),
            error => Err(error),
        },
    }
}

fn hidden(survey: Survey, setting: &str) -> Survey {
    survey.fine(setting, "not shown to this user")
}

fn counted(survey: Survey, members: usize) -> Survey {
    let found = members.to_string();
    match members {
        1 => survey.advise(
            "voting members",
            found,
            "run three: while this one is away nobody gets or renews a lease, and its disk is the only copy",
        ),
        even if even % 2 == 0 => survey.advise(
            "voting members",
            found,
            "add one or remove one: an even number bears no more failures than one member fewer",
        ),
        _ => survey.fine("voting members", found),
    }
}

fn space(survey: Survey, status: &Status) -> Survey {
    let size = format!("{} KiB", status.size / 1024);
    if status.quota == 0 {
        return survey.fine("database size", format!("{size}; the quota is 2 GiB unless set"));
    }
    let found = format!("{size} of {} KiB", status.quota / 1024);
    if status.size / status.quota.div_ceil(100).max(1) < FULL {
        return survey.fine("database size", found);
    }
    survey.advise("database size", found, "compact and defragment soon; set --auto-compaction-retention")
}

fn alarmed(survey: Survey, alarms: &Alarms) -> Survey {
    let mut names: Vec<&str> = alarms.alarms.iter().map(|alarm| alarm.alarm.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] => survey.fine("alarms", "none"),
        _ if names.contains(&"CORRUPT") => survey.advise(
            "alarms",
            names.join(", "),
            "a member's data differs from the others'; replace it before anything else",
        ),
        _ => survey.advise(
            "alarms",
            names.join(", "),
            "nothing can be written: run `etcdctl compact`, `etcdctl defrag`, `etcdctl alarm disarm`",
        ),
    }
}

/// Asks all endpoints for their time at once. An unreachable one is not a failure.
async fn clocks(survey: Survey, connections: &Connections) -> Result<Survey> {
    if connections.endpoints().len() < 2 {
        return Ok(survey.fine("members' clocks", "one endpoint given, so one clock is used"));
    }
    let token = connections.token().await?;
    let each = (0..connections.endpoints().len())
        .map(|index| connections.ask(index, "maintenance/status", "{}", token.as_deref(), Phase::Reading));
    let told: Vec<Timestamp> = join_all(each)
        .await
        .into_iter()
        .filter_map(|reply| match reply {
            Ok(Reply::Answer(answer, _)) => Some(answer.now),
            _ => None,
        })
        .collect();
    let (Some(first), Some(last)) = (told.iter().min(), told.iter().max()) else { return Ok(survey) };
    let apart = last.saturating_since(*first);
    let found = format!("{} of {} endpoints, {} s apart", told.len(), connections.endpoints().len(), apart.as_secs());
    Ok(if apart > SKEW {
        survey.advise("members' clocks", found, "let all members keep time by NTP: leases expire by these clocks")
    } else if told.len() < connections.endpoints().len() {
        survey.advise("members' clocks", found, "see why the others do not answer")
    } else {
        survey.fine("members' clocks", found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(survey: &Survey) -> Option<&str> {
        survey.remarks.last().unwrap().advice.as_deref()
    }

    #[test]
    fn one_or_an_even_number_of_members_gets_advice() {
        for (members, has_advice) in [(1, true), (2, true), (3, false), (4, true), (5, false)] {
            let survey = counted(Survey::plain(Class::A), members);
            assert_eq!(advice(&survey).is_some(), has_advice, "{members}");
        }
    }

    #[test]
    fn a_database_that_is_nearly_full_gets_advice() {
        for (size, quota, has_advice) in [(50, 0, false), (79 << 20, 100 << 20, false), (85 << 20, 100 << 20, true)] {
            let survey = space(Survey::plain(Class::A), &Status { version: String::new(), size, quota });
            assert_eq!(advice(&survey).is_some(), has_advice, "{size} of {quota}");
        }
    }
}
