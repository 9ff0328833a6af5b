//! Why a lease could not be acquired: somebody holds it or held it just now, or an operator has paused it. Not an error.

use leasehold_core::lease::protocol::Refusal;
use leasehold_core::{Epoch, Error, HolderId, Kind, LeaseName, Timestamp, format_duration};
use std::fmt;
use std::time::Duration;

/// Who holds the lease, or who has paused it.
#[derive(Debug, Clone)]
pub struct Busy {
    lease: LeaseName,
    refusal: Refusal,
    now: Timestamp,
}

impl Busy {
    /// An error if it is a refusal that waiting does not end.
    pub(crate) fn new(lease: LeaseName, refusal: Refusal, now: Timestamp) -> Result<Self, Error> {
        match refusal {
            Refusal::Held { .. } | Refusal::Paused(_) | Refusal::Draining(_) | Refusal::TooSoon { .. } => {
                Ok(Busy { lease, refusal, now })
            }
            other => Err(Error::new(Kind::Invalid, format!("lease `{lease}` cannot be acquired: {other}"))),
        }
    }

    /// The name of the lease.
    pub fn lease(&self) -> &str {
        self.lease.as_str()
    }

    /// Who holds it; nobody if it is paused.
    pub fn holder(&self) -> Option<&HolderId> {
        match &self.refusal {
            Refusal::Held { tenure, .. } => Some(&tenure.holder),
            _ => None,
        }
    }

    /// The epoch under which it is held.
    pub fn epoch(&self) -> Option<Epoch> {
        match &self.refusal {
            Refusal::Held { epoch, .. } => Some(*epoch),
            _ => None,
        }
    }

    /// After how long it expires unless its holder renews it.
    pub fn expires_in(&self) -> Option<Duration> {
        match &self.refusal {
            Refusal::Held { tenure, .. } => Some(tenure.deadline.saturating_since(self.now)),
            _ => None,
        }
    }

    /// Whether an operator has paused it. Its present holder continues; nobody else can acquire it.
    pub fn is_paused(&self) -> bool {
        matches!(self.refusal, Refusal::Paused(_))
    }

    /// The same as an error, for a caller that needs the lease.
    pub(crate) fn into_error(self) -> Error {
        Error::new(Kind::Contended, self.to_string()).with_holder(self.holder().cloned())
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = &self.lease;
        match &self.refusal {
            Refusal::Held { tenure, epoch } => {
                let left = Duration::from_secs(tenure.deadline.saturating_since(self.now).as_secs());
                let left = format_duration(left);
                write!(f, "`{lease}` is held by {} (epoch {epoch}); expires in {left} unless renewed", tenure.holder)
            }
            Refusal::Paused(mark) => write!(f, "`{lease}` was paused by {}: {}", mark.by, mark.why),
            Refusal::TooSoon { until, .. } => {
                let left = format_duration(until.saturating_since(self.now));
                write!(f, "the last run of `{lease}` began too recently; the next may begin in {left}")
            }
            other => write!(f, "`{lease}`: {other}"),
        }
    }
}
