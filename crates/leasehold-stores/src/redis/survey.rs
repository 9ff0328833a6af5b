//! The settings on which the class depends.
//!
//! Promise: class A is reported only if every required setting was read, on the primary and on each replica.
//! Non-promise: a replica that is neither connected nor known to sentinels or cluster is not seen.

use super::RedisStore;
use super::config::{Mode, Node};
use super::connection::{Call, Confirm};
use super::statements;
use crate::phase::Phase;
use ::redis::{Cmd, FromRedisValue, cmd};
use leasehold_core::store::{Class, Survey};
use leasehold_core::{Error, Kind, Result, Shelf};
use std::collections::BTreeMap;

/// The value of a setting that the server does not show.
const HIDDEN: &str = "cannot be read";

/// The remarks so far, and whether all of them allow class A.
struct Findings {
    survey: Survey,
    is_proven: bool,
}

impl Findings {
    fn note(&mut self, setting: &str, found: Option<&str>, advice: Option<&str>) {
        self.is_proven &= found.is_some() && advice.is_none();
        let survey = std::mem::replace(&mut self.survey, Survey::plain(Class::B));
        let shown = found.unwrap_or(HIDDEN);
        self.survey = match advice {
            Some(advice) => survey.advise(setting, shown, advice),
            None if found.is_none() => survey.advise(
                setting,
                shown,
                "this user may not read it, so nothing is claimed; ask whoever runs the server",
            ),
            None => survey.fine(setting, shown),
        };
    }
}

pub(super) async fn survey(store: &RedisStore) -> Result<Survey> {
    // A read first: in a cluster it finds the right node.
    let call =
        Call::Script { script: &statements::READ, keys: &[store.records(Shelf::Lease)], args: &[b"survey", b"0"] };
    store.connections.call(call, Phase::Reading, Confirm::No).await?;
    let mut findings = Findings { survey: Survey::plain(Class::B), is_proven: true };
    let info: String = ask(store, cmd("INFO").arg("server").take()).await.unwrap_or_default();
    let version = field(&info, "valkey_version").or_else(|| field(&info, "redis_version"));
    findings.survey = findings.survey.fine("version", version.unwrap_or(HIDDEN));
    for setting in ["appendonly", "appendfsync", "no-appendfsync-on-rewrite"] {
        let found = config(store, setting).await?;
        findings.note(setting, found.as_deref(), found.as_deref().and_then(|found| persistence(setting, found)));
    }
    memory(store, &mut findings).await?;
    expiry(store, &mut findings).await?;
    replicas(store, &mut findings).await?;
    let class = if findings.is_proven { Class::A } else { Class::B };
    Ok(Survey { class, ..findings.survey })
}

/// What to change so that an answered write survives a crash.
fn persistence(setting: &str, found: &str) -> Option<&'static str> {
    match (setting, found) {
        ("appendonly", "yes") | ("appendfsync", "always") | ("no-appendfsync-on-rewrite", "no") => None,
        ("appendonly", _) => Some("a crash loses whatever came after the last snapshot; set `appendonly yes`"),
        ("appendfsync", _) => Some("a crash may lose the last second, and with it epochs; set `appendfsync always`"),
        _ => Some("nothing is synced while the log is rewritten; set `no-appendfsync-on-rewrite no`"),
    }
}

async fn memory(store: &RedisStore, findings: &mut Findings) -> Result<()> {
    let (limit, policy) = (config(store, "maxmemory").await?, config(store, "maxmemory-policy").await?);
    let advice = match (limit.as_deref(), policy.as_deref()) {
        (_, Some("noeviction")) | (_, None) => None,
        // Only keys that expire are evicted, and none of ours expires.
        (_, Some(policy)) if policy.starts_with("volatile-") => None,
        (Some("0"), Some(_)) => None,
        _ => Some(
            "when memory runs out this server forgets records, and epochs begin again; set `maxmemory-policy noeviction`",
        ),
    };
    findings.note("maxmemory-policy", policy.as_deref(), advice);
    Ok(())
}

/// Another program may have set an expiry on the keys.
async fn expiry(store: &RedisStore, findings: &mut Findings) -> Result<()> {
    let key = store.records(Shelf::Lease);
    let left: Option<i64> = permitted(ask(store, cmd("PTTL").arg(&key).take()).await)?;
    match left {
        Some(left) if left >= 0 => {
            let advice = format!("something set an expiry on leasehold's records; run `PERSIST {key}`");
            findings.note("expiry of the records", Some(&format!("in {left} ms")), Some(&advice));
        }
        Some(_) => findings.note("expiry of the records", Some("none"), None),
        None => findings.note("expiry of the records", None, None),
    }
    Ok(())
}

/// Whether an answered write can be missing after a failover.
async fn replicas(store: &RedisStore, findings: &mut Findings) -> Result<()> {
    let least = config(store, "min-replicas-to-write").await?;
    findings.survey = std::mem::replace(&mut findings.survey, Survey::plain(Class::B))
        .fine("min-replicas-to-write", least.as_deref().unwrap_or(HIDDEN));
    let Some(info) = permitted(ask::<String>(store, cmd("INFO").arg("replication").take()).await)? else {
        findings.note("replicas", None, None);
        return Ok(());
    };
    let connected = connected(&info);
    let known = known(store).await?.unwrap_or(0).max(connected.len() as u64);
    let waited = store.connections.config.wait.map_or(0, |wait| wait.replicas);
    let found = format!("{known} known, {} connected, {waited} waited for", connected.len());
    let advice = (waited < known).then(|| {
        format!("after a failover an answered epoch may be issued again; put `wait_replicas={known}` into the url")
    });
    findings.note("replicas", Some(&found), advice.as_deref());
    for node in connected {
        for setting in ["appendonly", "appendfsync"] {
            let found = store
                .connections
                .ask_node(&node, config_get(setting))
                .await
                .ok()
                .and_then(|found| value(found, setting));
            let advice = found.as_deref().and_then(|found| persistence(setting, found));
            findings.note(&format!("{setting} of the replica {}:{}", node.0, node.1), found.as_deref(), advice);
        }
    }
    Ok(())
}

/// How many replicas the sentinels or the cluster know, including those that are not connected.
async fn known(store: &RedisStore) -> Result<Option<u64>> {
    match &store.connections.config.mode {
        Mode::Single => Ok(None),
        Mode::Sentinel(service) => {
            let master: BTreeMap<String, String> =
                store.connections.ask_sentinels(cmd("SENTINEL").arg("master").arg(service).take()).await?;
            Ok(master.get("num-slaves").and_then(|count| count.parse().ok()))
        }
        Mode::Cluster => {
            let nodes: Option<String> = permitted(ask(store, cmd("CLUSTER").arg("nodes").take()).await)?;
            let nodes: Vec<Vec<&str>> = nodes.iter().flat_map(|text| text.lines()).map(words).collect();
            let own = nodes.iter().find(|node| node.get(2).is_some_and(|flags| flags.contains("myself")));
            let Some(own) = own.and_then(|node| node.first()) else { return Ok(None) };
            Ok(Some(nodes.iter().filter(|node| node.get(3) == Some(own)).count() as u64))
        }
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// The replicas in the answer to `INFO replication`.
fn connected(info: &str) -> Vec<Node> {
    let node = |line: &str| {
        let (name, fields) = line.split_once(':')?;
        name.strip_prefix("slave")?.parse::<u32>().ok()?;
        let part = |key: &str| fields.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
        Some((part("ip")?.to_owned(), part("port")?.parse().ok()?))
    };
    info.lines().filter_map(node).collect()
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn config_get(setting: &str) -> Cmd {
    cmd("CONFIG").arg("GET").arg(setting).take()
}

/// A setting; none if this user may not read it.
async fn config(store: &RedisStore, setting: &str) -> Result<Option<String>> {
    let found: Option<BTreeMap<String, String>> = permitted(ask(store, config_get(setting)).await)?;
    Ok(found.and_then(|found| value(found, setting)))
}

fn value(mut found: BTreeMap<String, String>, setting: &str) -> Option<String> {
    found.remove(setting)
}

async fn ask<T: FromRedisValue>(store: &RedisStore, command: Cmd) -> Result<T> {
    let answer = store.connections.call(Call::Command(command), Phase::Reading, Confirm::No).await?;
    ::redis::from_redis_value(answer).map_err(|e| {
        Error::new(Kind::Unsupported, format!("{} gave an unexpected answer", store.connections.config.name))
            .with_source(e)
    })
}

/// Managed servers hide their settings: that is not an error here.
fn permitted<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind() == Kind::Unsupported => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_found_in_what_the_server_tells() {
        let info = "role:master\r\nconnected_slaves:2\r\nslave0:ip=10.0.0.7,port=6380,state=online,offset=1,lag=0\r\n\
                    slave1:ip=::1,port=6381,state=wait_bgsave,offset=0,lag=0\r\nslave_x:1\r\n";
        assert_eq!(connected(info), [("10.0.0.7".to_owned(), 6380), ("::1".to_owned(), 6381)]);
        assert_eq!(field("a:1\r\nredis_version:7.0.15\r\n", "redis_version"), Some("7.0.15"));
    }
}
