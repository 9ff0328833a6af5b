//! `stats`: what became of runs.

use super::existing;
use crate::args::{Common, Stats as Args};
use crate::config::Settings;
use crate::exit::Exit;
use crate::output;
use leasehold::{Coordinator, Counters, Error, Event, LeaseName, Result};
use serde_json::{Map, Value, json};

const PAGE: usize = 500;

pub async fn stats(common: &Common, args: &Args) -> Result<Exit> {
    let only = args.name.as_deref().map(LeaseName::new).transpose()?;
    let (all, damaged) = match (existing(&Settings::gather(common)?).await?, only) {
        (Some(coordinator), Some(lease)) => {
            let counters = coordinator.counters(&lease).await?;
            (vec![(lease, counters)], None)
        }
        (Some(coordinator), None) => gather(&coordinator).await?,
        (None, Some(lease)) => (vec![(lease, Counters::default())], None),
        (None, None) => (Vec::new(), None),
    };
    if args.prometheus {
        output::print(&prometheus(&all))?;
    } else if common.json {
        output::json(&Value::Array(all.iter().map(|(lease, counters)| as_json(lease, counters)).collect()))?;
    } else {
        let mut rows = vec![
            std::iter::once("NAME".to_owned()).chain(Event::ALL.map(|e| e.as_str().to_uppercase())).collect::<Vec<_>>(),
        ];
        rows.extend(all.iter().map(|(lease, counters)| {
            std::iter::once(lease.to_string())
                .chain(Event::ALL.map(|event| counters.get(event).to_string()))
                .collect::<Vec<_>>()
        }));
        output::print(&output::table(&rows))?;
    }
    damaged.map_or(Ok(Exit::Done), Err)
}

/// What is damaged is said, and given last: it must not hide the rest.
async fn gather(coordinator: &Coordinator) -> Result<(Vec<(LeaseName, Counters)>, Option<Error>)> {
    let (mut all, mut damaged, mut after) = (Vec::new(), None, None);
    loop {
        let (page, more) = coordinator.list_counters(after.as_ref(), PAGE).await?;
        after = page.last().map(|(lease, _)| lease.clone());
        for (lease, counters) in page {
            match counters {
                Ok(counters) => all.push((lease, counters)),
                Err(error) => damaged = Some(error),
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
