//! The model at every test run: the promises hold, their cases come up, and every seeded bug is caught by name.

use leasehold_sim::{Mutant, check, check_mutant, ci, replay};

/// What the issue asks of each run; the configurations are sized for more.
const STATES_WANTED: usize = 10_000_000;

#[test]
fn every_promise_is_kept_and_every_twin_is_met_in_ten_million_states() {
    let mut states = 0;
    for config in ci() {
        let report = check(&config, 2).unwrap();
        if let Some(failure) = report.failures.first() {
            panic!("{}: {}\n{}replay: {}", report.config, failure.promise.name(), failure.story, failure.replay);
        }
        for (sighting, times) in &report.sightings {
            assert!(*times > 0, "{}: never met: {}", report.config, sighting.name());
        }
        println!("{}: {} states in {:?}", report.config, report.unique_states, report.took);
        states += report.unique_states;
    }
    assert!(states >= STATES_WANTED, "only {states} states");
}

#[test]
fn every_mutant_is_caught_by_the_promise_named_for_it() {
    let mut uncaught = Vec::new();
    for (mutant, name, promise, _) in Mutant::ALL {
        let report = check_mutant(mutant).unwrap();
        match report.broken(promise) {
            Some(failure) => assert!(failure.story.contains(promise.name()), "{}", failure.story),
            None => uncaught.push((name, promise.name())),
        }
    }
    assert!(uncaught.is_empty(), "not caught: {uncaught:?}");
}

#[test]
fn a_counterexample_is_replayed_by_the_command_it_prints() {
    for mutant in [Mutant::HandOffClaimsOldGrant, Mutant::GuardIgnoresNonce] {
        let report = check_mutant(mutant).unwrap();
        let failure = report.broken(mutant.caught_by()).unwrap();
        let words: Vec<&str> = failure.replay.split(' ').collect();
        let [.., "--replay", case, steps] = words[..] else { panic!("no replay in {}", failure.replay) };
        assert_eq!(replay(case, steps).unwrap(), failure.story);
    }
}

#[test]
fn a_wrong_replay_is_refused_with_the_field_that_is_wrong() {
    for (case, steps, field) in [
        ("nowhere", "0", "configuration"),
        ("small-faults/nothing", "0", "mutant"),
        ("small-faults", "x", "step"),
        ("small-faults", "9999", "step"),
    ] {
        assert!(replay(case, steps).unwrap_err().to_string().contains(field));
    }
}
