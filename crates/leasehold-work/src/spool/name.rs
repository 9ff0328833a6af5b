//! The name of an item's file: everything about it but its payload.
//!
//! Promise: names sort by priority, then by the time from which they may be claimed; the
//! last part is the epoch, so that a shell can raise it. Non-promise: a file whose name is
//! not of this form is not an item; if it is in `ready/`, it becomes one when it is claimed.

use crate::queue::{ItemId, Priority};
use leasehold_core::{Epoch, Timestamp};
use std::fmt;

/// The highest epoch that a name may have: a higher one could not be raised often enough.
const HIGHEST: u64 = Epoch::MAX.get() - (1 << 20);

/// `4-1763260000000-ID.t0-5.e0`: nine minus the priority, due time, id, how
/// often it has failed and how often it may be tried, epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileName {
    /// How urgent it is.
    pub priority: Priority,
    /// From when it may be claimed, in the file server's clock.
    pub due: Timestamp,
    /// The item's id.
    pub id: ItemId,
    /// How often it has failed.
    pub tried: u32,
    /// How often it may be tried.
    pub most: u32,
    /// The fencing number, which every claim raises.
    pub epoch: Epoch,
}

impl FileName {
    /// Parses a name; none if the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, epoch) = text.rsplit_once(".e")?;
        let (rest, tries) = rest.rsplit_once(".t")?;
        let (tried, most) = tries.split_once('-')?;
        let (inverse, rest) = rest.split_once('-')?;
        let (due, id) = rest.split_once('-')?;
        let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
        let inverse: Priority = inverse.parse().ok()?;
        let name = FileName {
            priority: Priority::try_from(9 - inverse.get()).ok()?,
            due: Timestamp::from_millis(number(due)?),
            id: id.parse().ok()?,
            tried: u32::try_from(number(tried)?).ok()?,
            most: u32::try_from(number(most)?).ok()?,
            // A file in `ready/` with a higher one is a plain file and gets an epoch of its own.
            epoch: epoch.parse().ok().filter(|epoch: &Epoch| epoch.get() <= HIGHEST)?,
        };
        // Each name has one text: otherwise two files could be one item.
        (name.to_string() == text).then_some(name)
    }

    /// The same under the next epoch.
    #[must_use]
    pub fn raised(&self) -> Self {
        FileName { epoch: self.epoch.next().unwrap_or(self.epoch), ..self.clone() }
    }

    /// The name of this item's note of this kind, under this epoch.
    pub fn note(&self, kind: &str) -> String {
        format!("{}.e{}.{kind}", self.id, self.epoch)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileName { priority, due, id, tried, most, epoch } = self;
        write!(f, "{}-{:013}-{id}.t{tried}-{most}.e{epoch}", 9 - priority.get(), due.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_exactly_one_text() {
        for text in ["4-1763260000000-k.a.e5.t1-1.b.t0-5.e0", "0-0000000000007-0192abcdef0000000000001.t3-5.e12"] {
            assert_eq!(FileName::parse(text).unwrap().to_string(), text);
        }
        for bad in [
            "",
            "job1",
            "4-1763260000000-k.a.t0-5.e",
            "4-1763260000000-k.a.t0-5.e01",
            "4-1763260000000-k.a.t+0-5.e0",
            "4-7-k.a.t0-5.e0",
            "10-1763260000000-k.a.t0-5.e0",
            "4-1763260000000-k.a/../b.t0-5.e0",
            "4-1763260000000-k.a.t0-5.e99999999999999999999",
            "4-1763260000000-k.a.t0-5.e9007199254740991",
        ] {
            assert_eq!(FileName::parse(bad), None, "{bad}");
        }
    }
}
