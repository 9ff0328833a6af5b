//! The gateway's JSON: 64-bit numbers are strings, bytes are base64, and zero, empty or false values are omitted.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leasehold_core::store::{Revision, Versioned};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, de::IgnoredAny};

/// Bytes in the form that the gateway expects.
pub(super) fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Bytes in the form that the gateway returns.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Base64(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&str>::deserialize(deserializer)?;
        STANDARD.decode(text).map(Base64).map_err(D::Error::custom)
    }
}

/// A number in a string, or a plain number, as a later gateway might send it.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Number(u64),
    }
    match Either::deserialize(deserializer)? {
        Either::Text(text) => text.parse().map_err(D::Error::custom),
        Either::Number(number) => Ok(number),
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Header {
    #[serde(deserialize_with = "number")]
    pub(super) revision: u64,
}

/// The answer to a transaction. The header's revision is that of what it wrote.
#[derive(Debug, Deserialize)]
pub(super) struct Swapped {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
}

/// The answer to a range request. Without a header it is not etcd's: other JSON must not count as an empty answer.
#[derive(Debug, Deserialize)]
pub(super) struct Ranged {
    #[serde(rename = "header")]
    _header: Header,
    #[serde(default)]
    pub(super) kvs: Vec<Pair>,
    #[serde(default)]
    pub(super) more: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Pair {
    pub(super) key: Base64,
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: u64,
    #[serde(default)]
    pub(super) value: Base64,
}

impl Pair {
    pub(super) fn versioned(self) -> Versioned {
        Versioned { bytes: self.value.0, revision: Revision(self.mod_revision.to_string()) }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Authenticated {
    pub(super) token: String,
}

/// An error answer. etcd 3.4 sends the text twice, as `message` and as `error`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ApiError {
    #[serde(default)]
    pub(super) message: String,
}

/// One line of a watch.
#[derive(Debug, Deserialize)]
pub(super) struct Notice {
    pub(super) result: Option<Watched>,
    pub(super) error: Option<ApiError>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Watched {
    pub(super) created: bool,
    pub(super) canceled: bool,
    pub(super) cancel_reason: String,
    pub(super) events: Vec<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) version: String,
    #[serde(rename = "dbSize", deserialize_with = "number")]
    pub(super) size: u64,
    /// Missing in etcd 3.4; read if a later release has it.
    #[serde(rename = "dbSizeQuota", deserialize_with = "number")]
    pub(super) quota: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Members {
    pub(super) members: Vec<Member>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Member {
    #[serde(rename = "isLearner")]
    pub(super) is_learner: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Alarms {
    pub(super) alarms: Vec<Alarm>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Alarm {
    pub(super) alarm: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_zero_empty_or_false() {
        let found: Ranged = serde_json::from_str(r#"{"header":{"revision":"7"}}"#).unwrap();
        assert!(found.kvs.is_empty() && !found.more);
        let swapped: Swapped = serde_json::from_str(r#"{"header":{"revision":"18446744073709551615"}}"#).unwrap();
        assert_eq!((swapped.succeeded, swapped.header.revision), (false, u64::MAX));
        let pair: Pair = serde_json::from_str(r#"{"key":"YQ==","mod_revision":3}"#).unwrap();
        assert_eq!((pair.key, pair.mod_revision, pair.value), (Base64(b"a".to_vec()), 3, Base64::default()));
        let status: Status = serde_json::from_str(r#"{"version":"3.4.23","dbSize":"20480"}"#).unwrap();
        assert_eq!((status.size, status.quota), (20480, 0));
    }

    #[test]
    fn other_json_is_not_taken_for_nothing_found() {
        for text in ["{}", "[]", "null", r#"{"header":{}}"#, r#"{"header":{"revision":"-1"}}"#] {
            assert!(serde_json::from_str::<Ranged>(text).is_err(), "{text}");
            assert!(serde_json::from_str::<Swapped>(text).is_err(), "{text}");
        }
    }
}
