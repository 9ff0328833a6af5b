//! Lease names, and the keys under which stores keep records.
//!
//! Promise: a valid name is safe in a URL and in a log line, and cannot leave a folder. Non-promise: names are compared
//! byte by byte; `Daily` and `daily` are two leases.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 200;

/// The first segment of the leases by which proxies decide which of them is active.
pub const PROXY_FOLDER: &str = "proxy";

const ALLOWED: &str =
    "use segments of A-Z a-z 0-9 . _ - separated by `/`, at most 200 bytes, and no `.` or `..` segment";

/// The name of a lease, such as `daily-publish` or `team-a/reports/weekly`.
///
/// ```
/// use leasehold_core::LeaseName;
/// assert_eq!(LeaseName::new("team-a/reports")?.seat(2)?.as_str(), "team-a/reports/seat-2");
/// let error = LeaseName::new("daily publish").unwrap_err();
/// assert!(error.to_string().starts_with("invalid lease name `daily publish`: character ` ` at byte 5"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct LeaseName(String);

impl LeaseName {
    /// The first segment of an item's lease name in its tokens: `queue/QUEUE/ID`.
    pub const ITEMS: &'static str = "queue";
    /// The same for an item of a spool: `spool/ID`.
    pub const SPOOL_ITEMS: &'static str = "spool";

    /// Parses a name, or says which part of it is wrong and what is allowed.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let refuse = |what: String| Err(Error::invalid("lease name", &name, format!("{what}; {ALLOWED}")));
        if name.is_empty() {
            return refuse("it is empty".into());
        }
        if name.len() > MAX_NAME_BYTES {
            return refuse(format!("it has {} bytes", name.len()));
        }
        if let Some((at, c)) =
            name.char_indices().find(|(_, c)| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/')))
        {
            return refuse(format!("character `{}` at byte {at} is not allowed", c.escape_debug()));
        }
        for segment in name.split('/') {
            match segment {
                "" => return refuse("it has an empty segment".into()),
                "." | ".." => return refuse(format!("segment `{segment}` is not allowed")),
                _ => {}
            }
        }
        Ok(LeaseName(name))
    }

    /// Parses the name of a lease that somebody wants to hold. Refuses the
    /// reserved names, which begin with `queue/`, `spool/` or `proxy/`.
    ///
    /// ```
    /// use leasehold_core::LeaseName;
    /// assert!(LeaseName::to_hold("proxies/api").is_ok());
    /// assert!(LeaseName::to_hold("proxy/api").is_err());
    /// assert!(LeaseName::to_hold("queue/mail/k.7").is_err());
    /// ```
    pub fn to_hold(name: impl Into<String>) -> Result<Self> {
        let name = LeaseName::new(name)?.of_a_lease()?;
        if name.folder() == Some(PROXY_FOLDER) {
            let why = "names that begin with `proxy/` are the leases of the reverse proxy itself; use another name";
            return Err(Error::invalid("lease name", &name, why));
        }
        Ok(name)
    }

    /// The same name; an error if it is reserved for the tokens of items. No lease has such a name.
    pub fn of_a_lease(self) -> Result<Self> {
        self.check_lease().map(|()| self)
    }

    /// Refuses the names that are reserved for the tokens of items.
    pub fn check_lease(&self) -> Result<()> {
        let what = match self.folder() {
            Some(LeaseName::ITEMS) => "names that begin with `queue/` are items of queues",
            Some(LeaseName::SPOOL_ITEMS) => "names that begin with `spool/` are items of spools",
            _ => return Ok(()),
        };
        Err(Error::invalid("lease name", self, format!("{what}; use another name for a lease")))
    }

    /// The first segment, if there are others.
    pub fn folder(&self) -> Option<&str> {
        self.0.split_once('/').map(|(first, _)| first)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of seat `number` of a lease that several may hold at once. Seat 1 is the lease itself, so that raising
    /// the limit from one to three never admits a fourth holder.
    pub fn seat(&self, number: u32) -> Result<Self> {
        if number <= 1 { Ok(self.clone()) } else { LeaseName::to_hold(format!("{}/seat-{number}", self.0)) }
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LeaseName {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        LeaseName::new(s)
    }
}

impl TryFrom<String> for LeaseName {
    type Error = Error;

    fn try_from(s: String) -> Result<Self> {
        LeaseName::new(s)
    }
}

leasehold_system::words! {
    /// A kind of record.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Shelf {
        /// Ownership records: never erased.
        Lease = "lease",
        /// Outcome counters, one record per lease.
        Counters = "counters",
        /// Fences of resources that cannot store one themselves: never erased.
        Fence = "fence",
        /// Scratch records of `doctor` and of the conformance suite.
        Probe = "probe",
        /// Old transfers of leases, in segments. Erased when they exceed the retention.
        History = "history",
        /// Journals of scheduled jobs: what became of each due slot, one record per job.
        Runs = "runs",
        /// Definitions of scheduled jobs, as schedulers publish them, one record per job. Erased when the job is retired.
        Job = "job",
        /// What people were notified of about a lease or a queue, one record per name.
        Watch = "watch",
        /// One record per queue, written to wake workers when there is new work.
        Queue = "queue",
        /// The items of queues. Erased only when an operator purges finished ones.
        Item = "item",
        /// The items' positions in line: hints, erased when the item is finished.
        Line = "line",
        /// The ends of runs' output, in a ring of records per lease or queue.
        Output = "output",
        /// One record for the namespace as a whole, such as the mark that it moved to another store: never erased.
        Namespace = "namespace",
        /// Keys of the server, and when each was last used, in the server's own namespace.
        Access = "access",
        /// Requests for runs of jobs, one record per namespace.
        Request = "request",
        /// Servers, schedulers and workers, one record each while it lives.
        /// Erased when it ends, or a day after its last write.
        Presence = "presence",
    }
}

impl Shelf {
    /// Whether nothing on this shelf is ever erased, because without it an old
    /// epoch or a store that has moved would be accepted again.
    pub const fn is_permanent(self) -> bool {
        matches!(self, Shelf::Lease | Shelf::Fence | Shelf::Namespace)
    }
}

/// Where a record is stored: a shelf and a name on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The kind of record: names are unique only within one.
    pub shelf: Shelf,
    /// The name on it.
    pub name: LeaseName,
}

impl Key {
    /// The key of this name on this shelf.
    pub fn new(shelf: Shelf, name: &LeaseName) -> Self {
        Key { shelf, name: name.clone() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shelf.as_str(), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_parse() {
        for name in ["a", "daily-publish", "team-a/reports/weekly", ".hidden", "a..b", "A_1.2-3", &"x".repeat(200)] {
            assert_eq!(LeaseName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn bad_names_say_what_is_wrong() {
        for (name, says) in [
            ("", "empty"),
            ("a b", "character ` ` at byte 1"),
            ("a//b", "empty segment"),
            ("/a", "empty segment"),
            ("a/", "empty segment"),
            ("a/../b", "segment `..`"),
            (".", "segment `.`"),
            ("café", "character `é`"),
            ("a\nb", "character `\\n`"),
            ("a:b", "character `:`"),
            (&"x".repeat(201), "201 bytes"),
        ] {
            let error = LeaseName::new(name).unwrap_err().to_string();
            assert!(error.contains(says), "{name:?} gave {error}");
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn seat_one_is_the_lease_itself() {
        let name = LeaseName::new("x").unwrap();
        assert_eq!(name.seat(1).unwrap(), name);
        assert_eq!(name.seat(3).unwrap().as_str(), "x/seat-3");
    }

    #[test]
    fn reserved_names_are_nobodys_to_hold() {
        for name in ["queue/a", "queue/mail/k.7", "spool/k.7", "proxy/api"] {
            let error = LeaseName::to_hold(name).unwrap_err().to_string();
            assert!(error.contains("names that begin with"), "{error}");
            assert!(LeaseName::new(name).is_ok(), "it can be looked at");
        }
        for name in ["queue", "spool", "proxy", "queues/a", "my/queue/a"] {
            assert!(LeaseName::to_hold(name).is_ok(), "{name}");
        }
        for name in ["queue", "spool", "proxy"] {
            assert!(LeaseName::new(name).unwrap().seat(2).is_err(), "its seats would be reserved names");
        }
    }
}
