//! `ls`: who holds what.

use super::coordinator;
use crate::args::{Common, Ls as Args};
use crate::config::Settings;
use crate::exit::Exit;
use crate::{output, view};
use leasehold::clock::{Clock, SystemClock};
use leasehold::{Coordinator, Inspection, LeaseName, Result};
use serde_json::Value;
use std::io::IsTerminal;
use std::time::Duration;

const PAGE: usize = 500;
/// How often a live listing is read anew.
const REFRESH: Duration = Duration::from_secs(1);

pub async fn ls(common: &Common, args: &Args) -> Result<Exit> {
    let coordinator = coordinator(&Settings::gather(common)?).await?;
    let mut shown = String::new();
    loop {
        let (leases, damaged) = gather(&coordinator, args).await?;
        let text = if common.json {
            format!("{}\n", Value::Array(leases.iter().map(view::lease_json).collect()))
        } else {
            let mut rows = vec![view::lease_header()];
            rows.extend(leases.iter().map(view::lease_row));
            output::table(&rows)
        };
        // The lines of a live listing change with every second that passes; programs only want real changes.
        let signature = if common.json { signature(&leases) } else { text.clone() };
        if shown != signature {
            if args.watch && !common.json && std::io::stdout().is_terminal() {
                output::print("\x1b[H\x1b[2J")?;
            }
            output::print(&text)?;
            shown = signature;
        }
        if !args.watch {
            if leases.is_empty() && !common.json {
                output::say("no leases yet");
            }
            return match damaged.into_iter().next() {
                Some(error) => Err(error),
                None => Ok(Exit::Done),
            };
        }
        SystemClock.sleep_until(SystemClock.now() + REFRESH).await;
    }
}

async fn gather(coordinator: &Coordinator, args: &Args) -> Result<(Vec<Inspection>, Vec<leasehold::Error>)> {
    let (mut leases, mut damaged) = (Vec::new(), Vec::new());
    let mut after: Option<LeaseName> = None;
    loop {
        let page = coordinator.list(after.as_ref(), PAGE).await?;
        after = page.entries.last().map(|(name, _)| name.clone());
        for (name, record) in page.entries {
            if !args.prefix.as_deref().is_none_or(|prefix| name.as_str().starts_with(prefix)) {
                continue;
            }
            match record {
                Ok(lease) if args.held && lease.record.live_tenure(lease.now).is_none() => {}
                Ok(lease) => leases.push(lease),
                Err(error) => {
                    output::say(&error.to_string());
                    damaged.push(error);
                }
            }
        }
        if !page.more {
            return Ok((leases, damaged));
        }
    }
}

fn signature(leases: &[Inspection]) -> String {
    leases.iter().map(|l| format!("{} {:?} {}\n", l.lease, l.record, view::state(l))).collect()
}
