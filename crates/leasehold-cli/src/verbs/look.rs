//! `ls`, `show`, `history`: who holds what, and why it moved. They change nothing.

use crate::args::{History, Ls, Name};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::view;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Error, Inspection, LeaseName, Result};
use serde_json::Value;
use std::io::IsTerminal;
use std::time::Duration;

const PAGE: usize = 500;
/// How often a live listing is read again.
const REFRESH: Duration = Duration::from_secs(1);

pub async fn ls(context: &Context, args: &Ls) -> Result<Exit> {
    let json = context.common.json;
    let mut shown = String::new();
    let mut told = Vec::new();
    loop {
        let coordinator = context.existing().await?;
        let (leases, damaged) = match coordinator {
            Some(coordinator) => gather(coordinator, args).await?,
            None => Default::default(),
        };
        let text = if json {
            format!("{}\n", Value::Array(leases.iter().map(view::lease_json).collect()))
        } else {
            output::table(&view::LEASE_HEADER, leases.iter().map(view::lease_row))
        };
        // The lines of a live listing change with every second that passes; programs only want real changes.
        let signature = if json { format!("[]{}", signature(&leases)) } else { text.clone() };
        if shown != signature {
            if args.watch && !json && std::io::stdout().is_terminal() {
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
            if leases.is_empty() && damaged.is_empty() && !json {
                output::say(&match coordinator {
                    Some(_) => "no leases yet".to_owned(),
                    None => format!("no leases yet: there is no store at `{}`", context.settings()?.store.value),
                });
            }
            return Ok(damaged.first().map_or(Exit::Done, Exit::from));
        }
        SystemClock.sleep_until(SystemClock.now() + REFRESH).await;
    }
}

async fn gather(coordinator: &Coordinator, args: &Ls) -> Result<(Vec<Inspection>, Vec<Error>)> {
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

pub async fn show(context: &Context, args: &Name) -> Result<Exit> {
    let lease = context.lease(&args.name).await?;
    context.print(|| view::lease_json(&lease), || view::lease_page(&lease))
}

/// Latest first.
pub async fn history(context: &Context, args: &History) -> Result<Exit> {
    let lease = context.lease(&args.name).await?;
    let history = context.history(&lease).await?;
    let shown = if args.limit == 0 { history.len() } else { args.limit };
    let transfers = || history.iter().rev().take(shown);
    context.print(
        || Value::Array(transfers().map(|transfer| view::transfer_json(transfer)).collect()),
        || {
            let rows = transfers().map(|transfer| view::transfer_row(transfer, lease.now));
            output::table(&["EPOCH", "WHEN", "REASON", "HOLDER", "ENDED", "WHY"], rows)
        },
    )
}
