//! Values that answers share.

use leasehold_core::{Drain, Error, HolderId, OperatorMark, Progress, Slot, SlotMark, Timestamp};
use leasehold_work::queue::Payload;
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// A time by the store's clock, in two forms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Time {
    /// In RFC 3339, in UTC.
    pub at: String,
    /// In milliseconds since 1970.
    pub ms: u64,
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        let ms = time.as_millis();
        let instant = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        Time { at: instant.map_or_else(|| format!("{ms}ms"), |instant| format!("{instant:.3}")), ms }
    }
}

impl From<Slot> for Time {
    fn from(slot: Slot) -> Self {
        slot.0.into()
    }
}

/// A duration in whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Who holds something, without what would let somebody else act in its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Holder {
    /// What it calls itself.
    pub label: String,
    /// Its machine; `key-ID` if it came through this API.
    pub host: String,
    /// Its process id; 0 if it came through this API.
    pub pid: u32,
}

impl From<&HolderId> for Holder {
    fn from(holder: &HolderId) -> Self {
        Holder { label: holder.label().to_string(), host: holder.host().to_owned(), pid: holder.pid() }
    }
}

/// An operator's order: who gave it, why and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Mark {
    /// The operator, as histories name them.
    pub by: String,
    /// The operator's reason.
    pub why: String,
    /// When, by the store's clock.
    pub at: Time,
}

impl From<&OperatorMark> for Mark {
    fn from(mark: &OperatorMark) -> Self {
        Mark { by: mark.by.to_string(), why: mark.why.to_string(), at: mark.at.into() }
    }
}

/// A pause of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Pause {
    /// What names this pause, and no other: for `resume`.
    pub pause: String,
    /// The operator, as histories name them.
    pub by: String,
    /// The operator's reason.
    pub why: String,
    /// When, by the store's clock.
    pub at: Time,
}

impl From<&OperatorMark> for Pause {
    fn from(mark: &OperatorMark) -> Self {
        let Mark { by, why, at } = mark.into();
        Pause { pause: mark.nonce.to_string(), by, why, at }
    }
}

/// An operator's request to the holder to finish. Nobody new gets the lease or item until then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Draining {
    /// The operator, as histories name them.
    pub by: String,
    /// The operator's reason.
    pub why: String,
    /// Until when, by the store's clock.
    pub until: Time,
}

impl From<&Drain> for Draining {
    fn from(drain: &Drain) -> Self {
        Draining { by: drain.asked().by.to_string(), why: drain.asked().why.to_string(), until: drain.until().into() }
    }
}

/// A report of progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Report {
    /// When it was reported.
    pub at: Time,
    /// The epoch under which it was reported.
    pub epoch: u64,
    /// In the worker's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marker: Option<String>,
    /// What the next attempt needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

impl From<&Progress> for Report {
    fn from(progress: &Progress) -> Self {
        Report {
            at: progress.at.into(),
            epoch: progress.epoch.get(),
            marker: progress.marker.as_ref().map(ToString::to_string),
            checkpoint: progress.checkpoint.as_ref().map(|checkpoint| checkpoint.as_str().to_owned()),
        }
    }
}

/// The newest scheduled slot of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SlotState {
    /// The slot's instant.
    pub at: Time,
    /// `running`, `done`, `failed` or `rewound`.
    pub state: &'static str,
    /// The epoch that claimed it.
    pub epoch: u64,
}

impl From<SlotMark> for SlotState {
    fn from(mark: SlotMark) -> Self {
        SlotState { at: mark.slot.into(), state: mark.state.as_str(), epoch: mark.epoch.get() }
    }
}

/// Bytes that were sent as text, or in base64: one or the other.
pub fn bytes(field: &str, text: Option<String>, base64: Option<String>) -> Result<Option<Vec<u8>>, Error> {
    use base64::Engine;
    match (text, base64) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(base64)) => match base64::engine::general_purpose::STANDARD.decode(base64) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => Err(Error::invalid(&format!("{field}_base64"), "…", "it is no base64 with padding")),
        },
        (Some(_), Some(_)) => {
            Err(Error::invalid(field, "…", format!("give `{field}`, which is text, or `{field}_base64`, not both")))
        }
    }
}

/// Bytes as text, if they are text, and in base64 if not.
pub fn shown(payload: &Payload) -> (Option<String>, Option<String>) {
    match payload.text() {
        Some(text) => (Some(text.to_owned()), None),
        None => (None, Some(payload.base64())),
    }
}
