//! The promises of a Leasehold store, as functions that any store's author can run.
//!
//! Promise: a store that keeps every promise in [`PROMISES`] is fit for leases. Each promise prevents one failure that users
//! would see, and `tests/broken_stores.rs` has a store that breaks it. Non-promise: durability through a power cut and failover
//! cannot be shown from inside one process; see `docs/guarantees.md`.
//!
//! ```
//! # use leasehold_core::MemoryStore;
//! # use leasehold_conformance::{Bench, Effort, exercise};
//! # use std::sync::Arc;
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let store = MemoryStore::default();
//! let bench = Bench::new(Effort::LIGHT, move || {
//!     let handle = store.clone();
//!     async move { Ok(Arc::new(handle) as _) }
//! });
//! exercise(&bench).await.assert_kept();
//! # }
//! ```

mod bench;
pub mod counting;
pub mod faulty;
mod promises;

pub use bench::{Bench, Broken, Effort, Verdict};

use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// One promise of a store, and the test that tries it.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    /// The promise, as a sentence.
    pub name: &'static str,
    /// Puts a store to the test.
    pub run: fn(Bench) -> Pin<Box<dyn Future<Output = Verdict> + Send>>,
}

macro_rules! promises {
    ($($module:ident :: $name:ident),+ $(,)?) => {
        &[$(Promise { name: stringify!($name), run: |bench| Box::pin(promises::$module::$name(bench)) }),+]
    };
}

/// Every promise, the simplest first: of several broken ones, the first says most.
pub const PROMISES: &[Promise] = promises![
    swapping::absent_means_never_written,
    swapping::a_swap_needs_the_expected_revision,
    swapping::a_done_swap_is_there,
    swapping::a_swap_of_equal_bytes_is_a_write,
    swapping::a_read_sees_every_answered_swap,
    swapping::values_come_back_byte_for_byte,
    swapping::names_never_collide,
    erasing::an_erase_needs_the_expected_revision,
    erasing::a_revision_is_never_reused,
    erasing::an_old_revision_never_wins_again,
    erasing::a_lease_is_never_erased,
    listing::a_listing_is_ordered_paged_and_complete,
    listing::looking_changes_nothing,
    listing::skipping_leaves_out_the_first,
    listing::a_listing_ends_before_until,
    along::what_is_written_along_goes_with_the_swap,
    along::a_swap_and_what_is_written_along_are_one_step,
    timing::time_never_goes_back,
    timing::time_moves_on,
    swapping::contended_swaps_have_one_winner_each,
    leases::release_keeps_the_epoch,
    leases::epochs_strictly_rise,
    leases::two_runs_with_one_label_are_distinguished,
    leases::a_zombie_cannot_renew,
    leases::one_of_many_gets_the_lease,
    faults::a_lost_reply_is_resolved_by_the_nonce,
    faults::no_error_is_a_grant,
    faults::a_dropped_call_leaves_nothing_held_for_ever,
    timing::a_watch_hints_at_changes,
    timing::a_lease_can_be_acquired_after_its_ttl_and_not_before,
];

/// The promises that are about leases, not about bytes: those that also hold for the client of a server, which can ask for verbs
/// only.
pub const VERBS: &[Promise] = promises![
    listing::looking_changes_nothing,
    timing::time_moves_on,
    leases::release_keeps_the_epoch,
    leases::epochs_strictly_rise,
    leases::two_runs_with_one_label_are_distinguished,
    leases::a_zombie_cannot_renew,
    leases::one_of_many_gets_the_lease,
    faults::a_lost_reply_is_resolved_by_the_nonce,
    faults::no_error_is_a_grant,
    faults::a_dropped_call_leaves_nothing_held_for_ever,
    timing::a_lease_can_be_acquired_after_its_ttl_and_not_before,
];

/// The verdict on every promise.
#[derive(Debug)]
pub struct Report(Vec<(&'static str, Verdict)>);

impl Report {
    /// The broken promises and how each was broken, in the order of [`PROMISES`].
    pub fn broken(&self) -> Vec<(&'static str, &Broken)> {
        self.0.iter().filter_map(|(name, verdict)| verdict.as_ref().err().map(|broken| (*name, broken))).collect()
    }

    /// # Panics
    /// If a promise was broken; the message names each.
    pub fn assert_kept(&self) {
        assert!(self.broken().is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, verdict) in &self.0 {
            match verdict {
                Ok(()) => writeln!(f, "kept    {name}")?,
                Err(broken) => writeln!(f, "BROKEN  {name}: {broken}")?,
            }
        }
        Ok(())
    }
}

/// Puts a store to every test, one after the other. It leaves records behind: give it a store of its own.
pub async fn exercise(bench: &Bench) -> Report {
    exercise_each(PROMISES, bench).await
}

/// Puts a store, or the client of a server, to these tests.
pub async fn exercise_each(promises: &[Promise], bench: &Bench) -> Report {
    let mut results = Vec::with_capacity(promises.len());
    for promise in promises {
        results.push((promise.name, (promise.run)(bench.clone()).await));
    }
    Report(results)
}
