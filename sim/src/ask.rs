//! Asks: the requests of the model's actors, in one byte per field, and their translation into real requests.
//!
//! Promise: every ask becomes exactly one `protocol::Request`, and nonces are numbers that no two requests share.
//! Non-promise: texts, hosts and lengths of time carry no meaning here, so all asks share one of each.

use leasehold_core::lease::protocol::{AfterFailure, Order, Report, Request, SlotClaim};
use leasehold_core::{Claim, Epoch, HolderId, Label, Lineage, Nonce, Outcome, Slot, Timestamp, Ttl, Who, Why};

/// The names of the model: a small number that stands for a 128-bit nonce. 0 is nobody.
pub type Name = u8;

/// The one line of epochs that there is.
pub const LINEAGE: Lineage = Lineage::from_u128(1);

/// A grant, as the one who got it remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Title {
    pub name: Name,
    pub epoch: u8,
}

impl Title {
    pub fn claim(self) -> Claim {
        Claim { epoch: epoch(self.epoch), nonce: nonce(self.name) }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    Succeeded,
    Failed,
}

impl End {
    fn outcome(self) -> Outcome {
        match self {
            End::Succeeded => Outcome::Succeeded,
            End::Failed => Outcome::Failed,
        }
    }
}

/// What an operator orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command {
    Revoke,
    HandOff {
        to: Name,
    },
    Drain,
    Pause,
    Resume {
        /// The pause that was seen.
        pause: Name,
    },
    Advance {
        past: u8,
    },
}

/// What an actor asks of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// Slot 0 is "no slot".
    Acquire {
        name: Name,
        slot: u8,
        after: Again,
    },
    Renew(Title),
    Checkpoint(Title),
    Release(Title, End),
    Complete(Title, End),
    Operate {
        name: Name,
        command: Command,
    },
}

/// What a failed slot means for a claim on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Again {
    Leave,
    Retry,
}

impl Ask {
    /// The tenure in whose name it is asked, if it is the holder's own.
    pub fn title(self) -> Option<Title> {
        match self {
            Ask::Renew(title) | Ask::Checkpoint(title) | Ask::Release(title, _) | Ask::Complete(title, _) => {
                Some(title)
            }
            Ask::Acquire { .. } | Ask::Operate { .. } => None,
        }
    }

    /// The name that the transfer it causes will carry, if it causes one.
    pub fn transfers_as(self) -> Option<Name> {
        match self {
            Ask::Acquire { name, .. } | Ask::Operate { command: Command::HandOff { to: name }, .. } => Some(name),
            Ask::Operate { name, command: Command::Revoke | Command::Advance { .. } } => Some(name),
            _ => None,
        }
    }

    /// The name that will hold the lease if it is granted.
    pub fn grants_to(self) -> Option<Name> {
        match self {
            Ask::Acquire { name, .. } | Ask::Operate { command: Command::HandOff { to: name }, .. } => Some(name),
            _ => None,
        }
    }

    /// Whether the clock has a say in the answer.
    pub fn depends_on_time(self) -> bool {
        let by_order = matches!(self, Ask::Operate { command: Command::HandOff { .. } | Command::Drain, .. });
        by_order || matches!(self, Ask::Acquire { .. } | Ask::Renew(_))
    }

    /// The real request.
    pub fn request(self, texts: &Texts) -> Request {
        match self {
            Ask::Acquire { name, slot, after } => Request::Acquire {
                lineage: LINEAGE,
                holder: texts.holder(name),
                ttl: Ttl::MIN,
                spacing: None,
                requested: None,
                slot: (slot > 0).then(|| {
                    // Who retries failures also knows that the slot before was given up, if its run died.
                    let gives_up = (after == Again::Retry).then(|| slot_of(slot - 1));
                    SlotClaim { gives_up, ..SlotClaim::new(slot_of(slot), after.after_failure()) }
                }),
            },
            Ask::Renew(title) => Request::Renew { claim: title.claim(), ttl: Ttl::MIN, progress: None },
            Ask::Checkpoint(title) => Request::Checkpoint { claim: title.claim(), report: Report::default() },
            Ask::Release(title, end) => Request::Release { claim: title.claim(), outcome: end.outcome() },
            Ask::Complete(title, end) => Request::Complete { claim: title.claim(), outcome: end.outcome() },
            Ask::Operate { name, command } => Request::Operate {
                nonce: nonce(name),
                lineage: LINEAGE,
                by: texts.by.clone(),
                why: texts.why.clone(),
                expected: None,
                order: match command {
                    Command::Revoke => Order::Revoke,
                    Command::HandOff { to } => Order::HandOff { to: texts.holder(to), ttl: Ttl::MIN },
                    Command::Drain => Order::Drain { within: Ttl::MIN },
                    Command::Pause => Order::Pause,
                    Command::Resume { pause } => Order::Resume { pause: nonce(pause) },
                    Command::Advance { past } => Order::Advance { past: epoch(past), lineage: None },
                },
            },
        }
    }
}

impl Again {
    fn after_failure(self) -> AfterFailure {
        match self {
            Again::Leave => AfterFailure::Leave,
            Again::Retry => AfterFailure::Retry,
        }
    }
}

/// The texts that all requests share.
#[derive(Debug)]
pub struct Texts {
    label: Label,
    by: Who,
    why: Why,
}

impl Default for Texts {
    fn default() -> Self {
        Texts { label: Label::lossy("c", "c"), by: Who::lossy("o", "o"), why: Why::lossy("w", "w") }
    }
}

impl Texts {
    fn holder(&self, name: Name) -> HolderId {
        HolderId::of("h", 1, nonce(name), self.label.clone())
    }
}

pub fn nonce(name: Name) -> Nonce {
    Nonce::from_u128(u128::from(name))
}

/// The name behind a nonce of this model.
pub fn name(nonce: Nonce) -> Name {
    Name::try_from(nonce.as_u128()).unwrap_or(Name::MAX)
}

pub fn epoch(number: u8) -> Epoch {
    // A byte is always below the largest epoch.
    Epoch::new(u64::from(number)).unwrap_or(Epoch::MAX)
}

/// The number of an epoch of this model.
pub fn number(epoch: Epoch) -> u8 {
    u8::try_from(epoch.get()).unwrap_or(u8::MAX)
}

fn slot_of(slot: u8) -> Slot {
    Slot(Timestamp::from_millis(u64::from(slot)))
}
