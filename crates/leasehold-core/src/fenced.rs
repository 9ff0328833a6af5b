//! Where stale writes were refused: the last ones of a lease, kept beside its counts.
//!
//! Promise: a bounded number of them, each of bounded size, without the secrets of an address. A writer that is refused repeatedly
//! at one resource takes one place. Non-promise: best effort, as counts are. Who was refused is what that process says of itself.

use crate::epoch::Epoch;
use crate::secret::redacted;
use crate::text::{Line, Who};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// How many refusals are kept of a lease.
pub const FENCED_KEPT: usize = 16;

/// A write that was refused because its token is stale.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FencedWrite {
    /// The epoch of the token.
    pub held: Epoch,
    /// The epoch that it was compared with: of the resource, or of the lease if that had moved on.
    pub seen: Epoch,
    /// The resource, as its guard names it: `file:out.json`.
    pub resource: Line<200>,
    /// Who was refused, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Who>,
}

impl FencedWrite {
    /// A write to this resource. A longer name is cut, and what may be a secret in it is hidden.
    pub fn new(resource: &str, held: Epoch, seen: Epoch, by: Option<Who>) -> Self {
        FencedWrite { held, seen, resource: Line::lossy(&redacted(resource), "unnamed"), by }
    }
}

/// The same write, refused once or several times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FencedMark {
    /// When it was last refused, by the store's clock.
    pub at: Timestamp,
    /// How often it was.
    pub times: u64,
    /// What was refused, and where.
    pub write: FencedWrite,
}

/// Adds a refusal as the latest. The oldest make room.
pub(crate) fn remember(marks: &mut Vec<FencedMark>, write: FencedWrite, now: Timestamp) {
    let before = marks.iter().position(|mark| mark.write == write).map(|at| marks.remove(at));
    let times = before.map_or(0, |mark| mark.times).saturating_add(1);
    marks.push(FencedMark { at: now, times, write });
    marks.drain(..marks.len().saturating_sub(FENCED_KEPT));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn write(held: u64, resource: &str) -> FencedWrite {
        FencedWrite::new(resource, Epoch::new(held).unwrap(), Epoch::new(99).unwrap(), None)
    }

    #[test]
    fn the_latest_are_kept_and_a_repeated_one_takes_one_place() {
        let mut marks = Vec::new();
        for n in 0..40 {
            remember(&mut marks, write(n, "file:a"), Timestamp::from_millis(n));
            remember(&mut marks, write(1, "file:loop"), Timestamp::from_millis(n));
        }
        assert_eq!(marks.len(), FENCED_KEPT);
        let last = marks.last().unwrap();
        assert_eq!((last.write.resource.as_str(), last.times, last.at.as_millis()), ("file:loop", 40, 39));
        let held: Vec<u64> = marks.iter().rev().skip(1).map(|mark| mark.write.held.get()).collect();
        assert_eq!(held, (25..40).rev().collect::<Vec<_>>());
    }

    #[test]
    fn a_resource_is_one_short_line_without_secrets() {
        let shown = |text: &str| write(1, text).resource.as_str().to_owned();
        assert_eq!(shown("git:https://joe:hunter2@host/x"), "git:https://joe:***@host/x");
        assert_eq!(shown("file:a\nb"), "file:ab");
        assert_eq!(shown(&"x".repeat(9_000)).len(), 200);
        assert_eq!(shown("\n"), "unnamed");
    }
}
