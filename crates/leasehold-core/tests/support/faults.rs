//! A store that misbehaves as told, and a clock that goes on by itself when somebody sleeps.

use async_trait::async_trait;
use leasehold_core::clock::{Clock, ManualClock, Moment};
use leasehold_core::store::{Capabilities, Change, ClockSource, Next, Page, Range, Reading, Store, Swap, Watch};
use leasehold_core::{Error, Key, Kind, MemoryStore, Result, Shelf, Timestamp};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[path = "../../../leasehold-conformance/src/faulty/gate.rs"]
mod gate;
#[path = "../../../leasehold-conformance/src/faulty/volatile.rs"]
mod volatile;

pub use gate::Gate;
use volatile::Volatile;

/// Which call a fault is chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Read,
    Swap,
    /// A swap of what is archived.
    Archive,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The call fails with this kind, and nothing is applied.
    Fails(Kind),
    /// The call is applied; its answer is lost.
    LostReply,
    /// The call is not applied; its answer is lost.
    LostRequest,
    /// The call is applied for everybody to see, but is not durable; its answer is lost. [`Faulty::crash`] takes it back.
    Unsynced,
    /// What the other fault does, but its answer is held back until the gate is open.
    Held(Gate, Box<Fault>),
    /// The call waits until the gate is open; then the other fault has it.
    Late(Gate, Box<Fault>),
    /// A swap finds another value than expected.
    Mismatch,
    /// The clock moves before the store applies the call, and again before the answer arrives.
    Slow(Duration, Duration),
    /// The store's clock is set forward before the call is applied, and stays so.
    StepsForward(Duration),
    /// No answer ever comes; the call is not applied.
    Hangs,
    /// The runtime gets control before and after the store applies the call.
    Yields,
    /// The answer is damaged.
    Damaged,
}

type Plan = Box<dyn FnMut(Call) -> Fault + Send>;

/// A memory store behind faults.
pub struct Faulty {
    pub inner: MemoryStore,
    volatile: Volatile,
    pub clock: ManualClock,
    pub grain: Duration,
    pub reads: AtomicUsize,
    pub swaps: AtomicUsize,
    /// How far the store's clock was set forward.
    pub ahead_ms: AtomicU64,
    plan: Mutex<Plan>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl Faulty {
    pub fn new(clock: ManualClock) -> Self {
        let inner = MemoryStore::with_clock(Arc::new(clock.clone()));
        Faulty {
            volatile: Volatile::new(Arc::new(inner.clone())),
            inner,
            clock,
            grain: Duration::from_millis(1),
            reads: AtomicUsize::new(0),
            swaps: AtomicUsize::new(0),
            ahead_ms: AtomicU64::new(0),
            plan: Mutex::new(Box::new(|_| Fault::None)),
        }
    }

    /// The same, telling time in steps of this.
    pub fn with_grain(self, grain: Duration) -> Self {
        Faulty { grain, ..self }
    }

    /// Chooses faults from now on, by the kind of call and its number from here, from 1.
    pub fn plan(&self, mut plan: impl FnMut(Call, usize) -> Fault + Send + 'static) {
        let mut number = 0;
        *self.plan.lock().unwrap() = Box::new(move |call| {
            number += 1;
            plan(call, number)
        });
    }

    /// Lets the next calls of one kind go wrong in this order, and the rest go well.
    pub fn next(&self, kind: Call, faults: &[Fault]) {
        let mut faults = Vec::from(faults).into_iter();
        self.plan(move |call, _| if call == kind { faults.next().unwrap_or(Fault::None) } else { Fault::None });
    }

    /// Takes back what was written and is not durable.
    pub async fn crash(&self) {
        self.volatile.crash().await;
    }

    pub fn heal(&self) {
        self.plan(|_, _| Fault::None);
    }

    /// Reads and swaps since the last time this was asked.
    pub fn round_trips(&self) -> (usize, usize) {
        (self.reads.swap(0, Ordering::SeqCst), self.swaps.swap(0, Ordering::SeqCst))
    }

    /// The store's time as it tells it: as far ahead as it was set, cut down to its grain.
    fn told(&self, now: Timestamp) -> Timestamp {
        let grain = (self.grain.as_millis() as u64).max(1);
        let now = now.as_millis() + self.ahead_ms.load(Ordering::SeqCst);
        Timestamp::from_millis(now / grain * grain)
    }

    /// Applies a call as the plan has it, durably or not. `None` stands for a swap that found another value than expected.
    async fn through<T>(
        &self,
        call: Call,
        apply: impl Future<Output = Result<T>> + Send,
        unsynced: impl Future<Output = Result<T>> + Send,
    ) -> Result<Option<(T, bool)>> {
        let counter = if call == Call::Read { &self.reads } else { &self.swaps };
        counter.fetch_add(1, Ordering::SeqCst);
        let (mut fault, mut held) = ((self.plan.lock().unwrap())(call), None);
        loop {
            fault = match fault {
                Fault::Late(gate, then) => {
                    gate.pass().await;
                    *then
                }
                Fault::Held(gate, then) => {
                    held = Some(gate);
                    *then
                }
                _ => break,
            }
        }
        let answer = self.as_planned(fault, apply, unsynced).await;
        if let Some(gate) = held {
            gate.pass().await;
        }
        answer
    }

    async fn as_planned<T>(
        &self,
        fault: Fault,
        apply: impl Future<Output = Result<T>> + Send,
        unsynced: impl Future<Output = Result<T>> + Send,
    ) -> Result<Option<(T, bool)>> {
        match fault {
            Fault::None => Ok(Some((apply.await?, false))),
            Fault::Mismatch => Ok(None),
            Fault::Damaged => Ok(Some((apply.await?, true))),
            Fault::Fails(kind) => Err(Error::new(kind, "fault")),
            Fault::LostRequest => Err(Error::new(Kind::Indeterminate, "no answer")),
            Fault::LostReply => {
                apply.await?;
                Err(Error::new(Kind::Indeterminate, "no answer"))
            }
            Fault::Unsynced => {
                unsynced.await?;
                Err(Error::new(Kind::Indeterminate, "not synced"))
            }
            Fault::Slow(before, after) => {
                self.clock.advance(before);
                let answer = apply.await;
                self.clock.advance(after);
                Ok(Some((answer?, false)))
            }
            Fault::StepsForward(by) => {
                self.ahead_ms.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
                Ok(Some((apply.await?, false)))
            }
            Fault::Hangs => std::future::pending().await,
            Fault::Yields => {
                tokio::task::yield_now().await;
                let answer = apply.await;
                tokio::task::yield_now().await;
                Ok(Some((answer?, false)))
            }
            Fault::Held(..) | Fault::Late(..) => unreachable!("taken apart before"),
        }
    }
}

#[async_trait]
impl Store for Faulty {
    fn capabilities(&self) -> Capabilities {
        Capabilities { clock: ClockSource::Store { grain: self.grain }, ..self.inner.capabilities() }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let answer = self.through(Call::Read, self.volatile.read(key), self.volatile.read(key)).await?;
        let (mut reading, damaged) = answer.expect("a read has no mismatch");
        reading.now = self.told(reading.now);
        if let Some(value) = reading.value.as_mut().filter(|_| damaged) {
            let last = value.bytes.len() - 1;
            value.bytes[last] ^= 1;
        }
        Ok(reading)
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        if let Next::Erase = change.next {
            return self.volatile.write(change).await;
        }
        let unsynced = self.volatile.write_unsynced(change);
        let call = if change.key.shelf == Shelf::History { Call::Archive } else { Call::Swap };
        let answer = self.through(call, self.volatile.write(change), unsynced).await?;
        Ok(match answer {
            Some((Swap::Done { revision, now }, _)) => Swap::Done { revision, now: self.told(now) },
            _ => Swap::Mismatch,
        })
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.volatile.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<leasehold_core::store::Survey> {
        self.inner.survey().await
    }
}

/// A hand-turned clock that turns itself when somebody sleeps: the pauses between attempts take no time.
#[derive(Debug, Clone)]
pub struct Hasty(pub ManualClock);

#[async_trait]
impl Clock for Hasty {
    fn now(&self) -> Moment {
        self.0.now()
    }

    async fn sleep_until(&self, until: Moment) {
        tokio::task::yield_now().await;
        self.0.advance(until.saturating_since(self.0.now()));
    }
}
