//! Until when a grant may be believed in, however slow or wrong the answers.

use crate::support::faults::{Fault, Faulty, Hasty};
use crate::support::{CASES, holder, millis, property, seconds, ttl};
use crate::{TTL, name};
use leasehold_core::clock::{Clock, ManualClock, Moment};
use leasehold_core::lease::protocol::{Decision, Refusal, Report, Request, decide};
use leasehold_core::{
    Acquired, Ask, Coordinator, Grant, Key, Kind, Outcome, Ownership, Released, Shelf, Store, Timestamp, codec,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// One thing a holder does, and how long the store takes over it.
#[derive(Debug, Clone)]
enum Deed {
    Wait(u64),
    Renew,
    Checkpoint,
    Adopt,
    /// Release, and acquire again.
    ComeBack,
}

#[test]
fn nobody_can_be_granted_a_lease_that_is_still_trusted() {
    let delays = || prop_oneof![3 => 0..5_u64, 2 => 0..900_u64, 1 => 900..4_000_u64];
    let grains = prop_oneof![Just(1_u64), Just(10), Just(1_000), 1..1_500_u64];
    let deed = prop_oneof![
        3 => (0..3_000_u64).prop_map(Deed::Wait),
        4 => Just(Deed::Renew),
        1 => Just(Deed::Checkpoint),
        1 => Just(Deed::Adopt),
        2 => Just(Deed::ComeBack),
    ];
    let script = (
        grains,
        4..12_u64,
        0..2_000_000_000_u64,
        prop::collection::vec((delays(), delays()), 1..12),
        prop::collection::vec(deed, 0..12),
    );
    let trusted_for = std::cell::Cell::new((0_u32, 0_u32));
    property(5 * CASES, script, |(grain_ms, ttl_s, start_ns, delays, deeds)| {
        let clock = ManualClock::default();
        clock.advance(Duration::from_nanos(start_ns));
        let store = Arc::new(Faulty::new(clock.clone()).with_grain(millis(grain_ms)));
        let leases = Coordinator::with_clock(store.clone(), Arc::new(Hasty(clock.clone())));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tries: Result<(), TestCaseError> = runtime.block_on(async {
            let slow = delays.clone();
            store.plan(move |_, n| {
                let (before, after) = slow[n % slow.len()];
                Fault::Slow(millis(before), millis(after))
            });
            let ask = Ask::new(holder(1), ttl(ttl_s));
            let mut grant = match leases.acquire(&name(), &ask).await {
                Ok(Acquired::Granted(grant)) => *grant,
                Ok(other) => return Err(TestCaseError::fail(format!("a free lease was refused: {other:?}"))),
                Err(error) => {
                    prop_assert!(matches!(error.kind(), Kind::Lost | Kind::Invalid), "{error}");
                    let (kept, not) = trusted_for.get();
                    trusted_for.set((kept, not + 1));
                    return Ok(());
                }
            };
            prop_assert!(clock.now() < grant.trust_until(), "a grant that is over was given");
            check_window(&store, &clock, grant.trust_until()).await?;
            for (nonce, deed) in (10..).zip(deeds) {
                let sent = clock.now();
                match deed {
                    Deed::Wait(ms) => clock.advance(millis(ms)),
                    Deed::Renew => match leases.renew(&mut grant, None).await {
                        Ok(()) => {
                            prop_assert!(clock.now() < grant.trust_until(), "a renewal that is over was given");
                            let slack = slack(&delays, grain_ms);
                            prop_assert!(grant.trust_until() <= clock.now() + seconds(ttl_s) + millis(1));
                            prop_assert!(grant.trust_until() + slack >= sent + seconds(ttl_s), "needlessly short");
                        }
                        Err(error) => {
                            prop_assert_eq!(error.kind(), Kind::Lost);
                            return Ok(());
                        }
                    },
                    Deed::Checkpoint => leases.checkpoint(&mut grant, Report::default()).await.unwrap(),
                    Deed::ComeBack => {
                        if leases.release(&grant, Outcome::Succeeded).await.unwrap() != Released::Now {
                            return Ok(());
                        }
                        match leases.acquire(&name(), &Ask::new(holder(nonce), ttl(ttl_s))).await {
                            Ok(Acquired::Granted(next)) => grant = *next,
                            Ok(other) => return Err(TestCaseError::fail(format!("its own was refused: {other:?}"))),
                            Err(error) => {
                                prop_assert_eq!(error.kind(), Kind::Lost);
                                return Ok(());
                            }
                        }
                        prop_assert!(clock.now() < grant.trust_until(), "a grant that is over was given");
                    }
                    Deed::Adopt => match leases.adopt(grant.token()).await {
                        Ok(adopted) => grant = adopted,
                        Err(error) => {
                            prop_assert_eq!(error.kind(), Kind::Lost);
                            return Ok(());
                        }
                    },
                }
                check_window(&store, &clock, grant.trust_until()).await?;
            }
            let (kept, not) = trusted_for.get();
            trusted_for.set((kept + 1, not));
            Ok(())
        });
        tries
    });
    let (kept, not) = trusted_for.get();
    assert!(kept >= 20 && not >= 5, "{kept} histories ended held and {not} were granted too late: too one-sided");
}

/// How much shorter than a TTL a window may be: the grain at both ends, and what the exchanges took.
fn slack(delays: &[(u64, u64)], grain_ms: u64) -> Duration {
    let longest = delays.iter().map(|(before, after)| before + after).max().unwrap_or(0);
    millis(2 * longest + 2 * grain_ms + 2)
}

/// At the last trusted nanosecond, the store must refuse everybody else, whatever the time it tells.
async fn check_window(store: &Faulty, clock: &ManualClock, trust_until: Moment) -> Result<(), TestCaseError> {
    let reading = store.inner.read(&Key::new(Shelf::Lease, &name())).await.unwrap();
    let record: Ownership = codec::decode("ownership", &reading.value.unwrap().bytes, "x").unwrap();
    // The store's true clock runs with ours, a fixed distance apart; it tells at most the true time.
    let ahead_ms = reading.now.as_millis() - clock.now().as_nanos() / 1_000_000;
    let last = (trust_until - Duration::from_nanos(1)).max(clock.now());
    if last >= trust_until {
        return Ok(());
    }
    let then = Timestamp::from_millis(ahead_ms + last.as_nanos() / 1_000_000);
    let other = Request::Acquire {
        lineage: leasehold_core::Lineage::from_u128(1),
        holder: holder(2),
        ttl: ttl(TTL),
        slot: None,
        spacing: None,
        requested: None,
    };
    let decision = decide(&record, &other, then);
    prop_assert!(matches!(decision, Decision::Refuse(Refusal::Held { .. })), "granted at {then:?}: {decision:?}");
    Ok(())
}

#[test]
fn of_several_processes_none_is_granted_what_another_still_trusts() {
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
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    property(CASES, prop::collection::vec(step, 1..60), |steps| {
        let clock = ManualClock::default();
        let store = Arc::new(Faulty::new(clock.clone()));
        let process = || Coordinator::with_clock(store.clone(), Arc::new(Hasty(clock.clone())));
        let processes = [process(), process(), process()];
        let mut held: [Option<Grant>; 3] = [None, None, None];
        let mut newest = 0;
        runtime.block_on(async {
            for (nonce, step) in (1..).zip(steps) {
                match step {
                    Step::Wait(secs) => clock.advance(seconds(secs)),
                    Step::Release(who) => {
                        if let Some(grant) = held[who].take() {
                            processes[who].release(&grant, Outcome::Succeeded).await.unwrap();
                        }
                    }
                    Step::Acquire(who) => {
                        let is_trusted = held.iter().flatten().any(|grant| clock.now() < grant.trust_until());
                        let ask = Ask::new(holder(nonce), ttl(TTL));
                        match processes[who].acquire(&name(), &ask).await.unwrap() {
                            Acquired::Granted(grant) => {
                                prop_assert!(!is_trusted, "granted while another may trust its own");
                                newest += 1;
                                prop_assert_eq!(grant.token().epoch.get(), newest);
                                held[who] = Some(*grant);
                            }
                            Acquired::Refused { refusal, .. } => prop_assert!(is_trusted, "{refusal:?}"),
                        }
                    }
                }
            }
            Ok(())
        })
    });
}

/// A store whose clock is set back by an hour between a read and the swap that follows it.
#[derive(Debug)]
struct SetBack(leasehold_core::MemoryStore);

#[async_trait::async_trait]
impl Store for SetBack {
    fn capabilities(&self) -> leasehold_core::Capabilities {
        self.0.capabilities()
    }

    async fn read(&self, key: &Key) -> leasehold_core::Result<leasehold_core::store::Reading> {
        self.0.read(key).await
    }

    async fn write(
        &self,
        change: &leasehold_core::store::Change<'_>,
    ) -> leasehold_core::Result<leasehold_core::store::Swap> {
        use leasehold_core::store::Swap;
        Ok(match self.0.write(change).await? {
            Swap::Done { revision, now } => {
                Swap::Done { revision, now: Timestamp::from_millis(now.as_millis() - 3_600_000) }
            }
            Swap::Mismatch => Swap::Mismatch,
        })
    }

    async fn list(
        &self,
        shelf: Shelf,
        range: leasehold_core::store::Range<'_>,
    ) -> leasehold_core::Result<leasehold_core::store::Page> {
        self.0.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> leasehold_core::Result<leasehold_core::store::Watch> {
        self.0.watch(key).await
    }

    async fn survey(&self) -> leasehold_core::Result<leasehold_core::store::Survey> {
        self.0.survey().await
    }
}

#[tokio::test]
async fn a_store_whose_clock_is_set_back_is_not_trusted_for_longer_than_a_ttl() {
    let clock = ManualClock::default();
    let store = SetBack(leasehold_core::MemoryStore::with_clock(Arc::new(clock.clone())));
    let leases = Coordinator::with_clock(Arc::new(store), Arc::new(clock.clone()));
    let asked = clock.now();
    let ask = Ask::new(holder(1), ttl(TTL));
    let Acquired::Granted(grant) = leases.acquire(&name(), &ask).await.unwrap() else { panic!("it is free") };
    assert!(grant.trust_until() <= asked + Duration::from_secs(TTL));
}
