//! `ls`, `show`, `history`: who holds what, and why it moved. They change nothing.

use crate::args::{History, Ls, Name};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::table::table;
use crate::view;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Counters, Error, Inspection, LeaseName, NamePattern, Result};
use leasehold_work::schedule::is_backfill;
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
    let pattern = args.pattern.as_deref().map(NamePattern::or_prefix).transpose()?;
    loop {
        let coordinator = context.existing().await?;
        let Listed { mut leases, damaged, hidden } = match coordinator {
            Some(coordinator) => gather(coordinator, args, pattern.as_ref()).await?,
            None => Default::default(),
        };
        let text = if json {
            format!("{}\n", Value::Array(leases.iter().map(view::lease_json).collect()))
        } else {
            leases.sort_by_key(group);
            table(&view::LEASE_COLUMNS, leases.iter().map(view::lease_row))
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
        // Damage is reported once, not with every look.
        let messages: Vec<String> = damaged.iter().map(ToString::to_string).collect();
        if told != messages {
            messages.iter().for_each(|message| output::warn(message));
            told = messages;
        }
        if !args.watch {
            if leases.is_empty() && damaged.is_empty() && !json {
                output::say(&match coordinator {
                    Some(_) => nothing(args, hidden),
                    None => format!("no leases yet: there is no store at `{}`", context.settings()?.store.value),
                });
            }
            if hidden > 0 && !json {
                let what = if hidden == 1 { "lease that has" } else { "leases that have" };
                output::say(&format!("{hidden} {what} been free for more than a day not shown; add --all"));
            }
            return Ok(damaged.first().map_or(Exit::Done, Exit::from));
        }
        SystemClock.sleep_until(SystemClock.now() + REFRESH).await;
    }
}

/// Why a listing is empty.
fn nothing(args: &Ls, hidden: usize) -> String {
    let states = [(args.held, "held"), (args.free, "free"), (args.paused, "paused")];
    let states: Vec<&str> = states.into_iter().filter_map(|(is_asked, word)| is_asked.then_some(word)).collect();
    let is = if states.is_empty() { String::new() } else { format!("that is {} ", states.join(" or ")) };
    match &args.pattern {
        _ if hidden > 0 => "no leases to show".to_owned(),
        Some(pattern) if pattern.contains(['*', '?']) => format!("no lease {is}has a name like `{pattern}`"),
        Some(pattern) => format!("no lease {is}has a name that begins with `{pattern}`"),
        None if !states.is_empty() => format!("no lease is {}", states.join(" or ")),
        None => "no leases yet".to_owned(),
    }
}

/// What a look has found.
#[derive(Default)]
pub struct Listed {
    pub leases: Vec<Inspection>,
    pub damaged: Vec<Error>,
    /// How many were left out because they have been free for long.
    pub hidden: usize,
}

/// Which come first, for people: what is held, what is held up, and then the rest.
fn group(lease: &Inspection) -> u8 {
    match view::state(lease) {
        "held" => 0,
        "paused" => 1,
        "expired" => 2,
        _ => 3,
    }
}

impl Ls {
    fn wants(&self, lease: &Inspection) -> bool {
        let (held, paused) = (lease.record.live_tenure(lease.now).is_some(), lease.record.paused.is_some());
        let is_any = !(self.held || self.free || self.paused);
        is_any || self.held && held || self.paused && paused || self.free && !held && !paused
    }

    /// Whether it is of no interest: free for long, and not asked for by its name.
    fn hides(&self, lease: &Inspection) -> bool {
        let record = &lease.record;
        let at_rest = record.live_tenure(lease.now).is_none() && record.paused.is_none() && record.relocation.is_none();
        let since = record.idle_since();
        let is_old = since.is_some_and(|since| lease.now.saturating_since(since) > view::IDLE);
        !self.all && at_rest && is_old && self.pattern.as_deref() != Some(lease.lease.as_str())
    }
}

/// All leases that are asked for, by name.
pub async fn gather(coordinator: &Coordinator, args: &Ls, pattern: Option<&NamePattern>) -> Result<Listed> {
    let mut listed = Listed::default();
    let mut after: Option<LeaseName> = None;
    loop {
        let page = coordinator.list(after.as_ref(), PAGE).await?;
        after = page.entries.last().map(|(name, _)| name.clone());
        for (name, record) in page.entries {
            if pattern.is_some_and(|pattern| !pattern.matches(name.as_str())) || is_backfill(&name) {
                continue;
            }
            match record {
                // Its first write was taken back: there never was such a lease.
                Ok(lease) if lease.record.is_unknown() => {}
                Ok(lease) if !args.wants(&lease) => {}
                // Not even counted: that was what it was forgotten for.
                Ok(lease) if view::state(&lease) == "forgotten" && !args.all => {}
                Ok(lease) if args.hides(&lease) => listed.hidden += 1,
                Ok(lease) => listed.leases.push(lease),
                Err(error) => listed.damaged.push(error),
            }
        }
        if !page.more {
            return Ok(listed);
        }
    }
}

fn signature(leases: &[Inspection]) -> String {
    leases.iter().map(|l| format!("{} {:?} {}\n", l.lease, l.record, view::state(l))).collect()
}

pub async fn show(context: &Context, args: &Name) -> Result<Exit> {
    let lease = context.lease(&args.name).await?;
    // Beside the lease, and of no weight: without its counters it is shown all the same.
    let counters = match context.existing().await? {
        Some(coordinator) => coordinator.counters(&lease.lease).await.unwrap_or_default(),
        None => Counters::default(),
    };
    let fenced = counters.fenced_writes();
    context.print(|| view::shown_json(&lease, fenced), || view::lease_page(&lease, fenced))
}

/// Prints the transfers of a lease, latest first.
pub async fn history(context: &Context, args: &History) -> Result<Exit> {
    let lease = context.lease(&args.name).await?;
    let history = context.history(&lease).await?;
    let shown = if args.limit == 0 { history.transfers.len() } else { args.limit };
    let transfers = || history.transfers.iter().rev().take(shown);
    context.print(
        || Value::Array(transfers().map(|transfer| view::transfer_json(transfer)).collect()),
        || {
            let rows = transfers().map(|transfer| view::transfer_row(transfer, &lease));
            table(&view::TRANSFER_COLUMNS, rows)
        },
    )?;
    Ok(history.damaged.first().map_or(Exit::Done, Exit::from))
}
