//! Each store here breaks one promise on purpose, and the suite must say which.
//!
//! A promise that no broken store is caught by proves nothing, and a store that is caught by another promise than the
//! one it breaks shows that the suite is out of order.

#![allow(clippy::unwrap_used)]

mod broken;

use broken::{BrokenStore, Flaw};
use leasehold_conformance::{Bench, Effort, PROMISES, exercise};
use std::sync::Arc;

const EFFORT: Effort = Effort { clients: 8, swaps_each: 50, tenures: 12 };

/// Every flaw and the promise that must be the first to name it.
const CAUGHT_BY: &[(Flaw, &str)] = &[
    (Flaw::TakesAnyRevisionForAbsent, "absent_means_never_written"),
    (Flaw::IgnoresTheExpectedRevision, "a_swap_needs_the_expected_revision"),
    (Flaw::SaysDoneWithoutWriting, "a_done_swap_is_there"),
    (Flaw::TakesErrorsForApplied, "a_done_swap_is_there"),
    (Flaw::WritesOnlyWhatDiffers, "a_swap_of_equal_bytes_is_a_write"),
    (Flaw::ReadsFromACache, "a_read_sees_every_answered_swap"),
    (Flaw::CutsLongValues, "values_come_back_byte_for_byte"),
    (Flaw::IgnoresCase, "names_never_collide"),
    (Flaw::ErasesWhateverIsThere, "an_erase_needs_the_expected_revision"),
    (Flaw::ReusesRevisionsAfterAnErase, "a_revision_is_never_reused"),
    (Flaw::TagsByContent, "a_swap_of_equal_bytes_is_a_write"),
    (Flaw::ForgetsOldRevisionsWereUsed, "an_old_revision_never_wins_again"),
    (Flaw::ErasesLeases, "a_lease_is_never_erased"),
    (Flaw::ListsTheFirstPageOnly, "a_listing_is_ordered_paged_and_complete"),
    (Flaw::ListsOutOfOrder, "a_listing_is_ordered_paged_and_complete"),
    (Flaw::TouchesWhatItLists, "looking_changes_nothing"),
    (Flaw::SkipsOneTooMany, "skipping_leaves_out_the_first"),
    (Flaw::SkipsWithinOnePage, "skipping_leaves_out_the_first"),
    (Flaw::ListsPastTheEnd, "a_listing_ends_before_until"),
    (Flaw::WritesAlongWithWhatItRefused, "what_is_written_along_goes_with_the_swap"),
    (Flaw::ForgetsWhatIsWrittenAlong, "what_is_written_along_goes_with_the_swap"),
    (Flaw::WritesAlongInASecondStep, "a_swap_and_what_is_written_along_are_one_step"),
    (Flaw::ErasesLeasesAlong, "what_is_written_along_goes_with_the_swap"),
    (Flaw::ClockRunsBackwards, "time_never_goes_back"),
    (Flaw::ClockStandsStill, "time_moves_on"),
    (Flaw::ChecksThenWrites, "contended_swaps_have_one_winner_each"),
    (Flaw::DeniesWhatItDid, "contended_swaps_have_one_winner_each"),
    (Flaw::DeletesReleasedLeases, "release_keeps_the_epoch"),
    (Flaw::NeverHints, "a_watch_hints_at_changes"),
    (Flaw::DeletesExpiredLeases, "a_lease_can_be_acquired_after_its_ttl_and_not_before"),
];

/// Flaws that every other promise passes over: without the one that names it, nobody would see the flaw.
const CAUGHT_ONLY_BY: &[(Flaw, &str)] = &[
    (Flaw::FallsBackToAnOlderLease, "epochs_strictly_rise"),
    (Flaw::TellsHoldersByTheirLabel, "two_runs_with_one_label_are_distinguished"),
    (Flaw::RenewsWhoeverAsks, "a_zombie_cannot_renew"),
    (Flaw::LooksBeforeItCreatesALease, "one_of_many_gets_the_lease"),
    (Flaw::RefusesToRepeatAWrite, "a_lost_reply_is_resolved_by_the_nonce"),
    (Flaw::FlushesRenewalsLate, "no_error_is_a_grant"),
    (Flaw::StaysLockedByADroppedCall, "a_dropped_call_leaves_nothing_held_for_ever"),
];

fn all_caught() -> impl Iterator<Item = &'static (Flaw, &'static str)> {
    CAUGHT_BY.iter().chain(CAUGHT_ONLY_BY)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_broken_store_is_caught_by_the_promise_it_breaks() {
    let runs: Vec<_> = all_caught()
        .map(|(flaw, promise)| {
            let store = BrokenStore::new(*flaw);
            let bench = Bench::new(EFFORT, move || {
                let handle = store.another_handle();
                async move { Ok(Arc::new(handle) as _) }
            });
            (flaw, promise, tokio::spawn(async move { exercise(&bench).await }))
        })
        .collect();
    for (flaw, promise, run) in runs {
        let report = run.await.unwrap();
        let broken: Vec<_> = report.broken().into_iter().map(|(name, _)| name).collect();
        assert_eq!(broken.first(), Some(promise), "{flaw:?} was not caught by the promise it breaks:\n{report}");
        let is_only = CAUGHT_ONLY_BY.iter().any(|(only, _)| only == flaw);
        assert!(!is_only || broken.len() == 1, "{flaw:?} was caught by other promises too:\n{report}");
    }
}

#[test]
fn every_flaw_has_a_promise_that_catches_it() {
    for flaw in Flaw::ALL {
        assert!(all_caught().any(|(caught, _)| caught == flaw), "{flaw:?} is never tried");
    }
}

#[test]
fn every_promise_has_a_store_that_breaks_it() {
    for promise in PROMISES {
        let name = promise.name;
        assert!(all_caught().any(|(_, by)| *by == name), "no broken store here is caught by `{name}`; write one");
    }
    for (flaw, by) in all_caught() {
        assert!(PROMISES.iter().any(|promise| promise.name == *by), "{flaw:?} names `{by}`, which is no promise");
    }
}
