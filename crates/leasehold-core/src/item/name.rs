//! Names: of a queue, of an item in it, and of a position in its line.
//!
//! Promise: positions sort by priority, then by the time since which the item waits, then by age. Items that are due
//! later are listed apart, sorted by the time from which they may be claimed. A name in the line never stands for two
//! turns of one item. Non-promise: items that two processes added in the same millisecond have no order.

use crate::{Epoch, Error, Key, LeaseName, Nonce, Remedy, Result, Shelf, Timestamp, Token};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest name of a queue, and the longest de-duplication key.
const MAX_BYTES: usize = 64;

fn is_segment(text: &str) -> bool {
    (1..=MAX_BYTES).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !matches!(text, "." | "..")
}

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $field:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// The text: at most 64 bytes, safe as a part of a name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                if is_segment(text) {
                    return Ok($name(text.into()));
                }
                Err(Error::invalid($field, text, "use 1 to 64 of A-Z a-z 0-9 . _ - and not `.` or `..`"))
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                text.parse()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

word!(
    /// The name of a queue.
    QueueName,
    "queue name"
);
word!(
    /// Identifies duplicates: while an item with this key exists, a second one is not added.
    DedupeKey,
    "key"
);

/// The name of an item within its queue: `k.KEY` for one with a de-duplication key, and otherwise a number that grows
/// with time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ItemId(String);

impl ItemId {
    /// A new name. Items that one process adds one after the other sort in that order.
    pub fn fresh(now: Timestamp) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed) & 0xffff;
        let random = Nonce::random().as_u128() as u32;
        ItemId(format!("{:011x}{count:04x}{random:08x}", now.as_millis()))
    }

    /// The name of the item with this key.
    pub fn keyed(key: &DedupeKey) -> Self {
        ItemId(format!("k.{key}"))
    }

    /// Whether its name was made from a key, and can be used again.
    pub fn is_keyed(&self) -> bool {
        self.0.starts_with("k.")
    }

    /// The id as text, as commands and tokens show it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ItemId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let plain = |text: &str| text.len() == 23 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if plain(text) || text.strip_prefix("k.").is_some_and(is_segment) {
            return Ok(ItemId(text.into()));
        }
        let error = Error::invalid("item", text, "use an item's id: 23 hexadecimal digits or k.KEY");
        Err(error.with_remedy(Remedy::ListItems { queue: None }))
    }
}

impl TryFrom<String> for ItemId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An item of a queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemName {
    /// The queue that it is in.
    pub queue: QueueName,
    /// The item in it.
    pub id: ItemId,
}

impl ItemName {
    /// The key of its record.
    pub fn key(&self) -> Result<Key> {
        Ok(Key::new(Shelf::Item, &LeaseName::new(format!("{}/{}", self.queue, self.id))?))
    }

    /// The lease name in its tokens.
    pub fn lease(&self) -> Result<LeaseName> {
        LeaseName::new(format!("{}/{}/{}", LeaseName::ITEMS, self.queue, self.id))
    }

    /// The item that a token belongs to.
    pub fn of(token: &Token) -> Result<Self> {
        let parts: Vec<&str> = token.lease.as_str().split('/').collect();
        match parts[..] {
            [LeaseName::ITEMS, queue, id] => Ok(ItemName { queue: queue.parse()?, id: id.parse()? }),
            _ => Err(Error::invalid("token", token, "it does not belong to an item of a queue")),
        }
    }

    /// A name just before the records of items that were added to this queue at this time or later. Items with a key,
    /// which have no time in their names, sort after all others.
    pub fn added_from(queue: &QueueName, at: Timestamp) -> Result<LeaseName> {
        LeaseName::new(format!("{queue}/{:011x}", at.as_millis()))
    }

    /// The item whose record has this name on its shelf.
    pub fn from_record(name: &LeaseName) -> Option<Self> {
        let (queue, id) = name.as_str().split_once('/')?;
        Some(ItemName { queue: queue.parse().ok()?, id: id.parse().ok()? })
    }
}

impl fmt::Display for ItemName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.queue, self.id)
    }
}

/// How urgent an item is: 0 to 9, higher first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8")]
pub struct Priority(u8);

impl Priority {
    /// The most urgent: 9.
    pub const HIGHEST: Priority = Priority(9);

    /// The number, 0 to 9.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Priority(5)
    }
}

impl TryFrom<u8> for Priority {
    type Error = Error;

    fn try_from(number: u8) -> Result<Self> {
        if number <= 9 { Ok(Priority(number)) } else { Err(Error::invalid("priority", number, "use 0 to 9")) }
    }
}

impl FromStr for Priority {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.as_bytes() {
            [digit @ b'0'..=b'9'] => Ok(Priority(digit - b'0')),
            _ => Err(Error::invalid("priority", text, "use 0 to 9; higher comes first")),
        }
    }
}

/// A position in the line of a queue: one turn of one item.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinePosition {
    /// The item that has this position.
    pub item: ItemName,
    /// The part of the line that it is in.
    pub section: Section,
    /// The time that it sorts by: since when it waits, from when it may be claimed, or until when it is claimed.
    pub at: Timestamp,
    /// The item's epoch when it came to this position. It is never the same twice.
    pub turn: Epoch,
}

/// A part of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// Claimed, until the claim expires.
    Aside,
    /// Not yet due: may be claimed from a given time on. The priority does not affect the order.
    Later(Priority),
    /// May be claimed now, with this priority.
    Waiting(Priority),
}

impl Section {
    /// How urgent the item is; none while it is claimed.
    pub const fn priority(self) -> Option<Priority> {
        match self {
            Section::Aside => None,
            Section::Later(priority) | Section::Waiting(priority) => Some(priority),
        }
    }
}

/// What stands in place of a priority in the names of positions aside, and of those that are due later.
const ASIDE: &str = "-";
const LATER: &str = "-d";

impl LinePosition {
    /// The key of its entry in the line.
    pub fn key(&self) -> Result<Key> {
        let LinePosition { item: ItemName { queue, id }, section, at, turn } = self;
        // Fifteen digits last until the year 33658.
        let at = at.as_millis().min(999_999_999_999_999);
        let urgency =
            if let Section::Later(priority) = section { format!(".{}", 9 - priority.get()) } else { String::new() };
        let name = format!("{queue}/{section}/{at:015}{urgency}/{id}/{turn}");
        Ok(Key::new(Shelf::Line, &LeaseName::new(name)?))
    }

    /// The position that an entry's name stands for; none if it is not a position in this queue's line.
    pub fn parse(queue: &QueueName, name: &LeaseName) -> Option<Self> {
        let rest = name.as_str().strip_prefix(queue.as_str())?.strip_prefix('/')?;
        let parts: Vec<&str> = rest.split('/').collect();
        let [section, at, id, turn] = parts[..] else { return None };
        let priority = |digit: &str| Some(Priority(9 - digit.parse::<Priority>().ok()?.0));
        let (section, at) = match (section, at.split_once('.')) {
            (ASIDE, None) => (Section::Aside, at),
            (LATER, Some((at, digit))) => (Section::Later(priority(digit)?), at),
            (digit, None) => (Section::Waiting(priority(digit)?), at),
            _ => return None,
        };
        Some(LinePosition {
            item: ItemName { queue: queue.clone(), id: id.parse().ok()? },
            section,
            at: Timestamp::from_millis(at.parse().ok()?),
            turn: turn.parse().ok()?,
        })
    }

    /// The order of positions that may all be claimed: by priority, then by time, then by age.
    pub fn rank(&self) -> (Reverse<Option<Priority>>, Timestamp, &ItemId) {
        (Reverse(self.section.priority()), self.at, &self.item.id)
    }

    /// A name just before every position in this part of the queue's line.
    pub fn before(queue: &QueueName, section: Section) -> Result<LeaseName> {
        // `-` is the lowest character that a name may have, and a position continues with a digit.
        LeaseName::new(format!("{queue}/{section}/-"))
    }

    /// A name just behind every position in the queue's line.
    pub fn behind_all(queue: &QueueName) -> Result<LeaseName> {
        // `0` is the character after `/`.
        LeaseName::new(format!("{queue}0"))
    }
}

/// The form in names. It sorts those aside first, then those due later, then from the most urgent to the least.
impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Section::Aside => f.write_str(ASIDE),
            Section::Later(_) => f.write_str(LATER),
            Section::Waiting(priority) => write!(f, "{}", 9 - priority.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(priority: u8, at: u64, id: &ItemId) -> LinePosition {
        let item = ItemName { queue: "mail".parse().unwrap(), id: id.clone() };
        let turn = Epoch::new(3).unwrap();
        let section = Section::Waiting(Priority::try_from(priority).unwrap());
        LinePosition { item, section, at: Timestamp::from_millis(at), turn }
    }

    #[test]
    fn items_sort_by_the_time_at_which_they_were_added_and_those_with_a_key_behind_them() {
        let queue: QueueName = "mail".parse().unwrap();
        let record = |id: ItemId| ItemName { queue: queue.clone(), id }.key().unwrap().name;
        let fresh = |ms| record(ItemId::fresh(Timestamp::from_millis(ms)));
        let now = 1_700_000_000_000;
        let from = ItemName::added_from(&queue, Timestamp::from_millis(now)).unwrap();
        assert!(fresh(now - 1) < from && from < fresh(now) && fresh(now) < fresh(now + 1));
        assert!(fresh(now + 1) < record(ItemId::keyed(&"a".parse().unwrap())));
    }

    #[test]
    fn positions_sort_by_priority_then_by_time_then_by_age() {
        let (first, second) = (ItemId::fresh(Timestamp::from_millis(5)), ItemId::fresh(Timestamp::from_millis(5)));
        let line = [
            LinePosition { section: Section::Aside, ..position(0, 99, &first) },
            LinePosition { section: Section::Later(Priority(0)), ..position(0, 98, &first) },
            LinePosition { section: Section::Later(Priority(9)), ..position(0, 99, &first) },
            LinePosition { section: Section::Later(Priority(3)), ..position(0, 99, &first) },
            position(9, 70, &first),
            position(5, 8, &first),
            position(5, 8, &second),
            position(5, 70, &first),
            position(0, 1, &first),
        ];
        let names: Vec<_> = line.iter().map(|position| position.key().unwrap().name).collect();
        assert!(names.is_sorted(), "{names:?}");
        for (position, name) in line.iter().zip(&names) {
            assert_eq!(LinePosition::parse(&position.item.queue, name).as_ref(), Some(position));
            assert!(LinePosition::before(&position.item.queue, position.section).unwrap() < *name);
            assert!(*name < LinePosition::behind_all(&position.item.queue).unwrap());
        }
        let normal = Section::Waiting(5.try_into().unwrap());
        assert!(names[4] < LinePosition::before(&"mail".parse().unwrap(), normal).unwrap());
    }

    #[test]
    fn another_queues_line_is_not_ours() {
        let position = position(5, 1, &ItemId::keyed(&"a".parse().unwrap()));
        let name = position.key().unwrap().name;
        for other in ["mai", "mail.x", "mail-x", "x"] {
            assert_eq!(LinePosition::parse(&other.parse().unwrap(), &name), None);
        }
    }

    #[test]
    fn wrong_names_say_what_is_allowed() {
        for bad in ["", ".", "..", "a/b", "a b", "é", &"x".repeat(65), "a\n"] {
            assert!(bad.parse::<QueueName>().unwrap_err().to_string().contains("use 1 to 64"), "{bad:?}");
            assert!(bad.parse::<DedupeKey>().is_err() && bad.parse::<ItemId>().is_err(), "{bad:?}");
        }
        for bad in ["", "10", "-1", "+1", "a"] {
            assert!(bad.parse::<Priority>().unwrap_err().to_string().contains("use 0 to 9"), "{bad}");
        }
        assert!("k.".parse::<ItemId>().is_err() && "k.a/b".parse::<ItemId>().is_err());
    }

    #[test]
    fn a_token_leads_back_to_its_item() {
        let item = ItemName { queue: "mail".parse().unwrap(), id: ItemId::keyed(&"a".parse().unwrap()) };
        let token = |lease: LeaseName| Token {
            lease,
            lineage: crate::Lineage::from_u128(1),
            epoch: Epoch::new(1).unwrap(),
            nonce: Nonce::from_u128(1),
            seq: 0,
        };
        assert_eq!(ItemName::of(&token(item.lease().unwrap())).unwrap(), item);
        assert!(ItemName::of(&token("mail/k.a".parse().unwrap())).is_err());
    }
}
