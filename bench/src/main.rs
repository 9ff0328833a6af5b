//! Side-by-side benchmarks: each of our figures beside a peer's, taken in turns in the same run on the same disk.
//!
//! Promise: what is compared does equally durable work, and a demand that is not met fails `--check`. Non-promise: the
//! absolute figures say little beyond this machine; the ratios are what is demanded.

mod beanstalk;
mod crowd;
mod data;
mod etcd;
mod fleet;
mod held;
mod lines;
mod load;
mod mcp;
mod measure;
mod options;
mod page_scene;
mod pages;
mod plain;
mod proxy;
mod push;
mod queue;
mod report;
mod runs;
mod schedule;
mod scratch;
mod server;
mod stores;
mod writes;

use anyhow::Result;
use options::{Options, Part};
use report::Report;
use scratch::Scratch;
use std::process::ExitCode;
use std::time::Duration;

/// How long each part may measure; with set-up and warm-up the whole stays below 90 s, or 25 s with `--quick`.
struct Budget {
    runs: Duration,
    stores: Duration,
    writes: Duration,
    push: Duration,
    fleet: Duration,
    proxy: Duration,
    mcp: Duration,
    data: Duration,
}

const FULL: Budget = Budget {
    runs: Duration::from_secs(24),
    stores: Duration::from_secs(8),
    writes: Duration::from_secs(8),
    push: Duration::from_secs(8),
    fleet: Duration::from_secs(4),
    proxy: Duration::from_secs(12),
    mcp: Duration::from_secs(3),
    data: Duration::from_secs(4),
};
const QUICK: Budget = Budget {
    runs: Duration::from_secs(6),
    stores: Duration::from_millis(1_800),
    writes: Duration::from_millis(1_800),
    push: Duration::from_secs(4),
    fleet: Duration::from_millis(1_200),
    proxy: Duration::from_secs(4),
    mcp: Duration::from_secs(1),
    data: Duration::from_millis(1_200),
};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|word| word == plain::ARGUMENT) {
        return plain::main(&words[1..]);
    }
    if words.first().is_some_and(|word| word == crowd::ARGUMENT) {
        return crowd::main(&words[1..]);
    }
    // The peers' HTTP clients use the provider of the process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let done = Options::parse(&words).and_then(|options| {
        let Some(options) = options else {
            print!("{}", options::HELP);
            return Ok(ExitCode::SUCCESS);
        };
        let report = measure(&options)?;
        print!("{report}");
        if let Some(path) = &options.json {
            report.save(path)?;
        }
        let unmet = options.check && !report.all_met();
        Ok(if unmet { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    });
    done.unwrap_or_else(|error| {
        eprintln!("leasehold-bench: {error:#}");
        ExitCode::from(2)
    })
}

fn measure(options: &Options) -> Result<Report> {
    let scratch = Scratch::new(options.scratch.as_deref())?;
    let budget = if options.quick { QUICK } else { FULL };
    let mut report = Report::new(&scratch);
    if options.wants(Part::Runs) {
        report.extend(runs::compare(&scratch, &options.leasehold, budget.runs)?);
    }
    if options.wants(Part::Stores) {
        report.extend(stores::compare(&scratch, budget.stores)?);
    }
    if options.wants(Part::Schedule) {
        report.extend(schedule::compare()?);
    }
    if options.wants(Part::Queue) {
        report.extend(queue::compare(&scratch)?);
    }
    if options.wants(Part::Queue) || options.wants(Part::Crowd) {
        report.extend(crowd::compare(&scratch)?);
    }
    if options.wants(Part::Queue) || options.wants(Part::Lines) {
        report.extend(lines::compare(&scratch, options.quick)?);
    }
    if options.wants(Part::Writes) {
        report.extend(writes::compare(&scratch, &options.leasehold, budget.writes)?);
    }
    if options.wants(Part::Push) {
        report.extend(push::compare(&scratch, &options.leasehold, budget.push)?);
    }
    if options.wants(Part::Proxy) {
        report.extend(proxy::compare(&scratch, &options.leasehold, budget.proxy)?);
    }
    if options.wants(Part::Mcp) {
        report.extend(mcp::compare(&scratch, &options.leasehold, budget.mcp)?);
    }
    if options.wants(Part::Sql) {
        report.extend(data::transactions(budget.data)?);
    }
    if options.wants(Part::Put) {
        report.extend(data::puts(budget.data)?);
    }
    if options.only == Some(Part::Held) {
        report.extend(held::compare(&scratch, &options.leasehold, options.quick)?);
    }
    if options.only == Some(Part::Pages) {
        report.extend(pages::compare(&scratch, &options.leasehold, options.quick)?);
    }
    if let Some(engine) = options.fleet() {
        report.extend(fleet::compare(budget.fleet, engine, &options.leasehold)?);
    }
    Ok(report)
}
