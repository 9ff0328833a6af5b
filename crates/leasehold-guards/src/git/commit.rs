//! The fence as an object of git: a commit with an empty tree, whose message carries the high water.
//!
//! Promise: no two fence commits are equal, so the commit that a ref points at tells which push moved it there. What
//! was written is read back; anything else is an error. Non-promise: the commits have no parents.

use crate::succession::Former;
use leasehold_core::guard::HighWater;
use leasehold_core::{Error, Kind, Nonce, Result, Token};

/// How many of the fence's earlier commits are named.
pub(crate) const TRAIL: usize = 16;

const TITLE: &str = "leasehold fence 1";

/// The name of an object: hexadecimal digits, 40 or 64 of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Oid(String);

impl Oid {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then(|| Oid(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name that stands for no object.
    pub(crate) fn is_null(&self) -> bool {
        self.0.bytes().all(|b| b == b'0')
    }
}

/// A fence was given to another lease of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Adopted {
    /// What the fence was.
    pub(crate) from: Token,
    /// Who did it, and why: one line for people.
    pub(crate) note: String,
}

/// What a fence commit says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FenceMessage {
    pub(crate) high: HighWater,
    /// The commits that the fence pointed at before, the latest first. They tell whether a push without an answer was
    /// applied.
    pub(crate) after: Vec<Oid>,
    /// Only in the commit that gives the fence away.
    pub(crate) adopted: Option<Adopted>,
    /// The leases of this name that had the fence before: in every commit from then on.
    pub(crate) former: Former,
    /// Makes the commit unique.
    pub(crate) push: Nonce,
}

impl FenceMessage {
    pub(crate) fn new(high: HighWater, after: Vec<Oid>, former: Former) -> Self {
        FenceMessage { high, after, adopted: None, former, push: Nonce::random() }
    }

    pub(crate) fn adopted(mut self, adopted: Option<Adopted>) -> Self {
        self.adopted = adopted;
        self
    }

    /// The message of the commit.
    pub(crate) fn message(&self) -> String {
        let HighWater { lease, lineage, epoch, nonce, seq } = &self.high;
        let after = self.after.iter().map(Oid::as_str).collect::<Vec<_>>().join(" ");
        let after = if after.is_empty() { "-" } else { &after };
        let adopted = self.adopted.as_ref();
        let adopted = adopted.map_or("-".to_owned(), |adopted| format!("{} {}", adopted.from.wire(), adopted.note));
        let former = match self.former.to_string() {
            none if none.is_empty() => "-".to_owned(),
            former => former,
        };
        let push = self.push;
        format!(
            "{TITLE}\n\nlease: {lease}\nlineage: {lineage}\nepoch: {epoch}\nnonce: {nonce}\nseq: {seq}\nafter: \
             {after}\nadopted: {adopted}\nformer: {former}\npush: {push}\n"
        )
    }

    /// Reads a commit object back.
    pub(crate) fn read(commit: &str, fence: &str) -> Result<Self> {
        let corrupt = |what: &str| {
            let message = format!(
                "corrupt fence: `{fence}` on the remote {what}; leasehold did not write it. Look at it with `git \
                 ls-remote`, and ask who did"
            );
            Error::new(Kind::Corrupt, message)
        };
        let (_, message) = commit.split_once("\n\n").ok_or_else(|| corrupt("has no message"))?;
        let mut lines = message.lines();
        match lines.next() {
            Some(TITLE) => {}
            Some(title) if title.starts_with("leasehold fence ") => {
                let message =
                    format!("fence `{fence}` was written by a newer leasehold (`{title}`); upgrade leasehold");
                return Err(Error::new(Kind::Unsupported, message));
            }
            _ => return Err(corrupt("is not a fence of leasehold")),
        }
        if lines.next() != Some("") {
            return Err(corrupt("is damaged after its title"));
        }
        let mut field = |name: &str| {
            let value = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.ok_or_else(|| corrupt(&format!("has no field `{name}`")))
        };
        let wrong = |name: &str| corrupt(&format!("has a wrong `{name}`"));
        let high = HighWater {
            lease: field("lease")?.parse().map_err(|_| wrong("lease"))?,
            lineage: field("lineage")?.parse().map_err(|_| wrong("lineage"))?,
            epoch: field("epoch")?.parse().map_err(|_| wrong("epoch"))?,
            nonce: field("nonce")?.parse().map_err(|_| wrong("nonce"))?,
            seq: field("seq")?.parse().map_err(|_| wrong("seq"))?,
        };
        let after = match field("after")? {
            "-" => Vec::new(),
            oids => oids.split(' ').map(Oid::parse).collect::<Option<_>>().ok_or_else(|| wrong("after"))?,
        };
        let adopted = match field("adopted")? {
            "-" => None,
            text => {
                let (from, note) = text.split_once(' ').ok_or_else(|| wrong("adopted"))?;
                Some(Adopted { from: from.parse().map_err(|_| wrong("adopted"))?, note: note.to_owned() })
            }
        };
        let former = match field("former")? {
            "-" => Former::default(),
            text => Former::parse(text).ok_or_else(|| wrong("former"))?,
        };
        Ok(FenceMessage { high, after, adopted, former, push: field("push")?.parse().map_err(|_| wrong("push"))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Epoch, Lineage};

    fn high() -> HighWater {
        let nonce = Nonce::from_u128(7);
        HighWater {
            lease: "team/daily".parse().unwrap(),
            lineage: Lineage::from_u128(5),
            epoch: Epoch::new(42).unwrap(),
            nonce,
            seq: 3,
        }
    }

    #[test]
    fn what_was_inscribed_is_read_back_and_nothing_else() {
        let oids = [Oid::parse(&"a1".repeat(20)), Oid::parse(&"0f".repeat(32))].map(Option::unwrap);
        let adopted = Adopted { from: high().token(), note: "by ops: moved to another store".into() };
        for (after, adopted) in [(&oids[..0], None), (&oids[..1], Some(adopted)), (&oids, None)] {
            let fence_message = FenceMessage::new(high(), after.to_vec(), Former::default()).adopted(adopted);
            let commit = format!("tree x\nauthor y\n\n{}", fence_message.message());
            assert_eq!(FenceMessage::read(&commit, "refs/fence/x").unwrap(), fence_message);
            for at in 0..commit.len() {
                // Whatever is cut off, it is an error or, of the last line's end only, nothing.
                let cut = FenceMessage::read(&commit[..at], "refs/fence/x");
                assert!(cut.is_err() || at + 1 == commit.len(), "{at}");
            }
        }
        for bad in ["", "tree x\n\nhello\n", "tree x\n\nleasehold fence 1\n\nlease: a b\n"] {
            assert_eq!(FenceMessage::read(bad, "f").unwrap_err().kind(), Kind::Corrupt, "{bad}");
        }
        let newer = FenceMessage::read("tree x\n\nleasehold fence 2\n\n", "f").unwrap_err();
        assert_eq!(newer.kind(), Kind::Unsupported);
    }

    #[test]
    fn two_commits_of_one_high_water_differ() {
        let made = || FenceMessage::new(high(), Vec::new(), Former::default()).message();
        assert_ne!(made(), made());
    }
}
