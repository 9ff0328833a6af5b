//! `queue retry --all`: dead letters back in line, as many as were counted.
//!
//! Promise: what is acted on is what was counted and confirmed. Each order carries the epoch that was seen, so an item that
//! died, was retried or was cancelled since is left alone, and one that died after the count is not touched.

use super::listing;
use super::look::dead_letters;
use crate::args::RetryItem;
use crate::bar::Bar;
use crate::context::{Context, Target, with_backlog};
use crate::exit::Exit;
use crate::output;
use crate::verbs::operate::by;
use leasehold_core::{Kind, Result, Why, printable};
use leasehold_work::Backlog;
use leasehold_work::backlog::Ordered;
use leasehold_work::queue::protocol::Order;
use leasehold_work::tally::{DeadLetter, by_reason};
use serde_json::json;

/// How many reasons are named one by one.
const MAX_NAMED: usize = 10;

pub async fn all(context: &Context, args: &RetryItem) -> Result<Exit> {
    let target = Target::parse(&args.queue)?;
    let (why, by) = (Why::named("--why", &args.order.why)?, by(args.order.by.as_deref())?);
    let order = |letter: &DeadLetter| Ordered {
        by: by.clone(),
        why: why.clone(),
        if_epoch: Some(letter.epoch),
        order: Order::Retry { past: None },
    };
    let open = context.queue_in_use(&target).await?;
    with_backlog!(open, backlog => {
        let bar = Bar::saying(&format!("counting the dead letters of `{}`", target.portable()));
        let counted = dead_letters(&backlog).await;
        bar.clear();
        let (mut letters, trouble) = counted?;
        if let Some(text) = &args.reason {
            letters.retain(|letter| letter.why.as_ref().is_some_and(|why| why.as_str().contains(text)));
        }
        let what = what(&letters, args.reason.as_deref(), &target);
        if letters.is_empty() {
            context.tell(|| json!({ "retried": 0, "changed": 0, "failed": 0 }), || format!("there are {what}"))?;
            return Ok(trouble.unwrap_or(Exit::Done));
        }
        if !args.yes {
            say_reasons(&letters);
            if !output::agreed(&format!("put {what} back in line"))? {
                output::say("nothing was changed");
                return Ok(Exit::Done);
            }
        }
        retry(context, &backlog, letters, order, trouble).await
    })
}

fn what(letters: &[DeadLetter], reason: Option<&str>, target: &Target) -> String {
    let (count, queue) = (letters.len(), target.portable());
    let number = if count == 0 { "no".to_owned() } else { count.to_string() };
    let noun = if count == 1 { "dead letter" } else { "dead letters" };
    let with = reason.map(|text| format!(" with `{}` in the reason", printable(text))).unwrap_or_default();
    format!("{number} {noun} of `{queue}`{with}")
}

fn say_reasons(letters: &[DeadLetter]) {
    let groups = by_reason(letters);
    for group in groups.iter().take(MAX_NAMED) {
        output::say(&format!("{} because: {}", group.count, listing::reason(group.why)));
    }
    if groups.len() > MAX_NAMED {
        output::say(&format!("and {} more reasons", groups.len() - MAX_NAMED));
    }
}

async fn retry<B: Backlog>(
    context: &Context,
    backlog: &B,
    letters: Vec<DeadLetter>,
    order: impl Fn(&DeadLetter) -> Ordered,
    trouble: Option<Exit>,
) -> Result<Exit> {
    let (mut retried, mut changed, mut failed) = (0, 0, 0);
    let mut exit = trouble.unwrap_or(Exit::Done);
    let bar = Bar::begin();
    for (number, letter) in letters.iter().enumerate() {
        bar.at(&format!("{number} of {} done", letters.len()));
        match backlog.operate(&letter.id, order(letter)).await {
            Ok(_) => retried += 1,
            // Somebody else was there since it was counted.
            Err(error) if matches!(error.kind(), Kind::Fenced | Kind::Invalid) => changed += 1,
            Err(error) => {
                output::warn(&error.to_string());
                failed += 1;
                exit = Exit::from(&error);
                // A store that is away, or has moved, is so for all of them.
                if error.is_retryable() || matches!(error.kind(), Kind::Moved | Kind::Unsupported) {
                    failed += letters.len() - retried - changed - failed;
                    break;
                }
            }
        }
    }
    bar.clear();
    if changed > 0 && exit == Exit::Done {
        exit = Exit::Fenced;
    }
    context.tell(
        || json!({ "retried": retried, "changed": changed, "failed": failed }),
        || {
            let left = |count: usize, why: &str| if count == 0 { String::new() } else { format!("; {count} {why}") };
            let since = match changed {
                1 => left(1, "had changed since it was counted, and was left alone"),
                changed => left(changed, "had changed since they were counted, and were left alone"),
            };
            format!(
                "put {retried} back in line{since}{}",
                left(failed, if failed == 1 { "is still a dead letter" } else { "are still dead letters" })
            )
        },
    )?;
    Ok(exit)
}
