//! The field's figures by simulation: the same mix of runs, without leases and with, from one printed seed.
//!
//! Everything that is decided with leases is decided by the crate's own `due` and `decide`; only time is made up.

#![allow(clippy::unwrap_used)]

use leasehold_core::lease::protocol::{AfterFailure, Decision, Refusal, Request, SlotClaim, decide};
use leasehold_core::{Claim, HolderId, Label, Nonce, Outcome, Ownership, Slot, SlotState, Timestamp, Ttl};
use leasehold_work::schedule::{CatchUp, Last, Schedule, due};
use std::time::Duration;

/// Splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A run time whose 95th percentile is as far above its median as in the field: 68 s to 41 s.
    fn run_time(&mut self, median_ms: f64) -> u64 {
        let sigma = (68.0_f64 / 41.0).ln() / 1.645;
        let normal = (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        (median_ms * (sigma * normal).exp()) as u64
    }
}

fn seed() -> u64 {
    let seed = std::env::var("LEASEHOLD_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_116);
    println!("replay with LEASEHOLD_SEED={seed}");
    seed
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

/// One machine's start of the job.
#[derive(Debug, Clone, Copy)]
struct Firing {
    start: u64,
    run_time: u64,
}

/// About 210 runs in three weeks; in one slot of fourteen the second machine fires too, less than a minute later.
fn three_weeks(random: &mut Random) -> Vec<(Slot, Vec<Firing>)> {
    let every = Schedule::every(Duration::from_secs(21 * 86_400 / 196)).unwrap();
    let begin = at(1_700_000_000_000);
    every
        .between(begin, begin.plus(Duration::from_secs(21 * 86_400)))
        .map(|slot| {
            let start = slot.0.as_millis() + random.next() % 5_000;
            let mut firings = vec![Firing { start, run_time: random.run_time(41_000.0) }];
            if random.unit() < 1.0 / 14.0 {
                let start = start + (random.unit() * 52_000.0) as u64;
                firings.push(Firing { start, run_time: random.run_time(41_000.0) });
            }
            (slot, firings)
        })
        .collect()
}

/// Two that work at once end in a push that must be rebased; one that starts after the other's push pushes it again.
fn without_leases(slots: &[(Slot, Vec<Firing>)]) -> (u32, u32) {
    let (mut duplicates, mut retries) = (0, 0);
    for (_, firings) in slots {
        if let [first, second] = firings[..] {
            if second.start < first.start + first.run_time { retries += 1 } else { duplicates += 1 }
        }
    }
    (duplicates, retries)
}

/// A lease, its record, and whether two runs were ever let work at once or on one slot.
struct Leased {
    record: Ownership,
    ttl: Ttl,
    nonce: u128,
}

impl Leased {
    fn new(ttl: Duration) -> Self {
        Leased { record: Ownership::default(), ttl: Ttl::new(ttl).unwrap(), nonce: 0 }
    }

    /// The newest due slot at this time, claimed.
    fn acquire(&mut self, schedule: &Schedule, now: Timestamp) -> Result<(Slot, Claim), Option<Box<Refusal>>> {
        let last = match self.record.slot {
            None => Last::Never,
            Some(mark) if mark.state == SlotState::Running => Last::Settled(mark.slot.0),
            Some(mark) => Last::Settled(mark.slot.0),
        };
        let Some(slot) = due(schedule, now, last, CatchUp::default(), |_| false).run.first().copied() else {
            return Err(None);
        };
        self.nonce += 1;
        let nonce = Nonce::from_u128(self.nonce);
        let holder = HolderId::of("h", 1, nonce, Label::lossy("x", "x"));
        let slot_claim =
            SlotClaim { gives_up: self.record.slot.map(|mark| mark.slot), ..SlotClaim::new(slot, AfterFailure::Leave) };
        match decide(
            &self.record,
            &Request::Acquire {
                lineage: leasehold_core::Lineage::from_u128(1),
                holder,
                ttl: self.ttl,
                slot: Some(slot_claim),
                spacing: None,
                requested: None,
            },
            now,
        ) {
            Decision::Write(next) => {
                self.record = *next;
                Ok((slot, Claim { epoch: self.record.epoch, nonce }))
            }
            Decision::Refuse(refusal) => Err(Some(Box::new(refusal))),
            Decision::AlreadyApplied => panic!("a nonce was used twice"),
        }
    }

    fn renew(&mut self, claim: Claim, now: Timestamp) {
        match decide(&self.record, &Request::Renew { claim, ttl: self.ttl, progress: None }, now) {
            Decision::Write(next) => self.record = *next,
            other => panic!("a renewal in time was refused: {other:?}"),
        }
    }

    fn release(&mut self, claim: Claim, now: Timestamp) {
        match decide(&self.record, &Request::Release { claim, outcome: Outcome::Succeeded }, now) {
            Decision::Write(next) => self.record = *next,
            other => panic!("a holder's release was refused: {other:?}"),
        }
    }

    /// Renews every third of the TTL to the end, and releases.
    fn work(&mut self, claim: Claim, from: u64, until: u64) {
        let third = self.ttl.get().as_millis() as u64 / 3;
        let mut now = from + third;
        while now < until {
            self.renew(claim, at(now));
            now += third;
        }
        self.release(claim, at(until));
    }
}

/// Duplicates and retries, and how many firings were skipped.
fn with_leases(slots: &[(Slot, Vec<Firing>)]) -> (u32, u32, u32) {
    let every = Schedule::every(Duration::from_secs(21 * 86_400 / 196)).unwrap();
    let mut lease = Leased::new(Duration::from_secs(90));
    let (mut duplicates, mut retries, mut skipped) = (0, 0, 0);
    for (slot, firings) in slots {
        let mut working: Option<(Claim, u64, u64)> = None;
        let mut pushed = 0;
        for firing in firings {
            if let Some((claim, from, until)) = working.filter(|(_, _, until)| *until <= firing.start) {
                lease.work(claim, from, until);
                working = None;
            }
            match lease.acquire(&every, at(firing.start)) {
                Ok((claimed, claim)) => {
                    assert_eq!(claimed, *slot);
                    if working.is_some() {
                        retries += 1;
                    }
                    pushed += 1;
                    working = Some((claim, firing.start, firing.start + firing.run_time));
                }
                Err(_) => skipped += 1,
            }
        }
        if let Some((claim, from, until)) = working {
            lease.work(claim, from, until);
        }
        if pushed > 1 {
            duplicates += pushed - 1;
        }
    }
    (duplicates, retries, skipped)
}

#[test]
fn two_machines_push_twice_and_conflict_without_leases_and_never_with() {
    let mut random = Random(seed());
    const FLEETS: u32 = 400;
    let (mut runs, mut duplicates, mut retries) = (0, 0, 0);
    for fleet in 0..FLEETS {
        let slots = three_weeks(&mut random);
        let (twice, conflicts) = without_leases(&slots);
        let (leased_twice, leased_conflicts, skipped) = with_leases(&slots);
        assert_eq!((leased_twice, leased_conflicts), (0, 0), "fleet {fleet}");
        assert_eq!(skipped, twice + conflicts, "fleet {fleet}: each second firing is skipped");
        runs += slots.iter().map(|(_, firings)| firings.len() as u32).sum::<u32>();
        (duplicates, retries) = (duplicates + twice, retries + conflicts);
    }
    let mean = |count: u32| f64::from(count) / f64::from(FLEETS);
    println!(
        "without leases, in three weeks: {:.0} runs, {:.1} duplicate pushes, {:.1} conflicts; with: 0 and 0",
        mean(runs),
        mean(duplicates),
        mean(retries)
    );
    assert!((200.0..220.0).contains(&mean(runs)), "{runs}");
    assert!((2.0..4.5).contains(&mean(duplicates)), "the field had 3: {}", mean(duplicates));
    assert!((9.0..13.0).contains(&mean(retries)), "the field had 11: {}", mean(retries));
}

#[test]
fn an_interval_of_45_minutes_skips_about_two_in_a_hundred() {
    let mut random = Random(seed());
    let every = Schedule::every(Duration::from_secs(45 * 60)).unwrap();
    // A TTL of 80 minutes is 1.65 times the worst healthy run, of which one in a hundred is longer.
    let sigma = (68.0_f64 / 41.0).ln() / 1.645;
    let median = 80.0 * 60_000.0 / 1.65 / (2.326 * sigma).exp();
    let mut lease = Leased::new(Duration::from_secs(80 * 60));
    let mut working: Option<(Claim, u64, u64)> = None;
    let (mut ran, mut skipped, mut other) = (0u32, 0u32, 0u32);
    let begin = at(1_700_000_000_000);
    for slot in every.between(begin, begin.plus(Duration::from_secs(45 * 60 * 20_000))) {
        let now = slot.0.as_millis() + 500;
        if let Some((claim, from, until)) = working.filter(|(_, _, until)| *until <= now) {
            lease.work(claim, from, until);
            working = None;
        } else if let Some((claim, from, _)) = working {
            lease.renew(claim, at(from + 40 * 60_000));
        }
        match lease.acquire(&every, at(now)) {
            Ok((_, claim)) => {
                assert!(working.is_none(), "two at once");
                ran += 1;
                working = Some((claim, now, now + random.run_time(median)));
            }
            Err(Some(refusal)) if matches!(*refusal, Refusal::Held { .. }) => skipped += 1,
            Err(_) => other += 1,
        }
    }
    let rate = f64::from(skipped) / f64::from(ran + skipped + other);
    println!("{ran} ran, {skipped} skipped: {:.2} %", rate * 100.0);
    assert!((0.01..0.03).contains(&rate), "the field had about 2 %: {rate}");
    assert_eq!(other, 0, "a skip is a skip, and nothing else");
}
