//! The world: one state of the exploration.
//!
//! Promise: plain, small, comparable bytes; everything that may influence what happens next is here, and nothing that
//! may not, except the few marks (`granted`, `accepted`, `wrote`, `top_epoch`) by which the promises are judged.
//! Non-promise: it is not readable by itself; records are numbers in the archive.

use crate::archive::RecordId;
use crate::ask::{Ask, Name};

/// Clients come first, the operator is last.
pub const ACTORS: usize = 4;
/// The operator's place.
pub const OPERATOR: usize = 3;
/// One more than the largest name.
pub const NAMES: usize = 13;
/// The largest slot plus one.
pub const SLOTS: usize = 3;
/// The most swaps in flight at once.
pub const FLIGHTS: usize = 4;
/// The most guarded resources.
pub const GUARDS: usize = 2;

/// One state of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    pub record: RecordId,
    /// Rises with every swap; a restored store goes back to the revision it had, the worst that a store can do.
    pub revision: u8,
    /// The highest epoch that was ever in the store.
    pub top_epoch: u8,
    pub backup: Backup,
    pub actors: [Actor; ACTORS],
    /// Sorted, so that the order of sending is forgotten: any may arrive next.
    pub flights: [Option<Flight>; FLIGHTS],
    /// The epoch that each name believes it was granted; 0 is none. Whoever believes may write at any later time.
    pub tokens: [u8; NAMES],
    /// The epochs that the store really granted to each name, as bits.
    pub granted: [u16; NAMES],
    pub fences: [Fence; GUARDS],
    /// Whose completion of each slot was accepted.
    pub accepted: [Name; SLOTS],
    /// What is left to go wrong.
    pub left: Left,
    /// The promises that were broken on the way here, as bits.
    pub broken: u32,
}

/// What may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Left {
    /// Replies to be lost or given up on.
    pub losses: u8,
    /// Swaps to be delivered twice.
    pub copies: u8,
    /// Renewals and checkpoints.
    pub renewals: u8,
}

/// The store's old copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backup {
    NotAllowed,
    NotTaken,
    Taken { record: RecordId, revision: u8 },
    Restored,
}

/// A client or the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Actor {
    /// How many acquisitions or orders it has begun; each has a name of its own.
    pub turn: u8,
    /// What it is after, if anything.
    pub pursuit: Option<Pursuit>,
    /// It knows that its tenure is over, or that it got none.
    pub over: bool,
}

/// A request that is being pursued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pursuit {
    pub ask: Ask,
    /// A swap is under way and the answer is awaited.
    pub waiting: bool,
    /// The answer to some swap of this request never came.
    pub unanswered: bool,
}

/// A swap under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flight {
    pub actor: u8,
    pub ask: Ask,
    /// Somebody still waits for the answer.
    pub awaited: bool,
    pub expected: u8,
    pub next: RecordId,
}

/// A guarded resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fence {
    /// What the guard remembers, if anything.
    pub high: Option<Mark>,
    /// The highest epoch that sealed or wrote, whatever the guard remembers.
    pub floor: u8,
    /// The last write applied, whatever the guard remembers.
    pub wrote: Mark,
}

/// Epoch, grant and sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mark {
    pub epoch: u8,
    pub name: Name,
    pub seq: u8,
}

impl World {
    /// Sends a swap; false when the network of the model is full.
    pub fn send(&mut self, flight: Flight) -> bool {
        let Some(free) = self.flights.iter_mut().find(|f| f.is_none()) else { return false };
        *free = Some(flight);
        self.sort_flights();
        true
    }

    /// Takes a swap out of the network.
    pub fn receive(&mut self, index: usize) -> Option<Flight> {
        let flight = self.flights[index].take();
        self.sort_flights();
        flight
    }

    /// From now on nobody waits for this actor's swap.
    pub fn stop_awaiting(&mut self, actor: usize) {
        for flight in self.flights.iter_mut().flatten() {
            if usize::from(flight.actor) == actor {
                flight.awaited = false;
            }
        }
        self.sort_flights();
    }

    /// Not by the record's number, which differs from one exploration to the next: a path must mean the same in both.
    fn sort_flights(&mut self) {
        self.flights.sort_by_key(|flight| flight.map(|f| (f.actor, f.ask, f.awaited, f.expected)));
    }

    pub fn rolled_back(&self) -> bool {
        self.backup == Backup::Restored
    }
}
