//! How many bytes of request bodies the server holds at once.
//!
//! Promise: whatever clients send, with or without a key, the server holds no more bytes of bodies than its bounds. Bytes are
//! counted as they arrive, so that an announced length alone takes nothing from others. Neither strangers nor other requests can
//! use the bytes that are reserved for holders. Non-promise: fairness between keys.

use super::admission::Urgency;
use super::problem::Problem;
use super::settings::Limits;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The sender of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A client whose key is not known yet, or who has none.
    Stranger,
    /// A client with a key.
    Keyed(Urgency),
}

/// The bytes that are left for bodies.
#[derive(Debug)]
pub struct BodyBudget {
    strangers: Arc<Semaphore>,
    others: Arc<Semaphore>,
    holders: Arc<Semaphore>,
}

impl BodyBudget {
    pub fn new(limits: &Limits) -> Self {
        let budget = |bytes: usize| Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)));
        BodyBudget {
            strangers: budget(limits.stranger_bodies),
            // There is always room for one body of the greatest length.
            others: budget(limits.bodies.max(limits.body)),
            holders: budget(limits.holder_bodies.max(limits.body)),
        }
    }

    /// Counts bytes that have arrived, for as long as `charged` exists. Refuses them if the server holds too many.
    pub fn charge(&self, sender: Sender, bytes: usize, charged: &mut Charged) -> Result<(), Problem> {
        let budgets = match sender {
            Sender::Stranger => [Some(&self.strangers), None],
            Sender::Keyed(Urgency::Holder) => [Some(&self.holders), Some(&self.others)],
            Sender::Keyed(Urgency::Other) => [Some(&self.others), None],
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let take = |budget: &Arc<Semaphore>| budget.clone().try_acquire_many_owned(bytes).ok();
        let permit = budgets.into_iter().flatten().find_map(take);
        charged.add(permit.ok_or_else(|| {
            Problem::overloaded("the server has too many bodies of requests in its memory; nothing was done")
        })?);
        Ok(())
    }
}

/// The bytes charged for one body. They are given back when this is dropped.
#[derive(Debug, Default)]
pub struct Charged(Vec<OwnedSemaphorePermit>);

impl Charged {
    /// One permit for each budget, however many pieces the body came in.
    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match self.0.iter_mut().find(|other| Arc::ptr_eq(other.semaphore(), permit.semaphore())) {
            Some(other) => other.merge(permit),
            None => self.0.push(permit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: Sender = Sender::Keyed(Urgency::Holder);
    const OTHER: Sender = Sender::Keyed(Urgency::Other);

    #[test]
    fn neither_strangers_nor_others_use_what_is_kept_for_holders() {
        let limits = Limits { body: 10, stranger_bodies: 10, bodies: 10, holder_bodies: 10, ..Limits::default() };
        let budget = BodyBudget::new(&limits);
        let (mut strangers, mut others, mut holders) = (Charged::default(), Charged::default(), Charged::default());
        budget.charge(Sender::Stranger, 10, &mut strangers).unwrap();
        assert_eq!(budget.charge(Sender::Stranger, 1, &mut strangers).unwrap_err().kind(), "overloaded");
        for _ in 0..10 {
            budget.charge(OTHER, 1, &mut others).unwrap();
        }
        assert!(budget.charge(OTHER, 1, &mut others).is_err());
        budget.charge(HOLDER, 10, &mut holders).unwrap();
        assert!(budget.charge(HOLDER, 1, &mut holders).is_err());
        drop(others);
        budget.charge(HOLDER, 10, &mut holders).unwrap();
        assert!(budget.charge(OTHER, 1, &mut Charged::default()).is_err(), "a holder has them");
        drop((strangers, holders));
        budget.charge(OTHER, 10, &mut Charged::default()).unwrap();
        budget.charge(Sender::Stranger, 10, &mut Charged::default()).unwrap();
    }
}
