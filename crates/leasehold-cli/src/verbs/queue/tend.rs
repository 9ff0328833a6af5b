//! `queue janitor` and `queue purge`.

use super::say_error;
use crate::args::{Purge, QueueArg};
use crate::bar::Bar;
use crate::config::duration_of;
use crate::context::{Context, Target, with_backlog};
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Result, format_duration};
use leasehold_work::Backlog;
use leasehold_work::backlog::JanitorReport;
use serde_json::{Value, json};
use std::time::Duration;

const DEFAULT_AGE: Duration = Duration::from_secs(7 * 86_400);

pub async fn janitor(context: &Context, args: &QueueArg) -> Result<Exit> {
    let target = Target::parse(&args.queue)?;
    let open = context.queue_in_use(&target).await?;
    let bar = Bar::saying(&format!("cleaning up `{}`", target.portable()));
    let done = with_backlog!(open, backlog => Backlog::clean(&backlog, say_error).await);
    bar.clear();
    tell(context, done?)
}

/// What was done with how many items, in words; empty if with none.
fn told(what: &str, count: usize) -> Option<String> {
    let items = output::count(count, "item");
    let told = match what {
        "requeued" => format!("put back in line, because the claim had expired: {items}"),
        "buried" => format!("dead letters now, because all attempts were used up: {items}"),
        "lined_up" => format!("put in line, where no entry was: {items}"),
        "settled" => format!("follow-ups added, of what was completed: {items}"),
        "redated" => format!("due again when it was asked for, after the store's clock was set back: {items}"),
        "purged" => format!("removed: {items}"),
        "set_aside" => format!("left alone, see above: {items}"),
        other => format!("{other}: {items}"),
    };
    (count > 0).then_some(told)
}

/// The exit code is that of the first trouble, which was named already.
fn tell(context: &Context, done: JanitorReport) -> Result<Exit> {
    context.print(
        || Value::Object(done.counts.iter().map(|(what, count)| ((*what).to_owned(), json!(count))).collect()),
        || {
            let says: Vec<String> = done.counts.iter().filter_map(|(what, count)| told(what, *count)).collect();
            if says.is_empty() { "nothing to do\n".to_owned() } else { format!("{}\n", says.join("; ")) }
        },
    )?;
    Ok(done.trouble.as_ref().map_or(Exit::Done, Exit::from))
}

pub async fn purge(context: &Context, args: &Purge) -> Result<Exit> {
    let target = Target::parse(&args.queue)?;
    let age = duration_of("--older-than", args.older_than.as_deref())?.unwrap_or(DEFAULT_AGE);
    let open = context.queue_in_use(&target).await?;
    if args.dead && !args.yes {
        let (queue, age) = (leasehold_core::printable(&args.queue), format_duration(age));
        if !output::agreed(&format!("remove the dead letters of `{queue}` that are older than {age}, for good"))? {
            return Ok(Exit::Done);
        }
    }
    let bar = Bar::saying(&format!("removing old items of `{}`", target.portable()));
    let done = with_backlog!(open, backlog => Backlog::purge(&backlog, age, args.dead, say_error).await);
    bar.clear();
    tell(context, done?)
}
