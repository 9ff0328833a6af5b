//! `ls`: who holds what.

use super::existing;
use crate::args::{Common, Ls as Args};
use crate::config::Settings;
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::view;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Inspection, LeaseName, Result};
use serde_json::Value;
use std::io::IsTerminal;
use std::time::Duration;

const PAGE: usize = 500;
/// How often a live listing is read anew.
const REFRESH: Duration = Duration::from_secs(1);

pub async fn ls(common: &Common, args: &Args) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    let mut coordinator = None;
    let mut shown = String::new();
    let mut told = Vec::new();
    loop {
        if coordinator.is_none() {
            coordinator = existing(&settings).await?;
        }
        let (leases, damaged) = match &coordinator {
            Some(coordinator) => gather(coordinator, args).await?,
            None => Default::default(),
        };
        let text = if common.json {
            format!("{}\n", Value::Array(leases.iter().map(view::lease_json).collect()))
        } else {
            let mut rows = vec![view::lease_header()];
            rows.extend(leases.iter().map(view::lease_row));
            output::table(&rows)
        };
        // The lines of a live listing change with every second that passes; programs only want real changes.
        let signature = if common.json { format!("[]{}", signature(&leases)) } else { text.clone() };
        if shown != signature {
            if args.watch && !common.json && std::io::stdout().is_terminal() {
                output::print("\x1b[H\x1b[2J")?;
            }
            if output::deliver(&text)? == Reader::Gone {
                return Ok(Exit::Done);
            }
            shown = signature;
        }
        // What is damaged is told once, not with every look.
        let messages: Vec<String> = damaged.iter().map(ToString::to_string).collect();
        if told != messages {
            messages.iter().for_each(|message| output::say(message));
            told = messages;
        }
        if !args.watch {
            if leases.is_empty() && damaged.is_empty() && !common.json {
                output::say(&match coordinator {
                    Some(_) => "no leases yet".to_owned(),
                    None => format!("no leases yet: there is no store at `{}`", settings.store.value),
                });
            }
            return Ok(damaged.first().map_or(Exit::Done, Exit::from));
        }
        SystemClock.sleep_until(SystemClock.now() + REFRESH).await;
    }
}

async fn gather(coordinator: &Coordinator, args: &Args) -> Result<(Vec<Inspection>, Vec<leasehold_core::Error>)> {
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
                // Its first write was taken back: there never was such a lease.
                Ok(lease) if lease.record.is_unknown() => {}
                Ok(lease) if args.held && lease.record.live_tenure(lease.now).is_none() => {}
                Ok(lease) => leases.push(lease),
                Err(error) => damaged.push(error),
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
