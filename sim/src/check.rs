//! The check: one exploration, its counts, and every counterexample in words.
//!
//! Promise: a report is a failure unless every promise was kept and every sighting within reach was made; a
//! counterexample comes with the command that replays it. Non-promise: with more than one thread a counterexample
//! need not be the shortest.

use crate::config::{Config, ci, long, small};
use crate::model::LeaseModel;
use crate::mutants::Mutant;
use crate::narrate::narrate;
use crate::promises::{PROMISES, Promise, Sighting};
use crate::rules::Rules;
use crate::world::World;
use leasehold_core::clock::{Clock, SystemClock};
use stateright::{Checker, HasDiscoveries, Model, Path};
use std::collections::BTreeSet;
use std::time::Duration;

/// What came of one exploration.
#[derive(Debug)]
pub struct Report {
    /// The name of the configuration.
    pub config: &'static str,
    /// How many different states were met.
    pub unique_states: usize,
    /// Steps taken, those to known states included.
    pub steps: usize,
    /// The longest path.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// Promises that were broken.
    pub failures: Vec<Failure>,
    /// Each sighting within reach and how often it was made.
    pub sightings: Vec<(Sighting, u64)>,
}

impl Report {
    /// Every promise was kept, and every case was met.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty() && self.sightings.iter().all(|(_, times)| *times > 0)
    }

    /// The counterexample to this promise, if there is one.
    pub fn broken(&self, promise: Promise) -> Option<&Failure> {
        self.failures.iter().find(|failure| failure.promise == promise)
    }
}

/// A broken promise.
#[derive(Debug)]
pub struct Failure {
    /// The promise that was broken.
    pub promise: Promise,
    /// How, step by step.
    pub story: String,
    /// The command that tells it again.
    pub replay: String,
}

/// Explores a configuration to its end by the real rules.
pub fn check(config: &Config, threads: usize) -> leasehold_core::Result<Report> {
    explore(config, Rules::default(), threads, HasDiscoveries::AnyFailures)
}

/// Looks for a mutant where it shows, until the promise named for it is broken. Single-threaded, so that the
/// counterexample is a shortest one.
pub fn check_mutant(mutant: Mutant) -> leasehold_core::Result<Report> {
    let until = HasDiscoveries::AnyOf(BTreeSet::from([mutant.caught_by().name()]));
    explore(mutant.seen_in(), Rules { mutant: Some(mutant) }, 1, until)
}

/// Tells a path again from its indices: `CONFIG` or `CONFIG/MUTANT`, and `1,0,4`.
pub fn replay(case: &str, steps: &str) -> leasehold_core::Result<String> {
    let (config, mutant) = case.split_once('/').map_or((case, None), |(config, mutant)| (config, Some(mutant)));
    let invalid = |field: &'static str, value: &str, form: &str| leasehold_core::Error::invalid(field, value, form);
    let found = ci().into_iter().chain(long()).chain(small()).find(|c| c.name == config);
    let config = found.ok_or_else(|| invalid("configuration", config, "use a name that the table shows"))?;
    let mutant = match mutant {
        None => None,
        Some(name) => Some(Mutant::named(name).ok_or_else(|| invalid("mutant", name, "use a name that --list shows"))?),
    };
    let model = LeaseModel::new(config, Rules { mutant })?;
    let mut world = model.init_states()[0];
    let mut story = Vec::new();
    for step in steps.split(',') {
        let mut actions = Vec::new();
        model.actions(&world, &mut actions);
        let index: Option<usize> = step.trim().parse().ok();
        let taken = index.and_then(|i| actions.get(i)).and_then(|a| Some((*a, model.next_state(&world, *a)?)));
        let (action, next) = taken.ok_or_else(|| invalid("step", step, "use the numbers that the check printed"))?;
        world = next;
        story.push((action, world));
    }
    Ok(narrate(&model, &story))
}

fn explore(config: &Config, rules: Rules, threads: usize, until: HasDiscoveries) -> leasehold_core::Result<Report> {
    let clock = SystemClock;
    let began = clock.now();
    let model = LeaseModel::new(config.clone(), rules)?;
    let checker = model.checker().threads(threads).finish_when(until).spawn_bfs().join();
    let took = clock.now().saturating_since(began);
    let mut failures = Vec::new();
    let model = checker.model();
    for (promise, name, _) in PROMISES {
        let Some(path) = checker.discovery(name) else { continue };
        let (story, steps) = retell(model, path);
        let case = rules.mutant.map_or(config.name.to_string(), |mutant| format!("{}/{}", config.name, mutant.name()));
        let replay = format!("cargo run -p leasehold-sim -- --replay {case} {steps}");
        failures.push(Failure { promise, story, replay });
    }
    Ok(Report {
        config: config.name,
        unique_states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took,
        failures,
        sightings: Sighting::all().filter(|s| s.within_reach(config)).map(|s| (s, model.sightings.times(s))).collect(),
    })
}

/// The path in words, and as the indices of its actions.
fn retell(model: &LeaseModel, path: Path<World, crate::actions::Action>) -> (String, String) {
    let steps = path.into_vec();
    let mut story = Vec::new();
    let mut indices = Vec::new();
    for pair in steps.windows(2) {
        let [(before, Some(action)), (after, _)] = pair else { continue };
        let mut actions = Vec::new();
        model.actions(before, &mut actions);
        indices.extend(actions.iter().position(|a| a == action).map(|index| index.to_string()));
        story.push((*action, *after));
    }
    (narrate(model, &story), indices.join(","))
}
