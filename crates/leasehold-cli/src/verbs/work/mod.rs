//! `work`: a command for each item of a queue.
//!
//! Promise: each lane is a process of its own that runs one command at a time, kept and ended as `run` does it, so that
//! no command keeps running when its item is lost. Lanes need nothing of each other, and end when the one that started them
//! does. Non-promise: a command may run twice for one item; its epoch tells guards which run counts.

mod folder;
mod lane;
mod lanes;

use super::queue::say_error;
use crate::args::Work as Args;
use crate::config::duration_of;
use crate::context::{Context, Open, Target, with_backlog};
use crate::exit::Exit;
use crate::kept::Keeping;
use crate::output;
use crate::supervise;
use leasehold_core::Result;
use leasehold_work::Backlog;

pub async fn work(context: &Context, args: Args) -> Result<Exit> {
    let settings = context.settings()?;
    let target = Target::parse(&args.queue)?;
    let windows = settings.windows(settings.ttl.value)?;
    let max_runtime = duration_of("--max-runtime", args.max_runtime.as_deref())?;
    supervise::check()?;
    if args.jobs > 1 {
        // Said once, and not by each lane.
        reach(&context.queue(&target).await?, &target, args.until_empty).await?;
        return lanes::run(settings, &target, &args).await;
    }
    let mut plan = lane::Plan {
        windows,
        max_runtime,
        store: settings.store.value.clone(),
        queue: target.portable(),
        until_empty: args.until_empty,
        items: args.items,
        prefixes: !args.no_prefix,
        keeping: None,
        coordinator: None,
        command: args.command,
    };
    let (label, ttl) = (settings.label.value.clone(), settings.ttl.value);
    let open = context.queue(&target).await?;
    if !lane::is_managed() {
        reach(&open, &target, plan.until_empty).await?;
    }
    plan.keeping = settings.keeping_or_say();
    match &target {
        Target::Queue(_) => plan.coordinator = Some(context.coordinator().await?.clone()),
        Target::Spool(path) => {
            plan.keeping = plan.keeping.map(|keeping| Keeping { spool: Some(path.display().to_string()), ..keeping });
        }
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
