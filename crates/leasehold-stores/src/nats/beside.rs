//! The tail of a record, beside it: what is renewed again and again leaves its old transfers out.
//!
//! Promise: a message without its tail names one that was stored before it, under a subject of its own that is written
//! once, and that nobody drops before the record has gone on with a message that has everything in it.
//! Non-promise: what a holder that died has put aside stays until the next one does, a few kilobytes for a lease.
//!
//! ```text
//! acquire    head and tail
//! renew      head and tail, and in the same breath the tail aside
//! renew ...  head, and in its header where the tail is
//! release    head and tail
//! ```
//!
//! So whoever comes to a lease that is free reads one message, and only who looks at one that is held reads two.

use super::connection::{self, Connection, Failure};
use super::wire::{Ack, Purge, Stored};
use super::{Change, EXPECTED, NatsStore, Offered, json};
use async_nats::HeaderMap;
use leasehold_core::store::{Parts, Revision, Tail, Versioned};
use leasehold_core::{Error, Key, Kind, Result};
use std::fmt;
use std::time::Duration;
use tokio::time::timeout;

/// How long a tail may take after the record that it was sent with.
const AT_ONCE: Duration = Duration::from_millis(100);
/// How often a tail that is missing is looked for again, and how long to wait in between.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// A shorter tail is not worth a message of its own.
const WORTH: usize = 512;
/// The header that names the tail of a message which has none.
pub(super) const HEADER: &str = "Leasehold-Tail";

/// What a tail that lies beside its record is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TailId(String);

impl TailId {
    pub(super) fn new() -> Self {
        TailId(leasehold_core::Nonce::random().to_string())
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_ours = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_ours.then(|| TailId(text.to_owned()))
    }
}

impl fmt::Display for TailId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What lies beside the last message of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// Nothing yet; but its holder has it and will renew.
    Soon,
    /// Its tail.
    Tail(TailId),
}

/// The last message of a record, as its revision tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) seq: u64,
    pub(super) beside: Beside,
}

impl Last {
    /// A revision that this store never gave stands for no message at all.
    pub(super) fn parse(revision: &Revision) -> Option<Self> {
        let (seq, beside) = match revision.0.split_once('+') {
            Some((seq, "")) => (seq, Beside::Soon),
            Some((seq, tail)) => (seq, Beside::Tail(TailId::parse(tail)?)),
            None => (&*revision.0, Beside::Nothing),
        };
        Some(Last { seq: seq.parse().ok().filter(|seq| *seq > 0)?, beside })
    }

    pub(super) fn revision(&self) -> Revision {
        Revision(match &self.beside {
            Beside::Nothing => self.seq.to_string(),
            Beside::Soon => format!("{}+", self.seq),
            Beside::Tail(tail) => format!("{}+{tail}", self.seq),
        })
    }
}

/// How the next message of a record is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// With everything in it.
    Whole,
    /// The same, and the tail beside it for the messages to come.
    Both(TailId),
    /// Without its tail, which lies here.
    Head(TailId),
}

impl Form {
    /// The form of what comes after this message; none stands for a record that is new.
    pub(super) fn of(next: &Parts<'_>, last: Option<&Last>) -> Self {
        let Some(last) = last.filter(|_| !next.is_news && next.tail().len() >= WORTH) else { return Form::Whole };
        match (&last.beside, next.tail) {
            (Beside::Nothing, _) => Form::Whole,
            (Beside::Tail(tail), Tail::Kept(_)) => Form::Head(tail.clone()),
            (Beside::Soon | Beside::Tail(_), _) => Form::Both(TailId::new()),
        }
    }
}

impl NatsStore {
    /// A subject's last message as a record, with its tail; none if it says that there is none.
    pub(super) async fn value(
        &self,
        connection: &Connection,
        subject: &str,
        stored: Option<Stored>,
    ) -> Result<Option<Versioned>, Failure> {
        let Some(mut stored) = stored.filter(|stored| !stored.is_erasure()) else { return Ok(None) };
        let bytes =
            |stored: &Stored| stored.bytes().ok_or_else(|| Failure::Garbled("a record that is not base64".into()));
        let mut again = 0;
        loop {
            let tail = stored.tail();
            let beside = tail.clone().map_or(Beside::Nothing, Beside::Tail);
            let revision = Last { seq: stored.seq, beside }.revision();
            let Some(tail) = tail else { return Ok(Some(Versioned::whole(bytes(&stored)?, revision))) };
            if let Some(tail) = self.last(connection, &self.names.tail(subject, &tail)).await? {
                return Ok(Some(Versioned::parted(bytes(&stored)?, &bytes(&tail)?, revision)));
            }
            // Dropped, because the record has gone on.
            match self.last(connection, subject).await?.filter(|stored| !stored.is_erasure()) {
                None => return Ok(None),
                Some(now) if now.seq > stored.seq => stored = now,
                Some(_) if again == LOOKS => return Err(self.torn(subject)),
                // One who was the leader a moment ago may have told an old one.
                Some(now) => {
                    again += 1;
                    tokio::time::sleep(BETWEEN_LOOKS).await;
                    stored = now;
                }
            }
        }
    }

    fn torn(&self, subject: &str) -> Failure {
        let message = format!(
            "the record `{subject}` at {} is damaged: its older half was dropped from the stream `{}`; restore both",
            self.connections.config.place, self.names.stream
        );
        Failure::Unasked(Error::new(Kind::Corrupt, message))
    }

    /// Puts a tail beside its record; gives its name if it surely lies there now.
    async fn put_beside(&self, key: &Key, bytes: &[u8], tail: TailId) -> Option<TailId> {
        let connection = self.connections.connection().await.ok()?;
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED, "0");
        let subject = self.names.tail(&self.names.subject(key), &tail);
        let told = connection.ask(&subject, Some(headers), bytes.to_vec()).await;
        told.and_then(|message| connection::read::<Ack>(&message)).ok().map(|_| tail)
    }

    /// Drops the tails that lay beside a record before this message of it, which had everything in it or was followed by
    /// one that has.
    pub(super) async fn drop_tails(&self, key: &Key, before: u64) {
        if let Ok(connection) = self.connections.connection().await {
            let purge = Purge { filter: &self.names.tails(&self.names.subject(key)), seq: before };
            connection.tell(format!("$JS.API.STREAM.PURGE.{}", self.names.stream), json(&purge)).await;
        }
    }

    /// Writes a record in this form.
    pub(super) async fn write_as(
        &self,
        key: &Key,
        last: u64,
        next: Parts<'_>,
        form: Form,
    ) -> Result<(Offered, Beside)> {
        let without = if next.is_news { Beside::Nothing } else { Beside::Soon };
        match form {
            Form::Whole => Ok((self.write(key, last, Change::Value(&next.joined())).await?, without)),
            Form::Head(tail) => Ok((self.write(key, last, Change::Head(next.head, &tail)).await?, Beside::Tail(tail))),
            Form::Both(tail) => {
                let whole = next.joined();
                let put = self.put_beside(key, next.tail(), tail);
                let write = self.write(key, last, Change::Value(&whole));
                tokio::pin!(put, write);
                let (written, tail) = tokio::select! {
                    tail = &mut put => (write.await, tail),
                    // It left together with the record, so it is there at once, or the record does without.
                    written = &mut write => (written, timeout(AT_ONCE, put).await.ok().flatten()),
                };
                let written = written?;
                if tail.is_some() && matches!(written, Offered::Stored(..)) {
                    self.drop_tails(key, last).await;
                }
                Ok((written, tail.map_or(without, Beside::Tail)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_gives_back_what_it_was_made_of() {
        for beside in [Beside::Nothing, Beside::Soon, Beside::Tail(TailId::new())] {
            for seq in [7, u64::MAX] {
                let last = Last { seq, beside: beside.clone() };
                assert_eq!(Last::parse(&last.revision()), Some(last));
            }
        }
        for foreign in ["", "0", "-1", "x", "+", "7+x", "+7", "0+", "0+ab", "7+ab+", "erased-7", "99999999999999999999"]
        {
            assert_eq!(Last::parse(&Revision(foreign.into())), None, "{foreign}");
        }
    }

    #[test]
    fn only_a_renewal_leaves_out_a_tail_that_is_where_it_says() {
        let (long, short) = ([b'x'; WORTH], [b'x'; WORTH - 1]);
        let parts = |tail, is_news| Parts { head: b"head", tail, is_news };
        let id = TailId::new();
        let last = |beside| Some(Last { seq: 7, beside });
        let form = |tail, is_news, last: Option<Last>| Form::of(&parts(tail, is_news), last.as_ref());
        let apart = || last(Beside::Tail(id.clone()));
        assert_eq!(form(Tail::Kept(&long), false, apart()), Form::Head(id.clone()));
        assert!(matches!(form(Tail::New(&long), false, apart()), Form::Both(_)), "that one is another");
        assert!(matches!(form(Tail::Kept(&long), false, last(Beside::Soon)), Form::Both(_)));
        assert_eq!(form(Tail::Kept(&long), false, last(Beside::Nothing)), Form::Whole, "it is only being acquired");
        assert_eq!(form(Tail::Kept(&long), true, apart()), Form::Whole);
        assert_eq!(form(Tail::Kept(&short), false, apart()), Form::Whole);
        assert_eq!(form(Tail::New(&long), false, None), Form::Whole);
    }
}
