//! Who holds a lease.
//!
//! Promise: two acquisitions never have the same id, even by one process under one
//! label. Non-promise: host and pid are for people; no decision depends on them.

use crate::codec;
use crate::error::{Error, Result};
use crate::nonce::Nonce;
use crate::text::Label;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Host, process, label and the 128-bit nonce that makes the id unique.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HolderId {
    /// 1 to 64 printable ASCII characters without `:`. An id with any other host is never stored.
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) nonce: Nonce,
    pub(crate) label: Label,
}

impl HolderId {
    /// A new id for this process, with a fresh nonce. Without a label, the machine's name is used.
    pub fn new(label: Option<Label>) -> Self {
        let host: String = leasehold_system::host::name().chars().filter(|c| *c != ':').collect();
        let label = label.unwrap_or_else(|| Label::lossy(&host, "unnamed"));
        HolderId { host, pid: leasehold_system::host::pid(), nonce: Nonce::random(), label }
    }

    /// An id of these parts, for a caller that holds on behalf of another process. The host has 1 to 64 printable ASCII
    /// characters without `:`; an id with any other host cannot be stored.
    pub fn of(host: impl Into<String>, pid: u32, nonce: Nonce, label: Label) -> Self {
        HolderId { host: host.into(), pid, nonce, label }
    }

    /// The same holder, for another acquisition.
    #[must_use]
    pub fn with_nonce(self, nonce: Nonce) -> Self {
        HolderId { nonce, ..self }
    }

    /// The machine that it runs on.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its process id on that machine; 0 if the process is not known.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// The grant's nonce: no two acquisitions have the same.
    pub const fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// What the holder calls itself: the machine's name if nobody set a label.
    pub const fn label(&self) -> &Label {
        &self.label
    }
}

impl fmt::Display for HolderId {
    /// For people: `label (host, pid 123)`, or `host, pid 123` when the label says no more than the host.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.label.as_str() == self.host {
            write!(f, "{} (pid {})", self.host, self.pid)
        } else {
            write!(f, "{} ({}, pid {})", self.label, self.host, self.pid)
        }
    }
}

impl FromStr for HolderId {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let refuse = || Error::invalid("holder", s, "use NONCE:PID:HOST:LABEL");
        let mut parts = s.splitn(4, ':');
        let mut part = || parts.next().ok_or_else(refuse);
        let (nonce, pid, host, label) = (part()?, part()?, part()?, part()?);
        if !is_host(host) {
            return Err(refuse());
        }
        Ok(HolderId {
            host: host.into(),
            pid: pid.parse().map_err(|_| refuse())?,
            nonce: nonce.parse()?,
            label: label.parse()?,
        })
    }
}

impl<'de> Deserialize<'de> for HolderId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        codec::parsed(deserializer)
    }
}

impl From<HolderId> for String {
    fn from(id: HolderId) -> String {
        format!("{}:{}:{}:{}", id.nonce, id.pid, id.host, id.label)
    }
}

impl Serialize for HolderId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // An id that cannot be read back must not be written: nobody could ever use the lease again.
        if !is_host(&self.host) {
            let host = crate::error::printable(&self.host);
            return Err(serde::ser::Error::custom(format!(
                "host `{host}` is not 1 to 64 printable characters without `:`"
            )));
        }
        // Without an intermediate copy, because a full record has thirty of them.
        serializer.collect_str(&format_args!("{}:{}:{}:{}", self.nonce, self.pid, self.host, self.label))
    }
}

fn is_host(host: &str) -> bool {
    (1..=64).contains(&host.len()) && host.bytes().all(|b| b.is_ascii_graphic() && b != b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ids_with_one_label_differ() {
        let label: Label = "worker".parse().unwrap();
        assert_ne!(HolderId::new(Some(label.clone())).nonce, HolderId::new(Some(label)).nonce);
    }

    #[test]
    fn an_id_survives_its_text_form_even_with_colons_in_the_label() {
        let id = HolderId::new(Some("a:b: c".parse().unwrap()));
        assert_eq!(String::from(id.clone()).parse::<HolderId>().unwrap(), id);
    }
}
