//! Orders about many dead letters of one reason: they are counted and shown first, then these and no others are acted on.
//!
//! Promise: the form names each item with the epoch that it was counted at. Newcomers are not in it; what has changed since is
//! left as it is, and counted. An order that has begun continues after its browser disconnects, and the log has the beginning and
//! the end of each purge. Non-promise: one order is not one step. What was done before the store failed stays done.

use super::budget::BULK;
use super::form::{Fields, in_query};
use super::frame::{self, Frame};
use super::lease::Notice;
use super::notice;
use super::queues::{DeadLetters, queue_in, search};
use super::times::thousands;
use super::visit::Visit;
use crate::access::{KeyId, Verb};
use crate::serve::{Problem, Waiter};
use askama::Template;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery};
use axum::http::StatusCode;
use axum::response::Response;
use leasehold_core::item::{Item, ItemName, QueueName};
use leasehold_core::{Epoch, Error, Kind, LeaseName, Who, Why};
use leasehold_work::queue::{ItemId, Queue, protocol};
use std::collections::HashMap;

/// What is done to many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BulkOrder {
    /// Put back in line, with all their attempts.
    Retry,
    /// Removed for good, with payload and history.
    Purge,
}

impl BulkOrder {
    fn parse(word: &str) -> Result<Self, Error> {
        match word {
            "retry" => Ok(BulkOrder::Retry),
            "purge" => Ok(BulkOrder::Purge),
            other => Err(Error::invalid("order", other, "there is no such order here")),
        }
    }

    const fn word(self) -> &'static str {
        match self {
            BulkOrder::Retry => "retry",
            BulkOrder::Purge => "purge",
        }
    }

    const fn label(self) -> &'static str {
        match self {
            BulkOrder::Retry => "Retry",
            BulkOrder::Purge => "Purge",
        }
    }

    const fn explain(self) -> &'static str {
        match self {
            BulkOrder::Retry => "Puts them back in line, with all their attempts.",
            BulkOrder::Purge => {
                "Removes them for good, with their payloads and histories. One that was given up within the last minute stays."
            }
        }
    }
}

/// Where the dead letters of a reason are counted for an order, from the same items on that the queue's page looked at.
pub fn address(frame: &Frame, queue: &QueueName, order: BulkOrder, reason: &str, after: Option<&LeaseName>) -> String {
    let address = frame.to(format!("queue/{queue}/dead-letters"));
    let after = after.map(|after| format!("&after={}", in_query(after.as_str()))).unwrap_or_default();
    format!("{address}?order={}&reason={}{after}", order.word(), in_query(reason))
}

#[derive(Template)]
#[template(path = "dead-letters.html")]
struct ConfirmPage {
    frame: Frame,
    queue: String,
    reason: String,
    order: &'static str,
    label: &'static str,
    explain: &'static str,
    is_grave: bool,
    count: String,
    is_one: bool,
    /// How many there are, if that is more than one order takes.
    of: Option<String>,
    looked_at: String,
    is_partial: bool,
    items: String,
    action: String,
    /// What was typed and what is wrong with it.
    why: String,
    refused: Option<String>,
}

impl ConfirmPage {
    fn new(visit: &Visit, queue: &QueueName, order: BulkOrder, reason: &str, count: usize, items: String) -> Self {
        ConfirmPage {
            queue: queue.to_string(),
            reason: reason.to_owned(),
            order: order.word(),
            label: order.label(),
            explain: order.explain(),
            is_grave: order == BulkOrder::Purge,
            count: thousands(count as u64),
            is_one: count == 1,
            of: None,
            looked_at: String::new(),
            is_partial: false,
            items,
            action: visit.frame.to(format!("queue/{queue}/dead-letters")),
            why: String::new(),
            refused: None,
            frame: visit.frame.clone(),
        }
    }
}

/// Counts, and asks for a reason.
pub async fn confirm(
    visit: Visit,
    Path(path): Path<HashMap<String, String>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let name = queue_in(&path)?;
    visit.caller.may(Verb::Operate, &visit.namespace, Some(name.as_str()))?;
    visit.reads(name.as_str())?;
    let fields = Fields::of_query(query.as_deref());
    let order = BulkOrder::parse(fields.get("order").unwrap_or_default())?;
    let reason = fields.exact("reason").unwrap_or_default();
    let after = fields.get("after").and_then(|name| LeaseName::new(name).ok());
    let queue = Queue::new(visit.coordinator.store().clone(), name.clone());
    let DeadLetters { mut dead, looked_at, next, .. } = search(&queue, after).await?;
    let letters = dead.remove(reason).unwrap_or_default();
    let meant = letters.len().min(BULK);
    let page = ConfirmPage {
        of: (meant < letters.len()).then(|| thousands(letters.len() as u64)),
        looked_at: thousands(looked_at),
        is_partial: next.is_some(),
        ..ConfirmPage::new(&visit, &name, order, reason, meant, written(&letters[..meant]))
    };
    Ok(frame::send(StatusCode::OK, &page))
}

/// Items with the epochs that they were counted at, as the form carries them.
fn written(letters: &[(ItemName, Item)]) -> String {
    let one = |(name, item): &(ItemName, Item)| format!("{}@{}", name.id, item.epoch);
    letters.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn counted(text: &str) -> Result<Vec<(ItemId, Epoch)>, Problem> {
    let wrong = || Problem::invalid("field `items`: it is not what the page counted; open the queue and count again");
    let one = |item: &str| -> Result<(ItemId, Epoch), Problem> {
        let (id, epoch) = item.rsplit_once('@').ok_or_else(wrong)?;
        Ok((id.parse().map_err(|_| wrong())?, epoch.parse().map_err(|_| wrong())?))
    };
    let items: Vec<_> = text.split_ascii_whitespace().take(BULK + 1).map(one).collect::<Result<_, Problem>>()?;
    if items.is_empty() || items.len() > BULK { Err(wrong()) } else { Ok(items) }
}

/// What came of an order about many.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Acted {
    done: u64,
    left: u64,
}

/// Acts on what was counted.
pub async fn act(
    visit: Visit,
    permit: Waiter,
    Path(path): Path<HashMap<String, String>>,
    body: Bytes,
) -> Result<Response, Problem> {
    let name = queue_in(&path)?;
    let fields = Fields::of_body(&body)?;
    visit.check(fields.get("token").unwrap_or_default()).await?;
    visit.caller.may(Verb::Operate, &visit.namespace, Some(name.as_str()))?;
    let order = BulkOrder::parse(fields.get("order").unwrap_or_default())?;
    let items = counted(fields.get("items").unwrap_or_default())?;
    let why = match fields.why() {
        Ok(why) => why,
        Err(error) => return Ok(ask_again(&visit, &name, order, &fields, items.len(), &error)),
    };
    let of = items.len() as u64;
    let queue = Queue::new(visit.coordinator.store().clone(), name.clone());
    let work = Work { queue, order, items, who: visit.who(), key: visit.caller.key.clone(), why };
    // To its end, whether or not the browser still waits. It keeps its permit among the requests under way for as long.
    let working = tokio::spawn(async move {
        let ended = work.carry_out().await;
        drop(permit);
        ended
    });
    let (acted, trouble) = working.await.map_err(|_| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the order broke off; count again to see what is left",
        )
    })?;
    if let Some(error) = trouble {
        return Err(broken_off(order, acted, of, error));
    }
    let Acted { done, left } = acted;
    let told = format!("done={}&items={done}&left={left}", order.word());
    Ok(notice::and_tell(&visit.frame.to(format!("queue/{name}")), &told))
}

/// The same form with what was typed, and what is wrong with it.
fn ask_again(
    visit: &Visit,
    name: &QueueName,
    order: BulkOrder,
    fields: &Fields,
    count: usize,
    error: &Error,
) -> Response {
    let page = ConfirmPage {
        refused: Some(error.to_string()),
        why: fields.exact("why").unwrap_or_default().to_owned(),
        ..ConfirmPage::new(
            visit,
            name,
            order,
            fields.exact("reason").unwrap_or_default(),
            count,
            fields.get("items").unwrap_or_default().to_owned(),
        )
    };
    frame::send(StatusCode::BAD_REQUEST, &page)
}

/// An order that was confirmed.
struct Work {
    queue: Queue,
    order: BulkOrder,
    items: Vec<(ItemId, Epoch)>,
    who: Who,
    key: KeyId,
    why: Why,
}

impl Work {
    /// Acts on one after the other until the store fails. What is purged has no history, so the log says who removed it and why:
    /// before the first item, because a server may be killed before the last.
    async fn carry_out(&self) -> (Acted, Option<Error>) {
        let (key, queue, why) = (self.key.as_str(), self.queue.name().as_str(), self.why.as_str());
        let is_purge = self.order == BulkOrder::Purge;
        if is_purge {
            let counted = self.items.len();
            tracing::info!(key, queue, counted, why, "purging {counted} dead letters of `{queue}` for {key}: {why}");
        }
        let (mut acted, mut trouble) = (Acted::default(), None);
        for (id, epoch) in &self.items {
            match self.one(id, *epoch).await {
                Ok(true) => acted.done += 1,
                Ok(false) => acted.left += 1,
                Err(error) => {
                    trouble = Some(error);
                    break;
                }
            }
        }
        if is_purge {
            let Acted { done: items, left } = acted;
            match &trouble {
                None => tracing::info!(
                    key,
                    queue,
                    items,
                    left,
                    why,
                    "purged {items} dead letters of `{queue}` for {key}: {why}"
                ),
                Some(error) => {
                    tracing::warn!(key, queue, items, left, why, "purging `{queue}` for {key} was interrupted: {error}")
                }
            }
        }
        (acted, trouble)
    }

    /// Acts on one; false if it is no longer as it was counted, or must stay.
    async fn one(&self, id: &ItemId, epoch: Epoch) -> Result<bool, Error> {
        let ordered = match self.order {
            BulkOrder::Purge => return self.queue.purge_dead_letter(id, epoch).await,
            BulkOrder::Retry => {
                let order = protocol::Order::Retry { past: None };
                self.queue.operate(id, self.who.clone(), self.why.clone(), Some(epoch), order).await
            }
        };
        match ordered {
            Ok(_) => Ok(true),
            // Refused on the record as it is now: another epoch, finished otherwise, or gone.
            Err(error) if matches!(error.kind(), Kind::Fenced | Kind::Lost | Kind::Invalid) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn broken_off(order: BulkOrder, acted: Acted, of: u64, error: Error) -> Problem {
    if acted == Acted::default() {
        return error.into();
    }
    let Acted { done, left } = acted;
    let rest = of - done - left;
    let told = told(order, done, left);
    let message = format!("{told} Then it was interrupted, and {rest} were not or perhaps not acted on; count again");
    Error::new(error.kind(), message).with_source(error).into()
}

/// What the numbers of a notice stand for, after an order was carried out.
pub fn by_numbers(fields: &Fields) -> Option<Notice> {
    let order = BulkOrder::parse(fields.get("done")?).ok()?;
    let number = |name: &str| fields.get(name)?.parse::<u64>().ok();
    Some(Notice::good(told(order, number("items")?, number("left")?)))
}

fn told(order: BulkOrder, done: u64, left: u64) -> String {
    let letters = |count: u64| {
        if count == 1 { "1 dead letter is".into() } else { format!("{} dead letters are", thousands(count)) }
    };
    let done = match order {
        BulkOrder::Retry => format!("{} back in line.", letters(done)),
        BulkOrder::Purge => format!("{} removed.", letters(done)),
    };
    let left = match (order, left) {
        (_, 0) => return done,
        (BulkOrder::Retry, 1) => "1 had changed meanwhile and is left as it is.".to_owned(),
        (BulkOrder::Retry, many) => format!("{} had changed meanwhile and are left as they are.", thousands(many)),
        (BulkOrder::Purge, 1) => {
            "1 had changed meanwhile, or was given up within the last minute, and is left.".to_owned()
        }
        (BulkOrder::Purge, many) => {
            format!("{} had changed meanwhile, or were given up within the last minute, and are left.", thousands(many))
        }
    };
    format!("{done} {left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_says_how_many_were_done_and_how_many_had_changed() {
        assert_eq!(told(BulkOrder::Retry, 35, 0), "35 dead letters are back in line.");
        let some = "1,035 dead letters are back in line. 2 had changed meanwhile and are left as they are.";
        assert_eq!(told(BulkOrder::Retry, 1_035, 2), some);
        assert!(told(BulkOrder::Purge, 1, 1).starts_with("1 dead letter is removed. 1 had changed meanwhile"));
    }

    #[test]
    fn only_what_a_page_counted_is_read() {
        let id = "0123456789a0000deadbeef";
        let items = counted(&format!("{id}@3 k.sent-3@1")).unwrap();
        assert_eq!(
            items.iter().map(|(id, epoch)| (id.as_str(), epoch.get())).collect::<Vec<_>>(),
            [(id, 3), ("k.sent-3", 1)]
        );
        for wrong in
            [String::new(), id.to_owned(), format!("{id}@x"), "x@1".to_owned(), format!("{id}@1 ").repeat(BULK + 1)]
        {
            assert!(counted(&wrong).is_err(), "{wrong:.80}");
        }
        assert_eq!(counted(&format!("{id}@1 ").repeat(BULK)).unwrap().len(), BULK);
    }
}
