//! The leases, when everything moves to another store.
//!
//! Promise: each step is one swap on each record and may be made again, so a migration that was broken off is carried on by
//! running it again. Non-promise: it knows nothing of the order of steps; that is the migration's.

use super::migrate::{HeldUp, Move};
use leasehold::protocol::{Decision, Order, Refusal, Request, decide};
use leasehold::relocation::{Relocation, Step, elsewhere};
use leasehold::{Coordinator, Error, Inspection, Key, Kind, LeaseName, Lineage, Operated, Result, Shelf};

const PAGE: usize = 500;
/// Names that came up just before the mark are found by looking again, so many times.
const MAX_ROUNDS: usize = 10;

/// Every record. One that cannot be read stops everything before anything is changed.
pub(super) async fn all(store: &Coordinator) -> Result<Vec<Inspection>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(after.as_ref(), PAGE).await?;
        after = page.entries.last().map(|(lease, _)| lease.clone());
        for (_, record) in page.entries {
            all.push(record?);
        }
        if !page.more {
            return Ok(all);
        }
    }
}

impl Move {
    /// Refuses leases of the new store that are other ones than those of the same name here, before anything is changed.
    pub(super) async fn refuse_strangers(&self, leases: &[Inspection]) -> Result<()> {
        for lease in leases {
            let there = self.to.inspect(&lease.lease).await?.record;
            let order = Order::Arrive {
                migration: self.migration,
                from: self.old.clone(),
                record: Box::new(lease.record.clone()),
            };
            let request = Request::Operate {
                nonce: self.migration,
                lineage: Lineage::random(),
                by: self.by.clone(),
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
                if seen.record.relocation.as_ref().is_some_and(|state| state.migration() == self.work.migration) {
                    continue;
                }
                is_clean = false;
                let step = Step::Leave { to: self.work.new.clone() };
                match self.order(&self.work.from, &seen.lease, self.relocate(step)).await? {
                    None => {}
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
        let message = "new leases keep coming up in the old store: point its users to the new one, then run this again";
        Err(Error::new(Kind::Contended, message))
    }

    /// Copies every lease, its counters and its journal; gives how many leases and journals there were.
    pub(super) async fn arrive(&self) -> Result<(usize, usize)> {
        let (work, mut journals) = (self.work, 0);
        let leases = all(&work.from).await?;
        for seen in &leases {
            let lease = &seen.lease;
            // What it left home with, it comes home with, and more. Before it can be granted there.
            let there = work.to.inspect(lease).await?.record.relocation;
            let is_home = matches!(there, Some(Relocation::Moved { .. }));
            work.carry_one(&Key::new(Shelf::Counters, lease), is_home).await?;
            journals += usize::from(work.carry_one(&Key::new(Shelf::Runs, lease), is_home).await?);
            let record = Box::new(seen.record.clone());
            let arrive = Order::Arrive { migration: work.migration, from: work.old.clone(), record };
            if let Some(refusal) = self.order(&work.to, lease, arrive).await? {
                return Err(refused("TO", lease, &refusal));
            }
        }
        Ok((leases.len(), journals))
    }

    /// Makes a step on every lease of this migration in a store.
    pub(super) async fn step(&self, store: &Coordinator, step: &Step) -> Result<()> {
        for seen in all(store).await? {
            if seen.record.relocation.as_ref().is_none_or(|state| state.migration() != self.work.migration) {
                continue;
            }
            if let Some(refusal) = self.order(store, &seen.lease, self.relocate(step.clone())).await? {
                return Err(refused("the lease", &seen.lease, &refusal));
            }
        }
        Ok(())
    }

    fn relocate(&self, step: Step) -> Order {
        Order::Relocate { migration: self.work.migration, step, holder: self.work.holder }
    }

    /// Carries an order out; the refusal if there is one.
    async fn order(&self, store: &Coordinator, lease: &LeaseName, order: Order) -> Result<Option<Refusal>> {
        Ok(match store.operate(lease, self.work.by.clone(), self.work.why.clone(), order).await? {
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
                "lease `{lease}` is in TO already and is another one (lineage {} there, {} here): move to an empty store or \
                 namespace, or remove one of the two by renaming its job",
                shown(here),
                shown(there)
            )
        }
        Refusal::NotMoving { epoch, .. } => format!(
            "lease `{lease}` is in use in both stores under one lineage (epoch {epoch} in TO): one is a copy of the other, and \
             both run; stop one of them for good first"
        ),
        other => format!("lease `{lease}` of {which} cannot be moved: {other:?}"),
    };
    Error::new(Kind::Invalid, message)
}
