//! `queue janitor` and `queue purge`.

use super::{Open, Target, say_error, with_backlog};
use crate::args::{Common, Purge, QueueArg};
use crate::config::{Settings, duration_of};
use crate::exit::Exit;
use crate::output;
use leasehold_core::Result;
use leasehold_work::Backlog;
use leasehold_work::backlog::JanitorReport;
use serde_json::{Map, Value, json};
use std::time::Duration;

const DEFAULT_AGE: Duration = Duration::from_secs(7 * 86_400);

pub async fn janitor(common: &Common, args: &QueueArg) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    let open = Open::existing(&settings, &Target::parse(&args.queue)?).await?;
    tell(common, with_backlog!(open, backlog => Backlog::clean(&backlog, say_error).await?))
}

/// The exit code is that of the first trouble, which was named already.
fn tell(common: &Common, done: JanitorReport) -> Result<Exit> {
    if common.json {
        let counts: Map<_, _> = done.counts.iter().map(|(what, count)| ((*what).to_owned(), json!(count))).collect();
        output::json(&Value::Object(counts))?;
    } else {
        let says: Vec<String> = done.counts.iter().map(|(what, count)| format!("{what}={count}")).collect();
        output::line(&says.join(" "))?;
    }
    Ok(done.trouble.as_ref().map_or(Exit::Done, Exit::from))
}

pub async fn purge(common: &Common, args: &Purge) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    let target = Target::parse(&args.queue)?;
    let age = duration_of("--older-than", args.older_than.as_deref())?.unwrap_or(DEFAULT_AGE);
    let open = Open::existing(&settings, &target).await?;
    tell(common, with_backlog!(open, backlog => Backlog::purge(&backlog, age, args.dead, say_error).await?))
}
