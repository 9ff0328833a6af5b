//! `queue ls` and `queue show`: they change nothing.

use super::{listing, view};
use crate::args::{ItemArgs, QueueLs};
use crate::config::blame_flag;
use crate::context::{Context, Open, Target, moved_to, with_backlog};
use crate::exit::Exit;
use crate::metrics::queue_names;
use crate::output::{self, relative, rough};
use crate::table::Column::{Text, Whole};
use crate::table::table;
use leasehold_core::{Error, Result, Timestamp};
use leasehold_work::Backlog;
use leasehold_work::notify::Channel;
use leasehold_work::queue::Queue;
use leasehold_work::spool::{Spool, SpoolFolder, SpoolSurvey};
use leasehold_work::tally::{DeadLetter, Tally, by_reason};
use serde_json::{Value, json};

const PAGE: usize = 200;
const STATES: [&str; 6] = ["ready", "delayed", "claimed", "done", "dead", "cancelled"];

pub async fn ls(context: &Context, args: &QueueLs) -> Result<Exit> {
    if let Some(state) = args.state.as_deref().filter(|state| !STATES.contains(state)) {
        return Err(blame_flag(Error::invalid("state", state, format!("use one of {}", STATES.join(", "))), "--state"));
    }
    let Some(queue) = &args.queue else { return queues(context).await };
    let target = Target::parse(queue)?;
    if context.missing(&target)?.is_some() {
        return nothing(context, &format!("there is nothing in `{}` yet", target.portable()));
    }
    let open = context.queue(&target).await?;
    if args.dead {
        return with_backlog!(open, backlog => dead(context, &backlog).await);
    }
    match open {
        Open::Queue(queue) => items(context, &queue, args.state.as_deref()).await,
        Open::Spool(spool) => files(context, &spool, args.state.as_deref()),
    }
}

fn nothing(context: &Context, what: &str) -> Result<Exit> {
    context.tell(|| json!([]), || what.to_owned())
}

/// The store's queues, each counted: each has a wake record.
async fn queues(context: &Context) -> Result<Exit> {
    let Some(coordinator) = context.existing().await? else { return nothing(context, "no queues yet") };
    let store = coordinator.store();
    let (mut tallies, mut damaged) = (Vec::new(), None);
    for queue in queue_names(coordinator).await? {
        let name = queue.to_string();
        let tally = Queue::new(store.clone(), queue).tally().await?;
        for error in &tally.troubles {
            output::warn(&error.to_string());
            damaged = Some(Exit::from(error));
        }
        tallies.push((name, tally));
    }
    if tallies.is_empty() {
        return nothing(context, "no queues yet");
    }
    let header = ["QUEUE", "READY", "CLAIMED", "DELAYED", "DEAD", "OLDEST"].map(Whole);
    context.print(
        || tallies.iter().map(|(name, tally)| listing::tally(name, tally)).collect(),
        || {
            let row = |(name, tally): &(String, Tally)| {
                let counts = [tally.ready, tally.claimed, tally.delayed, tally.dead].map(|count| count.to_string());
                [vec![name.clone()], counts.to_vec(), vec![oldest(tally).unwrap_or_else(|| "-".into())]].concat()
            };
            table(&header, tallies.iter().map(row))
        },
    )?;
    let moved = if context.common.json { None } else { moved_to(coordinator).await };
    for (name, tally) in tallies.iter().filter(|(_, tally)| tally.elsewhere > 0 && !context.common.json) {
        let items = output::count(tally.elsewhere as usize, "item");
        output::say(&match &moved {
            Some(url) => format!("{items} of `{name}` moved to `{url}` with this store; look there"),
            None => {
                let are = if tally.elsewhere == 1 { "is on its way" } else { "are on their way" };
                format!("{items} of `{name}` {are} to another store, or there; `leasehold queue ls {name}` names it")
            }
        });
    }
    Ok(damaged.unwrap_or(Exit::Done))
}

/// For how long the first of those that are ready has waited.
fn oldest(tally: &Tally) -> Option<String> {
    tally.oldest.map(|oldest| rough(tally.now.saturating_since(oldest)))
}

/// Dead letters, by reason.
async fn dead<B: Backlog>(context: &Context, backlog: &B) -> Result<Exit> {
    let (letters, trouble) = dead_letters(backlog).await?;
    if letters.is_empty() {
        nothing(context, "no dead letters")?;
        return Ok(trouble.unwrap_or(Exit::Done));
    }
    let groups = by_reason(&letters);
    let now = Timestamp::from_millis(leasehold_system::clock::wall_ms());
    context.print(
        || groups.iter().map(listing::same_reason).collect(),
        || {
            let rows = groups.iter().map(|group| {
                let [oldest, newest] = [group.oldest, group.newest].map(|at| relative(at, now));
                vec![group.count.to_string(), oldest, newest, listing::reason(group.why)]
            });
            table(&[Whole("COUNT"), Whole("OLDEST"), Whole("NEWEST"), Text("REASON")], rows)
        },
    )?;
    Ok(trouble.unwrap_or(Exit::Done))
}

/// The dead letters, and the exit code if something could not be read, which is said.
pub async fn dead_letters<B: Backlog>(backlog: &B) -> Result<(Vec<DeadLetter>, Option<Exit>)> {
    let mut troubles = Vec::new();
    let letters = Backlog::dead_letters(backlog, &mut troubles).await?;
    troubles.iter().for_each(|error| output::warn(&error.to_string()));
    Ok((letters, troubles.first().map(Exit::from)))
}

/// A line of a listing: what it is sorted by, its JSON and its cells.
struct Listed<K> {
    order: K,
    value: Value,
    row: Vec<String>,
}

/// In the order of claiming: what may be claimed, then what may be later, then what is claimed, then what is finished.
async fn items(context: &Context, queue: &Queue, wanted: Option<&str>) -> Result<Exit> {
    let (mut listed, mut after, mut damaged) = (Vec::new(), None, None);
    loop {
        let page = queue.list(after.as_ref(), PAGE).await?;
        for (name, item) in page.entries {
            match item {
                Ok(item) => {
                    if wanted.is_none_or(|state| item.word(page.now) == state) {
                        let value = listing::listed(&name, &item, page.now);
                        let (order, row) =
                            (listing::order(&name, &item, page.now), listing::row(&value, &item, page.now));
                        listed.push(Listed { order, value, row });
                    }
                }
                Err(error) => {
                    let value = view::damaged(&name, &error);
                    output::warn(&error.to_string());
                    damaged = Some(Exit::from(&error));
                    listed.push(Listed { order: listing::last(&name), value, row: Vec::new() });
                }
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    if listed.is_empty() && !queue.is_known().await? {
        let what = match Channel::is_reserved(queue.name()) {
            true => format!("no notification waits in `{}`", queue.name()),
            false => format!("there is no queue `{0}` yet; `leasehold queue add {0}` makes it", queue.name()),
        };
        return nothing(context, &what);
    }
    listed.sort_by(|a, b| a.order.cmp(&b.order));
    print(context, listed)?;
    Ok(damaged.unwrap_or(Exit::Done))
}

fn files(context: &Context, spool: &Spool, wanted: Option<&str>) -> Result<Exit> {
    let SpoolSurvey { items, closed, foreign } = spool.survey();
    closed.iter().chain(&foreign).for_each(|error| output::warn(&error.to_string()));
    let is_wanted = |folder: &SpoolFolder| wanted.is_none_or(|state| folder.as_str() == state);
    // The survey has them in this order, and names sort in the order of claiming.
    let mut listed = Vec::new();
    for item in items.iter().filter(|item| is_wanted(&item.folder)) {
        let (value, row) = listing::spool_line(spool, item);
        listed.push(Listed { order: listing::spool_order(&item.folder, 0), value, row });
    }
    // An unreadable folder was already reported.
    for file in spool.plain_files().unwrap_or_default().iter().filter(|_| is_wanted(&SpoolFolder::Ready)) {
        let (value, row) = listing::plain_line(spool, file);
        listed.push(Listed { order: listing::spool_order(&SpoolFolder::Ready, 1), value, row });
    }
    listed.sort_by_key(|listed| listed.order);
    print(context, listed)?;
    // There may be more where this user cannot look.
    Ok(closed.first().map_or(Exit::Done, Exit::from))
}

fn print<K>(context: &Context, listed: Vec<Listed<K>>) -> Result<Exit> {
    let (values, rows): (Vec<Value>, Vec<Vec<String>>) = listed.into_iter().map(|line| (line.value, line.row)).unzip();
    let rows: Vec<_> = rows.into_iter().filter(|row| !row.is_empty()).collect();
    if rows.is_empty() {
        return context.tell(|| Value::Array(values), || "no items".to_owned());
    }
    context.print(|| Value::Array(values), || table(&listing::COLUMNS, rows))
}

pub async fn show(context: &Context, args: &ItemArgs) -> Result<Exit> {
    let (target, id) = (Target::parse(&args.queue)?, args.id.parse()?);
    let open = context.existing_queue(&target).await?;
    let value = view::seen(&with_backlog!(open, backlog => Backlog::show(&backlog, &id).await?));
    context.print(|| value.clone(), || view::page(&value))
}
