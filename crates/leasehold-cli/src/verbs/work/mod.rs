//! `work`: a command for each item of a queue.
//!
//! Promise: each lane is a process of its own that runs one command at a time, kept and ended as `run` does it, so that
//! no command goes on when its item is lost. Lanes need nothing of each other, and end when the one that started them
//! does. Non-promise: a command may run twice for one item; its epoch tells guards which run counts.

mod bench;
mod lane;
mod lanes;

use super::queue::{Open, Target, say_error, with_backlog};
use crate::args::{Common, Work as Args};
use crate::config::{Flags, Settings, blame, duration_of};
use crate::exit::Exit;
use crate::output;
use crate::supervise;
use crate::supervise::windows::Windows;
use leasehold_core::Result;
use leasehold_work::Backlog;

pub async fn work(common: &Common, args: Args) -> Result<Exit> {
    let flags = Flags {
        ttl: args.ttl.as_deref(),
        label: args.label.as_deref(),
        grace: args.grace.as_deref(),
        ..Flags::default()
    };
    let settings = Settings::gather_with(common, flags)?;
    let target = Target::parse(&args.queue)?;
    let windows = Windows::new(settings.ttl.value, settings.grace.value)
        .map_err(|e| blame(e, "grace", &settings.grace.source))?;
    let max_runtime = duration_of("--max-runtime", args.max_runtime.as_deref())?;
    supervise::check()?;
    if args.jobs > 1 {
        // Said once, and not by each lane.
        reach(&Open::new(&settings, &target).await?, &target, args.until_empty).await?;
        return lanes::run(&settings, &target, &args).await;
    }
    let plan = lane::Plan {
        windows,
        max_runtime,
        store: settings.store.value.clone(),
        queue: target.portable(),
        until_empty: args.until_empty,
        items: args.items,
        command: args.command,
    };
    let (label, ttl) = (settings.label.value.clone(), settings.ttl.value);
    let open = Open::new(&settings, &target).await?;
    if !lane::is_managed() {
        reach(&open, &target, plan.until_empty).await?;
    }
    with_backlog!(open, backlog => {
        let claimer = backlog.claimer(label, ttl, say_error)?;
        lane::run(backlog, claimer, plan).await
    })
}

/// Asks the store for something. A store that goes away later is waited for; one that was never there is most likely
/// misspelt. So may be the name of a queue that is not there yet.
async fn reach(open: &Open, target: &Target, until_empty: bool) -> Result<()> {
    if !with_backlog!(open, backlog => backlog.is_known().await?) {
        let waits = if until_empty { "" } else { "; waiting for items" };
        output::say(&format!("there is no queue `{}` yet{waits}", target.portable()));
    }
    Ok(())
}
