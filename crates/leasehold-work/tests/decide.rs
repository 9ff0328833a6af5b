//! What may be done to an item, against a sequential specification that was written apart from it.
//!
//! `Spec` is deliberately naive: it keeps seven facts and forgets the rest of the record. Random histories must get the
//! same answers from both; the properties then look at what the specification leaves out.
#![allow(clippy::unwrap_used)]

use leasehold_core::lease::protocol::Report;
use leasehold_core::{Checkpoint, Claim, Epoch, HolderId, Nonce, Timestamp, Ttl};
use leasehold_work::queue::protocol::{Decision, Order, Refusal, Request, decide};
use leasehold_work::queue::{Attempts, FollowUp, Item, ItemId, ItemName, Payload, Priority, State, What};
use proptest::prelude::*;
use std::time::Duration;

const T0: u64 = 1_700_000_000_000;
/// As many events as a record keeps.
const EVENTS_KEPT: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Write,
    Already,
    No(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Ready,
    Claimed { nonce: u128, deadline: u64 },
    Done,
    Dead,
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Completed,
    Failed,
    Returned,
}

#[derive(Debug)]
struct Spec {
    epoch: u64,
    life: Life,
    due: Option<u64>,
    /// When the wait for that began, and how long the claim was last asked for.
    began: u64,
    ttl: u64,
    tried: u32,
    most: u32,
    /// How the last claim ended that its worker ended: epoch, nonce, how.
    ended: Option<(u64, u128, End)>,
    ordered: Option<u128>,
    /// Who asked to finish, the epoch that was asked, until when, and when that was.
    drain: Option<(u128, u64, u64, u64)>,
    completions: u32,
    /// Whether what the completion adds is still to be added.
    is_owing: bool,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Claim { nonce: u128, ttl: u64 },
    Renew { claim: (u64, u128), ttl: u64 },
    Progress { claim: (u64, u128) },
    Complete { claim: (u64, u128), adds: bool },
    Fail { claim: (u64, u128), pause: u64, is_final: bool },
    Return { claim: (u64, u128), wait: Option<u64> },
    Reap,
    Settle,
    Retry { nonce: u128 },
    Cancel { nonce: u128 },
    HandOff { nonce: u128, to: u128, ttl: u64 },
    Drain { nonce: u128, within: u64 },
}

impl Spec {
    fn ends(&mut self, claim: (u64, u128), how: End) -> Option<Answer> {
        match self.life {
            Life::Claimed { nonce, .. } if (self.epoch, nonce) == claim => {
                self.ended = Some((claim.0, claim.1, how));
                None
            }
            _ if self.ended == Some((claim.0, claim.1, how)) && self.epoch == claim.0 => Some(Answer::Already),
            _ => Some(Answer::No("stale")),
        }
    }

    /// Until when it is kept for an operator; a minute ahead is what two servers' clocks may differ by.
    fn live_drain(&self, now: u64) -> Option<u64> {
        let drain = self
            .drain
            .filter(|(_, epoch, until, asked)| *epoch == self.epoch && now < *until && *asked <= now + 60_000);
        drain.map(|(_, _, until, _)| until)
    }

    fn step(&mut self, op: Op, now: u64) -> Answer {
        use Answer::{Already, No, Write};
        let ours = |spec: &Spec, claim: (u64, u128)| matches!(spec.life, Life::Claimed { nonce, .. } if (spec.epoch, nonce) == claim);
        match op {
            Op::Claim { nonce, ttl } => {
                match self.life {
                    Life::Claimed { nonce: holder, .. } if holder == nonce => return Already,
                    Life::Claimed { deadline, .. } if now < deadline => return No("busy"),
                    Life::Claimed { .. } if self.tried >= self.most => return No("exhausted"),
                    Life::Ready if self.due.is_some_and(|due| now < due) => return No("not due"),
                    Life::Ready | Life::Claimed { .. } => {}
                    Life::Done | Life::Dead | Life::Cancelled => return No("finished"),
                }
                if self.live_drain(now).is_some() {
                    return No("draining");
                }
                self.drain = None;
                self.epoch += 1;
                self.tried += 1;
                self.life = Life::Claimed { nonce, deadline: now + ttl };
                self.ttl = ttl;
            }
            Op::Renew { claim, ttl } => match self.life {
                Life::Claimed { nonce, deadline } if ours(self, claim) && now < deadline => {
                    self.life = Life::Claimed { nonce, deadline: now + ttl };
                    self.ttl = ttl;
                }
                _ => return No("stale"),
            },
            Op::Progress { claim } if !ours(self, claim) => return No("stale"),
            Op::Progress { .. } => {}
            Op::Complete { claim, adds } => {
                if let Some(answer) = self.ends(claim, End::Completed) {
                    return answer;
                }
                (self.life, self.drain) = (Life::Done, None);
                self.completions += 1;
                self.is_owing = adds;
            }
            Op::Fail { claim, pause, is_final } => {
                if let Some(answer) = self.ends(claim, End::Failed) {
                    return answer;
                }
                if is_final || self.tried >= self.most {
                    self.life = Life::Dead;
                } else {
                    self.life = Life::Ready;
                    self.due = (pause > 0).then_some(now + pause);
                    self.began = now;
                }
            }
            Op::Return { claim, wait } => {
                if let Some(answer) = self.ends(claim, End::Returned) {
                    return answer;
                }
                self.life = Life::Ready;
                self.tried = self.tried.saturating_sub(1);
                self.due = wait.map(|wait| now + wait);
                self.began = if wait.is_some() { now } else { self.began };
            }
            Op::Reap => match self.life {
                // The clock was set back by more than a minute: it waits no longer than asked, from now on.
                Life::Claimed { nonce, deadline } if deadline > now + self.ttl + 60_000 => {
                    self.life = Life::Claimed { nonce, deadline: now + self.ttl };
                }
                Life::Ready if self.due.is_some() && self.began > now + 60_000 => {
                    self.due = self.due.map(|due| now + due - self.began);
                    self.began = now;
                }
                Life::Claimed { deadline, .. } if now < deadline => return No("not expired"),
                Life::Claimed { .. } if self.tried >= self.most => self.life = Life::Dead,
                Life::Claimed { .. } => {
                    self.life = Life::Ready;
                    self.due = None;
                }
                _ => return Already,
            },
            Op::Settle if self.is_owing => self.is_owing = false,
            Op::Settle => return Already,
            Op::Drain { nonce, .. } if self.ordered == Some(nonce) => return Already,
            Op::Drain { nonce, .. } if self.drain.is_some_and(|(asked, ..)| asked == nonce) => return Already,
            Op::Drain { nonce, within } => match self.life {
                Life::Claimed { deadline, .. } if now < deadline => {
                    let until = self.live_drain(now).map_or(now + within, |until| until.max(now + within));
                    self.drain = Some((nonce, self.epoch, until, now));
                }
                _ => return No("not claimed"),
            },
            Op::Retry { nonce } | Op::Cancel { nonce } | Op::HandOff { nonce, .. } => {
                if self.ordered == Some(nonce) {
                    return Already;
                }
                let is_allowed = match op {
                    Op::Retry { .. } => self.life != Life::Done,
                    Op::Cancel { .. } => !matches!(self.life, Life::Done | Life::Cancelled),
                    _ => matches!(self.life, Life::Ready | Life::Claimed { .. }),
                };
                if !is_allowed {
                    return No("finished");
                }
                self.epoch += 1;
                (self.ordered, self.drain) = (Some(nonce), None);
                match op {
                    Op::Retry { .. } => {
                        (self.life, self.tried) = (Life::Ready, 0);
                        self.due = None;
                    }
                    Op::HandOff { to, ttl, .. } => {
                        self.life = Life::Claimed { nonce: to, deadline: now + ttl };
                        self.ttl = ttl;
                        self.tried += 1;
                    }
                    _ => self.life = Life::Cancelled,
                }
            }
        }
        Write
    }
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn holder(nonce: u128) -> HolderId {
    HolderId::new(Some("worker".parse().unwrap())).with_nonce(Nonce::from_u128(nonce))
}

fn ttl(ms: u64) -> Ttl {
    Ttl::new(Duration::from_millis(ms)).unwrap()
}

fn request(op: Op) -> Request {
    let claim = |(epoch, nonce): (u64, u128)| Claim {
        epoch: if epoch == 0 { Epoch::ZERO } else { Epoch::new(epoch).unwrap() },
        nonce: Nonce::from_u128(nonce),
    };
    let operate = |nonce: u128, order: Order| Request::Operate {
        nonce: Nonce::from_u128(nonce),
        by: "ada".parse().unwrap(),
        why: "testing".parse().unwrap(),
        expected: None,
        order,
    };
    let follow_up = || FollowUp {
        name: ItemName { queue: "next".parse().unwrap(), id: ItemId::keyed(&"child".parse().unwrap()) },
        payload: Payload::default(),
        priority: Priority::default(),
        delay_ms: 0,
        attempts: Attempts::default(),
    };
    match op {
        Op::Claim { nonce, ttl: ms } => Request::Claim { holder: holder(nonce), ttl: ttl(ms) },
        Op::Renew { claim: c, ttl: ms } => Request::Renew { claim: claim(c), ttl: ttl(ms) },
        Op::Progress { claim: c } => {
            let report = Report { marker: None, checkpoint: Some(Checkpoint::new("page 3").unwrap()) };
            Request::Progress { claim: claim(c), report }
        }
        Op::Complete { claim: c, adds } => {
            let follow_ups = if adds { vec![follow_up()] } else { Vec::new() };
            Request::Complete { claim: claim(c), result: Some(Payload::result("done").unwrap()), follow_ups }
        }
        Op::Fail { claim: c, pause, is_final } => Request::Fail {
            claim: claim(c),
            why: "no".parse().unwrap(),
            retry_in: Some(Duration::from_millis(pause)),
            is_final,
        },
        Op::Return { claim: c, wait } => Request::Return { claim: claim(c), wait: wait.map(Duration::from_millis) },
        Op::Reap => Request::Reap,
        Op::Settle => Request::Settle,
        Op::Retry { nonce } => operate(nonce, Order::Retry { past: None }),
        Op::Cancel { nonce } => operate(nonce, Order::Cancel),
        Op::Drain { nonce, within } => operate(nonce, Order::Drain { within: ttl(within) }),
        Op::HandOff { nonce, to, ttl: ms } => operate(nonce, Order::HandOff { to: holder(to), ttl: ttl(ms) }),
    }
}

fn answer(decision: &Decision) -> Answer {
    match decision {
        Decision::Write(_) => Answer::Write,
        Decision::AlreadyApplied => Answer::Already,
        Decision::Refuse(refusal) => Answer::No(match refusal {
            Refusal::Busy { .. } => "busy",
            Refusal::NotDue { .. } => "not due",
            Refusal::Exhausted => "exhausted",
            Refusal::Finished { .. } => "finished",
            Refusal::Stale { .. } => "stale",
            Refusal::Changed { .. } => "changed",
            Refusal::Elsewhere(_) => "elsewhere",
            Refusal::NotMoving => "not moving",
            Refusal::NotExpired => "not expired",
            Refusal::Draining(_) => "draining",
            Refusal::NotClaimed => "not claimed",
            Refusal::OutOfEpochs => "out of epochs",
            Refusal::TooLarge { .. } => "too large",
        }),
    }
}

fn life(item: &Item) -> Life {
    match &item.state {
        State::Ready => Life::Ready,
        State::Claimed(t) => Life::Claimed { nonce: t.holder.nonce().as_u128(), deadline: t.deadline.as_millis() },
        State::Done { .. } => Life::Done,
        State::Dead { .. } => Life::Dead,
        State::Cancelled { .. } | State::Purged { .. } => Life::Cancelled,
    }
}

/// A few nonces and epochs, so that histories meet: the claim in force, those before it, and ones that never were.
fn an_op() -> impl Strategy<Value = (Op, i64)> {
    let claim = || (0_u64..6, 1_u128..4);
    let ttl = || prop_oneof![Just(1_000_u64), Just(5_000)];
    let op = prop_oneof![
        4 => (1_u128..4, ttl()).prop_map(|(nonce, ttl)| Op::Claim { nonce, ttl }),
        2 => (claim(), ttl()).prop_map(|(claim, ttl)| Op::Renew { claim, ttl }),
        1 => claim().prop_map(|claim| Op::Progress { claim }),
        2 => (claim(), any::<bool>()).prop_map(|(claim, adds)| Op::Complete { claim, adds }),
        3 => (claim(), prop_oneof![Just(0_u64), Just(700)], prop::bool::weighted(0.1))
            .prop_map(|(claim, pause, is_final)| Op::Fail { claim, pause, is_final }),
        2 => (claim(), prop_oneof![2 => Just(None), 1 => Just(Some(700_u64))])
            .prop_map(|(claim, wait)| Op::Return { claim, wait }),
        2 => Just(Op::Reap),
        1 => Just(Op::Settle),
        2 => (50_u128..53).prop_map(|nonce| Op::Retry { nonce }),
        1 => (50_u128..53).prop_map(|nonce| Op::Cancel { nonce }),
        2 => (50_u128..55, ttl()).prop_map(|(nonce, within)| Op::Drain { nonce, within }),
        1 => (50_u128..53, 1_u128..4, ttl()).prop_map(|(nonce, to, ttl)| Op::HandOff { nonce, to, ttl }),
    ];
    (
        op,
        prop_oneof![3 => Just(0_i64), 2 => 1_i64..900, 1 => 900_i64..6_000, 1 => -4_000_i64..0, 1 => Just(-70_000_i64)],
    )
}

/// Half of the claims that are made use of are the one in force: otherwise most histories would end at the first step.
fn aimed(op: Op, item: &Item, aim: bool) -> Op {
    let Some(tenure) = item.tenure().filter(|_| aim) else { return op };
    let claim = (item.epoch.get(), tenure.holder.nonce().as_u128());
    match op {
        Op::Renew { ttl, .. } => Op::Renew { claim, ttl },
        Op::Progress { .. } => Op::Progress { claim },
        Op::Complete { adds, .. } => Op::Complete { claim, adds },
        Op::Fail { pause, is_final, .. } => Op::Fail { claim, pause, is_final },
        Op::Return { wait, .. } => Op::Return { claim, wait },
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn every_history_gets_the_answers_of_the_specification(
        history in prop::collection::vec((an_op(), any::<bool>()), 1..40),
        most in 1_u32..4,
        delay in prop_oneof![Just(0_u64), Just(500)],
    ) {
        let attempts = Attempts { most, backoff_ms: 1_000 };
        let mut item =
            Item::new(leasehold_core::Lineage::from_u128(1), Payload::new("x").unwrap(), Priority::default(), attempts, at(T0), (delay > 0).then_some(at(T0 + delay)));
        let mut spec = Spec {
            epoch: 0, life: Life::Ready, due: (delay > 0).then_some(T0 + delay), began: T0, ttl: 0, tried: 0, most, ended: None, ordered: None, drain: None,
            completions: 0, is_owing: false,
        };
        let mut now = T0;
        for ((op, later), aim) in history {
            // The store's clock is set back now and then.
            now = now.saturating_add_signed(later);
            let op = aimed(op, &item, aim);
            let decision = decide(&item, &request(op), at(now));
            prop_assert_eq!(answer(&decision), spec.step(op, now), "{:?} at {}", op, now as i64 - T0 as i64);
            if let Decision::Write(next) = decision {
                // What the specification leaves out.
                prop_assert!(next.epoch >= item.epoch, "the epoch went down");
                let is_begun = matches!(op, Op::Claim { .. } | Op::HandOff { .. } | Op::Retry { .. } | Op::Cancel { .. });
                prop_assert_eq!(next.epoch > item.epoch, is_begun, "{:?}", op);
                if next.state == State::Ready && item.state != State::Ready {
                    prop_assert_eq!(next.turn, next.epoch, "a place in line was had before");
                }
                prop_assert_eq!(&next.payload, &item.payload);
                if let Op::Drain { .. } = op {
                    prop_assert_eq!(&Item { drain: item.drain.clone(), ..(*next).clone() }, &item, "asking changes nothing else");
                }
                prop_assert!(next.history.len() <= EVENTS_KEPT);
                let is_done = life(&next) == Life::Done;
                prop_assert!(next.result.is_none() || is_done);
                let completions = next.history.iter().filter(|e| e.what == What::Completed).count();
                prop_assert!(completions <= 1, "completed twice");
                let bytes = next.encode().unwrap();
                prop_assert_eq!(&Item::decode(&bytes, "x").unwrap(), &*next);
                item = *next;
            }
            prop_assert_eq!((item.epoch.get(), life(&item), item.due.map(Timestamp::as_millis), item.tried),
                (spec.epoch, spec.life, spec.due, spec.tried), "after {:?}", op);
            let drain = item.drain.as_ref().map(|d| {
                (d.asked().nonce.as_u128(), d.epoch().get(), d.until().as_millis(), d.asked().at.as_millis())
            });
            prop_assert_eq!(drain, spec.drain);
            prop_assert_eq!(!item.outbox.is_empty(), spec.is_owing);
            prop_assert!(spec.completions <= 1);
        }
    }
}

#[test]
fn a_drain_from_before_the_clock_was_set_back_keeps_nobody_away_and_lends_its_end_to_no_other() {
    let ahead = T0 + 2 * 3_600_000;
    let mut item = Item::new(
        leasehold_core::Lineage::from_u128(1),
        Payload::default(),
        Priority::default(),
        Attempts::default(),
        at(T0),
        None,
    );
    let mut write = |op, now| match decide(&item, &request(op), at(now)) {
        Decision::Write(next) => {
            item = *next;
            item.clone()
        }
        other => panic!("{op:?}: {other:?}"),
    };
    write(Op::Claim { nonce: 1, ttl: 5_000 }, ahead);
    write(Op::Drain { nonce: 60, within: 4_000 }, ahead);
    let again = write(Op::Drain { nonce: 61, within: 4_000 }, T0);
    assert_eq!(again.live_drain(at(T0)).map(|drain| drain.until()), Some(at(T0 + 4_000)));
    write(Op::Drain { nonce: 62, within: 4_000 }, ahead);
    let given_back = write(Op::Return { claim: (1, 1), wait: None }, T0);
    // A little ahead is what two servers may differ by.
    let claim = Op::Claim { nonce: 2, ttl: 1_000 };
    assert_eq!(answer(&decide(&given_back, &request(claim), at(ahead - 60_000))), Answer::No("draining"));
    assert_eq!(write(claim, T0).epoch.get(), 2);
}

/// The histories above are worth something only if they get far: a hand-made one must reach every state.
#[test]
fn a_zombies_completion_is_refused_by_both() {
    let mut spec = Spec {
        epoch: 0,
        life: Life::Ready,
        due: None,
        began: T0,
        ttl: 0,
        tried: 0,
        most: 5,
        ended: None,
        ordered: None,
        drain: None,
        completions: 0,
        is_owing: false,
    };
    let mut item = Item::new(
        leasehold_core::Lineage::from_u128(1),
        Payload::default(),
        Priority::default(),
        Attempts::default(),
        at(T0),
        None,
    );
    let steps = [
        (Op::Claim { nonce: 1, ttl: 1_000 }, 0, Answer::Write),
        (Op::Claim { nonce: 2, ttl: 1_000 }, 999, Answer::No("busy")),
        (Op::Drain { nonce: 60, within: 1_200 }, 999, Answer::Write),
        (Op::Drain { nonce: 60, within: 1_200 }, 999, Answer::Already),
        (Op::Claim { nonce: 2, ttl: 1_000 }, 1_000, Answer::No("draining")),
        (Op::Drain { nonce: 61, within: 1_000 }, 1_000, Answer::No("not claimed")),
        (Op::Claim { nonce: 2, ttl: 1_000 }, 2_199, Answer::Write),
        (Op::Complete { claim: (1, 1), adds: true }, 2_200, Answer::No("stale")),
        (Op::Complete { claim: (2, 2), adds: true }, 2_201, Answer::Write),
        (Op::Complete { claim: (2, 2), adds: true }, 2_202, Answer::Already),
        (Op::Retry { nonce: 50 }, 2_203, Answer::No("finished")),
        (Op::Settle, 2_204, Answer::Write),
        (Op::Settle, 2_205, Answer::Already),
    ];
    for (op, later, expected) in steps {
        let decision = decide(&item, &request(op), at(T0 + later));
        assert_eq!((answer(&decision), spec.step(op, T0 + later)), (expected, expected), "{op:?}");
        if let Decision::Write(next) = decision {
            item = *next;
        }
    }
    assert_eq!((life(&item), spec.life, item.epoch.get()), (Life::Done, Life::Done, 2));
}
