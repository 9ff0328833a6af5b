//! What the tests of this crate share: property runs from a printed seed, and short ways to say things.

#![allow(dead_code, clippy::unwrap_used)]

use leasehold_core::{Claim, Epoch, HolderId, Nonce, Timestamp, Ttl};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::time::Duration;

pub mod faults;
pub mod virtual_time;

/// How many cases a property is tried with, unless `PROPTEST_CASES` says otherwise.
pub const CASES: u32 = 2_000;

/// Tries a property from a seed that is printed, and that `LEASEHOLD_SEED` sets.
pub fn property<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seed = match std::env::var("LEASEHOLD_SEED") {
        Ok(seed) => seed.parse::<Nonce>().expect("LEASEHOLD_SEED has 32 hexadecimal digits"),
        Err(_) => Nonce::random(),
    };
    println!("replay with LEASEHOLD_SEED={seed}");
    let mut key = [0; 32];
    key[..16].copy_from_slice(&seed.as_u128().to_be_bytes());
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { cases };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &key));
    if let Err(error) = runner.run(&strategy, test) {
        panic!("{error}\nreplay with LEASEHOLD_SEED={seed}");
    }
}

/// A small generator for tests that need volume rather than shrinking.
pub struct Dice(u64);

impl Dice {
    /// Thrown from a seed, which is printed.
    pub fn new(seed: u64) -> Self {
        println!("dice thrown from seed {seed}");
        Dice(seed)
    }

    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

pub fn holder(number: u128) -> HolderId {
    HolderId::of("host", 7, Nonce::from_u128(number), "worker".parse().unwrap())
}

pub fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

pub fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

pub fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

pub fn claim(number: u64, nonce: u128) -> Claim {
    Claim { epoch: epoch(number), nonce: Nonce::from_u128(nonce) }
}

pub fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
