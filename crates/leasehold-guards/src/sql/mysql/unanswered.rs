//! Commits without an answer, and what moves the fence alone.
//!
//! Promise: InnoDB lets others see a commit before it is flushed, so nothing counts by being seen: a new write that was
//! answered makes it sure, or the answer is *unknown*. Non-promise: a server that does not flush
//! (`innodb_flush_log_at_trx_commit` other than 1) forgets in a crash what it has answered.

use super::{ASK, Admitted, Inside, MysqlGuard, exchange, fence_of, refused, statements, text, undo};
use crate::observe::write::{WriteStep, reach};
use crate::sql::{Fate, fate, undone, unknown};
use crate::succession::{self, Former, MAX_FORMER_BYTES};
use leasehold_core::guard::{Guard, HighWater};
use leasehold_core::{Error, Kind, Nonce, Result, Token};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Where the list of former leases is in what [`statements::look`] gives.
const FORMER: usize = 8;

/// How often, and how far apart, it is tried to find out what became of a transaction, or to make a seal sure.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

impl MysqlGuard {
    /// No answer means unknown. A new write to the row waits until nothing of ours is under way there, and when it was
    /// answered, what the row says is sure.
    pub(super) async fn resolve(&self, token: &Token, write: Nonce, admitted: &Admitted, cause: &str) -> Result<()> {
        for _ in 0..LOOKS {
            if reach(&self.steps, WriteStep::ReadBack, &self.resource()).is_err() {
                break;
            }
            // Only what is seen to be ours is ended: after a restart the number of our session may be another's.
            let is_ours = |inside: &Inside| {
                inside.session == admitted.session
                    && inside.epoch == token.epoch.get()
                    && inside.lineage == token.lineage.to_string()
            };
            let confirm = async {
                let mut conn = (self.connect)().await?;
                let sql = statements::confirm(&self.resource, Nonce::random());
                let sets = self.patiently(exchange(&mut conn, &sql), is_ours).await;
                let sets = sets.map_err(|e| refused(&e, &self.resource(), &self.place))?;
                Ok::<_, Error>(sets.iter().flatten().next().and_then(|row| text(row, 0)))
            };
            let Ok(Ok(Some(trail))) = timeout(ASK, confirm).await else {
                sleep(PAUSE).await;
                continue;
            };
            return match fate(&trail, write, &admitted.trail) {
                Fate::Applied => Ok(()),
                Fate::NotApplied => Err(self.overtaken(token, undone(&self.resource(), cause)).await),
                Fate::Unknown => Err(unknown(&self.resource(), "others have written many times since", cause)),
            };
        }
        Err(unknown(&self.resource(), "the server does not answer", cause))
    }

    /// Moves the fence without any other write, until that was answered: seals it, or gives it away with these words.
    pub(super) async fn settle(&self, token: &Token, given: Option<(&HighWater, &str)>) -> Result<HighWater> {
        let mut lost = None;
        for tried in 0..LOOKS {
            if tried > 0 {
                sleep(PAUSE).await;
            }
            let tried = match given {
                None => self.seal_once(token).await,
                Some((from, note)) => self.give(from, token, note).await,
            };
            match (tried, &lost) {
                (Ok((high, None)), _) => return Ok(high),
                (Ok((_, Some(cause))), _) => lost = Some(cause),
                // What became of the first attempt stays open.
                (Err(e), Some(_)) if matches!(e.kind(), Kind::Contended | Kind::Unavailable) => {}
                (Err(e), _) => return Err(e),
            }
        }
        Err(unknown(&self.resource(), "the server does not answer", lost.unwrap_or_default()))
    }

    async fn seal_once(&self, token: &Token) -> Result<(HighWater, Option<String>)> {
        let write = Nonce::random();
        let (conn, admitted) = self.begin(token, None, write).await?;
        Ok((admitted.high, self.commit(conn, write).await?))
    }

    /// One attempt to give the resource away.
    async fn give(&self, from: &HighWater, token: &Token, note: &str) -> Result<(HighWater, Option<String>)> {
        let resource = self.resource();
        let write = Nonce::random();
        reach(&self.steps, WriteStep::Connect, &resource)?;
        let mut conn = (self.connect)().await?;
        reach(&self.steps, WriteStep::Admit, &resource)?;
        let look =
            format!("START TRANSACTION; SAVEPOINT leasehold_{write}; {}", statements::look(&self.resource, token));
        // Nobody of the former lease goes on, whatever the epoch.
        let found = self.patiently(exchange(&mut conn, &look), |_| true).await;
        let sets = found.map_err(|e| refused(&e, &resource, &self.place))?;
        let row = sets.last().and_then(|rows| rows.first());
        let high = fence_of(&resource, row)?;
        let judged = succession::adopt(&resource, high.as_ref(), from, token).and_then(|next| {
            let former = row.and_then(|row| text(row, FORMER)).unwrap_or_default();
            Ok((next, Former::read(&resource, &former)?.given(&resource, from, token, MAX_FORMER_BYTES)?))
        });
        let (next, former) = match judged {
            Ok(judged) => judged,
            Err(moved) => {
                undo(conn).await;
                return Err(moved);
            }
        };
        let given = exchange(&mut conn, &statements::adopt(&self.resource, token, note, &former, write)).await;
        given.map_err(|e| refused(&e, &resource, &self.place))?;
        Ok((next, self.commit(conn, write).await?))
    }
}
