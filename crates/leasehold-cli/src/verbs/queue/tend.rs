//! `queue janitor` and `queue purge`.

use super::{Open, Target};
use crate::args::{Common, Purge, QueueArg};
use crate::config::{Settings, duration_of};
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Kind, Result};
use leasehold_work::queue::State;
use leasehold_work::spool::Where;
use serde_json::{Value, json};
use std::time::Duration;

const DEFAULT_AGE: Duration = Duration::from_secs(7 * 86_400);

pub async fn janitor(common: &Common, args: &QueueArg) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    let (value, exit) = match Open::existing(&settings, &Target::parse(&args.queue)?).await? {
        Open::Queue(queue) => {
            let done = queue.clean().await?;
            let value = json!({
                "requeued": done.requeued, "buried": done.buried, "lined_up": done.lined_up,
                "settled": done.settled, "redated": done.redated, "set_aside": done.troubles.len(),
            });
            (value, say(&done.troubles))
        }
        Open::Spool(spool) => {
            let mut refused = None;
            let done = spool.clean_telling(&mut |error| {
                output::say(&error.to_string());
                // What is no item is named; only what is one, and could not be looked after, is a failure.
                refused = refused.or_else(|| (error.kind() != Kind::Invalid).then(|| Exit::from(&error)));
            })?;
            let value = json!({
                "requeued": done.requeued, "buried": done.buried, "lined_up": done.lined_up, "settled": done.settled,
                "set_aside": done.passed_over,
            });
            (value, refused.unwrap_or(Exit::Done))
        }
    };
    tell(common, &value, exit)
}

/// Names what was left as it is; the exit code is the first one's.
fn say(troubles: &[Error]) -> Exit {
    troubles.iter().for_each(|error| output::say(&error.to_string()));
    troubles.first().map_or(Exit::Done, Exit::from)
}

fn tell(common: &Common, value: &Value, exit: Exit) -> Result<Exit> {
    if common.json {
        output::json(value)?;
    } else {
        let says: Vec<String> =
            value.as_object().into_iter().flatten().map(|(what, count)| format!("{what}={count}")).collect();
        output::line(&says.join(" "))?;
    }
    Ok(exit)
}

pub async fn purge(common: &Common, args: &Purge) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    let target = Target::parse(&args.queue)?;
    let age = duration_of("--older-than", args.older_than.as_deref())?.unwrap_or(DEFAULT_AGE);
    let (value, exit) = match Open::existing(&settings, &target).await? {
        Open::Queue(queue) => {
            let done = queue.purge(age, |state| args.dead || !matches!(state, State::Dead { .. })).await?;
            let value = json!({ "purged": done.items, "set_aside": done.troubles.len() });
            (value, say(&done.troubles))
        }
        Open::Spool(spool) => {
            let places = if args.dead {
                &[Where::Done, Where::Cancelled, Where::Failed][..]
            } else {
                &[Where::Done, Where::Cancelled]
            };
            let done = spool.purge(age, places)?;
            (json!({ "purged": done.items, "set_aside": done.troubles.len() }), say(&done.troubles))
        }
    };
    tell(common, &value, exit)
}
