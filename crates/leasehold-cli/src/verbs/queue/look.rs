//! `queue ls` and `queue show`: they change nothing.

use super::{Open, Target, id_of, view, with_backlog};
use crate::args::{Common, ItemArgs, QueueLs};
use crate::config::{Settings, blame_flag};
use crate::exit::Exit;
use crate::output;
use leasehold_core::store::Range;
use leasehold_core::{Error, LeaseName, Result, Shelf};
use leasehold_work::Backlog;
use leasehold_work::queue::Queue;
use leasehold_work::spool::{Spool, SpoolSurvey, Where};
use serde_json::{Value, json};

const PAGE: usize = 200;
const STATES: [&str; 5] = ["ready", "claimed", "done", "dead", "cancelled"];

pub async fn ls(common: &Common, args: &QueueLs) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    if let Some(state) = args.state.as_deref().filter(|state| !STATES.contains(state)) {
        return Err(blame_flag(Error::invalid("state", state, format!("use one of {}", STATES.join(", "))), "--state"));
    }
    let Some(queue) = &args.queue else { return queues(common, &settings).await };
    let target = Target::parse(queue)?;
    if target.missing(&settings)?.is_some() {
        return nothing(common, &format!("there is nothing in `{}` yet", target.portable()));
    }
    let wanted = |state: &str| args.state.as_deref().is_none_or(|wanted| wanted == state);
    match Open::new(&settings, &target).await? {
        Open::Queue(queue) => items(common, &queue, wanted).await,
        Open::Spool(spool) => files(common, &spool, wanted),
    }
}

fn nothing(common: &Common, what: &str) -> Result<Exit> {
    if common.json {
        output::json(&json!([]))?;
    } else {
        output::say(what);
    }
    Ok(Exit::Done)
}

/// The store's queues, by their bells.
async fn queues(common: &Common, settings: &Settings) -> Result<Exit> {
    if settings.store.value.is_missing() {
        return nothing(common, "no queues yet");
    }
    let store = super::store(settings).await?;
    let (mut names, mut after) = (Vec::new(), None::<LeaseName>);
    loop {
        let page = store.list(Shelf::Queue, Range::new(after.as_ref(), PAGE)).await?;
        names.extend(page.entries.iter().map(|(name, _)| name.to_string()));
        match page.entries.last() {
            Some((last, _)) if page.more => after = Some(last.clone()),
            _ => break,
        }
    }
    if common.json {
        output::json(&json!(names))?;
    } else if names.is_empty() {
        output::say("no queues yet");
    } else {
        output::print(&format!("{}\n", names.join("\n")))?;
    }
    Ok(Exit::Done)
}

async fn items(common: &Common, queue: &Queue, wanted: impl Fn(&str) -> bool) -> Result<Exit> {
    let (mut values, mut rows, mut after) = (Vec::new(), vec![view::header()], None);
    let mut damaged = None;
    loop {
        let page = queue.list(after.as_ref(), PAGE).await?;
        for (name, item) in page.entries {
            match item {
                Ok(item) if wanted(item.state.as_str()) => {
                    values.push(view::item(&name, &item, false));
                    rows.push(view::row(&name, &item, page.now));
                }
                Ok(_) => {}
                Err(error) => {
                    values.push(view::damaged(&name, &error));
                    output::say(&error.to_string());
                    damaged = Some(Exit::from(&error));
                }
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    if values.is_empty() && !queue.is_known().await? {
        return nothing(
            common,
            &format!("there is no queue `{0}` yet; `leasehold queue add {0}` makes it", queue.name()),
        );
    }
    print(common, values, &rows)?;
    Ok(damaged.unwrap_or(Exit::Done))
}

fn files(common: &Common, spool: &Spool, wanted: impl Fn(&str) -> bool) -> Result<Exit> {
    let SpoolSurvey { items, closed, odd } = spool.survey();
    closed.iter().chain(&odd).for_each(|error| output::say(&error.to_string()));
    let all: Vec<_> = items.into_iter().filter(|item| wanted(item.place.as_str())).collect();
    // A folder that cannot be read was told already.
    let mut plain = spool.plain_files().unwrap_or_default();
    plain.retain(|_| wanted(Where::Ready.as_str()));
    let (ready, others): (Vec<_>, Vec<_>) = all.iter().partition(|item| item.place == Where::Ready);
    let mut rows = vec![view::header()];
    rows.extend(ready.iter().map(|item| view::spool_row(item)));
    rows.extend(plain.iter().map(view::plain_row));
    rows.extend(others.iter().map(|item| view::spool_row(item)));
    let mut values: Vec<Value> = ready.into_iter().map(view::spooled).collect();
    values.extend(plain.iter().map(view::plain).chain(others.into_iter().map(view::spooled)));
    print(common, values, &rows)?;
    // There may be more where this user cannot look.
    Ok(closed.first().map_or(Exit::Done, Exit::from))
}

fn print(common: &Common, values: Vec<Value>, rows: &[Vec<String>]) -> Result<()> {
    if common.json {
        return output::json(&Value::Array(values));
    }
    if rows.len() == 1 {
        output::say("no items");
        return Ok(());
    }
    output::print(&output::table(rows))
}

pub async fn show(common: &Common, args: &ItemArgs) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    let (target, id) = (Target::parse(&args.queue)?, id_of(&args.id)?);
    let open = Open::existing(&settings, &target).await?;
    let value = view::seen(&with_backlog!(open, backlog => Backlog::show(&backlog, &id).await?));
    if common.json {
        output::json(&value)?;
    } else {
        output::print(&text(&value))?;
    }
    Ok(Exit::Done)
}

/// One line per field, and one per event.
fn text(value: &Value) -> String {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), |text| text.trim_end().to_owned());
    let mut rows = Vec::new();
    for (field, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Null => {}
            Value::Array(list) if field == "history" => {
                for event in list {
                    let says = ["epoch", "what", "by", "why"].map(|field| match &event[field] {
                        Value::Null => String::new(),
                        value => leasehold_core::printable(&plain(value)),
                    });
                    rows.push(vec![plain(&event["at"]), says.join(" ")]);
                }
            }
            Value::Array(list) if list.is_empty() => {}
            value => rows.push(vec![field.clone(), leasehold_core::printable(&plain(value))]),
        }
    }
    output::table(&rows)
}
