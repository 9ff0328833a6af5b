//! The keeper on a clock that is turned by hand: what it renews, and the very nanosecond at which it gives up.

#![allow(clippy::unwrap_used)]

mod support;

use leasehold_core::clock::{Clock, ManualClock, Moment};
use leasehold_core::lease::protocol::{Decision, Order, Report, Request, decide};
use leasehold_core::{
    Acquired, Ask, Coordinator, Grant, Keeper, KeeperState, Key, Kind, LeaseName, Loss, MemoryStore, Outcome,
    Ownership, ProgressGate, Released, Shelf, Store, codec,
};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::faults::{Call, Fault, Faulty};
use support::{CASES, holder, millis, property, seconds, ttl};

const TTL: u64 = 90;
const NANO: Duration = Duration::from_nanos(1);

struct Bench {
    store: Arc<Faulty>,
    clock: ManualClock,
    leases: Coordinator,
    grant: Grant,
}

async fn bench() -> Bench {
    let clock = ManualClock::default();
    let store = Arc::new(Faulty::new(clock.clone()));
    let leases = Coordinator::with_clock(store.clone(), Arc::new(clock.clone()));
    let Acquired::Granted(grant) = leases.acquire(&name(), &Ask::new(holder(1), ttl(TTL))).await.unwrap() else {
        panic!("a free lease was refused")
    };
    store.round_trips();
    Bench { store, clock, leases, grant: *grant }
}

impl Bench {
    fn keep(&self) -> Keeper {
        Keeper::start(self.leases.clone(), self.grant.clone())
    }

    fn keep_gated(&self, timeout: Duration, evidence: impl Fn() -> Option<Moment> + Send + Sync + 'static) -> Keeper {
        let gate = ProgressGate { timeout, evidence: Arc::new(evidence) };
        Keeper::start_gated(self.leases.clone(), self.grant.clone(), Some(gate))
    }

    /// Another process on the same store, whose calls always work.
    fn other(&self) -> Coordinator {
        Coordinator::with_clock(Arc::new(self.store.inner.clone()), Arc::new(self.clock.clone()))
    }

    async fn pass(&self, time: Duration) {
        settle().await;
        self.clock.advance(time);
        settle().await;
    }

    /// Turns the clock up to a moment.
    async fn pass_until(&self, moment: Moment) {
        self.pass(moment.saturating_since(self.clock.now())).await;
    }

    async fn record(&self) -> Ownership {
        stored(&self.store.inner).await
    }
}

async fn stored(store: &MemoryStore) -> Ownership {
    let value = store.read(&Key::new(Shelf::Lease, &name())).await.unwrap().value.unwrap();
    codec::decode("ownership", &value.bytes, "x").unwrap()
}

fn name() -> LeaseName {
    "daily".parse().unwrap()
}

fn loss(keeper: &Keeper) -> Option<Loss> {
    match &*keeper.state().borrow() {
        KeeperState::Held { .. } => None,
        KeeperState::Lost(loss) => Some(loss.clone()),
    }
}

/// Lets every other task of this runtime run until all of them wait.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn it_renews_at_a_third_of_the_ttl() {
    let bench = bench().await;
    let keeper = bench.keep();
    for period in 0..5 {
        let before = bench.record().await.tenure.unwrap().deadline;
        bench.pass(seconds(TTL / 3) - NANO).await;
        // One look, when it has begun to listen, and none after that.
        let looks = usize::from(period == 0);
        assert_eq!(bench.store.round_trips(), (looks, 0), "renewed too early");
        bench.pass(NANO).await;
        assert_eq!(bench.store.round_trips(), (0, 1));
        let after = bench.record().await.tenure.unwrap().deadline;
        assert!(after.saturating_since(before) >= seconds(TTL / 3));
        let held = KeeperState::Held { trust_until: bench.clock.now() + seconds(TTL) };
        assert_eq!(*keeper.state().borrow(), held);
    }
    assert_eq!(bench.record().await.epoch.get(), 1);
}

#[tokio::test]
async fn a_holder_hears_that_it_is_to_finish_and_is_renewed_on() {
    for hinted in [true, false] {
        let bench = bench().await;
        let keeper = bench.keep();
        let asked = || keeper.asked().borrow().as_ref().map(|drain| drain.asked().why.to_string());
        // It listens from here on.
        bench.pass(seconds(1)).await;
        let leases = if hinted { bench.leases.clone() } else { bench.other() };
        for why in ["first", "second"] {
            let (who, order) = ("ann".parse().unwrap(), Order::Drain { within: ttl(10 * TTL) });
            leases.operate(&name(), who, why.parse().unwrap(), order).await.unwrap();
            bench.pass(if hinted { seconds(1) } else { seconds(TTL / 3) }).await;
            assert_eq!(asked().as_deref(), Some(why), "hinted: {hinted}");
            // Right after a write of its own it does not listen.
            bench.pass(seconds(1)).await;
        }
        // Asking takes nothing away, however long it lasts.
        for _ in 0..6 {
            bench.pass(seconds(TTL / 3)).await;
        }
        assert_eq!(loss(&keeper), None);
        assert_eq!(keeper.asked_to_finish().await.asked().why.as_str(), "second");
        // Whoever takes the grant up after that hears of it at once.
        let grant = bench.leases.adopt(bench.grant.token()).await.unwrap();
        let again = Keeper::start(bench.leases.clone(), grant);
        assert!(again.asked().borrow().is_some());
    }
}

#[tokio::test]
async fn two_renewals_in_a_row_may_fail() {
    for fault in [Fault::Fails(Kind::Unavailable), Fault::Fails(Kind::Contended), Fault::Fails(Kind::Corrupt)] {
        let bench = bench().await;
        let keeper = bench.keep();
        bench.store.next(Call::Swap, &[fault.clone(), fault.clone()]);
        for _ in 0..10 {
            bench.pass(seconds(TTL) / 10).await;
        }
        assert_eq!(loss(&keeper), None, "{fault:?}");
        assert!(bench.store.round_trips().1 >= 3);
        bench.other().inspect(&name()).await.unwrap();
        assert!(bench.record().await.is_held_by(bench.grant.token().claim()));
    }
}

#[tokio::test]
async fn it_is_lost_when_the_window_ends_and_not_a_nanosecond_later() {
    let bench = bench().await;
    let keeper = bench.keep();
    bench.store.plan(|_, _| Fault::Fails(Kind::Unavailable));
    let end = bench.grant.trust_until();
    while bench.clock.now() + seconds(5) < end {
        bench.pass(seconds(5)).await;
        assert_eq!(loss(&keeper), None);
    }
    bench.pass_until(end - NANO).await;
    assert_eq!(loss(&keeper), None, "given up while nobody else could be granted it");
    bench.pass(NANO).await;
    assert!(matches!(loss(&keeper), Some(Loss::OutOfTime(why)) if why.contains("fault")));
    assert!(matches!(keeper.lost().await, Loss::OutOfTime(_)));
    // Nobody could have had it up to here.
    let record = bench.record().await;
    let now = bench.other().inspect(&name()).await.unwrap().now;
    assert!(record.live_tenure(now).is_some());
}

#[tokio::test]
async fn a_store_that_hangs_is_not_waited_for_past_the_window() {
    let bench = bench().await;
    let keeper = bench.keep();
    bench.store.plan(|_, _| Fault::Hangs);
    let end = bench.grant.trust_until();
    bench.pass(seconds(TTL / 3)).await;
    assert_eq!(bench.store.round_trips(), (0, 1));
    bench.pass_until(end - NANO).await;
    assert_eq!(loss(&keeper), None);
    bench.pass(NANO).await;
    assert!(matches!(loss(&keeper), Some(Loss::OutOfTime(why)) if why.contains("did not answer")));
}

#[tokio::test]
async fn a_lease_that_moved_is_lost_at_the_first_answer() {
    let bench = bench().await;
    let keeper = bench.keep();
    let (by, why) = ("ann".parse().unwrap(), "drill".parse().unwrap());
    bench.other().operate(&name(), by, why, Order::Revoke).await.unwrap();
    bench.pass(seconds(TTL / 3)).await;
    assert!(matches!(loss(&keeper), Some(Loss::Moved(why)) if why.contains("held=1 seen=2")));
}

#[tokio::test]
async fn a_lease_that_moved_before_anybody_listened_is_lost_when_it_begins_to() {
    let bench = bench().await;
    let keeper = bench.keep();
    let (by, why) = ("ann".parse().unwrap(), "drill".parse().unwrap());
    bench.other().operate(&name(), by, why, Order::Revoke).await.unwrap();
    bench.pass(millis(100)).await;
    assert_eq!(loss(&keeper), None, "nobody has told it");
    bench.pass(millis(200)).await;
    assert!(matches!(loss(&keeper), Some(Loss::Moved(why)) if why.contains("held=1 seen=2")));
}

#[tokio::test]
async fn after_a_sleep_past_the_window_it_is_lost_before_the_store_is_asked() {
    for slept in [seconds(TTL), seconds(100 * TTL)] {
        let bench = bench().await;
        let keeper = bench.keep();
        bench.pass(slept).await;
        assert!(matches!(loss(&keeper), Some(Loss::OutOfTime(_))));
        assert_eq!(bench.store.round_trips(), (0, 0));
    }
}

#[tokio::test]
async fn after_a_sleep_past_the_window_a_gated_keeper_says_that_time_ran_out() {
    let bench = bench().await;
    let keeper = bench.keep_gated(seconds(10), || None);
    bench.pass(seconds(100 * TTL)).await;
    assert!(matches!(loss(&keeper), Some(Loss::OutOfTime(_))), "{:?}", loss(&keeper));
}

#[tokio::test]
async fn a_sleep_within_the_window_is_survived() {
    let bench = bench().await;
    let keeper = bench.keep();
    bench.pass_until(bench.grant.trust_until() - NANO).await;
    assert_eq!(loss(&keeper), None);
    assert_eq!(bench.store.round_trips().1, 1);
}

#[tokio::test]
async fn an_answer_that_was_slept_over_does_not_bring_the_lease_back() {
    // Sent in time and applied; then the machine sleeps past the window, and wakes with the answer at hand. What was
    // started under the old window has been unprotected since it ended.
    for _ in 0..32 {
        let bench = bench().await;
        let keeper = bench.keep();
        bench.store.next(Call::Swap, &[Fault::Slow(Duration::ZERO, seconds(TTL - 20))]);
        bench.pass(seconds(TTL / 3)).await;
        assert!(bench.clock.now() > bench.grant.trust_until());
        assert!(matches!(loss(&keeper), Some(Loss::OutOfTime(_))), "{:?}", keeper.state().borrow());
    }
}

/// Set forward past the deadline, in the very exchange that renews it: by the answer's own time it has run out.
#[tokio::test]
async fn a_clock_set_forward_past_the_deadline_loses_the_lease_with_the_answer() {
    for ahead in [TTL + 1, 365 * 86_400] {
        let bench = bench().await;
        let keeper = bench.keep();
        bench.store.next(Call::Swap, &[Fault::StepsForward(seconds(ahead))]);
        bench.pass(seconds(TTL / 3)).await;
        let rival = Coordinator::with_clock(bench.store.clone(), Arc::new(bench.clock.clone()));
        let rival = rival.acquire(&name(), &Ask::new(holder(2), ttl(TTL))).await.unwrap();
        assert!(matches!(rival, Acquired::Granted(_)), "{rival:?}");
        let said = loss(&keeper).map(|loss| loss.to_string()).unwrap_or_default();
        assert!(said.contains("set forward"), "{ahead} s: {said:?}");
    }
}

/// Set forward by less: the window is shorter by as much, and the next renewal makes it whole.
#[tokio::test]
async fn a_clock_set_forward_by_less_shortens_the_window_and_it_renews_at_once() {
    let bench = bench().await;
    let keeper = bench.keep();
    // The renewal that follows the step does not get through.
    bench.store.next(Call::Swap, &[Fault::StepsForward(seconds(50)), Fault::Fails(Kind::Unavailable)]);
    bench.pass(seconds(TTL / 3)).await;
    let short = KeeperState::Held { trust_until: bench.clock.now() + seconds(TTL - 50) };
    assert_eq!(*keeper.state().borrow(), short);
    assert_eq!(bench.store.round_trips().1, 2, "it did not renew at once");
    bench.pass(seconds(10)).await;
    let whole = KeeperState::Held { trust_until: bench.clock.now() + seconds(TTL) };
    assert_eq!(*keeper.state().borrow(), whole);
}

#[tokio::test]
async fn without_evidence_it_stalls() {
    let bench = bench().await;
    let keeper = bench.keep_gated(seconds(40), || None);
    for _ in 0..39 {
        bench.pass(seconds(1)).await;
    }
    assert_eq!(loss(&keeper), None);
    bench.pass(seconds(1)).await;
    assert_eq!(loss(&keeper), Some(Loss::Stalled { quiet_for: seconds(40) }));
    bench.store.round_trips();
    bench.pass(seconds(TTL)).await;
    assert_eq!(bench.store.round_trips(), (0, 0), "a stalled keeper must not renew");
}

#[tokio::test]
async fn evidence_on_this_machine_keeps_it() {
    let bench = bench().await;
    let seen = Arc::new(Mutex::new(None));
    let evidence = seen.clone();
    let keeper = bench.keep_gated(seconds(10), move || *evidence.lock().unwrap());
    for _ in 0..40 {
        *seen.lock().unwrap() = Some(bench.clock.now());
        bench.pass(seconds(9)).await;
        assert_eq!(loss(&keeper), None);
    }
    bench.pass(seconds(2)).await;
    assert!(matches!(loss(&keeper), Some(Loss::Stalled { .. })));
}

#[tokio::test]
async fn progress_reported_through_the_store_keeps_it() {
    let bench = bench().await;
    let keeper = bench.keep_gated(seconds(10), || None);
    let mut worker = bench.other().adopt(bench.grant.token()).await.unwrap();
    // Each report comes just before the timeout would be up, and just before the keeper looks.
    bench.pass(millis(4_900)).await;
    for round in 0..20 {
        let report = Report { marker: Some(format!("row {round}").parse().unwrap()), checkpoint: None };
        bench.other().checkpoint(&mut worker, report).await.unwrap();
        for _ in 0..99 {
            bench.pass(millis(100)).await;
            assert_eq!(loss(&keeper), None, "stalled in round {round}, at most 9.9 s after a report");
        }
    }
    for _ in 0..60 {
        bench.pass(millis(100)).await;
    }
    assert!(matches!(loss(&keeper), Some(Loss::Stalled { .. })), "it never stalls");
}

#[tokio::test]
async fn a_store_that_cannot_say_whether_there_was_progress_does_not_make_it_stalled() {
    let bench = bench().await;
    let keeper = bench.keep_gated(seconds(10), || None);
    bench.store.plan(|_, _| Fault::Fails(Kind::Unavailable));
    for _ in 0..30 {
        bench.pass(seconds(1)).await;
    }
    assert_eq!(loss(&keeper), None);
    bench.pass_until(bench.grant.trust_until()).await;
    assert!(matches!(loss(&keeper), Some(Loss::OutOfTime(_))), "{:?}", loss(&keeper));
}

#[tokio::test]
async fn stopping_gives_the_renewed_grant_back() {
    let bench = bench().await;
    let keeper = bench.keep();
    for _ in 0..3 {
        bench.pass(seconds(TTL / 3)).await;
    }
    let grant = keeper.stop().await;
    assert_eq!(grant.trust_until(), bench.clock.now() + seconds(TTL));
    bench.store.round_trips();
    assert_eq!(bench.leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now);
    assert_eq!(bench.store.round_trips(), (0, 1));
    bench.pass(seconds(TTL)).await;
    assert_eq!(bench.store.round_trips(), (0, 0), "a stopped keeper must not renew");
}

#[tokio::test]
async fn stopping_in_the_middle_of_a_renewal_still_leads_to_a_release() {
    for fault in [Fault::Hangs, Fault::LostReply, Fault::Yields] {
        let bench = bench().await;
        let keeper = bench.keep();
        settle().await;
        let chosen = fault.clone();
        bench.store.plan(move |_, n| if n == 1 { chosen.clone() } else { Fault::Hangs });
        bench.clock.advance(seconds(TTL / 3));
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        let grant = keeper.stop().await;
        bench.store.heal();
        assert_eq!(bench.leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now, "{fault:?}");
    }
}

#[tokio::test]
async fn stopping_after_the_loss_gives_a_grant_that_cannot_be_released_again() {
    let bench = bench().await;
    let keeper = bench.keep();
    bench.pass(seconds(TTL)).await;
    assert!(loss(&keeper).is_some());
    bench.other().acquire(&name(), &Ask::new(holder(2), ttl(TTL))).await.unwrap();
    let grant = keeper.stop().await;
    assert!(matches!(bench.leases.release(&grant, Outcome::Lost).await.unwrap(), Released::Lost(_)));
}

#[tokio::test]
async fn dropping_it_stops_the_renewals_and_the_lease_expires() {
    let bench = bench().await;
    let keeper = bench.keep();
    bench.pass(seconds(TTL / 3)).await;
    assert_eq!(bench.store.round_trips(), (0, 1));
    drop(keeper);
    bench.pass(seconds(TTL / 3)).await;
    assert_eq!(bench.store.round_trips(), (0, 0));
    bench.pass(seconds(TTL)).await;
    let next = bench.other().acquire(&name(), &Ask::new(holder(2), ttl(TTL))).await.unwrap();
    assert!(matches!(next, Acquired::Granted(grant) if grant.token().epoch.get() == 2));
}

#[test]
fn while_it_says_held_nobody_else_can_be_granted_the_lease() {
    let fault = prop_oneof![
        6 => Just(Fault::None),
        2 => Just(Fault::Fails(Kind::Unavailable)),
        1 => Just(Fault::LostReply),
        1 => Just(Fault::LostRequest),
        1 => Just(Fault::Mismatch),
        1 => Just(Fault::Hangs),
        1 => (0..40_u64, 0..40_u64).prop_map(|(a, b)| Fault::Slow(seconds(a), seconds(b))),
    ];
    let step = prop_oneof![4 => 0..8_000_u64, 1 => 8_000..40_000_u64, 1 => Just(30_000_u64)];
    let script = (prop::collection::vec(fault, 1..12), prop::collection::vec(step, 1..40));
    let ends = std::cell::Cell::new((0_u32, 0_u32));
    property(CASES, script, |(faults, steps)| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tried: Result<bool, TestCaseError> = runtime.block_on(async {
            let bench = bench().await;
            let reads_too = faults.len() % 2 == 0;
            bench.store.plan(move |call, n| match (&faults[n % faults.len()], call) {
                (Fault::Mismatch, Call::Read) => Fault::None,
                (_, Call::Read) if !reads_too => Fault::None,
                // A store that is always slow would turn the clock for ever without the test getting a turn.
                (Fault::Slow(..), _) if n > 20 => Fault::None,
                (fault, _) => fault.clone(),
            });
            let keeper = bench.keep();
            for step in steps {
                bench.pass(millis(step)).await;
                let state = keeper.state().borrow().clone();
                let KeeperState::Held { trust_until } = state else { return Ok(false) };
                prop_assert!(bench.clock.now() < trust_until, "held past its window");
                let (record, now) = (bench.record().await, bench.other().inspect(&name()).await.unwrap().now);
                prop_assert!(record.is_held_by(bench.grant.token().claim()));
                let other = Request::Acquire {
                    lineage: leasehold_core::Lineage::from_u128(1),
                    holder: holder(2),
                    ttl: ttl(TTL),
                    slot: None,
                    spacing: None,
                    requested: None,
                };
                prop_assert!(matches!(decide(&record, &other, now), Decision::Refuse(_)), "others may have it");
            }
            Ok(true)
        });
        let (held, lost) = ends.get();
        ends.set(if tried? { (held + 1, lost) } else { (held, lost + 1) });
        Ok(())
    });
    let (held, lost) = ends.get();
    assert!(held >= 20 && lost >= 20, "{held} histories ended held and {lost} lost: too one-sided");
}
