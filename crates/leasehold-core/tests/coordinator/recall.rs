//! Coming back to a lease that one released oneself: cheaper, and never wronger, than reading it.

use crate::support::faults::{Call, Fault, Faulty, Hasty};
use crate::support::{CASES, holder, property, seconds, ttl};
use leasehold_core::clock::ManualClock;
use leasehold_core::lease::protocol::{Order, Refusal};
use leasehold_core::{Acquired, Ask, Coordinator, Epoch, Grant, Kind, LeaseName, Outcome, Released};
use proptest::prelude::*;
use std::sync::Arc;

const TTL: u64 = 90;

struct Bench {
    store: Arc<Faulty>,
    clock: ManualClock,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::default();
        Bench { store: Arc::new(Faulty::new(clock.clone())), clock }
    }

    /// Another process: it remembers for itself.
    fn process(&self) -> Coordinator {
        Coordinator::with_clock(self.store.clone(), Arc::new(Hasty(self.clock.clone())))
    }
}

fn name() -> LeaseName {
    "daily".parse().unwrap()
}

async fn acquire(leases: &Coordinator, nonce: u128) -> leasehold_core::Result<Acquired> {
    leases.acquire(&name(), &Ask::new(holder(nonce), ttl(TTL))).await
}

async fn grant(leases: &Coordinator, nonce: u128) -> Grant {
    match acquire(leases, nonce).await.unwrap() {
        Acquired::Granted(grant) => *grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn tenure(leases: &Coordinator, nonce: u128) -> Epoch {
    let grant = grant(leases, nonce).await;
    assert_eq!(leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now);
    grant.token().epoch
}

#[tokio::test]
async fn coming_back_costs_one_swap() {
    let bench = Bench::new();
    let leases = bench.process();
    for turn in 1..=40 {
        bench.clock.advance(seconds(TTL - 1));
        assert_eq!(tenure(&leases, turn).await.get(), turn as u64);
        assert_eq!(bench.store.round_trips(), (3 * usize::from(turn == 1), 2), "turn {turn}");
    }
}

#[tokio::test]
async fn what_is_older_than_the_ttl_is_read_again() {
    let bench = Bench::new();
    let leases = bench.process();
    tenure(&leases, 1).await;
    bench.clock.advance(seconds(TTL));
    bench.store.round_trips();
    assert_eq!(tenure(&leases, 2).await.get(), 2);
    assert_eq!(bench.store.round_trips(), (1, 2));
}

#[tokio::test]
async fn who_has_it_since_keeps_it() {
    let bench = Bench::new();
    let (leases, other) = (bench.process(), bench.process());
    tenure(&leases, 1).await;
    let theirs = grant(&other, 2).await;
    match acquire(&leases, 3).await.unwrap() {
        Acquired::Refused { refusal, .. } => assert!(matches!(*refusal, Refusal::Held { .. }), "{refusal:?}"),
        granted => panic!("two hold it: {granted:?}"),
    }
    assert_eq!(other.release(&theirs, Outcome::Succeeded).await.unwrap(), Released::Now);
    assert_eq!(tenure(&leases, 4).await.get(), 3);
}

#[tokio::test]
async fn a_pause_since_keeps_everybody_out() {
    let bench = Bench::new();
    let (leases, other) = (bench.process(), bench.process());
    tenure(&leases, 1).await;
    other.operate(&name(), "ann".parse().unwrap(), "drill".parse().unwrap(), Order::Pause).await.unwrap();
    match acquire(&leases, 2).await.unwrap() {
        Acquired::Refused { refusal, .. } => assert!(matches!(*refusal, Refusal::Paused(_)), "{refusal:?}"),
        granted => panic!("granted while paused: {granted:?}"),
    }
}

#[tokio::test]
async fn a_lost_answer_is_found_by_its_nonce_and_an_error_grants_nothing() {
    let bench = Bench::new();
    let leases = bench.process();
    tenure(&leases, 1).await;
    bench.store.next(Call::Swap, &[Fault::LostReply]);
    let second = grant(&leases, 2).await;
    assert_eq!(second.token().epoch.get(), 2);
    leases.release(&second, Outcome::Succeeded).await.unwrap();
    bench.store.next(Call::Swap, &[Fault::Fails(Kind::Unavailable)]);
    assert_eq!(acquire(&leases, 3).await.unwrap_err().kind(), Kind::Unavailable);
    bench.store.next(Call::Swap, &[]);
    assert_eq!(tenure(&leases, 4).await.get(), 3);
}

#[test]
fn processes_that_remember_take_turns_as_if_they_did_not() {
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Acquire(usize),
        Release(usize),
        Wait(u64),
    }
    let step = prop_oneof![
        4 => (0..3_usize).prop_map(Step::Acquire),
        3 => (0..3_usize).prop_map(Step::Release),
        1 => (1..=2 * TTL).prop_map(Step::Wait),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    property(CASES, prop::collection::vec(step, 1..60), |steps| {
        let bench = Bench::new();
        let processes = [bench.process(), bench.process(), bench.process()];
        let mut held: [Option<Grant>; 3] = [None, None, None];
        let mut newest = 0;
        runtime.block_on(async {
            for (nonce, step) in (1..).zip(steps) {
                match step {
                    Step::Wait(secs) => bench.clock.advance(seconds(secs)),
                    Step::Release(who) => {
                        if let Some(grant) = held[who].take() {
                            processes[who].release(&grant, Outcome::Succeeded).await.unwrap();
                        }
                    }
                    Step::Acquire(who) => {
                        let now = bench.process().clock().now();
                        let trusted = held.iter().flatten().any(|grant| now < grant.trust_until());
                        match acquire(&processes[who], nonce).await.unwrap() {
                            Acquired::Granted(grant) => {
                                prop_assert!(!trusted, "granted while another may trust its own");
                                let epoch = grant.token().epoch.get();
                                prop_assert_eq!(epoch, newest + 1);
                                newest = epoch;
                                held[who] = Some(*grant);
                            }
                            Acquired::Refused { .. } => {
                                // A fresh process, which remembers nothing, is refused as well.
                                let fresh = acquire(&bench.process(), nonce + 1_000_000).await.unwrap();
                                prop_assert!(matches!(fresh, Acquired::Refused { .. }), "refused what was free");
                            }
                        }
                    }
                }
            }
            Ok(())
        })
    });
}
