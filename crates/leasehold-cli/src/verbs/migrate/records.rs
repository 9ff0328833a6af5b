//! What goes along beside leases and items, and what a migration that was given up has left behind.
//!
//! Promise: a record of the new store that somebody uses is never written over. Non-promise: counters and journals may miss
//! what was written while they were copied.

use super::items::Items;
use super::leases::{self, Leases};
use super::{Move, WAY_OUT};
use leasehold_core::migration;
use leasehold_core::relocation::{Relocation, Step};
use leasehold_core::store::{Range, Swap};
use leasehold_core::{Coordinator, Error, Inspection, Key, Kind, LeaseName, Result, Shelf};
use leasehold_guards::is_older_copy;
use std::collections::BTreeSet;

/// Every name on a shelf.
pub(super) async fn names(store: &Coordinator, shelf: Shelf) -> Result<Vec<LeaseName>> {
    let mut names: Vec<LeaseName> = Vec::new();
    loop {
        let page = store.store().list(shelf, Range::new(names.last(), 100)).await?;
        let is_all = !page.more || page.entries.is_empty();
        names.extend(page.entries.into_iter().map(|(name, _)| name));
        if is_all {
            return Ok(names);
        }
    }
}

impl Move {
    /// Takes back what a process wrote that slept while its migration was given up: marks of a number that neither namespace
    /// has. The namespaces are looked at after the records: a migration marks its namespaces first, and one that was given up
    /// is never resumed. Returns how many there were.
    pub(super) async fn sweep(&mut self) -> Result<usize> {
        let number = self.migration.number;
        let (from, to) = (self.migration.from.clone(), self.migration.to.clone());
        let is_left = |state: &Relocation| match state {
            Relocation::Moving { to: there, .. } => *there == to,
            Relocation::Arriving { from: there, .. } => *there == from,
            Relocation::Moved { .. } => false,
        };
        let mut left = Vec::new();
        for store in [&self.from, &self.to] {
            let leases = leases::all(store).await?.into_iter().filter_map(|lease| lease.record.relocation);
            let items = Items::read(store.store()).await?.all.into_iter().filter_map(|(_, item)| item.relocation);
            left.extend(leases.chain(items).filter(is_left).map(|state| state.migration()));
        }
        let here = migration::look(self.from.store().as_ref()).await?.marks;
        let there = migration::look(self.to.store().as_ref()).await?.marks;
        let alive = [here.leaving, there.arriving].map(|mark| mark.map(|mark| mark.state.migration()));
        left.retain(|number| !alive.contains(&Some(*number)));
        for old in left.iter().copied().collect::<BTreeSet<_>>() {
            self.migration.number = old;
            let all = Leases { work: self };
            all.step(&self.to, &Step::Withdraw).await?;
            Items::step(self, &self.to, &Step::Withdraw).await?;
            all.step(&self.from, &Step::Stay).await?;
            Items::step(self, &self.from, &Step::Stay).await?;
        }
        self.migration.number = number;
        Ok(left.len())
    }

    /// Whether the new store has nothing of its own: all that is there was taken back by a migration that was given up.
    pub(super) async fn is_abandoned(&self) -> Result<bool> {
        let went_back = |lease: &Inspection| match &lease.record.relocation {
            Some(Relocation::Moved { to, .. }) => *to == self.migration.from,
            _ => false,
        };
        let leases = leases::all(&self.to).await?;
        Ok(!leases.is_empty() && leases.iter().all(went_back))
    }

    /// Fences of resources that keep none themselves go along. Where the new store has another one, somebody uses it.
    pub(super) async fn refuse_fences(&self) -> Result<()> {
        if self.replaces {
            return Ok(());
        }
        for name in names(&self.from, Shelf::Fence).await? {
            let key = Key::new(Shelf::Fence, &name);
            let (here, there) = (self.from.store().read(&key).await?.value, self.to.store().read(&key).await?.value);
            let (Some(here), Some(there)) = (here, there) else { continue };
            if !is_copy(&key, &there.bytes, &here.bytes)? {
                let message = format!("fence `{name}` is in TO already and is another one: {WAY_OUT}; nothing changed");
                return Err(Error::new(Kind::Unsupported, message));
            }
        }
        Ok(())
    }

    /// The records of a shelf go along. Where the new store had left for elsewhere, what it has of them is out of date.
    pub(super) async fn copy(&self, shelf: Shelf) -> Result<()> {
        for name in names(&self.from, shelf).await? {
            self.carry_one(&Key::new(shelf, &name), self.replaces).await?;
        }
        Ok(())
    }

    /// One record goes along, in place of what the new store has of its name if that is to be replaced. A copy that is there
    /// already is written once more: the write that made it may have had no answer.
    pub(super) async fn carry_one(&self, key: &Key, replaces: bool) -> Result<()> {
        let Some(value) = self.from.store().read(key).await?.value else { return Ok(()) };
        let there = self.to.store().read(key).await?.value;
        if let Some(there) = &there
            && !replaces
            && !is_copy(key, &there.bytes, &value.bytes)?
        {
            return Ok(());
        }
        let swap = self.to.store().swap(key, there.as_ref().map(|there| &there.revision), &value.bytes).await?;
        if swap == Swap::Mismatch {
            let message = format!("`{key}` of the new store was written to meanwhile; run this again");
            return Err(Error::new(Kind::Contended, message));
        }
        Ok(())
    }
}

/// Whether what is there is the same, or a fence that was copied by a migration that was given up and has risen since.
fn is_copy(key: &Key, there: &[u8], here: &[u8]) -> Result<bool> {
    Ok(there == here || (key.shelf == Shelf::Fence && is_older_copy(key, there, here)?))
}
