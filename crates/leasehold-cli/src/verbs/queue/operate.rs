//! `queue retry`, `cancel`, `hand-off`: operators obey the fence too, and may ask the worker to finish first.

use super::view;
use crate::args::{self, Draining, HandOffItem, OperateItem, RetryItem};
use crate::context::{Context, Target, with_backlog};
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::verbs::drain;
use crate::verbs::operate::{LONGEST_JUMP, by, epoch_of};
use leasehold_core::{Error, HolderId, Kind, Label, Result, Ttl, Why};
use leasehold_work::Backlog;
use leasehold_work::backlog::{Asking, Carried, ItemView, Ordered};
use leasehold_work::queue::protocol::Order;
use leasehold_work::queue::{Item, ItemId, State};
use serde_json::json;

pub async fn retry(context: &Context, args: &RetryItem) -> Result<Exit> {
    let past = args.past.as_deref().map(|epoch| epoch_of("--past", epoch)).transpose()?;
    if let Some(past) = past.filter(|past| past.get() > LONGEST_JUMP) {
        let allowed = format!("use at most {LONGEST_JUMP}: no item is tried that often");
        return Err(Error::invalid("--past", past, allowed));
    }
    match &args.id {
        Some(id) => {
            let given = Given { queue: &args.queue, id, order: &args.order, draining: &args.draining };
            operate(context, given, Order::Retry { past }, "put back in line").await
        }
        None => super::retry::all(context, args).await,
    }
}

pub async fn cancel(context: &Context, args: &OperateItem) -> Result<Exit> {
    operate(context, Given::of(args), Order::Cancel, "cancelled").await
}

pub async fn hand_off(context: &Context, args: &HandOffItem) -> Result<Exit> {
    let to = HolderId::new(Some(Label::named("--to", &args.holder.to)?));
    let order = Order::HandOff { to, ttl: context.settings()?.ttl.value };
    operate(context, Given::of(&args.operate), order, "handed off").await
}

/// What an operator says of any order.
struct Given<'a> {
    queue: &'a str,
    id: &'a str,
    order: &'a args::Order,
    draining: &'a Draining,
}

impl<'a> Given<'a> {
    fn of(OperateItem { queue, id, order, draining }: &'a OperateItem) -> Self {
        Given { queue, id, order, draining }
    }
}

/// Asks the worker of an item to finish, and waits for it. Returns the item as it was seen last; none if it has no worker.
async fn drain<B: Backlog>(backlog: &B, id: &ItemId, ordered: &Ordered, within: Ttl) -> Result<Option<Item>> {
    let Ordered { by, why, if_epoch, .. } = ordered;
    let asking = Asking { by: by.clone(), why: why.clone(), if_epoch: *if_epoch, within };
    let Some(asked) = backlog.ask_to_finish(id, asking).await? else { return Ok(None) };
    let holder = asked.tenure().map_or_else(String::new, |tenure| tenure.holder.to_string());
    output::say(&format!("asked {holder} to finish `{id}`; waiting for up to {within}"));
    let ItemView::Item(_, seen, _) = backlog.drained(id, asked.epoch, within.get()).await? else { return Ok(None) };
    if seen.epoch == asked.epoch {
        output::say(&match &seen.state {
            State::Claimed(_) => format!("{holder} has not finished `{id}` within {within}"),
            other => format!("{holder} no longer works on `{id}`: it is {}", other.as_str()),
        });
    }
    // The order is decided on what was asked for, whatever is there by now.
    Ok(Some(Item { epoch: asked.epoch, ..*seen }))
}

async fn operate(context: &Context, given: Given<'_>, order: Order, done: &str) -> Result<Exit> {
    let Given { queue, id, order: given, draining } = given;
    let (target, id, within) = (Target::parse(queue)?, id.parse()?, drain::within(draining)?);
    let (why, by) = (Why::named("--why", &given.why)?, by(given.by.as_deref())?);
    let if_epoch = given.if_epoch.as_deref().map(|epoch| epoch_of("--if-epoch", epoch)).transpose()?;
    let open = context.existing_queue(&target).await?;
    let mut order = Ordered { by, why, if_epoch, order };
    let Carried { seen, epoch, token } = with_backlog!(open, backlog => {
        let asked = if let Some(within) = within { drain(&backlog, &id, &order, within).await? } else { None };
        // Nothing is left to take, and only a hand-off has promised a token.
        let is_done = asked.as_ref().is_some_and(|item| matches!(item.state, State::Done { .. }));
        if is_done && !matches!(order.order, Order::HandOff { .. }) {
            return Ok(Exit::Done);
        }
        order.if_epoch = asked.map(|item| item.epoch).or(order.if_epoch);
        Backlog::operate(&backlog, &id, order).await?
    });
    let handed_off = token.is_some();
    let text = match token {
        _ if context.common.json => {
            let mut value = view::seen(&seen);
            value["ordered_epoch"] = json!(epoch.get());
            if let Some(token) = token {
                value["token"] = json!(token.wire());
            }
            value.to_string()
        }
        Some(token) => token.wire(),
        None => {
            // The answer was lost, and others had the item before this was known.
            let since = match seen.epoch() {
                now if now == epoch => String::new(),
                now => format!(". No answer came in time: the item has moved on since, and is at epoch {now} now"),
            };
            output::say(&format!("{done} `{id}`, epoch {epoch}{since}"));
            return Ok(Exit::Done);
        }
    };
    let told = output::deliver(&format!("{text}\n"));
    if handed_off && !matches!(told, Ok(Reader::There)) {
        // The one who had it is fenced already: this cannot be undone, only followed by another order.
        output::say(&format!(
            "`{id}` was handed off, epoch {epoch}, but nobody has its token; put it back in line with: \
             leasehold queue retry {} {id} --why TEXT",
            target.portable()
        ));
        if matches!(told, Ok(Reader::Gone)) {
            return Err(Error::new(Kind::Unavailable, "nobody reads standard output"));
        }
    }
    told.map(|_| Exit::Done)
}
