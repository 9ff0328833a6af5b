//! The command: explores, looks for every seeded bug, and prints one table.
//!
//! Promise: the exit code is 0 only if every promise was kept, every twin was met and every mutant was caught.
//! Non-promise: seconds are this machine's, and mean nothing elsewhere.

use leasehold_sim::{Config, Mutant, Promise, Report, check, check_mutant, ci, long, replay};
use std::process::ExitCode;

const USAGE: &str = "usage: leasehold-sim [--long] [--only CONFIG]   explore, then look for every mutant
       leasehold-sim --mutant NAME               show how one mutant is caught
       leasehold-sim --list                      list mutants and configurations
       leasehold-sim --replay PLACE STEPS        tell a path again, as a failure printed it";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        [] => explore_all(&ci()),
        ["--long"] => explore_all(&long()),
        ["--only", name] => explore_one(name, ci()),
        ["--long", "--only", name] => explore_one(name, long()),
        ["--mutant", name] => show_mutant(name),
        ["--list"] => {
            list();
            Ok(true)
        }
        ["--replay", case, steps] => replay(case, steps).map(|story| {
            print!("{story}");
            true
        }),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(64)
        }
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

fn explore_one(name: &str, configs: Vec<Config>) -> leasehold_core::Result<bool> {
    let chosen: Vec<Config> = configs.into_iter().filter(|c| c.name == name).collect();
    if chosen.is_empty() {
        return Err(leasehold_core::Error::invalid("configuration", name, "use a name that --list shows"));
    }
    explore(&chosen)
}

fn explore_all(configs: &[Config]) -> leasehold_core::Result<bool> {
    let explored = explore(configs)?;
    let caught = catch_all()?;
    Ok(explored && caught)
}

fn explore(configs: &[Config]) -> leasehold_core::Result<bool> {
    let mut reports = Vec::new();
    println!("{:<12} {:>12} {:>13} {:>6} {:>8}", "config", "states", "steps", "depth", "seconds");
    for config in configs {
        let report = check(config, threads())?;
        print_counts(&report);
        reports.push(report);
    }
    let states: usize = reports.iter().map(|r| r.unique_states).sum();
    let seconds: f64 = reports.iter().map(|r| r.took.as_secs_f64()).sum();
    println!("{:<12} {states:>12} {:>13} {:>6} {seconds:>8.1}", "sum", "", "");
    println!();
    print_promises(&reports);
    for failure in reports.iter().flat_map(|r| &r.failures) {
        println!("\nBROKEN: {}\n{}replay: {}", failure.promise.name(), failure.story, failure.replay);
    }
    Ok(reports.iter().all(Report::is_good))
}

fn print_counts(report: &Report) {
    println!(
        "{:<12} {:>12} {:>13} {:>6} {:>8.1}",
        report.config,
        report.unique_states,
        report.steps,
        report.depth,
        report.took.as_secs_f64()
    );
}

/// Each promise with its twin and in how many steps the twin was met, then the other sightings.
fn print_promises(reports: &[Report]) {
    for row in Promise::table(reports) {
        let verdict = if row.broken { "BROKEN" } else { "kept" };
        println!("{verdict:<7} {}", row.promise);
        match row.met {
            None => println!("{:<7}   out of reach here: {}", "", row.twin),
            Some(0) => println!("{:<7}   never met: {}", "UNMET", row.twin),
            Some(times) => println!("{:<7}   met {times} times: {}", "", row.twin),
        }
    }
    for report in reports {
        for (sighting, _) in report.sightings.iter().filter(|(_, times)| *times == 0) {
            println!("UNMET   in {}: {}", report.config, sighting.name());
        }
    }
}

fn catch_all() -> leasehold_core::Result<bool> {
    println!("\n{:<28} {:>7} {:>8}  caught by", "mutant", "states", "seconds");
    let mut all = true;
    for (mutant, name, promise, _) in Mutant::ALL {
        let report = check_mutant(mutant)?;
        let verdict = if report.broken(promise).is_some() { promise.name() } else { "NOT CAUGHT" };
        println!("{name:<28} {:>7} {:>8.2}  {verdict}", report.unique_states, report.took.as_secs_f64());
        all &= report.broken(promise).is_some();
    }
    Ok(all)
}

fn show_mutant(name: &str) -> leasehold_core::Result<bool> {
    let mutant = Mutant::named(name)
        .ok_or_else(|| leasehold_core::Error::invalid("mutant", name, "use a name that --list shows"))?;
    let report = check_mutant(mutant)?;
    let Some(failure) = report.broken(mutant.caught_by()) else {
        println!("NOT CAUGHT by: {}", mutant.caught_by().name());
        return Ok(false);
    };
    println!("caught by: {}\n{}replay: {}", failure.promise.name(), failure.story, failure.replay);
    Ok(true)
}

fn list() {
    for (_, name, promise, config) in Mutant::ALL {
        println!("mutant {name:<28} in {:<15} by {}", config.name, promise.name());
    }
    for (config, flag) in ci().iter().map(|c| (c, "")).chain(long().iter().map(|c| (c, " (--long)"))) {
        println!("configuration {}{flag}: {}", config.name, config.summary());
    }
}
