//! Choices that follow from one printed seed.

use leasehold_core::Nonce;
use std::time::Duration;

/// A small generator; it decides nothing but tests.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    /// Waits for up to `bound` turns of a loop: finer than any sleep, and never relied upon.
    pub fn dawdle(&mut self, bound: u64) {
        for _ in 0..self.below(bound) {
            std::hint::spin_loop();
        }
    }

    /// The same where a write takes milliseconds: asleep, so that whoever has work to do has the processor.
    pub fn rest(&mut self, bound: Duration) {
        let most = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX);
        std::thread::sleep(Duration::from_micros(self.below(most)));
    }
}

/// The number after `flag` on the command line.
pub fn flag(flag: &str) -> Option<u64> {
    let mut args = std::env::args().skip_while(|arg| arg != flag);
    args.nth(1)?.parse().ok()
}

/// The seed of this run: given, or drawn and printed.
pub fn seed() -> u64 {
    flag("--seed").unwrap_or_else(|| Nonce::random().as_u128() as u64 >> 16)
}

/// Runs a test and, if it fails, prints the command that replays it.
pub fn play(test: &str, binary: &str, seed: u64, run: impl FnOnce()) {
    let only = std::env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    if only.is_some_and(|only| !test.contains(&only)) {
        return;
    }
    let replay = format!("cargo test -p leasehold-guards --test {binary} -- {test} --seed {seed}");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    if outcome.is_err() {
        println!("test {test} ... FAILED\nseed {seed}, replay with: {replay}");
        std::process::exit(101);
    }
    println!("test {test} ... ok (seed {seed})");
}
