//! `queue retry`, `cancel`, `hand-off`: operators obey the fence too.

use super::view;
use crate::args::{self, HandOffItem, OperateItem, RetryItem};
use crate::context::{Context, Target, with_backlog};
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::verbs::operate::{LONGEST_JUMP, by, epoch_of};
use leasehold_core::{Error, HolderId, Kind, Label, Result, Why};
use leasehold_work::Backlog;
use leasehold_work::backlog::Ordered;
use leasehold_work::queue::protocol::Order;
use serde_json::json;

pub async fn retry(context: &Context, args: &RetryItem) -> Result<Exit> {
    let past = args.past.as_deref().map(|epoch| epoch_of("--past", epoch)).transpose()?;
    if let Some(past) = past.filter(|past| past.get() > LONGEST_JUMP) {
        let allowed = format!("use at most {LONGEST_JUMP}: no item is tried that often");
        return Err(Error::invalid("--past", past, allowed));
    }
    match &args.id {
        Some(id) => operate(context, &args.queue, id, &args.order, Order::Retry { past }, "put back in line").await,
        None => super::retry::all(context, args).await,
    }
}

pub async fn cancel(context: &Context, args: &OperateItem) -> Result<Exit> {
    operate(context, &args.queue, &args.id, &args.order, Order::Cancel, "cancelled").await
}

pub async fn hand_off(context: &Context, args: &HandOffItem) -> Result<Exit> {
    let to = HolderId::new(Some(Label::named("--to", &args.holder.to)?));
    let order = Order::HandOff { to, ttl: context.settings()?.ttl.value };
    let OperateItem { queue, id, order: given } = &args.operate;
    operate(context, queue, id, given, order, "handed off").await
}

async fn operate(
    context: &Context,
    queue: &str,
    id: &str,
    given: &args::Order,
    order: Order,
    done: &str,
) -> Result<Exit> {
    let (target, id) = (Target::parse(queue)?, id.parse()?);
    let (why, by) = (Why::named("--why", &given.why)?, by(given.by.as_deref())?);
    let if_epoch = given.if_epoch.as_deref().map(|epoch| epoch_of("--if-epoch", epoch)).transpose()?;
    let open = context.existing_queue(&target).await?;
    let order = Ordered { by, why, if_epoch, order };
    let (seen, token) = with_backlog!(open, backlog => Backlog::operate(&backlog, &id, order).await?);
    let epoch = seen.epoch();
    let handed_off = token.is_some();
    let text = match token {
        _ if context.common.json => {
            let mut value = view::seen(&seen);
            if let Some(token) = token {
                value["token"] = json!(token.wire());
            }
            value.to_string()
        }
        Some(token) => token.wire(),
        None => {
            output::say(&format!("{done} `{id}`, epoch {epoch}"));
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
