//! The class that follows from the server's settings.

use leasehold_core::store::{Class, Survey};
use tokio_postgres::Row;

/// The server's settings, and its standbys.
#[derive(Debug, Clone)]
pub(super) struct ServerSettings {
    server_version: String,
    fsync: String,
    full_page_writes: String,
    synchronous_commit: String,
    synchronous_standby_names: String,
    /// Connected standbys, and how many of them are synchronous of each kind.
    standbys: i64,
    sync: i64,
    quorum: i64,
    /// Replication slots of standbys that are not connected.
    away: i64,
}

impl ServerSettings {
    /// Reads a row that the survey statement returned.
    pub(super) fn from_row(row: &Row) -> Option<Self> {
        Some(ServerSettings {
            server_version: row.try_get(2).ok()?,
            fsync: row.try_get(3).ok()?,
            full_page_writes: row.try_get(4).ok()?,
            synchronous_commit: row.try_get(5).ok()?,
            synchronous_standby_names: row.try_get(6).ok()?,
            standbys: row.try_get(7).ok()?,
            sync: row.try_get(8).ok()?,
            quorum: row.try_get(9).ok()?,
            away: row.try_get(10).ok()?,
        })
    }

    /// How many of the connected standbys a commit waits for.
    fn waited_for(&self) -> i64 {
        let names = self.synchronous_standby_names.trim();
        let needed = names.split(|c: char| !c.is_ascii_digit()).find_map(|word| word.parse().ok());
        let is_quorum = names.get(..3).is_some_and(|word| word.eq_ignore_ascii_case("any"));
        if is_quorum { self.quorum.min(needed.unwrap_or(0)) } else { self.sync }
    }
}

/// Class A only if every server that may be promoted has every answered swap.
pub(super) fn judge(found: &ServerSettings) -> Survey {
    let mut survey = Survey::plain(Class::A).fine("server_version", &found.server_version);
    let mut is_proven = true;
    for (setting, value, why) in [
        ("fsync", &found.fsync, "after a crash of the machine answered swaps may be gone, or the database"),
        ("full_page_writes", &found.full_page_writes, "a crash in the middle of a page may damage it"),
    ] {
        if value == "on" {
            survey = survey.fine(setting, value);
        } else {
            is_proven = false;
            survey = survey.advise(setting, value, format!("turn it on: {why}"));
        }
    }
    let value = match found.synchronous_commit.as_str() {
        value @ ("on" | "remote_apply") => value.to_owned(),
        value => format!("{value}, but on for every write of this store"),
    };
    survey = survey.fine("synchronous_commit", value);
    let standbys = found.standbys + found.away;
    let waited_for = found.waited_for();
    let value = format!("`{}`, {waited_for} of {standbys} standbys waited for", found.synchronous_standby_names);
    if standbys == 0 && found.synchronous_standby_names.is_empty() {
        survey = survey.fine("standbys", "none");
    } else if waited_for > 0 && waited_for >= standbys {
        survey = survey.fine("synchronous_standby_names", value);
    } else {
        is_proven = false;
        let advice = "name every standby that may be promoted, and wait for each: for two, FIRST 2 (a, b); otherwise an \
                      epoch that was answered may be issued again after a failover (seeing the states of standbys takes \
                      the role pg_monitor)";
        survey = survey.advise("synchronous_standby_names", value, advice);
    }
    survey.class = if is_proven { Class::A } else { Class::B };
    survey
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> ServerSettings {
        let on = || "on".to_owned();
        ServerSettings {
            server_version: "15".into(),
            fsync: on(),
            full_page_writes: on(),
            synchronous_commit: on(),
            synchronous_standby_names: String::new(),
            standbys: 0,
            sync: 0,
            quorum: 0,
            away: 0,
        }
    }

    fn advised(found: &ServerSettings) -> Vec<String> {
        let survey = judge(found);
        let advised: Vec<String> =
            survey.remarks.into_iter().filter(|remark| remark.advice.is_some()).map(|remark| remark.setting).collect();
        assert_eq!(survey.class == Class::A, advised.is_empty());
        advised
    }

    #[test]
    fn a_lone_server_that_flushes_is_of_class_a() {
        assert_eq!(advised(&found()), [""; 0]);
        assert_eq!(advised(&ServerSettings { synchronous_commit: "off".into(), ..found() }), [""; 0]);
        assert_eq!(advised(&ServerSettings { fsync: "off".into(), ..found() }), ["fsync"]);
        assert_eq!(advised(&ServerSettings { full_page_writes: "off".into(), ..found() }), ["full_page_writes"]);
    }

    #[test]
    fn every_standby_must_be_waited_for() {
        let names = "synchronous_standby_names";
        let with = |text: &str, standbys, sync, quorum, away| ServerSettings {
            synchronous_standby_names: text.into(),
            standbys,
            sync,
            quorum,
            away,
            ..found()
        };
        assert_eq!(advised(&with("", 1, 0, 0, 0)), [names], "asynchronous");
        assert_eq!(advised(&with("", 0, 0, 0, 1)), [names], "away, but there is a slot for it");
        assert_eq!(advised(&with("*", 1, 1, 0, 0)), [""; 0]);
        assert_eq!(advised(&with("*", 2, 1, 0, 0)), [names], "the other one may be promoted");
        assert_eq!(advised(&with("FIRST 2 (a, b)", 2, 2, 0, 0)), [""; 0]);
        assert_eq!(advised(&with("FIRST 2 (a, b)", 2, 2, 0, 1)), [names]);
        assert_eq!(advised(&with("ANY 1 (a, b)", 2, 0, 2, 0)), [names], "either may lack a swap");
        assert_eq!(advised(&with("any 2 (a, b)", 2, 0, 2, 0)), [""; 0]);
        assert_eq!(advised(&with("*", 1, 0, 0, 0)), [names], "not allowed to see whether it is synchronous");
        assert_eq!(advised(&with("a", 0, 0, 0, 0)), [names], "nobody to wait for is there");
    }
}
