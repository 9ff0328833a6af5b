//! Random histories: what is asked, in which order, and when.

use crate::spec::{Answer, Spec};
use crate::support::{at, claim, epoch, holder};
use leasehold_core::lease::protocol::{
    AfterFailure, Decision, Holder, Order, Refusal, Report, Request, RunRequest, SlotClaim, decide,
};
use leasehold_core::relocation::{Relocation, Step};
use leasehold_core::{Checkpoint, Claim, Epoch, Nonce, Outcome, Ownership, Slot, Timestamp};
use proptest::prelude::*;
use std::time::Duration;

/// What to do next, before it is known which tenures there will have been.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// `requested` is how far behind the epoch is that an operator saw, and until when the request counts.
    Acquire {
        again: Option<usize>,
        ttl: u64,
        slot: Option<(u64, bool)>,
        spacing: Option<u64>,
        requested: Option<(u64, u64)>,
    },
    Renew {
        which: usize,
        ttl: u64,
        marker: bool,
    },
    Release {
        which: usize,
        outcome: Outcome,
    },
    Checkpoint {
        which: usize,
    },
    Complete {
        which: usize,
        outcome: Outcome,
    },
    Revoke {
        by: usize,
        again: Option<usize>,
    },
    HandOff {
        by: usize,
        again: Option<usize>,
        ttl: u64,
    },
    Drain {
        by: usize,
        again: bool,
        within: u64,
    },
    Forget {
        by: usize,
        again: bool,
        idle: u64,
    },
    Pause {
        by: usize,
        again: bool,
    },
    Resume {
        by: usize,
        again: bool,
        earlier: bool,
    },
    Advance {
        by: usize,
        past: u64,
    },
    Rewind {
        by: usize,
    },
    Relocate {
        by: usize,
        migration: u128,
        step: usize,
        evict: bool,
    },
}

/// The same with every nonce and claim filled in.
#[derive(Debug, Clone)]
pub(crate) enum Concrete {
    Acquire {
        nonce: u128,
        ttl: u64,
        slot: Option<(u64, bool)>,
        gives_up: Option<u64>,
        spacing: Option<u64>,
        requested: Option<(u64, u64)>,
    },
    Renew(Claim, u64),
    Release(Claim, Outcome),
    Checkpoint(Claim),
    Complete(Claim, Outcome),
    Operate {
        nonce: u128,
        by: usize,
        order: ConcreteOrder,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum ConcreteOrder {
    Revoke,
    HandOff { to: u128, ttl: u64 },
    Drain { within: u64 },
    Forget { idle: u64 },
    Pause,
    Resume { pause: u128 },
    Advance { past: u64 },
    Rewind,
    Relocate { migration: u128, step: usize, evict: bool },
}

pub(crate) fn ops() -> impl Strategy<Value = Vec<(u64, Op)>> {
    let again = prop_oneof![3 => Just(None), 1 => (0..4_usize).prop_map(Some)];
    let ttls = prop_oneof![Just(1_000_u64), Just(2_000), Just(5_000)];
    let outcome = prop_oneof![
        3 => Just(Outcome::Succeeded),
        2 => Just(Outcome::Failed),
        1 => Just(Outcome::Lost),
        1 => Just(Outcome::NotStarted),
        1 => Just(Outcome::Drained),
    ];
    // Mostly the newest tenure; sometimes an older one, or a forged one.
    let which = prop_oneof![4 => Just(0_usize), 2 => 1..4_usize, 1 => 90..92_usize];
    let slot = prop_oneof![1 => Just(None), 2 => (1..5_u64, any::<bool>()).prop_map(Some)];
    let by = 0..2_usize;
    let spacing = prop_oneof![3 => Just(None), 1 => prop_oneof![Just(500_u64), Just(3_000)].prop_map(Some)];
    let until = prop_oneof![Just(3_000_u64), Just(10_000), Just(u64::MAX)];
    let requested = prop_oneof![4 => Just(None), 1 => (0..2_u64, until).prop_map(Some)];
    let op = prop_oneof![
        8 => (again.clone(), ttls.clone(), slot, spacing, requested).prop_map(
            |(again, ttl, slot, spacing, requested)| Op::Acquire { again, ttl, slot, spacing, requested }
        ),
        4 => (which.clone(), ttls.clone(), any::<bool>()).prop_map(|(which, ttl, marker)| Op::Renew { which, ttl, marker }),
        4 => (which.clone(), outcome.clone()).prop_map(|(which, outcome)| Op::Release { which, outcome }),
        2 => which.clone().prop_map(|which| Op::Checkpoint { which }),
        3 => (which, outcome).prop_map(|(which, outcome)| Op::Complete { which, outcome }),
        2 => (by.clone(), again.clone()).prop_map(|(by, again)| Op::Revoke { by, again }),
        2 => (by.clone(), any::<bool>(), ttls.clone())
            .prop_map(|(by, again, within)| Op::Drain { by, again, within }),
        1 => (by.clone(), any::<bool>(), 0..1_500_u64).prop_map(|(by, again, idle)| Op::Forget { by, again, idle }),
        2 => (by.clone(), again, ttls).prop_map(|(by, again, ttl)| Op::HandOff { by, again, ttl }),
        2 => (by.clone(), any::<bool>()).prop_map(|(by, again)| Op::Pause { by, again }),
        4 => (by.clone(), any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(by, again, earlier)| Op::Resume { by, again, earlier }),
        1 => (by.clone(), 0..90_u64).prop_map(|(by, past)| Op::Advance { by, past }),
        1 => by.clone().prop_map(|by| Op::Rewind { by }),
        2 => (by, 1..3_u128, prop::sample::select([vec![0; 12], vec![1; 6], vec![2, 3, 4]].concat()), any::<bool>())
            .prop_map(|(by, migration, step, evict)| Op::Relocate { by, migration, step, evict }),
    ];
    let step = prop_oneof![3 => 0..300_u64, 2 => 300..2_500_u64, 1 => Just(1_000_u64), 1 => Just(0)];
    // Most histories are short; some are long enough for the oldest transfers to be forgotten.
    let step = (step.boxed(), op.boxed());
    prop_oneof![9 => prop::collection::vec(step.clone(), 1..60), 1 => prop::collection::vec(step, 130..190)]
}

/// One decision of a history.
pub(crate) struct Decided {
    pub(crate) before: Ownership,
    pub(crate) request: Request,
    pub(crate) now: Timestamp,
    pub(crate) decision: Decision,
}

#[derive(Default)]
pub(crate) struct History {
    pub(crate) record: Ownership,
    pub(crate) tenures: Vec<Claim>,
    pub(crate) drawn: u128,
    pub(crate) operator_nonces: Vec<u128>,
    pub(crate) last_drain: Option<u128>,
    pub(crate) last_forget: Option<u128>,
    pub(crate) last_pause: Option<u128>,
    pub(crate) last_resume: Option<u128>,
    /// How many requests have met a lease that is about to leave.
    pub(crate) refused: u32,
}

impl History {
    pub(crate) fn fresh(&mut self) -> u128 {
        self.drawn += 1;
        self.drawn
    }

    pub(crate) fn claim(&self, which: usize) -> Claim {
        let newest = self.tenures.last().copied().unwrap_or(claim(1, 999));
        match which {
            90 => Claim { nonce: Nonce::from_u128(u128::MAX), ..newest },
            91 => Claim { epoch: newest.epoch.next().unwrap(), ..newest },
            back => self.tenures.iter().rev().nth(back).copied().unwrap_or(newest),
        }
    }

    pub(crate) fn holder_nonce(&mut self, again: Option<usize>) -> u128 {
        let old = again.and_then(|back| self.tenures.iter().rev().nth(back)).map(|c| c.nonce.as_u128());
        old.unwrap_or_else(|| self.fresh())
    }

    pub(crate) fn concrete(&mut self, op: &Op) -> (Concrete, Request) {
        // A migration that is never given up would leave the rest of a history with one answer.
        let stay = match &self.record.relocation {
            Some(Relocation::Moving { migration, .. }) => Some(migration.as_u128()),
            _ => None,
        };
        self.refused = if stay.is_some() { self.refused + 1 } else { 0 };
        let given_up = stay.filter(|_| self.refused > 3);
        let given_up = given_up.map(|migration| Op::Relocate { by: 0, migration, step: 1, evict: false });
        let op = given_up.as_ref().unwrap_or(op);
        let concrete = match *op {
            Op::Acquire { again, ttl, slot, spacing, requested } => {
                let nonce = self.holder_nonce(again);
                // Some know of the slot whose run died, and give it up.
                let gives_up = self.record.slot.filter(|_| ttl == 5_000).map(|mark| mark.slot.0.as_millis());
                let requested =
                    requested.map(|(behind, until)| (self.record.epoch.get().saturating_sub(behind), until));
                // Who carries out a request claims no slot.
                let slot = slot.filter(|_| requested.is_none());
                Concrete::Acquire { nonce, ttl, slot, gives_up, spacing, requested }
            }
            Op::Renew { which, ttl, .. } => Concrete::Renew(self.claim(which), ttl),
            Op::Release { which, outcome } => Concrete::Release(self.claim(which), outcome),
            Op::Checkpoint { which } => Concrete::Checkpoint(self.claim(which)),
            Op::Complete { which, outcome } => Concrete::Complete(self.claim(which), outcome),
            Op::Revoke { by, again } => {
                let old = again.and_then(|back| self.operator_nonces.iter().rev().nth(back).copied());
                let nonce = old.unwrap_or_else(|| self.fresh());
                self.operator_nonces.push(nonce);
                Concrete::Operate { nonce, by, order: ConcreteOrder::Revoke }
            }
            Op::HandOff { by, again, ttl } => {
                let to = self.holder_nonce(again);
                Concrete::Operate { nonce: self.fresh(), by, order: ConcreteOrder::HandOff { to, ttl } }
            }
            Op::Drain { by, again, within } => {
                let nonce = self.last_drain.filter(|_| again).unwrap_or_else(|| self.fresh());
                self.last_drain = Some(nonce);
                Concrete::Operate { nonce, by, order: ConcreteOrder::Drain { within } }
            }
            Op::Forget { by, again, idle } => {
                let nonce = self.last_forget.filter(|_| again).unwrap_or_else(|| self.fresh());
                self.last_forget = Some(nonce);
                Concrete::Operate { nonce, by, order: ConcreteOrder::Forget { idle } }
            }
            Op::Pause { by, again } => {
                let nonce = self.last_pause.filter(|_| again).unwrap_or_else(|| self.fresh());
                self.last_pause = Some(nonce);
                Concrete::Operate { nonce, by, order: ConcreteOrder::Pause }
            }
            Op::Resume { by, again, earlier } => {
                let nonce = self.last_resume.filter(|_| again).unwrap_or_else(|| self.fresh());
                self.last_resume = Some(nonce);
                let pause = self.last_pause.filter(|_| !earlier).unwrap_or(0);
                Concrete::Operate { nonce, by, order: ConcreteOrder::Resume { pause } }
            }
            Op::Relocate { by, migration, step, evict } => {
                let order = ConcreteOrder::Relocate { migration, step, evict };
                Concrete::Operate { nonce: self.fresh(), by, order }
            }
            Op::Advance { by, past } => {
                Concrete::Operate { nonce: self.fresh(), by, order: ConcreteOrder::Advance { past } }
            }
            Op::Rewind { by } => Concrete::Operate { nonce: self.fresh(), by, order: ConcreteOrder::Rewind },
        };
        let marker = matches!(op, Op::Renew { marker: true, .. });
        let request = request(&concrete, marker);
        (concrete, request)
    }
}

pub(crate) fn request(concrete: &Concrete, marker: bool) -> Request {
    let report = || Report { marker: Some("half".parse().unwrap()), checkpoint: Some(Checkpoint::new("x").unwrap()) };
    match *concrete {
        Concrete::Acquire { nonce, ttl, slot, gives_up, spacing, requested } => Request::Acquire {
            lineage: leasehold_core::Lineage::from_u128(1),
            holder: holder(nonce),
            ttl: ttl.try_into().unwrap(),
            slot: slot.map(|(slot, retry)| SlotClaim {
                slot: Slot(at(slot)),
                after_failure: if retry { AfterFailure::Retry } else { AfterFailure::Leave },
                gives_up: gives_up.map(|slot| Slot(at(slot))),
            }),
            spacing: spacing.map(Duration::from_millis),
            requested: requested.map(|(expected, until)| RunRequest {
                by: "ann".parse().unwrap(),
                why: "again".parse().unwrap(),
                expected: Epoch::new(expected).unwrap(),
                until: at(until),
            }),
        },
        Concrete::Renew(claim, ttl) => {
            Request::Renew { claim, ttl: ttl.try_into().unwrap(), progress: marker.then(report) }
        }
        Concrete::Release(claim, outcome) => Request::Release { claim, outcome },
        Concrete::Checkpoint(claim) => Request::Checkpoint { claim, report: report() },
        Concrete::Complete(claim, outcome) => Request::Complete { claim, outcome },
        Concrete::Operate { nonce, by, ref order } => Request::Operate {
            lineage: leasehold_core::Lineage::from_u128(1),
            nonce: Nonce::from_u128(nonce),
            by: ["ann", "bob"][by].parse().unwrap(),
            why: ["it hangs", "drill"][by].parse().unwrap(),
            expected: None,
            order: match *order {
                ConcreteOrder::Revoke => Order::Revoke,
                ConcreteOrder::HandOff { to, ttl } => Order::HandOff { to: holder(to), ttl: ttl.try_into().unwrap() },
                ConcreteOrder::Drain { within } => Order::Drain { within: within.try_into().unwrap() },
                ConcreteOrder::Forget { idle } => Order::Forget { idle: Duration::from_millis(idle) },
                ConcreteOrder::Pause => Order::Pause,
                ConcreteOrder::Resume { pause } => Order::Resume { pause: Nonce::from_u128(pause) },
                ConcreteOrder::Advance { past } => Order::Advance { past: epoch(past), lineage: None },
                ConcreteOrder::Rewind => Order::Rewind,
                ConcreteOrder::Relocate { migration, step, evict } => Order::Relocate {
                    migration: Nonce::from_u128(migration),
                    step: [
                        Step::Leave { to: "elsewhere".parse().unwrap() },
                        Step::Stay,
                        Step::Depart,
                        Step::Settle,
                        Step::Withdraw,
                    ][step]
                        .clone(),
                    holder: if evict { Holder::Evicted } else { Holder::Stays },
                },
            },
        },
    }
}

pub(crate) fn answer(decision: &Decision) -> Answer {
    match decision {
        Decision::Write(_) => Answer::Write,
        Decision::AlreadyApplied => Answer::Already,
        Decision::Refuse(refusal) => Answer::No(match refusal {
            Refusal::Held { .. } => "held",
            Refusal::Paused(_) => "paused",
            Refusal::Draining(_) => "draining",
            Refusal::TooSoon { .. } => "too soon",
            Refusal::NotHeld => "not held",
            Refusal::Recent { .. } => "recent",
            Refusal::Forgotten(_) => "forgotten",
            Refusal::AlreadyRun(_) => "already run",
            Refusal::Interrupted(_) => "interrupted",
            Refusal::Lost { .. } => "lost",
            Refusal::AlreadyReleased { .. } => "already released",
            Refusal::NeverHeld => "never held",
            Refusal::NotPaused => "not paused",
            Refusal::NoSlot => "no slot",
            Refusal::Changed { .. } => "changed",
            Refusal::RequestExpired { .. } => "request expired",
            Refusal::OtherPause(_) => "other pause",
            Refusal::Elsewhere(_) => "elsewhere",
            Refusal::NotMoving { .. } => "not moving",
            Refusal::OtherLineage { .. } => "other lineage",
            Refusal::LineageFixed { .. } => "lineage fixed",
            Refusal::Exhausted => "exhausted",
            Refusal::TooFar { .. } => "too far",
        }),
    }
}

/// Plays a history and shows every decision to `look`, with what the specification answered.
pub(crate) fn play(
    ops: &[(u64, Op)],
    mut look: impl FnMut(&Decided, Answer, &Spec) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut history = History::default();
    let mut spec = Spec::default();
    let mut now = 10_000;
    for (wait, op) in ops {
        now += wait;
        let (concrete, request) = history.concrete(op);
        let expected = spec.step(&concrete, now);
        spec.is_known |= expected == Answer::Write;
        let before = std::mem::take(&mut history.record);
        let decision = decide(&before, &request, at(now));
        let step = Decided { before, request, now: at(now), decision };
        look(&step, expected, &spec)?;
        history.record = match step.decision {
            Decision::Write(next) => {
                if let Some(tenure) = next.tenure.as_ref().filter(|_| next.epoch > step.before.epoch) {
                    history.tenures.push(Claim { epoch: next.epoch, nonce: tenure.holder.nonce() });
                }
                *next
            }
            _ => step.before,
        };
    }
    Ok(())
}

pub(crate) fn each_write(
    ops: &[(u64, Op)],
    look: impl Fn(&Decided, &Ownership) -> Result<(), TestCaseError>,
) -> TestCaseResult {
    play(ops, |step, _, _| match &step.decision {
        Decision::Write(next) => look(step, next),
        _ => Ok(()),
    })
}

pub(crate) type TestCaseResult = Result<(), TestCaseError>;
