//! `stats`: what became of runs.

use crate::args::Stats as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Coordinator, Counters, Error, Event, LeaseName, Result};
use serde_json::{Map, Value, json};

const PAGE: usize = 500;

pub async fn stats(context: &Context, args: &Args) -> Result<Exit> {
    let only = args.name.as_deref().map(LeaseName::new).transpose()?;
    let (all, damaged) = match (context.existing().await?, only) {
        (Some(coordinator), Some(lease)) => {
            let counters = coordinator.counters(&lease).await?;
            (vec![(lease, counters)], Vec::new())
        }
        (Some(coordinator), None) => gather(coordinator).await?,
        (None, Some(lease)) => (vec![(lease, Counters::default())], Vec::new()),
        (None, None) => Default::default(),
    };
    if args.prometheus {
        output::print(&prometheus(&all))?;
    } else {
        let row = |(lease, counters): &(LeaseName, Counters)| {
            let counts = Event::ALL.map(|event| counters.get(event).to_string());
            std::iter::once(lease.to_string()).chain(counts).collect()
        };
        context.print(
            || Value::Array(all.iter().map(|(lease, counters)| as_json(lease, counters)).collect()),
            || {
                let events = Event::ALL.map(|event| event.as_str().to_uppercase());
                let header: Vec<&str> = std::iter::once("NAME").chain(events.iter().map(String::as_str)).collect();
                output::table(&header, all.iter().map(row))
            },
        )?;
    }
    damaged.iter().for_each(|error| output::say(&error.to_string()));
    Ok(damaged.first().map_or(Exit::Done, Exit::from))
}

async fn gather(coordinator: &Coordinator) -> Result<(Vec<(LeaseName, Counters)>, Vec<Error>)> {
    let (mut all, mut damaged) = (Vec::new(), Vec::new());
    let mut after: Option<LeaseName> = None;
    loop {
        let (page, more) = coordinator.list_counters(after.as_ref(), PAGE).await?;
        after = page.last().map(|(lease, _)| lease.clone());
        for (lease, counters) in page {
            match counters {
                Ok(counters) => all.push((lease, counters)),
                Err(error) => damaged.push(error),
            }
        }
        if !more {
            return Ok((all, damaged));
        }
    }
}

fn as_json(lease: &LeaseName, counters: &Counters) -> Value {
    let counts: Map<String, Value> =
        Event::ALL.iter().map(|event| (event.as_str().into(), json!(counters.get(*event)))).collect();
    json!({ "name": lease.as_str(), "counts": counts })
}

fn prometheus(all: &[(LeaseName, Counters)]) -> String {
    let mut text = String::from(
        "# HELP leasehold_runs_total What became of attempts to run, by lease and outcome.\n\
         # TYPE leasehold_runs_total counter\n",
    );
    for (lease, counters) in all {
        for event in Event::ALL {
            // A lease name has no character that the format would have to escape.
            text.push_str(&format!(
                "leasehold_runs_total{{lease=\"{lease}\",outcome=\"{}\"}} {}\n",
                event.as_str(),
                counters.get(event)
            ));
        }
    }
    text
}
