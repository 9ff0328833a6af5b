//! The requests and answers of JetStream's interface, as JSON.
//!
//! Promise: a field that a server omits gets a default or is a clear refusal, never a guess.

use crate::utc::millis_of;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leasehold_core::Timestamp;
use serde::Deserialize;
use std::collections::HashMap;

/// The stream does not exist.
pub(super) const NO_STREAM: u32 = 10059;
/// The subject has no message.
pub(super) const NO_MESSAGE: u32 = 10037;
/// A stream of this name exists, with other settings.
pub(super) const OTHER_SETTINGS: u32 = 10058;
/// The subject's last message is another one. The second code is for a write that is still in progress.
pub(super) const WRONG_SEQUENCE: [u32; 2] = [10071, 10164];
/// JetStream is off on the server, or for the account.
pub(super) const NO_JETSTREAM: [u32; 2] = [10076, 10039];

/// An error from the server.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ApiError {
    pub(super) code: u32,
    #[serde(default)]
    pub(super) err_code: u32,
    #[serde(default)]
    pub(super) description: String,
}

/// An answer that may be a refusal.
pub(super) trait Answer: for<'de> Deserialize<'de> {
    fn refusal(&mut self) -> Option<ApiError>;
}

macro_rules! answers {
    ($($name:ident),+) => { $(impl Answer for $name {
        fn refusal(&mut self) -> Option<ApiError> {
            self.error.take()
        }
    })+ };
}
answers!(Info, Got, Ack, Consumer, Purged);

/// A stream, and the time by its leader's clock.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Info {
    error: Option<ApiError>,
    #[serde(default)]
    pub(super) config: StreamConfig,
    #[serde(default)]
    pub(super) state: State,
    pub(super) cluster: Option<StreamCluster>,
    /// Sent since NATS 2.10.
    ts: Option<String>,
    /// How many subjects there are in total. An answer lists at most `limit` of them.
    #[serde(default)]
    pub(super) total: u64,
}

impl Info {
    pub(super) fn now(&self) -> Option<Timestamp> {
        self.ts.as_deref().and_then(millis_of).map(Timestamp::from_millis)
    }
}

/// A stream's settings, as far as the promises depend on them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamConfig {
    pub(super) storage: String,
    pub(super) retention: String,
    pub(super) discard: String,
    pub(super) max_age: i64,
    pub(super) max_bytes: i64,
    pub(super) max_msgs: i64,
    pub(super) num_replicas: u32,
    pub(super) sealed: bool,
    pub(super) allow_msg_ttl: bool,
    pub(super) persist_mode: String,
    mirror: Option<serde::de::IgnoredAny>,
}

impl StreamConfig {
    /// Why such a bucket could lose or refuse records; none if it fits leases.
    pub(super) fn unfit(&self) -> Option<&'static str> {
        let limited = self.max_bytes > 0 || self.max_msgs > 0;
        let reasons = [
            (self.max_age > 0, "its records have a ttl, after which epochs would start again"),
            (limited && self.discard != "new", "it discards old records when it is full"),
            (!matches!(self.retention.as_str(), "" | "limits"), "its stream drops what was consumed"),
            (self.mirror.is_some(), "it is a mirror"),
            (self.sealed, "it is sealed"),
        ];
        reasons.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why)
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct State {
    #[serde(default)]
    pub(super) subjects: HashMap<String, u64>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamCluster {
    pub(super) leader: Option<String>,
    #[serde(default)]
    pub(super) replicas: Vec<Peer>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Peer {
    #[serde(default)]
    pub(super) current: bool,
    #[serde(default)]
    pub(super) offline: bool,
}

/// The last message of a subject.
#[derive(Debug, Deserialize)]
pub(super) struct Got {
    error: Option<ApiError>,
    pub(super) message: Option<Stored>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Stored {
    pub(super) seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

impl Stored {
    /// Whether it marks an erased record.
    pub(super) fn is_erasure(&self) -> bool {
        STANDARD.decode(&self.hdrs).is_ok_and(|headers| {
            headers.windows(OPERATION.len()).any(|part| part.eq_ignore_ascii_case(OPERATION.as_bytes()))
        })
    }

    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.data).ok()
    }
}

/// The header that marks an erased record, as every NATS key-value client knows it.
pub(super) const OPERATION: &str = "KV-Operation";

/// A published message was stored.
#[derive(Debug, Deserialize)]
pub(super) struct Ack {
    error: Option<ApiError>,
    #[serde(default)]
    pub(super) seq: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Consumer {
    error: Option<ApiError>,
    #[serde(default)]
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Purged {
    error: Option<ApiError>,
}

/// Our user, according to the server that we are connected to. This is the only
/// answer with a time that needs no stream.
#[derive(Debug, Deserialize)]
pub(super) struct ServerTime {
    server: ServerInfo,
}

#[derive(Debug, Deserialize)]
struct ServerInfo {
    time: String,
}

impl ServerTime {
    pub(super) fn now(&self) -> Option<Timestamp> {
        millis_of(&self.server.time).map(Timestamp::from_millis)
    }
}

/// A new bucket: one version of each record, stored for ever, on disk.
pub(super) fn new_bucket(stream: &str, subjects: &str, replicas: u32) -> serde_json::Value {
    serde_json::json!({
        "name": stream,
        "description": "leases of leasehold; nothing here may expire or be discarded",
        "subjects": [subjects],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "max_age": 0,
        "max_bytes": -1,
        "max_msgs": -1,
        "max_msg_size": -1,
        "max_consumers": -1,
        "num_replicas": replicas,
        "allow_rollup_hdrs": true,
        "allow_direct": false,
        "deny_delete": true,
    })
}

/// A consumer that delivers every new message of a subject. The server removes it soon after its listener is gone.
pub(super) fn new_consumer(stream: &str, subject: &str, inbox: &str, heartbeat_ns: u64) -> serde_json::Value {
    serde_json::json!({
        "stream_name": stream,
        "config": {
            "deliver_subject": inbox,
            "deliver_policy": "new",
            "replay_policy": "instant",
            "ack_policy": "none",
            "max_deliver": 1,
            "filter_subject": subject,
            "headers_only": true,
            "mem_storage": true,
            "num_replicas": 1,
            "idle_heartbeat": heartbeat_ns,
            "inactive_threshold": heartbeat_ns,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_that_forgets_is_unfit() {
        let config = |json: &str| serde_json::from_str::<StreamConfig>(json).unwrap();
        for (json, says) in [
            (r#"{"max_age":1}"#, "ttl"),
            (r#"{"max_bytes":9,"discard":"old"}"#, "discards old"),
            (r#"{"max_msgs":9}"#, "discards old"),
            (r#"{"retention":"workqueue"}"#, "consumed"),
            (r#"{"mirror":{"name":"x"}}"#, "mirror"),
            (r#"{"sealed":true}"#, "sealed"),
        ] {
            assert!(config(json).unfit().is_some_and(|why| why.contains(says)), "{json}");
        }
        let fit = r#"{"max_age":0,"max_bytes":-1,"max_msgs":-1,"discard":"old","retention":"limits","mirror":null}"#;
        assert_eq!(config(fit).unfit(), None);
        assert_eq!(config(r#"{"max_bytes":9,"discard":"new"}"#).unfit(), None);
    }

    #[test]
    fn an_erased_record_is_distinguished_from_an_empty_one() {
        let stored = |headers: &str| Stored { seq: 1, hdrs: STANDARD.encode(headers), data: String::new() };
        assert!(stored("NATS/1.0\r\nKV-Operation: DEL\r\n\r\n").is_erasure());
        assert!(!stored("NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\n\r\n").is_erasure());
        assert_eq!(stored("").bytes(), Some(Vec::new()));
    }
}
