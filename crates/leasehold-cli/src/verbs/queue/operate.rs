//! `queue retry`, `cancel`, `hand-off`: operators obey the fence too.

use super::{Open, Target, id_of, view};
use crate::args::{Common, HandOffItem, OperateItem, RetryItem};
use crate::config::{Flags, Settings};
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::verbs::operate::{LONGEST_JUMP, by, epoch_of};
use leasehold_core::{Epoch, Error, HolderId, Kind, Label, Result, Token, Why};
use leasehold_work::queue::protocol::Order;
use serde_json::{Value, json};

pub async fn retry(common: &Common, args: &RetryItem) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    let past = args.past.as_deref().map(|epoch| epoch_of("--past", epoch)).transpose()?;
    if let Some(past) = past.filter(|past| past.get() > LONGEST_JUMP) {
        let allowed = format!("use at most {LONGEST_JUMP}: no item is tried that often");
        return Err(Error::invalid("--past", past, allowed));
    }
    order(common, &settings, &args.operate, Asked::Retry(past)).await
}

pub async fn cancel(common: &Common, args: &OperateItem) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    order(common, &settings, args, Asked::Cancel).await
}

pub async fn hand_off(common: &Common, args: &HandOffItem) -> Result<Exit> {
    let settings = Settings::gather_with(common, Flags { ttl: args.ttl.as_deref(), ..Flags::default() })?;
    order(common, &settings, &args.operate, Asked::HandOff(Label::named("--to", &args.to)?)).await
}

enum Asked {
    Retry(Option<Epoch>),
    Cancel,
    HandOff(Label),
}

async fn order(common: &Common, settings: &Settings, args: &OperateItem, asked: Asked) -> Result<Exit> {
    let (target, id) = (Target::parse(&args.queue)?, id_of(&args.id)?);
    let (why, by) = (Why::named("--why", &args.why)?, by(args.by.as_deref())?);
    let ttl = settings.ttl.value;
    let if_epoch = args.if_epoch.as_deref().map(|epoch| epoch_of("--if-epoch", epoch)).transpose()?;
    let done = match &asked {
        Asked::Retry(_) => "put back in line",
        Asked::Cancel => "cancelled",
        Asked::HandOff(_) => "handed off",
    };
    let (epoch, token, value): (Epoch, Option<Token>, Value) = match Open::existing(settings, &target).await? {
        Open::Queue(queue) => {
            let order = match asked {
                Asked::Retry(past) => Order::Retry { past },
                Asked::Cancel => Order::Cancel,
                Asked::HandOff(to) => Order::HandOff { to: HolderId::new(Some(to)), ttl },
            };
            let seen = queue.inspect(&id).await?.item.epoch;
            let (item, token) = queue.operate(&id, by, why, Some(if_epoch.unwrap_or(seen)), order).await?;
            (item.epoch, token, view::item(&queue.item(id.clone()), &item, true))
        }
        Open::Spool(spool) => {
            let seen = spool.find(&id)?.name.epoch;
            if let Some(expected) = if_epoch.filter(|expected| *expected != seen) {
                let message = format!(
                    "item `{id}` has changed: the order was decided on epoch {expected}, and it is at epoch {seen} now; nothing was \
                     changed, look again"
                );
                return Err(Error::new(Kind::Fenced, message));
            }
            let (epoch, token) = match asked {
                Asked::Retry(past) => (spool.retry(&id, &by, &why, past)?.epoch, None),
                Asked::Cancel => (spool.cancel(&id, &by, &why)?.epoch, None),
                Asked::HandOff(to) => {
                    let token = spool.hand_off(&id, &by, &why, &to, ttl)?;
                    (token.epoch, Some(token))
                }
            };
            (epoch, token, view::spooled_now(&spool, &id))
        }
    };
    let handed_off = token.is_some();
    let text = match token {
        _ if common.json => {
            let mut value = value;
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
