//! A spool, as a [`Backlog`].

use super::claiming::{SpoolClaimer, SpoolGrant};
use super::folder::{Spool, SpoolFolder};
use crate::backlog::{
    Addition, Attempt, Backlog, Carried, Content, ItemView, JanitorReport, OnExpired, Ordered, Wait, Warn,
};
use crate::queue::{Attempts, ItemId, NewItem, Payload, Reason};
use crate::tally::{DeadLetter, Tally};
use crate::tokens::{as_lost, off_runtime};
use async_trait::async_trait;
use futures_util::future::join_all;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::hints::Opening;
use leasehold_core::lease::protocol::Report;
use leasehold_core::{Drain, Error, HolderId, Kind, Label, Live, Result, Token, Ttl};
use std::fs;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

/// The longest payload that is shown, in bytes. A payload may have any length.
const SHOWN_PAYLOAD: usize = 1 << 20;

#[async_trait]
impl Backlog for Spool {
    type Grant = SpoolGrant;
    type Claimer = SpoolClaimer;

    async fn add(&self, new: NewItem, mut payload: Box<dyn Read + Send>) -> Result<(ItemId, bool)> {
        self.add(&new, &mut payload)
    }

    async fn add_lines(&self, like: &NewItem, lines: Vec<String>, added: &mut Vec<(ItemId, bool)>) -> Result<()> {
        lines.iter().try_for_each(|line| {
            added.push(self.add_bytes(like, line.as_bytes())?);
            Ok(())
        })
    }

    fn with_expiry_callback(mut self, on_expired: OnExpired) -> Self {
        self.on_expired = on_expired;
        self
    }

    fn claimer(&self, label: Option<Label>, ttl: Ttl, warn: Warn) -> Result<SpoolClaimer> {
        let label = label.unwrap_or_else(|| HolderId::new(None).label().clone());
        Ok(SpoolClaimer::new(self.clone(), &label, ttl)?.warning(warn))
    }

    async fn claim(claimer: &mut SpoolClaimer, wait: Wait) -> Result<Option<SpoolGrant>> {
        match wait {
            Wait::Forever => claimer.next().await.map(Some),
            Wait::For(limit) => tokio::select! {
                biased;
                grant = claimer.next() => grant.map(Some),
                () = tokio::time::sleep(limit) => Ok(None),
            },
            Wait::Not => claimer.claim(),
        }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn live(grant: &SpoolGrant) -> Live {
        grant.live()
    }

    fn watch(&self, _: &SpoolGrant) -> Opening {
        Box::pin(std::future::ready(None))
    }

    async fn has_news(&self, grant: &SpoolGrant) -> Result<bool> {
        Ok(fs::symlink_metadata(grant.path()).is_err_and(|e| e.kind() == ErrorKind::NotFound))
    }

    async fn progress_age(&self, grant: &SpoolGrant) -> Result<Option<Duration>> {
        let note = self.path("notes").join(grant.name.note("checkpoint"));
        let Ok(metadata) = fs::metadata(&note) else { return Ok(None) };
        Ok(Some(self.age(&note, &metadata, self.now()?).saturating_sub(self.grain())))
    }

    fn attempt(&self, grant: &SpoolGrant) -> Attempt {
        let name = grant.name();
        Attempt {
            id: name.id.clone(),
            token: grant.token().clone(),
            number: name.tried + 1,
            checkpoint: self.checkpoint_for(name).map(|checkpoint| checkpoint.as_str().to_owned()),
            payload: Content::File(grant.path().to_owned()),
        }
    }

    async fn by_token(&self, token: &Token) -> Result<SpoolGrant> {
        self.adopt(token)
    }

    async fn renew(&self, grants: &mut [&mut SpoolGrant]) -> Vec<Result<()>> {
        join_all(grants.iter_mut().map(async |grant| {
            let (spool, mut renewed) = (self.clone(), grant.clone());
            **grant = off_runtime(move || spool.renew(&mut renewed).map(|()| renewed)).await?;
            Ok(())
        }))
        .await
    }

    async fn report(&self, token: &Token, report: Report) -> Result<Option<Drain>> {
        let mut grant = self.adopt(token).map_err(as_lost)?;
        self.renew(&mut grant)?;
        report.checkpoint.map_or(Ok(()), |checkpoint| self.checkpoint(&grant, &checkpoint))?;
        Ok(None)
    }

    async fn complete(&self, grant: &SpoolGrant, result: Option<Payload>, add: Vec<Addition>) -> Result<ItemView> {
        let of = |Addition { queue, item }: Addition| {
            if queue.is_some() || item.attempts.backoff_ms != Attempts::default().backoff_ms {
                let message =
                    "invalid follow-up: an item of a spool adds to its own spool, without a backoff of its own";
                return Err(Error::new(Kind::Invalid, message));
            }
            Ok(item)
        };
        let add: Vec<_> = add.into_iter().map(of).collect::<Result<_>>()?;
        self.complete(grant, result.as_ref(), &add).map(ItemView::File)
    }

    async fn fail(
        &self,
        grant: &SpoolGrant,
        why: Reason,
        retry_in: Option<Duration>,
        is_final: bool,
    ) -> Result<ItemView> {
        self.fail(grant, &why, retry_in, is_final).map(ItemView::File)
    }

    async fn give_back(&self, grant: &SpoolGrant) -> Result<()> {
        self.give_back(grant)
    }

    async fn claimed(&self, grant: &SpoolGrant) -> Result<ItemView> {
        Backlog::show(self, &grant.name().id).await
    }

    async fn show(&self, id: &ItemId) -> Result<ItemView> {
        let shown = self.show(id)?;
        let payload = self.payload(&shown.item, SHOWN_PAYLOAD);
        Ok(ItemView::Shown(shown, payload))
    }

    async fn operate(&self, id: &ItemId, order: Ordered) -> Result<Carried> {
        let (item, token) = self.operate(id, &order)?;
        Ok(Carried { epoch: item.name.epoch, seen: ItemView::File(item), token })
    }

    async fn tally(&self) -> Result<Tally> {
        Ok(self.tally())
    }

    async fn dead_letters(&self, troubles: &mut Vec<Error>) -> Result<Vec<DeadLetter>> {
        Ok(self.dead_letters(troubles))
    }

    async fn is_finished(&self) -> Result<bool> {
        self.is_finished()
    }

    async fn clean(&self, warn: Warn) -> Result<JanitorReport> {
        let mut done = self.clean()?;
        // Entries that cannot be items are only reported, and are no failure.
        done.troubles.sort_by_key(|error| error.kind() == Kind::Invalid);
        let mut report = JanitorReport::cleaned(done, warn);
        report.trouble = report.trouble.filter(|error| error.kind() != Kind::Invalid);
        Ok(report)
    }

    async fn purge(&self, older_than: Duration, with_dead: bool, warn: Warn) -> Result<JanitorReport> {
        let kinds = [SpoolFolder::Done, SpoolFolder::Cancelled, SpoolFolder::Failed];
        let done = self.purge(older_than, &kinds[..if with_dead { 3 } else { 2 }])?;
        Ok(JanitorReport::purged(done, warn))
    }
}
