//! Commits without an answer, and what moves the fence alone.
//!
//! Promise: InnoDB shows a commit before it is flushed, so seeing it proves nothing. A new write that was answered
//! does; without one the answer is *unknown*. Non-promise: a server that does not flush
//! (`innodb_flush_log_at_trx_commit` other than 1) loses in a crash what it has answered.

use super::{Admitted, Inside, exchange, fence_of, refused, statements, text, undo};
use crate::observe::write::WriteStep;
use crate::sql::server::{Lost, ServerGuard};
use crate::succession::{self, Former, MAX_FORMER_BYTES};
use leasehold_core::guard::{Guard, HighWater};
use leasehold_core::{Nonce, Result, Token};
use mysql_async::Conn;

/// Where the list of former leases is in what [`statements::look`] gives.
const FORMER: usize = 8;

/// How often the server is asked what became of a transaction; each time it may wait for a lock.
const LOOKS: u32 = 5;

impl ServerGuard<Conn> {
    /// Finds out what became of a write whose commit was not answered.
    pub(super) async fn find_out(&self, token: &Token, write: Nonce, admitted: &Admitted, cause: &str) -> Result<()> {
        // Only a session that is seen to be ours is ended: after a restart its number may be another's.
        let is_ours = &|inside: &Inside| {
            inside.session == admitted.session
                && inside.epoch == token.epoch.get()
                && inside.lineage == token.lineage.to_string()
        };
        let confirm = || async move {
            let mut conn = (self.connect)().await?;
            let sql = statements::confirm(&self.resource, Nonce::random());
            let sets = self.patiently(exchange(&mut conn, &sql), is_ours).await;
            let sets = sets.map_err(|e| refused(&e, &self.resource(), &self.endpoint))?;
            Ok(sets.iter().flatten().next().and_then(|row| text(row, 0)))
        };
        self.resolve(token, Lost { write, before: &admitted.trail, cause, looks: LOOKS }, confirm).await
    }

    pub(super) async fn seal_once(&self, token: &Token) -> Result<(HighWater, Option<String>)> {
        let write = Nonce::random();
        let (conn, admitted) = self.begin(token, None, write).await?;
        Ok((admitted.high, self.commit(conn, write).await?))
    }

    /// One attempt to give the resource away.
    pub(super) async fn give(
        &self,
        from: &HighWater,
        token: &Token,
        note: &str,
    ) -> Result<(HighWater, Option<String>)> {
        let resource = self.resource();
        let write = Nonce::random();
        self.reach(WriteStep::Connect)?;
        let mut conn = (self.connect)().await?;
        self.reach(WriteStep::Admit)?;
        let look =
            format!("START TRANSACTION; SAVEPOINT leasehold_{write}; {}", statements::look(&self.resource, token));
        // Every session of the former lease is ended, whatever its epoch.
        let found = self.patiently(exchange(&mut conn, &look), |_| true).await;
        let sets = found.map_err(|e| refused(&e, &resource, &self.endpoint))?;
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
        given.map_err(|e| refused(&e, &resource, &self.endpoint))?;
        Ok((next, self.commit(conn, write).await?))
    }
}
