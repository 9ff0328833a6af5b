//! `queue ls` and `queue show`: they change nothing.

use super::view;
use crate::args::{ItemArgs, QueueLs};
use crate::config::blame_flag;
use crate::context::{Context, Open, Target, with_backlog};
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

pub async fn ls(context: &Context, args: &QueueLs) -> Result<Exit> {
    if let Some(state) = args.state.as_deref().filter(|state| !STATES.contains(state)) {
        return Err(blame_flag(Error::invalid("state", state, format!("use one of {}", STATES.join(", "))), "--state"));
    }
    let Some(queue) = &args.queue else { return queues(context).await };
    let target = Target::parse(queue)?;
    if context.missing(&target)?.is_some() {
        return nothing(context, &format!("there is nothing in `{}` yet", target.portable()));
    }
    let wanted = |state: &str| args.state.as_deref().is_none_or(|wanted| wanted == state);
    match context.queue(&target).await? {
        Open::Queue(queue) => items(context, &queue, wanted).await,
        Open::Spool(spool) => files(context, &spool, wanted),
    }
}

fn nothing(context: &Context, what: &str) -> Result<Exit> {
    context.tell(|| json!([]), || what.to_owned())
}

/// The store's queues, by their bells.
async fn queues(context: &Context) -> Result<Exit> {
    let Some(coordinator) = context.existing().await? else { return nothing(context, "no queues yet") };
    let store = coordinator.store();
    let (mut names, mut after) = (Vec::new(), None::<LeaseName>);
    loop {
        let page = store.list(Shelf::Queue, Range::new(after.as_ref(), PAGE)).await?;
        names.extend(page.entries.iter().map(|(name, _)| name.to_string()));
        match page.entries.last() {
            Some((last, _)) if page.more => after = Some(last.clone()),
            _ => break,
        }
    }
    if names.is_empty() {
        return nothing(context, "no queues yet");
    }
    context.print(|| json!(names), || format!("{}\n", names.join("\n")))
}

async fn items(context: &Context, queue: &Queue, wanted: impl Fn(&str) -> bool) -> Result<Exit> {
    let (mut values, mut rows, mut after) = (Vec::new(), Vec::new(), None);
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
        let what = format!("there is no queue `{0}` yet; `leasehold queue add {0}` makes it", queue.name());
        return nothing(context, &what);
    }
    print(context, values, rows)?;
    Ok(damaged.unwrap_or(Exit::Done))
}

fn files(context: &Context, spool: &Spool, wanted: impl Fn(&str) -> bool) -> Result<Exit> {
    let SpoolSurvey { items, closed, odd } = spool.survey();
    closed.iter().chain(&odd).for_each(|error| output::say(&error.to_string()));
    let all: Vec<_> = items.into_iter().filter(|item| wanted(item.place.as_str())).collect();
    // A folder that cannot be read was told already.
    let mut plain = spool.plain_files().unwrap_or_default();
    plain.retain(|_| wanted(Where::Ready.as_str()));
    let (ready, others): (Vec<_>, Vec<_>) = all.iter().partition(|item| item.place == Where::Ready);
    let mut rows: Vec<_> = ready.iter().map(|item| view::spool_row(item)).collect();
    rows.extend(plain.iter().map(view::plain_row));
    rows.extend(others.iter().map(|item| view::spool_row(item)));
    let mut values: Vec<Value> = ready.into_iter().map(view::spooled).collect();
    values.extend(plain.iter().map(view::plain).chain(others.into_iter().map(view::spooled)));
    print(context, values, rows)?;
    // There may be more where this user cannot look.
    Ok(closed.first().map_or(Exit::Done, Exit::from))
}

fn print(context: &Context, values: Vec<Value>, rows: Vec<Vec<String>>) -> Result<Exit> {
    if rows.is_empty() {
        return context.tell(|| Value::Array(values), || "no items".to_owned());
    }
    context.print(|| Value::Array(values), || output::table(&view::HEADER, rows))
}

pub async fn show(context: &Context, args: &ItemArgs) -> Result<Exit> {
    let (target, id) = (Target::parse(&args.queue)?, args.id.parse()?);
    let open = context.existing_queue(&target).await?;
    let value = view::seen(&with_backlog!(open, backlog => Backlog::show(&backlog, &id).await?));
    context.print(|| value.clone(), || text(&value))
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
    output::table(&[], rows)
}
