//! `work`: a command for each item of a queue.
//!
//! Promise: each lane is a process of its own that runs one command at a time, kept and ended as `run` does it, so that
//! no command keeps running when its item is lost. Lanes need nothing of each other, and end when the one that started them
//! does. Non-promise: a command may run twice for one item; its epoch tells guards which run counts.

mod end;
mod folder;
mod lane;
mod lanes;
mod obituaries;
mod store_news;

use super::queue::say_error;
use crate::args::Work as Args;
use crate::config::duration_of;
use crate::context::{Context, Open, Target, with_backlog};
use crate::exit::Exit;
use crate::metrics::{Monitor, Probed};
use crate::run_output::Keeping;
use crate::supervise::RunLimit;
use crate::{log, orphans, output, supervise};
use leasehold_core::Result;
use leasehold_work::Backlog;
use leasehold_work::presence::{Announced, Presence, Role};
use obituaries::Obituaries;
use std::sync::Arc;

pub async fn work(context: &Context, args: Args) -> Result<Exit> {
    let settings = context.settings()?;
    let target = Target::parse(&args.queue)?;
    log::about(Some(of_queue(target.portable())));
    let deadlines = settings.deadlines(settings.ttl.value)?;
    let run_limit = duration_of("--max-runtime", args.max_runtime.as_deref())?
        .map(|longest| RunLimit { longest, setting: "--max-runtime" });
    target.check_ours("work on")?;
    // What is wrong is said once, and not by each lane.
    let rules = if lane::is_managed() { settings.notify.read_each().0 } else { settings.notify.read_or_say() };
    supervise::check()?;
    orphans::reap_as_init();
    let open = context.queue(&target).await?;
    // What is to be told of a spool waits in the store that the settings name, which a spool alone does not need.
    let obituaries = match rules.is_empty() {
        false => Obituaries::new(context.coordinator().await?, rules, settings, &open, &target),
        true => Obituaries::default(),
    };
    // What cannot be kept, and that a queue is new, is said once, and not by each lane.
    let keeping = if lane::is_managed() { settings.keeping().ok().flatten() } else { settings.keeping_or_say() };
    let delivering = if lane::is_managed() { None } else { obituaries.in_background() };
    if args.jobs > 1 {
        reach(&open, &target, args.until_idle || args.until_done).await?;
        let monitor = monitor(context, &target).await?;
        let announced = announce(context, &target).await?;
        let done = lanes::run(settings, &target, &args, monitor).await;
        leave(announced).await;
        drop(delivering);
        obituaries.end(true).await;
        return done;
    }
    let (keeping, coordinator) = match &target {
        Target::Queue(_) => (keeping, Some(context.coordinator().await?.clone())),
        Target::Spool(path) => {
            let spool = Some(path.display().to_string());
            (keeping.map(|keeping| Keeping { spool, ..keeping }), None)
        }
    };
    let plan = lane::Plan {
        deadlines,
        run_limit,
        store: settings.store.value.clone(),
        queue: target.portable(),
        until: match (args.until_idle, args.until_done) {
            (true, _) => lane::Until::Idle,
            (_, true) => lane::Until::Done,
            _ => lane::Until::Told,
        },
        items: args.items,
        prefixes: !args.no_prefix,
        keeping,
        coordinator,
        command: args.command,
        obituaries: Arc::new(obituaries),
    };
    let (label, ttl) = (settings.label.value.clone(), settings.ttl.value);
    if !lane::is_managed() {
        reach(&open, &target, plan.until != lane::Until::Told).await?;
    }
    let monitor = if lane::is_managed() { None } else { monitor(context, &target).await? };
    let announced = if lane::is_managed() { None } else { announce(context, &target).await? };
    with_backlog!(open, backlog => {
        let backlog = backlog.with_expiry_callback(plan.obituaries.expiry_callback(&plan.queue));
        let claimer = backlog.claimer(label, ttl, say_error)?;
        let done = lane::run(backlog, claimer, &plan, monitor).await;
        leave(announced).await;
        drop(delivering);
        plan.obituaries.end(!lane::is_managed()).await;
        done
    })
}

/// Listens, if that is asked for.
async fn monitor(context: &Context, target: &Target) -> Result<Option<Arc<Monitor>>> {
    let probed = match target {
        Target::Queue(_) => Probed::Store(context.coordinator().await?.clone()),
        Target::Spool(path) => Probed::Spool(path.clone()),
    };
    Monitor::start(context, probed).await
}

/// Puts this worker on record in the queue's store; a spool has none.
async fn announce(context: &Context, target: &Target) -> Result<Option<Announced>> {
    let Target::Queue(queue) = target else { return Ok(None) };
    let own = Presence::own(Role::Worker, Some(queue.to_string()));
    Ok(Some(Announced::start(context.coordinator().await?.store().clone(), own)))
}

async fn leave(announced: Option<Announced>) {
    if let Some(announced) = announced {
        announced.end().await;
    }
}

/// What lines are about while no item is worked on.
fn of_queue(queue: String) -> log::Subject {
    log::Subject { queue: Some(queue), is_one_of_many: true, ..log::Subject::default() }
}

/// Asks the store for something. A store that goes away later is waited for; one that was never there is most likely
/// misspelt. So may be the name of a queue that is not there yet.
async fn reach(open: &Open, target: &Target, ends_alone: bool) -> Result<()> {
    if !with_backlog!(open, backlog => backlog.is_known().await?) {
        let waits = if ends_alone { "" } else { "; waiting for items" };
        output::say(&format!("there is no queue `{}` yet{waits}", target.portable()));
    }
    Ok(())
}
