//! The one protocol against a sequential specification that was written apart from it, and its rules one by one.
//!
//! `Spec` below is deliberately naive: it keeps five facts and forgets the rest of the record. Random histories must
//! get the same answers from both; the properties then look at what the specification leaves out.

#![allow(clippy::unwrap_used)]

mod support;

use leasehold::codec::{self, MAX_RECORD_BYTES};
use leasehold::protocol::{AfterFailure, Decision, Order, Refusal, Report, Request, SlotClaim, decide};
use leasehold::{
    Checkpoint, Claim, Epoch, HolderId, Nonce, Outcome, Ownership, Reason, Slot, SlotState, TRANSFERS_KEPT, Timestamp,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use support::{CASES, at, claim, epoch, holder, property, ttl};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Write,
    Already,
    No(&'static str),
}

#[derive(Debug, Default)]
struct Spec {
    epoch: u64,
    /// The nonce of whoever holds it, and the deadline.
    holder: Option<(u128, u64)>,
    paused: Option<u128>,
    resumed: Option<u128>,
    /// Slot, state, epoch.
    slot: Option<(u64, SlotState, u64)>,
    /// The nonces of all transfers; only the last 32 are remembered.
    nonces: Vec<u128>,
    /// Tenures whose holder gave them back.
    released: BTreeMap<(u64, u128), Outcome>,
}

impl Spec {
    fn knows(&self, nonce: u128) -> bool {
        self.nonces.iter().rev().take(32).any(|n| *n == nonce)
    }

    fn live(&self, now: u64) -> Option<u128> {
        self.holder.filter(|(_, deadline)| now < *deadline).map(|(nonce, _)| nonce)
    }

    fn transfer(&mut self, nonce: u128, to: u64, grant: Option<u64>) -> Answer {
        self.epoch = to;
        self.nonces.push(nonce);
        self.holder = grant.map(|deadline| (nonce, deadline));
        Answer::Write
    }

    fn step(&mut self, op: &Concrete, now: u64) -> Answer {
        use Answer::{Already, No, Write};
        let ours = |spec: &Spec, c: Claim| {
            spec.epoch == c.epoch.get() && spec.holder.is_some_and(|(nonce, _)| nonce == c.nonce.as_u128())
        };
        match *op {
            Concrete::Acquire { nonce, .. } if self.knows(nonce) => {
                if self.live(now) == Some(nonce) {
                    Already
                } else {
                    No("lost")
                }
            }
            Concrete::Acquire { nonce, ttl, slot } => {
                if let (Some((wanted, retry)), Some((last, state, _))) = (slot, self.slot) {
                    let over = state == SlotState::Done || (state == SlotState::Failed && !retry);
                    if wanted < last || (wanted == last && over) {
                        return No("already run");
                    }
                }
                if self.live(now).is_some() {
                    return No("held");
                }
                if self.paused.is_some() {
                    return No("paused");
                }
                if let Some((wanted, _)) = slot {
                    self.slot = Some((wanted, SlotState::Running, self.epoch + 1));
                }
                self.transfer(nonce, self.epoch + 1, Some(now + ttl))
            }
            Concrete::Renew(c, ttl) => {
                if !ours(self, c) || self.live(now).is_none() {
                    return No("lost");
                }
                self.holder = Some((c.nonce.as_u128(), now + ttl));
                Write
            }
            Concrete::Checkpoint(c) => {
                if ours(self, c) {
                    Write
                } else {
                    No("lost")
                }
            }
            Concrete::Release(c, outcome) => {
                if !ours(self, c) {
                    let back = self.released.contains_key(&(c.epoch.get(), c.nonce.as_u128()));
                    let known = back && self.knows(c.nonce.as_u128());
                    return No(if known { "already released" } else { "lost" });
                }
                self.holder = None;
                self.released.insert((c.epoch.get(), c.nonce.as_u128()), outcome);
                self.close(c.epoch.get(), outcome);
                Write
            }
            Concrete::Complete(c, outcome) => match self.slot {
                _ if !ours(self, c) => No("lost"),
                Some((_, state, e)) if e == c.epoch.get() => match (state, outcome) {
                    (SlotState::Running, Outcome::Lost) => Already,
                    (SlotState::Running, _) => {
                        self.close(e, outcome);
                        Write
                    }
                    (SlotState::Done, Outcome::Failed) | (SlotState::Failed, Outcome::Succeeded) => No("already run"),
                    _ => Already,
                },
                _ => No("no slot"),
            },
            Concrete::Operate { nonce, ref order, .. } => match *order {
                ConcreteOrder::HandOff { to, .. } if self.knows(to) => {
                    if self.live(now) == Some(to) {
                        Already
                    } else {
                        No("lost")
                    }
                }
                ConcreteOrder::HandOff { to, ttl } => {
                    if let Some((slot, SlotState::Running, e)) = self.slot
                        && e == self.epoch
                    {
                        self.slot = Some((slot, SlotState::Running, self.epoch + 1));
                    }
                    self.transfer(to, self.epoch + 1, Some(now + ttl))
                }
                _ if self.knows(nonce) => Already,
                ConcreteOrder::Revoke if self.epoch == 0 => No("never held"),
                ConcreteOrder::Revoke => self.transfer(nonce, self.epoch + 1, None),
                ConcreteOrder::Advance { past } => self.transfer(nonce, (self.epoch + 1).max(past + 1), None),
                ConcreteOrder::Import { epoch } if self.epoch > epoch => Already,
                ConcreteOrder::Import { .. } if self.live(now).is_some() => No("held"),
                ConcreteOrder::Import { epoch } => self.transfer(nonce, epoch + 1, None),
                ConcreteOrder::Retire if self.paused == Some(nonce) => Already,
                ConcreteOrder::Retire => {
                    self.paused = Some(nonce);
                    Write
                }
                ConcreteOrder::Pause => match self.paused {
                    Some(other) if other != nonce => No("paused"),
                    Some(_) => Already,
                    None => {
                        self.paused = Some(nonce);
                        Write
                    }
                },
                ConcreteOrder::Resume => match (self.paused, self.resumed) {
                    (None, Some(before)) if before == nonce => Already,
                    (None, _) => No("not paused"),
                    (Some(_), _) => {
                        self.paused = None;
                        self.resumed = Some(nonce);
                        Write
                    }
                },
            },
        }
    }

    fn close(&mut self, under: u64, outcome: Outcome) {
        if let Some((slot, SlotState::Running, e)) = self.slot
            && e == under
        {
            match outcome {
                Outcome::Succeeded => self.slot = Some((slot, SlotState::Done, e)),
                Outcome::Failed => self.slot = Some((slot, SlotState::Failed, e)),
                _ => {}
            }
        }
    }
}

/// What to do next, before it is known which tenures there will have been.
#[derive(Debug, Clone)]
enum Op {
    Acquire { again: Option<usize>, ttl: u64, slot: Option<(u64, bool)> },
    Renew { which: usize, ttl: u64, marker: bool },
    Release { which: usize, outcome: Outcome },
    Checkpoint { which: usize },
    Complete { which: usize, outcome: Outcome },
    Revoke { by: usize, again: Option<usize> },
    HandOff { by: usize, again: Option<usize>, ttl: u64 },
    Pause { by: usize, again: bool },
    Retire { by: usize, again: bool },
    Resume { by: usize, again: bool },
    Advance { by: usize, past: u64 },
    Import { by: usize, epoch: u64 },
}

/// The same with every nonce and claim filled in.
#[derive(Debug, Clone)]
enum Concrete {
    Acquire { nonce: u128, ttl: u64, slot: Option<(u64, bool)> },
    Renew(Claim, u64),
    Release(Claim, Outcome),
    Checkpoint(Claim),
    Complete(Claim, Outcome),
    Operate { nonce: u128, by: usize, order: ConcreteOrder },
}

#[derive(Debug, Clone)]
enum ConcreteOrder {
    Revoke,
    HandOff { to: u128, ttl: u64 },
    Pause,
    Retire,
    Resume,
    Advance { past: u64 },
    Import { epoch: u64 },
}

fn ops() -> impl Strategy<Value = Vec<(u64, Op)>> {
    let again = prop_oneof![3 => Just(None), 1 => (0..4_usize).prop_map(Some)];
    let ttls = prop_oneof![Just(1_000_u64), Just(2_000), Just(5_000)];
    let outcome = prop_oneof![3 => Just(Outcome::Succeeded), 2 => Just(Outcome::Failed), 1 => Just(Outcome::Lost)];
    // Mostly the newest tenure; sometimes an older one, or a forged one.
    let which = prop_oneof![4 => Just(0_usize), 2 => 1..4_usize, 1 => 90..92_usize];
    let slot = prop_oneof![1 => Just(None), 2 => (1..5_u64, any::<bool>()).prop_map(Some)];
    let by = 0..2_usize;
    let op = prop_oneof![
        8 => (again.clone(), ttls.clone(), slot).prop_map(|(again, ttl, slot)| Op::Acquire { again, ttl, slot }),
        4 => (which.clone(), ttls.clone(), any::<bool>()).prop_map(|(which, ttl, marker)| Op::Renew { which, ttl, marker }),
        4 => (which.clone(), outcome.clone()).prop_map(|(which, outcome)| Op::Release { which, outcome }),
        2 => which.clone().prop_map(|which| Op::Checkpoint { which }),
        3 => (which, outcome).prop_map(|(which, outcome)| Op::Complete { which, outcome }),
        2 => (by.clone(), again.clone()).prop_map(|(by, again)| Op::Revoke { by, again }),
        2 => (by.clone(), again, ttls).prop_map(|(by, again, ttl)| Op::HandOff { by, again, ttl }),
        2 => (by.clone(), any::<bool>()).prop_map(|(by, again)| Op::Pause { by, again }),
        1 => (by.clone(), any::<bool>()).prop_map(|(by, again)| Op::Retire { by, again }),
        3 => (by.clone(), any::<bool>()).prop_map(|(by, again)| Op::Resume { by, again }),
        1 => (by.clone(), 0..90_u64).prop_map(|(by, past)| Op::Advance { by, past }),
        1 => (by, 0..90_u64).prop_map(|(by, epoch)| Op::Import { by, epoch }),
    ];
    let step = prop_oneof![3 => 0..300_u64, 2 => 300..2_500_u64, 1 => Just(1_000_u64), 1 => Just(0)];
    // Most histories are short; some are long enough for the oldest transfers to be forgotten.
    let step = (step.boxed(), op.boxed());
    prop_oneof![9 => prop::collection::vec(step.clone(), 1..60), 1 => prop::collection::vec(step, 130..190)]
}

/// One decision of a history.
struct Step {
    before: Ownership,
    request: Request,
    now: Timestamp,
    decision: Decision,
}

#[derive(Default)]
struct History {
    record: Ownership,
    tenures: Vec<Claim>,
    drawn: u128,
    operator_nonces: Vec<u128>,
    last_pause: Option<u128>,
    last_resume: Option<u128>,
}

impl History {
    fn fresh(&mut self) -> u128 {
        self.drawn += 1;
        self.drawn
    }

    fn claim(&self, which: usize) -> Claim {
        let newest = self.tenures.last().copied().unwrap_or(claim(1, 999));
        match which {
            90 => Claim { nonce: Nonce::from_u128(u128::MAX), ..newest },
            91 => Claim { epoch: newest.epoch.next().unwrap(), ..newest },
            back => self.tenures.iter().rev().nth(back).copied().unwrap_or(newest),
        }
    }

    fn holder_nonce(&mut self, again: Option<usize>) -> u128 {
        let old = again.and_then(|back| self.tenures.iter().rev().nth(back)).map(|c| c.nonce.as_u128());
        old.unwrap_or_else(|| self.fresh())
    }

    fn concrete(&mut self, op: &Op) -> (Concrete, Request) {
        let concrete = match *op {
            Op::Acquire { again, ttl, slot } => Concrete::Acquire { nonce: self.holder_nonce(again), ttl, slot },
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
            Op::Pause { by, again } => {
                let nonce = self.last_pause.filter(|_| again).unwrap_or_else(|| self.fresh());
                self.last_pause = Some(nonce);
                Concrete::Operate { nonce, by, order: ConcreteOrder::Pause }
            }
            Op::Retire { by, again } => {
                let nonce = self.last_pause.filter(|_| again).unwrap_or_else(|| self.fresh());
                self.last_pause = Some(nonce);
                Concrete::Operate { nonce, by, order: ConcreteOrder::Retire }
            }
            Op::Resume { by, again } => {
                let nonce = self.last_resume.filter(|_| again).unwrap_or_else(|| self.fresh());
                self.last_resume = Some(nonce);
                Concrete::Operate { nonce, by, order: ConcreteOrder::Resume }
            }
            Op::Import { by, epoch } => {
                Concrete::Operate { nonce: self.fresh(), by, order: ConcreteOrder::Import { epoch } }
            }
            Op::Advance { by, past } => {
                Concrete::Operate { nonce: self.fresh(), by, order: ConcreteOrder::Advance { past } }
            }
        };
        let marker = matches!(op, Op::Renew { marker: true, .. });
        let request = request(&concrete, marker);
        (concrete, request)
    }
}

fn request(concrete: &Concrete, marker: bool) -> Request {
    let report = || Report { marker: Some("half".parse().unwrap()), checkpoint: Some(Checkpoint::new("x").unwrap()) };
    match *concrete {
        Concrete::Acquire { nonce, ttl, slot } => Request::Acquire {
            holder: holder(nonce),
            ttl: ttl.try_into().unwrap(),
            slot: slot.map(|(slot, retry)| SlotClaim {
                slot: Slot(at(slot)),
                after_failure: if retry { AfterFailure::Retry } else { AfterFailure::Leave },
            }),
        },
        Concrete::Renew(claim, ttl) => {
            Request::Renew { claim, ttl: ttl.try_into().unwrap(), progress: marker.then(report) }
        }
        Concrete::Release(claim, outcome) => Request::Release { claim, outcome },
        Concrete::Checkpoint(claim) => Request::Checkpoint { claim, report: report() },
        Concrete::Complete(claim, outcome) => Request::Complete { claim, outcome },
        Concrete::Operate { nonce, by, ref order } => Request::Operate {
            nonce: Nonce::from_u128(nonce),
            by: ["ann", "bob"][by].parse().unwrap(),
            why: ["it hangs", "drill"][by].parse().unwrap(),
            order: match *order {
                ConcreteOrder::Revoke => Order::Revoke,
                ConcreteOrder::HandOff { to, ttl } => Order::HandOff { to: holder(to), ttl: ttl.try_into().unwrap() },
                ConcreteOrder::Pause => Order::Pause,
                ConcreteOrder::Retire => Order::Retire,
                ConcreteOrder::Resume => Order::Resume,
                ConcreteOrder::Advance { past } => Order::Advance { past: epoch(past) },
                ConcreteOrder::Import { epoch: there } => {
                    Order::Import { record: Box::new(Ownership { epoch: epoch(there), ..Ownership::default() }) }
                }
            },
        },
    }
}

fn answer(decision: &Decision) -> Answer {
    match decision {
        Decision::Write(_) => Answer::Write,
        Decision::AlreadyApplied => Answer::Already,
        Decision::Refuse(refusal) => Answer::No(match refusal {
            Refusal::Held { .. } => "held",
            Refusal::Paused(_) => "paused",
            Refusal::AlreadyRun(_) => "already run",
            Refusal::Lost { .. } => "lost",
            Refusal::AlreadyReleased { .. } => "already released",
            Refusal::NeverHeld => "never held",
            Refusal::NotPaused => "not paused",
            Refusal::NoSlot => "no slot",
            Refusal::Exhausted => "exhausted",
        }),
    }
}

/// Plays a history and shows every decision to `look`, with what the specification answered.
fn play(
    ops: &[(u64, Op)],
    mut look: impl FnMut(&Step, Answer, &Spec) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut history = History::default();
    let mut spec = Spec::default();
    let mut now = 10_000;
    for (wait, op) in ops {
        now += wait;
        let (concrete, request) = history.concrete(op);
        let expected = spec.step(&concrete, now);
        let before = std::mem::take(&mut history.record);
        let decision = decide(&before, &request, at(now));
        let step = Step { before, request, now: at(now), decision };
        look(&step, expected, &spec)?;
        history.record = match step.decision {
            Decision::Write(next) => {
                if let Some(tenure) = next.tenure.as_ref().filter(|_| next.epoch > step.before.epoch) {
                    history.tenures.push(Claim { epoch: next.epoch, nonce: tenure.holder.nonce });
                }
                *next
            }
            _ => step.before,
        };
    }
    Ok(())
}

fn each_write(ops: &[(u64, Op)], look: impl Fn(&Step, &Ownership) -> Result<(), TestCaseError>) -> TestCaseResult {
    play(ops, |step, _, _| match &step.decision {
        Decision::Write(next) => look(step, next),
        _ => Ok(()),
    })
}

type TestCaseResult = Result<(), TestCaseError>;

#[test]
fn every_answer_is_the_specifications() {
    property(CASES, ops(), |ops| {
        play(&ops, |step, expected, spec| {
            prop_assert_eq!(answer(&step.decision), expected, "{:?} on {:?}", step.request, step.before);
            let Decision::Write(next) = &step.decision else { return Ok(()) };
            prop_assert_eq!(next.epoch.get(), spec.epoch);
            let holder = next.tenure.as_ref().map(|t| (t.holder.nonce.as_u128(), t.deadline.as_millis()));
            prop_assert_eq!(holder, spec.holder);
            prop_assert_eq!(next.paused.is_some(), spec.paused.is_some());
            let slot = next.slot.map(|m| (m.slot.0.as_millis(), m.state, m.epoch.get()));
            prop_assert_eq!(slot, spec.slot);
            Ok(())
        })
    });
}

#[test]
fn histories_reach_every_answer() {
    // The twin of the test above: a generator that never got anywhere would agree with everything.
    let seen = std::cell::RefCell::new(BTreeMap::<String, u32>::new());
    let longest = std::cell::Cell::new(0);
    property(CASES, ops(), |ops| {
        play(&ops, |step, _, _| {
            let kind = match &step.request {
                Request::Acquire { .. } => "acquire",
                Request::Renew { .. } => "renew",
                Request::Release { .. } => "release",
                Request::Checkpoint { .. } => "checkpoint",
                Request::Complete { .. } => "complete",
                Request::Operate { order, .. } => match order {
                    Order::Revoke => "revoke",
                    Order::HandOff { .. } => "hand off",
                    Order::Pause => "pause",
                    Order::Retire => "retire",
                    Order::Resume => "resume",
                    Order::Advance { .. } => "advance",
                    Order::Import { .. } => "import",
                },
            };
            *seen.borrow_mut().entry(format!("{kind} {:?}", answer(&step.decision))).or_default() += 1;
            longest.set(longest.get().max(step.before.transfers.len()));
            Ok(())
        })
    });
    let seen = seen.into_inner();
    for wanted in [
        "acquire Write",
        "acquire Already",
        "acquire No(\"held\")",
        "acquire No(\"lost\")",
        "acquire No(\"paused\")",
        "acquire No(\"already run\")",
        "renew Write",
        "renew No(\"lost\")",
        "release Write",
        "release No(\"lost\")",
        "release No(\"already released\")",
        "checkpoint Write",
        "checkpoint No(\"lost\")",
        "complete Write",
        "complete Already",
        "complete No(\"lost\")",
        "complete No(\"no slot\")",
        "complete No(\"already run\")",
        "revoke Write",
        "revoke Already",
        "revoke No(\"never held\")",
        "hand off Write",
        "hand off Already",
        "hand off No(\"lost\")",
        "pause Write",
        "pause Already",
        "pause No(\"paused\")",
        "retire Write",
        "retire Already",
        "resume Write",
        "resume Already",
        "resume No(\"not paused\")",
        "advance Write",
        "import Write",
        "import Already",
        "import No(\"held\")",
    ] {
        assert!(seen.contains_key(wanted), "no history got the answer: {wanted}; there were {seen:#?}");
    }
    assert_eq!(longest.get(), TRANSFERS_KEPT, "no history filled the list of transfers");
}

#[test]
fn the_epoch_rises_on_every_transfer_and_on_nothing_else() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |step, next| {
            let transfers = match &step.request {
                Request::Acquire { .. } => true,
                Request::Operate { order, .. } => !matches!(order, Order::Pause | Order::Retire | Order::Resume),
                _ => false,
            };
            if transfers {
                prop_assert!(next.epoch > step.before.epoch, "{:?}", step.request);
                let last = next.transfers.last().unwrap();
                prop_assert_eq!((last.epoch, last.at), (next.epoch, step.now));
            } else {
                prop_assert_eq!(next.epoch, step.before.epoch, "{:?}", step.request);
            }
            Ok(())
        })
    });
}

#[test]
fn only_the_holder_renews_releases_reports_and_completes() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |step, _| {
            let asked = match &step.request {
                Request::Renew { claim, .. }
                | Request::Release { claim, .. }
                | Request::Checkpoint { claim, .. }
                | Request::Complete { claim, .. } => *claim,
                _ => return Ok(()),
            };
            let holds = step.before.tenure.as_ref().map(|t| (step.before.epoch, t.holder.nonce));
            prop_assert_eq!(holds, Some((asked.epoch, asked.nonce)));
            Ok(())
        })
    });
}

#[test]
fn only_a_renewal_or_a_grant_sets_a_deadline() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |step, next| {
            let (Some(old), Some(new)) = (&step.before.tenure, &next.tenure) else { return Ok(()) };
            if old.deadline != new.deadline || old.granted_at != new.granted_at {
                let allowed = matches!(
                    &step.request,
                    Request::Acquire { .. }
                        | Request::Renew { .. }
                        | Request::Operate { order: Order::HandOff { .. }, .. }
                );
                prop_assert!(allowed, "{:?}", step.request);
            }
            Ok(())
        })
    });
}

#[test]
fn a_request_that_is_sent_twice_counts_once() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |step, next| {
            match (&step.request, decide(next, &step.request, step.now)) {
                (Request::Acquire { .. } | Request::Operate { .. } | Request::Complete { .. }, second) => {
                    prop_assert_eq!(second, Decision::AlreadyApplied, "{:?}", step.request);
                }
                (Request::Release { outcome, .. }, second) => {
                    prop_assert_eq!(second, Decision::Refuse(Refusal::AlreadyReleased { outcome: *outcome }));
                }
                (Request::Renew { .. } | Request::Checkpoint { .. }, second) => {
                    prop_assert_eq!(second, Decision::Write(Box::new(next.clone())));
                }
            }
            Ok(())
        })
    });
}

#[test]
fn transfers_are_bounded_and_strictly_rising() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |_, next| {
            prop_assert!(next.transfers.len() <= TRANSFERS_KEPT);
            prop_assert!(next.transfers.windows(2).all(|w| w[0].epoch < w[1].epoch));
            prop_assert!(next.transfers.iter().all(|t| t.outcome.is_some() == t.held_for_ms.is_some()));
            // Only the newest tenure can be open, and it is open exactly while somebody holds.
            let open: Vec<Epoch> =
                next.transfers.iter().filter(|t| t.to.is_some() && t.outcome.is_none()).map(|t| t.epoch).collect();
            prop_assert_eq!(open, Vec::from_iter(next.tenure.as_ref().map(|_| next.epoch)));
            Ok(())
        })
    });
}

#[test]
fn a_write_changes_only_what_its_request_allows() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |step, next| {
            let before = &step.before;
            let mut allowed = before.clone();
            match &step.request {
                Request::Renew { progress, .. } => {
                    let (old, new) = (allowed.tenure.as_mut().unwrap(), next.tenure.as_ref().unwrap());
                    (old.deadline, old.ttl) = (new.deadline, new.ttl);
                    if progress.is_some() {
                        allowed.progress = next.progress.clone();
                    }
                }
                Request::Checkpoint { .. } => allowed.progress = next.progress.clone(),
                Request::Complete { .. } => {
                    allowed.slot.as_mut().unwrap().state = next.slot.unwrap().state;
                }
                Request::Release { .. } => {
                    allowed.tenure = None;
                    if let Some(mark) = allowed.slot.as_mut().filter(|m| m.epoch == before.epoch) {
                        mark.state = next.slot.unwrap().state;
                    }
                }
                Request::Operate { order: Order::Pause | Order::Retire, .. } => allowed.paused = next.paused.clone(),
                Request::Operate { order: Order::Resume, .. } => {
                    prop_assert!(next.paused.is_none());
                    (allowed.paused, allowed.resumed) = (None, next.resumed.clone());
                }
                Request::Operate { order: Order::Revoke | Order::Advance { .. } | Order::Import { .. }, .. } => {
                    (allowed.epoch, allowed.tenure) = (next.epoch, None);
                }
                Request::Operate { order: Order::HandOff { .. }, .. } => {
                    (allowed.epoch, allowed.tenure) = (next.epoch, next.tenure.clone());
                    if let Some(mark) = allowed.slot.as_mut().filter(|m| m.state == SlotState::Running) {
                        mark.epoch = next.slot.unwrap().epoch;
                    }
                }
                Request::Acquire { slot, .. } => {
                    (allowed.epoch, allowed.tenure) = (next.epoch, next.tenure.clone());
                    if slot.is_some() {
                        allowed.slot = next.slot;
                    }
                }
            }
            // Of the transfers, one may be new at the end, one may be dropped at the front, and the one that began the
            // tenure before may have got its end written.
            let grown = usize::from(next.epoch > before.epoch);
            let dropped = (before.transfers.len() + grown).saturating_sub(TRANSFERS_KEPT);
            prop_assert_eq!(next.transfers.len(), before.transfers.len() + grown - dropped);
            let ends = next.tenure.as_ref() != before.tenure.as_ref() && before.tenure.is_some();
            for (old, new) in before.transfers[dropped..].iter().zip(&next.transfers) {
                let mut old = old.clone();
                if ends && old.epoch == before.epoch && !matches!(step.request, Request::Renew { .. }) {
                    let old = Arc::make_mut(&mut old);
                    (old.outcome, old.held_for_ms) = (new.outcome, new.held_for_ms);
                    prop_assert!(new.outcome.is_some());
                }
                prop_assert_eq!(&old, new);
            }
            allowed.transfers.clone_from(&next.transfers);
            prop_assert_eq!(&allowed, next, "{:?}", step.request);
            Ok(())
        })
    });
}

#[test]
fn a_slot_is_done_at_most_once_and_never_goes_back() {
    property(CASES, ops(), |ops| {
        let done = std::cell::RefCell::new(Vec::new());
        each_write(&ops, |step, next| {
            if let (Some(old), Some(new)) = (step.before.slot, next.slot) {
                prop_assert!(new.slot >= old.slot);
                prop_assert!(old.state != SlotState::Done || new.slot > old.slot || new == old);
                let claimed_again = new.slot == old.slot && new.epoch != old.epoch;
                if claimed_again && matches!(step.request, Request::Acquire { .. }) {
                    let last = next.transfers.last().unwrap();
                    prop_assert!(new.epoch > old.epoch);
                    prop_assert_eq!((last.reason, last.slot), (Reason::Recovered, Some(new.slot)));
                }
            }
            let was_done = step.before.slot.is_some_and(|m| m.state == SlotState::Done);
            if let Some(mark) = next.slot.filter(|m| m.state == SlotState::Done)
                && !(was_done && step.before.slot == next.slot)
            {
                prop_assert!(!done.borrow().contains(&mark.slot), "slot {:?} was done twice", mark.slot);
                done.borrow_mut().push(mark.slot);
            }
            Ok(())
        })
    });
}

#[test]
fn every_decided_record_survives_the_codec() {
    property(CASES, ops(), |ops| {
        each_write(&ops, |_, next| {
            let bytes = codec::encode("ownership", next).unwrap();
            prop_assert_eq!(&codec::decode::<Ownership>("ownership", &bytes, "x").unwrap(), next);
            Ok(())
        })
    });
}

const TTL: u64 = 90;

fn acquire(nonce: u128) -> Request {
    Request::Acquire { holder: holder(nonce), ttl: ttl(TTL), slot: None }
}

fn acquire_slot(nonce: u128, slot: u64, after_failure: AfterFailure) -> Request {
    let slot = Some(SlotClaim { slot: Slot(at(slot)), after_failure });
    Request::Acquire { holder: holder(nonce), ttl: ttl(TTL), slot }
}

fn renew(epoch: u64, nonce: u128) -> Request {
    Request::Renew { claim: claim(epoch, nonce), ttl: ttl(TTL), progress: None }
}

fn release(epoch: u64, nonce: u128, outcome: Outcome) -> Request {
    Request::Release { claim: claim(epoch, nonce), outcome }
}

fn complete(epoch: u64, nonce: u128, outcome: Outcome) -> Request {
    Request::Complete { claim: claim(epoch, nonce), outcome }
}

fn operate(nonce: u128, order: Order) -> Request {
    Request::Operate {
        nonce: Nonce::from_u128(nonce),
        by: "ann".parse().unwrap(),
        why: "drill".parse().unwrap(),
        order,
    }
}

fn hand_off(to: u128) -> Order {
    Order::HandOff { to: holder(to), ttl: ttl(TTL) }
}

#[track_caller]
fn write(record: &Ownership, request: &Request, now: u64) -> Ownership {
    match decide(record, request, at(now)) {
        Decision::Write(next) => *next,
        other => panic!("{request:?} was not granted: {other:?}"),
    }
}

#[track_caller]
fn refused(record: &Ownership, request: &Request, now: u64) -> Refusal {
    match decide(record, request, at(now)) {
        Decision::Refuse(refusal) => refusal,
        other => panic!("{request:?} was not refused: {other:?}"),
    }
}

fn held_by_1() -> Ownership {
    write(&Ownership::default(), &acquire(1), 0)
}

#[test]
fn the_first_grant_has_epoch_one_and_says_so() {
    let record = held_by_1();
    assert_eq!(record.epoch, epoch(1));
    assert_eq!(record.transfers[0].reason, Reason::First);
    assert_eq!(record.tenure.unwrap().deadline, at(TTL * 1000));
}

#[test]
fn a_held_lease_is_refused_until_the_deadline_and_granted_at_it() {
    let record = held_by_1();
    let last = TTL * 1000 - 1;
    assert!(matches!(refused(&record, &acquire(2), last), Refusal::Held { epoch: e, .. } if e == epoch(1)));
    let next = write(&record, &acquire(2), last + 1);
    assert_eq!((next.epoch, next.transfers[1].reason), (epoch(2), Reason::Expired));
    assert_eq!(next.transfers[1].from, Some(holder(1)));
}

#[test]
fn an_expired_tenure_lasted_until_its_deadline_not_until_somebody_noticed() {
    let next = write(&held_by_1(), &acquire(2), 10 * TTL * 1000);
    assert_eq!(next.transfers[0].held_for_ms, Some(TTL * 1000));
    assert_eq!(next.transfers[0].outcome, Some(Outcome::Expired));
}

#[test]
fn release_keeps_the_epoch() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5);
    assert_eq!((free.epoch, free.tenure.as_ref()), (epoch(1), None));
    assert_eq!(free.transfers[0].held_for_ms, Some(5));
    let next = write(&free, &acquire(2), 6);
    assert_eq!((next.epoch, next.transfers[1].reason), (epoch(2), Reason::Released));
    assert_eq!(next.transfers[1].from, None);
}

#[test]
fn epochs_rise_through_a_thousand_releases_and_expiries() {
    let mut record = Ownership::default();
    for round in 1..=1000_u64 {
        record = write(&record, &acquire(u128::from(round)), round * TTL * 1000);
        assert_eq!(record.epoch, epoch(round));
        if round % 2 == 0 {
            record = write(&record, &release(round, u128::from(round), Outcome::Failed), round * TTL * 1000 + 1);
        }
    }
    assert_eq!(record.transfers.len(), TRANSFERS_KEPT);
}

#[test]
fn renewing_moves_the_deadline_and_never_the_epoch() {
    let next = write(&held_by_1(), &renew(1, 1), 1_000);
    assert_eq!(next.epoch, epoch(1));
    assert_eq!(next.tenure.unwrap().deadline, at(TTL * 1000 + 1_000));
}

#[test]
fn renewing_at_the_deadline_is_too_late() {
    assert!(matches!(refused(&held_by_1(), &renew(1, 1), TTL * 1000), Refusal::Lost { .. }));
}

#[test]
fn a_zombie_cannot_renew_its_successors_lease() {
    let record = write(&held_by_1(), &acquire(2), TTL * 1000);
    let refusal = refused(&record, &renew(1, 1), TTL * 1000 + 1);
    assert_eq!(refusal, Refusal::Lost { seen: epoch(2), holder: Some(holder(2)), reason: Some(Reason::Expired) });
    // Not even with the right number: a number alone proves nothing.
    assert!(matches!(refused(&record, &renew(2, 1), TTL * 1000 + 1), Refusal::Lost { .. }));
}

#[test]
fn two_runs_with_one_label_are_two_holders() {
    let (old, new) = (holder(1), holder(2));
    assert_eq!((&old.label, &old.host, old.pid), (&new.label, &new.host, new.pid));
    let record = write(&held_by_1(), &acquire(2), TTL * 1000);
    for request in [renew(1, 1), release(1, 1, Outcome::Succeeded), complete(1, 1, Outcome::Succeeded)] {
        assert!(matches!(refused(&record, &request, TTL * 1000), Refusal::Lost { .. }));
    }
}

#[test]
fn releasing_twice_changes_nothing_and_says_how_it_ended() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Failed), 5);
    let again = refused(&free, &release(1, 1, Outcome::Succeeded), 6);
    assert_eq!(again, Refusal::AlreadyReleased { outcome: Outcome::Failed });
    let taken = write(&free, &acquire(2), 7);
    let later = refused(&taken, &release(1, 1, Outcome::Succeeded), 8);
    assert_eq!(later, Refusal::AlreadyReleased { outcome: Outcome::Failed });
}

#[test]
fn releasing_after_the_loss_changes_nothing_and_says_so() {
    let record = write(&held_by_1(), &acquire(2), TTL * 1000);
    assert!(matches!(refused(&record, &release(1, 1, Outcome::Succeeded), TTL * 1000), Refusal::Lost { .. }));
}

#[test]
fn a_holder_that_ran_out_may_still_release_while_nobody_else_was_granted() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5 * TTL * 1000);
    assert_eq!(free.tenure, None);
}

#[test]
fn a_release_cannot_pass_itself_off_as_an_expiry_or_an_eviction() {
    for forged in [Outcome::Expired, Outcome::Evicted] {
        let free = write(&held_by_1(), &release(1, 1, forged), 5);
        assert_eq!(free.transfers[0].outcome, Some(Outcome::Lost));
        let again = refused(&free, &release(1, 1, forged), 6);
        assert_eq!(again, Refusal::AlreadyReleased { outcome: Outcome::Lost });
    }
}

#[test]
fn a_lost_reply_is_recognised_by_the_nonce() {
    let record = held_by_1();
    assert_eq!(decide(&record, &acquire(1), at(1)), Decision::AlreadyApplied);
}

#[test]
fn a_nonce_never_serves_two_tenures() {
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5);
    assert!(matches!(refused(&free, &acquire(1), 6), Refusal::Lost { .. }));
    // Nor does it stand for a grant that has run out.
    assert!(matches!(refused(&held_by_1(), &acquire(1), TTL * 1000), Refusal::Lost { .. }));
}

#[test]
fn pause_lets_the_present_holder_go_on_and_keeps_others_out() {
    let paused = write(&held_by_1(), &operate(50, Order::Pause), 5);
    assert_eq!(paused.epoch, epoch(1));
    let renewed = write(&paused, &renew(1, 1), 6);
    let free = write(&renewed, &release(1, 1, Outcome::Succeeded), 7);
    assert!(matches!(refused(&free, &acquire(2), 8), Refusal::Paused(mark) if mark.why.as_str() == "drill"));
    let resumed = write(&free, &operate(51, Order::Resume), 9);
    assert_eq!(resumed.epoch, epoch(1));
    assert_eq!(write(&resumed, &acquire(2), 10).epoch, epoch(2));
}

#[test]
fn a_lease_that_nobody_ever_held_can_be_paused_but_not_revoked() {
    let fresh = Ownership::default();
    assert_eq!(refused(&fresh, &operate(50, Order::Revoke), 5), Refusal::NeverHeld);
    let paused = write(&fresh, &operate(51, Order::Pause), 5);
    assert!(matches!(refused(&paused, &acquire(1), 6), Refusal::Paused(_)));
}

#[test]
fn resuming_what_is_not_paused_is_refused() {
    assert_eq!(refused(&held_by_1(), &operate(50, Order::Resume), 5), Refusal::NotPaused);
}

#[test]
fn a_second_operators_pause_is_refused_with_the_first_ones_reason() {
    let paused = write(&held_by_1(), &operate(50, Order::Pause), 5);
    let mut other = operate(51, Order::Pause);
    if let Request::Operate { by, .. } = &mut other {
        *by = "bob".parse().unwrap();
    }
    assert!(matches!(refused(&paused, &other, 6), Refusal::Paused(mark) if mark.by.as_str() == "ann"));
}

#[test]
fn revoke_fences_the_holder_and_leaves_the_lease_to_anyone() {
    let revoked = write(&held_by_1(), &operate(50, Order::Revoke), 5);
    assert_eq!((revoked.epoch, revoked.tenure.as_ref()), (epoch(2), None));
    assert_eq!(revoked.transfers[0].outcome, Some(Outcome::Evicted));
    let last = revoked.transfers.last().unwrap();
    assert_eq!((last.by.as_ref().unwrap().as_str(), last.why.as_ref().unwrap().as_str()), ("ann", "drill"));
    for request in [renew(1, 1), release(1, 1, Outcome::Succeeded)] {
        assert!(matches!(refused(&revoked, &request, 6), Refusal::Lost { reason: Some(Reason::Revoked), .. }));
    }
    let next = write(&revoked, &acquire(2), 6);
    assert_eq!((next.epoch, next.transfers[2].reason), (epoch(3), Reason::Revoked));
}

#[test]
fn revoke_advances_the_epoch_of_a_free_lease_too() {
    // Whoever released may still have a child running: the operator wants it fenced.
    let free = write(&held_by_1(), &release(1, 1, Outcome::Succeeded), 5);
    let revoked = write(&free, &operate(50, Order::Revoke), 6);
    assert_eq!(revoked.epoch, epoch(2));
    assert_eq!(revoked.transfers[0].outcome, Some(Outcome::Succeeded));
}

#[test]
fn a_hand_off_evicts_and_grants_in_one_step() {
    let record = write(&held_by_1(), &operate(50, hand_off(2)), 5);
    let tenure = record.tenure.clone().unwrap();
    assert_eq!((record.epoch, tenure.holder, tenure.deadline), (epoch(2), holder(2), at(5 + TTL * 1000)));
    let last = record.transfers.last().unwrap();
    assert_eq!(
        (last.reason, last.from.clone(), last.to.clone()),
        (Reason::HandedOff, Some(holder(1)), Some(holder(2)))
    );
    assert!(matches!(refused(&record, &renew(1, 1), 6), Refusal::Lost { .. }));
    write(&record, &renew(2, 2), 6);
    write(&record, &release(2, 2, Outcome::Succeeded), 6);
}

#[test]
fn a_hand_off_takes_the_running_slot_along() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let handed = write(&record, &operate(50, hand_off(2)), 5);
    assert!(matches!(refused(&handed, &complete(1, 1, Outcome::Succeeded), 6), Refusal::Lost { .. }));
    let done = write(&handed, &complete(2, 2, Outcome::Succeeded), 6);
    assert_eq!(done.slot.unwrap().state, SlotState::Done);
}

#[test]
fn a_repeated_hand_off_counts_once_while_its_holder_holds() {
    let record = write(&held_by_1(), &operate(50, hand_off(2)), 5);
    assert_eq!(decide(&record, &operate(50, hand_off(2)), at(6)), Decision::AlreadyApplied);
}

#[test]
fn a_hand_off_to_one_who_has_lost_it_since_is_not_called_applied() {
    let record = write(&held_by_1(), &operate(50, hand_off(2)), 5);
    let moved = write(&record, &acquire(3), 5 + TTL * 1000);
    let refusal = refused(&moved, &operate(50, hand_off(2)), 6 + TTL * 1000);
    assert!(matches!(refusal, Refusal::Lost { seen, .. } if seen == epoch(3)));
}

#[test]
fn advance_goes_past_the_number_and_evicts() {
    let record = write(&held_by_1(), &operate(50, Order::Advance { past: epoch(41) }), 5);
    assert_eq!((record.epoch, record.tenure.as_ref()), (epoch(42), None));
    assert_eq!(record.transfers.last().unwrap().epoch, epoch(42));
    assert!(matches!(refused(&record, &renew(1, 1), 6), Refusal::Lost { .. }));
    assert_eq!(write(&record, &acquire(2), 6).epoch, epoch(43));
}

#[test]
fn advance_past_a_lower_number_still_advances() {
    let record = write(&Ownership::default(), &operate(50, Order::Advance { past: epoch(41) }), 5);
    assert_eq!(write(&record, &operate(51, Order::Advance { past: epoch(7) }), 6).epoch, epoch(43));
}

#[test]
fn the_last_epoch_is_never_passed() {
    let fresh = Ownership::default();
    assert_eq!(refused(&fresh, &operate(50, Order::Advance { past: Epoch::MAX }), 5), Refusal::Exhausted);
    let past = epoch(Epoch::MAX.get() - 1);
    let last = write(&fresh, &operate(51, Order::Advance { past }), 5);
    assert_eq!(last.epoch, Epoch::MAX);
    assert_eq!(refused(&last, &acquire(1), 6), Refusal::Exhausted);
    assert_eq!(refused(&last, &operate(52, Order::Revoke), 6), Refusal::Exhausted);
}

#[test]
fn a_slot_that_is_done_is_not_run_again_nor_is_an_earlier_one() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let done = write(&record, &release(1, 1, Outcome::Succeeded), 5);
    for (slot, after_failure) in [(100, AfterFailure::Leave), (100, AfterFailure::Retry), (99, AfterFailure::Retry)] {
        let refusal = refused(&done, &acquire_slot(2, slot, after_failure), 6);
        assert!(matches!(refusal, Refusal::AlreadyRun(mark) if mark.state == SlotState::Done));
    }
    let next = write(&done, &acquire_slot(2, 101, AfterFailure::Leave), 6);
    assert_eq!(next.transfers.last().unwrap().reason, Reason::Released);
}

#[test]
fn a_slot_whose_run_died_is_recovered_under_a_new_epoch() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    assert!(matches!(refused(&record, &acquire_slot(2, 100, AfterFailure::Leave), 5), Refusal::Held { .. }));
    let again = write(&record, &acquire_slot(2, 100, AfterFailure::Leave), TTL * 1000);
    let last = again.transfers.last().unwrap();
    assert_eq!((again.epoch, last.reason, again.slot.unwrap().epoch), (epoch(2), Reason::Recovered, epoch(2)));
    // The first run wakes up: it can neither complete the slot nor fail it.
    for outcome in [Outcome::Succeeded, Outcome::Failed] {
        assert!(matches!(refused(&again, &complete(1, 1, outcome), TTL * 1000), Refusal::Lost { .. }));
    }
}

#[test]
fn a_slot_that_was_let_go_as_lost_stays_open() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let lost = write(&record, &release(1, 1, Outcome::Lost), 5);
    assert_eq!(lost.slot.unwrap().state, SlotState::Running);
    let again = write(&lost, &acquire_slot(2, 100, AfterFailure::Leave), 6);
    assert_eq!(again.transfers.last().unwrap().reason, Reason::Recovered);
}

#[test]
fn a_failed_slot_is_run_again_only_if_asked() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let failed = write(&record, &release(1, 1, Outcome::Failed), 5);
    assert!(matches!(refused(&failed, &acquire_slot(2, 100, AfterFailure::Leave), 6), Refusal::AlreadyRun(_)));
    assert_eq!(write(&failed, &acquire_slot(2, 100, AfterFailure::Retry), 6).epoch, epoch(2));
}

#[test]
fn completing_ends_the_slot_and_keeps_the_lease() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let done = write(&record, &complete(1, 1, Outcome::Succeeded), 5);
    assert_eq!((done.slot.unwrap().state, done.tenure.as_ref()), (SlotState::Done, record.tenure.as_ref()));
    assert_eq!(decide(&done, &complete(1, 1, Outcome::Succeeded), at(6)), Decision::AlreadyApplied);
    assert_eq!(refused(&held_by_1(), &complete(1, 1, Outcome::Succeeded), 5), Refusal::NoSlot);
}

#[test]
fn a_completion_that_contradicts_the_first_is_refused_not_called_applied() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let done = write(&record, &complete(1, 1, Outcome::Succeeded), 5);
    assert_eq!(refused(&done, &complete(1, 1, Outcome::Failed), 6), Refusal::AlreadyRun(done.slot.unwrap()));
    let failed = write(&record, &complete(1, 1, Outcome::Failed), 5);
    assert_eq!(refused(&failed, &complete(1, 1, Outcome::Succeeded), 6), Refusal::AlreadyRun(failed.slot.unwrap()));
}

#[test]
fn a_stale_completion_is_refused_even_without_a_successor_slot() {
    let record = write(&Ownership::default(), &acquire_slot(1, 100, AfterFailure::Leave), 0);
    let other = write(&record, &acquire(2), TTL * 1000);
    assert!(matches!(refused(&other, &complete(1, 1, Outcome::Succeeded), TTL * 1000), Refusal::Lost { .. }));
    assert_eq!(refused(&other, &complete(2, 2, Outcome::Succeeded), TTL * 1000), Refusal::NoSlot);
}

#[test]
fn a_checkpoint_outlives_its_tenure_and_stays_until_a_new_one_comes() {
    let report = |checkpoint: Option<&str>| Report {
        marker: Some("row 5".parse().unwrap()),
        checkpoint: checkpoint.map(|c| Checkpoint::new(c).unwrap()),
    };
    let request = |epoch, nonce, c| Request::Checkpoint { claim: claim(epoch, nonce), report: report(c) };
    let first = write(&held_by_1(), &request(1, 1, Some("5")), 5);
    let next = write(&first, &acquire(2), TTL * 1000);
    let kept = write(&next, &request(2, 2, None), TTL * 1000);
    let progress = kept.progress.unwrap();
    assert_eq!((progress.checkpoint.unwrap().as_str(), progress.epoch), ("5", epoch(2)));
    assert!(matches!(refused(&next, &request(1, 1, Some("6")), TTL * 1000), Refusal::Lost { .. }));
}

#[test]
fn the_largest_possible_record_still_encodes() {
    // Every text at its bound, in the characters that JSON makes longest: a quote doubles in a printable line, and a
    // control character, which a checkpoint may have, grows sixfold. Every number at its longest too.
    let worst = |n: u128| HolderId {
        host: "\"".repeat(64),
        pid: u32::MAX,
        nonce: Nonce::from_u128(u128::MAX - n),
        label: "\"".repeat(64).parse().unwrap(),
    };
    let order = |nonce: u128, order: Order| Request::Operate {
        nonce: Nonce::from_u128(u128::MAX / 2 - nonce),
        by: "\\".repeat(100).parse().unwrap(),
        why: "\"".repeat(500).parse().unwrap(),
        order,
    };
    let long = u64::MAX - 90_000_000_000;
    let slot = SlotClaim { slot: Slot(at(u64::MAX)), after_failure: AfterFailure::Retry };
    let request = Request::Acquire { holder: worst(1000), ttl: leasehold::Ttl::MAX, slot: Some(slot) };
    let past = epoch(Epoch::MAX.get() - 1_000);
    let mut record = write(&Ownership::default(), &order(0, Order::Advance { past }), long);
    record = write(&record, &request, long);
    for n in 1..=2 * TRANSFERS_KEPT as u128 {
        record = write(&record, &order(n, Order::HandOff { to: worst(n), ttl: leasehold::Ttl::MAX }), long + 9);
    }
    let held = Claim { epoch: record.epoch, nonce: record.tenure.as_ref().unwrap().holder.nonce };
    let report = Report {
        marker: Some("\"".repeat(200).parse().unwrap()),
        checkpoint: Some(Checkpoint::new("\u{1}".repeat(Checkpoint::MAX_BYTES)).unwrap()),
    };
    record = write(&record, &Request::Checkpoint { claim: held, report }, long + 9);
    record = write(&record, &order(900, Order::Pause), long);
    record = write(&record, &order(901, Order::Resume), long);
    record = write(&record, &order(902, Order::Pause), long);
    // What no request can set to its longest, set by hand.
    for transfer in &mut record.transfers {
        let transfer = Arc::make_mut(transfer);
        (transfer.held_for_ms, transfer.outcome) = (Some(u64::MAX), Some(Outcome::Succeeded));
        (transfer.reason, transfer.slot) = (Reason::HandedOff, Some(Slot(at(u64::MAX))));
        assert!(transfer.from.is_some() && transfer.to.is_some() && transfer.by.is_some() && transfer.why.is_some());
    }
    assert_eq!(record.transfers.len(), TRANSFERS_KEPT);
    assert!(record.slot.is_some() && record.paused.is_some() && record.resumed.is_some());
    let bytes = codec::encode("ownership", &record).unwrap();
    println!("the largest record has {} of {MAX_RECORD_BYTES} bytes", bytes.len());
    assert!(bytes.len() > MAX_RECORD_BYTES / 2, "the bound is so far off that this test shows nothing");
    assert_eq!(codec::decode::<Ownership>("ownership", &bytes, "x").unwrap(), record);
}
