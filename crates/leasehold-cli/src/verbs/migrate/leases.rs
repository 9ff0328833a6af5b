//! The leases, when everything moves to another store.
//!
//! Promise: each step is one swap on each record and may be made again, so a migration that was broken off is carried on by
//! running it again. Non-promise: it knows nothing of the order of steps; that is the migration's.

use super::{HeldUp, MAX_ROUNDS, Move, WAY_OUT, restless};
use crate::output;
use leasehold_core::lease::protocol::{Decision, Holder, Order, Refusal, Request, decide};
use leasehold_core::relocation::{Relocation, Step, elsewhere};
use leasehold_core::{
    Coordinator, Error, Inspection, Key, Kind, LeaseName, Lineage, Operated, Ownership, Result, Shelf,
};

const PAGE: usize = 500;

/// Every record. One that cannot be read stops everything before anything is changed.
pub(super) async fn all(store: &Coordinator) -> Result<Vec<Inspection>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(after.as_ref(), PAGE).await?;
        after = page.entries.last().map(|(lease, _)| lease.clone());
        for (_, record) in page.entries {
            // A name whose first write was taken back is no lease.
            all.extend(Some(record?).filter(|lease| !lease.record.is_unknown()));
        }
        if !page.more {
            return Ok(all);
        }
    }
}

/// Says what is missing from the histories of these leases; it is no obstacle.
pub(super) async fn look_at_histories(store: &Coordinator, leases: &[Inspection]) -> Result<()> {
    for seen in leases {
        say_missing(&store.history(&seen.lease, &seen.record).await?.damaged);
    }
    Ok(())
}

fn say_missing(damaged: &[Error]) {
    damaged.iter().for_each(|damage| output::say(&format!("not moved: {damage}")));
}

impl Move {
    /// Refuses leases of the new store that are other ones than those of the same name here, before anything is changed.
    pub(super) async fn refuse_strangers(&self, leases: &[Inspection]) -> Result<()> {
        let is_ours = |lease: &&Inspection| {
            lease.record.relocation.as_ref().is_some_and(|state| state.migration() == self.migration.number)
        };
        for lease in leases.iter().filter(|lease| !is_ours(lease)) {
            let there = self.to.inspect(&lease.lease).await?.record;
            let order = self.arrival(&lease.record);
            let request = Request::Operate {
                nonce: self.migration.number,
                lineage: Lineage::random(),
                by: self.migration.by.clone(),
                why: self.why.clone(),
                expected: None,
                order,
            };
            if let Decision::Refuse(refusal) = decide(&there, &request, lease.now) {
                return Err(refused("TO", &lease.lease, &refusal));
            }
            if let Some(state) = &lease.record.relocation {
                return Err(refused("FROM", &lease.lease, &Refusal::Elsewhere(state.clone())));
            }
        }
        Ok(())
    }

    /// The order that brings a lease to the new store.
    fn arrival(&self, record: &Ownership) -> Order {
        Order::Arrive {
            migration: self.migration.number,
            from: self.migration.from.clone(),
            record: Box::new(record.clone()),
            newborn: self.newborn,
        }
    }
}

/// All leases of one migration.
pub(super) struct Leases<'a> {
    pub(super) work: &'a Move,
}

impl Leases<'_> {
    /// Marks every lease of the old store as moving; what is held if that is in the way.
    pub(super) async fn leave(&self) -> Result<Option<HeldUp>> {
        for _ in 0..MAX_ROUNDS {
            let mut is_clean = true;
            for seen in all(&self.work.from).await? {
                if seen.record.relocation.as_ref().is_some_and(|state| state.migration() == self.work.migration.number)
                {
                    continue;
                }
                is_clean = false;
                let step = Step::Leave { to: self.work.migration.to.clone() };
                let order = self.relocate(step, self.work.holder_of(&seen.lease));
                match self.order(&self.work.from, &seen.lease, order).await? {
                    None => self.work.course.count(),
                    Some(Refusal::Held { .. }) => {
                        let names = vec![seen.lease.to_string()];
                        return Ok(Some(HeldUp { leases: 1, items: 0, names }));
                    }
                    Some(other) => return Err(refused("FROM", &seen.lease, &other)),
                }
            }
            if is_clean {
                return Ok(None);
            }
        }
        Err(restless("leases"))
    }

    /// Copies every lease, its counters, its journal and its history.
    pub(super) async fn arrive(&self) -> Result<()> {
        let work = self.work;
        for seen in all(&work.from).await? {
            let lease = &seen.lease;
            if seen.record.relocation.as_ref().is_none_or(|state| state.migration() != work.migration.number) {
                let message =
                    format!("lease `{lease}` is no longer marked: somebody gave this migration up while it ran");
                return Err(Error::new(Kind::Contended, message));
            }
            // It returns with everything it left with, and more, before it can be granted there.
            let there = work.to.inspect(lease).await?.record.relocation;
            let is_home = matches!(there, Some(Relocation::Moved { .. }));
            work.carry_one(&Key::new(Shelf::Counters, lease), is_home).await?;
            work.carry_one(&Key::new(Shelf::Runs, lease), is_home).await?;
            // What is damaged helps nobody there, and stops nobody here.
            say_missing(&work.from.copy_history(lease, &seen.record, &work.to).await?);
            if let Some(refusal) = self.order(&work.to, lease, work.arrival(&seen.record)).await? {
                return Err(refused("TO", lease, &refusal));
            }
            work.course.count();
        }
        Ok(())
    }

    /// Makes a step on every lease of this migration in a store; how many there are.
    pub(super) async fn step(&self, store: &Coordinator, step: &Step) -> Result<usize> {
        let mut count = 0;
        for seen in all(store).await? {
            if seen.record.relocation.as_ref().is_none_or(|state| state.migration() != self.work.migration.number) {
                continue;
            }
            if let Some(refusal) = self.order(store, &seen.lease, self.relocate(step.clone(), self.work.holder)).await?
            {
                return Err(refused("the lease", &seen.lease, &refusal));
            }
            count += 1;
            self.work.course.count();
        }
        Ok(count)
    }

    fn relocate(&self, step: Step, holder: Holder) -> Order {
        Order::Relocate { migration: self.work.migration.number, step, holder }
    }

    /// Carries an order out; the refusal if there is one.
    async fn order(&self, store: &Coordinator, lease: &LeaseName, order: Order) -> Result<Option<Refusal>> {
        Ok(match store.operate(lease, self.work.migration.by.clone(), self.work.why.clone(), order).await? {
            Operated::Refused(refusal) => Some(*refusal),
            Operated::Done(_) | Operated::HandedOff(_) => None,
        })
    }
}

/// Why a lease cannot be moved.
fn refused(which: &str, lease: &LeaseName, refusal: &Refusal) -> Error {
    let message = match refusal {
        Refusal::Elsewhere(state) => return elsewhere(&format!("lease `{lease}` of {which}"), state),
        Refusal::OtherLineage { here, there } => {
            let shown = |lineage: &Option<_>| lineage.map_or("none".to_owned(), |l: Lineage| l.to_string());
            format!(
                "lease `{lease}` is in TO already and is another one (lineage {} there, {} here); nothing changed: {WAY_OUT}",
                shown(here),
                shown(there)
            )
        }
        Refusal::NotMoving { epoch, .. } => format!(
            "lease `{lease}` is in use in both stores under one lineage (epoch {epoch} in TO): one is a copy of the other, and \
             both run. Nothing changed. Stop the jobs of one of them for good, and move the other to an empty store or namespace"
        ),
        other => format!("lease `{lease}` of {which} cannot be moved: {other:?}"),
    };
    Error::new(Kind::Invalid, message)
}
