//! Where items come from: a queue in a store, or a spool.

use crate::verbs::queue::{follow_ups, spool_follow_ups};
use async_trait::async_trait;
use leasehold_core::{Error, Kind, Result, Tenancy, Token};
use leasehold_work::queue::{Claimed, Claimer, ItemGrant, ItemTenancy, Payload, Reason};
use leasehold_work::spool::{SpoolClaimer, SpoolGrant, SpoolTenancy, Where};
use std::fs::File;
use std::path::{Path, PathBuf};

/// What the command is to know of its item.
pub struct Job {
    pub id: String,
    pub token: Token,
    pub attempt: u32,
    pub checkpoint: Option<String>,
    pub payload: Content,
}

/// The payload, or the file that it is in.
pub enum Content {
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// What became of an attempt, for people.
pub enum Fate {
    /// It is tried again.
    Again,
    /// It is a dead letter.
    Dead,
}

#[async_trait]
pub trait Source: Send {
    type Tenancy: Tenancy;

    /// Waits for an item.
    async fn next(&mut self) -> Result<Self::Tenancy>;
    /// Claims an item if there is one.
    async fn try_next(&mut self) -> Result<Option<Self::Tenancy>>;
    /// What was set aside, and why; each item once.
    fn damaged(&mut self) -> Vec<Error>;
    /// The item's id.
    fn id(&self, tenancy: &Self::Tenancy) -> String;
    fn job(&self, tenancy: &Self::Tenancy) -> Result<Job>;
    /// Completes it with what the command left at these paths.
    async fn complete(&self, grant: &Grant<Self>, result: &Path, follow_ups: &Path) -> Result<()>;
    async fn fail(&self, grant: &Grant<Self>, why: Reason) -> Result<Fate>;
    async fn give_back(&self, grant: &Grant<Self>) -> Result<()>;
}

pub type Grant<S> = <<S as Source>::Tenancy as Tenancy>::Grant;

/// The result that the command left, if it left one.
fn result_at(path: &Path) -> Result<Option<Payload>> {
    let bytes = match File::open(path) {
        Ok(mut file) => crate::verbs::queue::read_bounded(&mut file, Payload::MAX_RESULT_BYTES, "the result")?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::new(Kind::Invalid, "the result cannot be read").with_source(e)),
    };
    if bytes.is_empty() { Ok(None) } else { Payload::result(bytes).map(Some) }
}

/// Items of a queue in a store.
pub struct Items {
    pub claimer: Claimer,
}

#[async_trait]
impl Source for Items {
    type Tenancy = ItemTenancy;

    async fn next(&mut self) -> Result<ItemTenancy> {
        let grant = self.claimer.next().await?;
        Ok(ItemTenancy { queue: self.claimer.queue().clone(), grant })
    }

    async fn try_next(&mut self) -> Result<Option<ItemTenancy>> {
        Ok(match self.claimer.claim().await? {
            Claimed::Item(grant) => Some(ItemTenancy { queue: self.claimer.queue().clone(), grant: *grant }),
            // Something waits: that is not the end.
            Claimed::Nothing { held_up: Some(error), .. } => return Err(error),
            Claimed::Nothing { held_up: None, .. } => None,
        })
    }

    fn damaged(&mut self) -> Vec<Error> {
        self.claimer.troubles()
    }

    fn id(&self, tenancy: &ItemTenancy) -> String {
        tenancy.grant.name().id.to_string()
    }

    fn job(&self, tenancy: &ItemTenancy) -> Result<Job> {
        let (grant, item) = (&tenancy.grant, tenancy.grant.item());
        let checkpoint = item.progress.as_ref().and_then(|p| p.checkpoint.as_ref());
        Ok(Job {
            id: grant.name().id.to_string(),
            token: grant.token().clone(),
            attempt: item.tried,
            checkpoint: checkpoint.map(|c| c.as_str().to_owned()),
            payload: Content::Bytes(item.payload.bytes().to_vec()),
        })
    }

    async fn complete(&self, grant: &ItemGrant, result: &Path, at: &Path) -> Result<()> {
        let queue = self.claimer.queue();
        let now = leasehold_core::Timestamp::from_millis(leasehold_system::clock::wall_ms());
        queue.complete(grant, result_at(result)?, follow_ups(queue, at, now)?).await.map(|_| ())
    }

    async fn fail(&self, grant: &ItemGrant, why: Reason) -> Result<Fate> {
        let item = self.claimer.queue().fail(grant, why, None, false).await?;
        Ok(if item.is_open() { Fate::Again } else { Fate::Dead })
    }

    async fn give_back(&self, grant: &ItemGrant) -> Result<()> {
        self.claimer.queue().give_back(grant).await.map(|_| ())
    }
}

/// Files of a spool.
pub struct Files {
    pub claimer: SpoolClaimer,
}

#[async_trait]
impl Source for Files {
    type Tenancy = SpoolTenancy;

    async fn next(&mut self) -> Result<SpoolTenancy> {
        let grant = self.claimer.next().await?;
        Ok(SpoolTenancy::new(self.claimer.spool().clone(), grant))
    }

    async fn try_next(&mut self) -> Result<Option<SpoolTenancy>> {
        let spool = self.claimer.spool().clone();
        Ok(self.claimer.claim()?.map(|grant| SpoolTenancy::new(spool, grant)))
    }

    fn damaged(&mut self) -> Vec<Error> {
        Vec::new()
    }

    fn id(&self, tenancy: &SpoolTenancy) -> String {
        tenancy.grant.name().id.to_string()
    }

    fn job(&self, tenancy: &SpoolTenancy) -> Result<Job> {
        let grant = &tenancy.grant;
        let checkpoint = tenancy.spool.checkpoint_for(grant.name());
        Ok(Job {
            id: grant.name().id.to_string(),
            token: grant.token().clone(),
            attempt: grant.name().tried + 1,
            checkpoint: checkpoint.map(|c| c.as_str().to_owned()),
            payload: Content::File(grant.path().to_owned()),
        })
    }

    async fn complete(&self, grant: &SpoolGrant, result: &Path, at: &Path) -> Result<()> {
        self.claimer.spool().complete(grant, result_at(result)?.as_ref(), &spool_follow_ups(at)?)
    }

    async fn fail(&self, grant: &SpoolGrant, why: Reason) -> Result<Fate> {
        let place = self.claimer.spool().fail(grant, &why, None, false)?;
        Ok(if place == Where::Failed { Fate::Dead } else { Fate::Again })
    }

    async fn give_back(&self, grant: &SpoolGrant) -> Result<()> {
        self.claimer.spool().give_back(grant)
    }
}
