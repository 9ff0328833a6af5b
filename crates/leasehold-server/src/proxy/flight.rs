//! A request in flight: what the proxy still has to answer for before a newer epoch may come in.
//!
//! Promise: a request that was cut never becomes complete at the upstream, because its last piece is not sent. A
//! complete one is over when the upstream has answered it, or after as long as the upstream may take, whatever
//! happened to its connection. Non-promise: what the upstream does after its answer.

use futures_util::task::AtomicWaker;
use leasehold_core::guard::HighWater;
use leasehold_core::{Epoch, Lineage, Token, clock::Moment};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::Context;

const SENDING: u8 = 0;
const SENT: u8 = 1;
const CUT: u8 = 2;

/// An epoch and its lineage: epochs of two lineages cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LineEpoch {
    pub(crate) lineage: Lineage,
    pub(crate) epoch: Epoch,
}

impl From<&Token> for LineEpoch {
    fn from(token: &Token) -> Self {
        LineEpoch { lineage: token.lineage, epoch: token.epoch }
    }
}

impl From<&HighWater> for LineEpoch {
    fn from(high: &HighWater) -> Self {
        LineEpoch { lineage: high.lineage, epoch: high.epoch }
    }
}

/// Why a request was not sent completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A newer epoch came.
    Overtaken(Epoch),
    /// This proxy may no longer admit anything.
    Deposed,
    /// It is longer than allowed.
    TooLarge,
    /// Nothing came for too long.
    Idle,
    /// The client broke off.
    Client,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Overtaken(seen) => write!(f, "cut off by epoch {seen}"),
            Fault::Deposed => f.write_str("this proxy no longer answers for the resource"),
            Fault::TooLarge => f.write_str("the body is longer than allowed"),
            Fault::Idle => f.write_str("the body did not come in time"),
            Fault::Client => f.write_str("the client ended the connection"),
        }
    }
}

impl std::error::Error for Fault {}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) of: LineEpoch,
    phase: AtomicU8,
    waker: AtomicWaker,
    fault: OnceLock<Fault>,
    sent_at: OnceLock<Moment>,
    is_over: AtomicBool,
}

impl Flight {
    pub(crate) fn new(of: LineEpoch) -> Self {
        Flight {
            of,
            phase: AtomicU8::new(SENDING),
            waker: AtomicWaker::new(),
            fault: OnceLock::new(),
            sent_at: OnceLock::new(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Called before the last piece is sent. False if the request was cut: then it must not be sent.
    pub(crate) fn send_last(&self, now: Moment) -> bool {
        let _ = self.sent_at.set(now);
        match self.phase.compare_exchange(SENDING, SENT, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(phase) => phase == SENT,
        }
    }

    /// Cuts it unless it was sent completely.
    pub(crate) fn cut(&self, why: Fault) {
        let _ = self.fault.set(why);
        if self.phase.compare_exchange(SENDING, CUT, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.waker.wake();
        }
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.phase.load(Ordering::Acquire) == CUT
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.phase.load(Ordering::Acquire) == SENT
    }

    /// The upstream has answered it, or never saw it.
    pub(crate) fn settle(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// When it was sent, if it was sent completely and never answered: then it may still be running upstream.
    pub(crate) fn unanswered_since(&self) -> Option<Moment> {
        let is_open = self.is_sent() && !self.is_over.load(Ordering::Acquire);
        self.sent_at.get().copied().filter(|_| is_open)
    }

    /// Why it was not sent completely, if it was not.
    pub(crate) fn fault(&self) -> Option<Fault> {
        if self.is_sent() { None } else { self.fault.get().copied() }
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Wakes the task when it is cut, or when the horizon has moved.
    pub(crate) fn wake_on_change(&self, context: &Context<'_>) {
        self.waker.register(context.waker());
    }
}
