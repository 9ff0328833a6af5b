//! An operator's orders: what is offered for a record as it was seen, and what comes of it.
//!
//! Promise: an order is given with a reason, by the key's label and id, on the epoch that the form was made from. A record that
//! has moved on since refuses it, and the page shows what it is now.

use super::form::Fields;
use super::item::Shown;
use super::lease::{self, Notice, name_in};
use super::visit::Visit;
use super::{item, notice, runs};
use crate::access::Verb;
use crate::serve::Problem;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use leasehold_core::item::{Item, State};
use leasehold_core::lease::protocol::Order;
use leasehold_core::{Epoch, Error, Kind, Label, LeaseName, Nonce, Operated, Ownership, Timestamp, Ttl};
use leasehold_work::queue::{ItemId, Queue, protocol};
use leasehold_work::schedule::requests::NewRequest;
use std::collections::HashMap;

/// How long a new holder has a lease that is handed off, if nothing else is asked for.
const HAND_OFF: &str = "5m";

/// A form for one order.
#[derive(Debug, Clone)]
pub struct OrderForm {
    /// The order, as the form sends it: `revoke`, `hand-off` and so on.
    pub word: &'static str,
    /// What its button says.
    pub label: &'static str,
    /// What the order does, in a sentence for people.
    pub explain: &'static str,
    /// Whether somebody loses something by it.
    pub is_grave: bool,
    /// Whether it cannot be given now. Its button stays in its place, so that no other moves there.
    pub is_off: bool,
    /// The epoch that was seen.
    pub epoch: u64,
    /// Fields besides the reason.
    pub fields: Vec<Field>,
    /// The pause that was seen, for the order that ends it.
    pub pause: Option<String>,
    /// The reason, as far as it was typed.
    pub why: String,
    /// Whether its form is open from the beginning.
    pub is_open: bool,
}

/// A field of a form.
#[derive(Debug, Clone)]
pub struct Field {
    /// The name that the form sends it under.
    pub name: &'static str,
    /// What it says beside it.
    pub label: &'static str,
    /// What is in it at first.
    pub value: String,
}

/// What came of an order that was given on a page, for that page to show.
pub struct Given<'a> {
    /// What came of it, or what is wrong with it, in words.
    pub told: Option<Notice>,
    /// How the page is answered.
    pub status: StatusCode,
    /// What was typed, if nothing was done: it is offered again.
    pub typed: Option<&'a Fields>,
}

impl Given<'_> {
    /// No order, or one that was carried out.
    pub fn told(told: Option<Notice>) -> Self {
        Given { told, status: StatusCode::OK, typed: None }
    }

    /// Puts what was typed into the form that it was typed in, or tells it if that order is no longer offered.
    pub fn fill(&mut self, mut orders: Vec<OrderForm>) -> Vec<OrderForm> {
        let Some(typed) = self.typed else { return orders };
        let why = typed.exact("why").unwrap_or_default();
        let same = orders.iter_mut().find(|order| Some(order.word) == typed.get("order") && !order.is_off);
        if let Some(order) = same {
            (order.is_open, order.why) = (true, why.to_owned());
            for field in &mut order.fields {
                field.value = typed.exact(field.name).unwrap_or_default().to_owned();
            }
        } else if let Some(told) = self.told.as_mut().filter(|_| !why.trim().is_empty()) {
            told.text.push_str(&format!(" You wrote: {why}"));
        }
        orders
    }
}

impl OrderForm {
    const fn new(word: &'static str, label: &'static str, epoch: u64, explain: &'static str) -> Self {
        OrderForm {
            word,
            label,
            explain,
            is_grave: false,
            is_off: false,
            epoch,
            fields: Vec::new(),
            pause: None,
            why: String::new(),
            is_open: false,
        }
    }

    /// Where the reason is read.
    pub fn place_of_why(&self) -> &'static str {
        match self.word {
            "drain" | "pause" | "resume" | "trigger" => "shown on this page",
            _ => "for the history",
        }
    }

    fn grave(self) -> Self {
        OrderForm { is_grave: true, ..self }
    }

    /// The same, if it cannot be given now.
    fn off_unless(self, is_possible: bool) -> Self {
        OrderForm { is_off: !is_possible, ..self }
    }

    fn with(self, name: &'static str, label: &'static str, value: &'static str) -> Self {
        let field = Field { name, label, value: value.to_owned() };
        OrderForm { fields: self.fields.into_iter().chain([field]).collect(), ..self }
    }
}

/// What can be ordered about a lease.
pub fn lease_orders(record: &Ownership, now: Timestamp) -> Vec<OrderForm> {
    if record.relocation.is_some() {
        return Vec::new();
    }
    let epoch = record.epoch.get();
    let is_held = record.live_tenure(now).is_some();
    let drain = "Asks the holder to finish, and lets nobody new in meanwhile.";
    let hand_off = "Takes it from whoever has it and gives it to a new holder, whose token is shown once. The new holder loses it \
                    when this time is over, unless it renews it before.";
    let revoke =
        "The running command is killed at once. Anyone may acquire the lease next; stale writes are refused by guards.";
    let drain = OrderForm::new("drain", "Ask to finish", epoch, drain).with("within", "Within", "10m");
    let mut orders = vec![drain.off_unless(is_held)];
    orders.extend(pause_orders(record));
    let hand_off = OrderForm::new("hand-off", "Hand off", epoch, hand_off)
        .with("to", "New holder", "")
        .with("ttl", "For", HAND_OFF);
    let revoke = OrderForm::new("revoke", "Revoke", epoch, revoke);
    orders.extend([hand_off, revoke].map(|order| order.grave().off_unless(is_held)));
    orders
}

/// What can be ordered about a job: that its lease is kept from new holders, or no longer.
pub fn pause_orders(record: &Ownership) -> Vec<OrderForm> {
    let epoch = record.epoch.get();
    vec![match &record.paused {
        None => OrderForm::new("pause", "Pause", epoch, "Blocks new holders. The current holder is not affected."),
        Some(paused) => OrderForm {
            pause: Some(paused.nonce.to_string()),
            ..OrderForm::new("resume", "Resume", epoch, "Lets holders in again.")
        },
    }]
}

/// What can be ordered about a job that somebody could run now.
pub fn job_orders(record: &Ownership, now: Timestamp, can_be_asked_for: bool) -> Vec<OrderForm> {
    let is_free = record.live_tenure(now).is_none() && record.paused.is_none() && record.live_drain(now).is_none();
    // First what is always there, so that it stays in its place.
    let mut orders = pause_orders(record);
    if can_be_asked_for && is_free && record.relocation.is_none() {
        let explain =
            "Asks the schedulers to run it now. It does not use up a regular slot, and one of them runs it once.";
        orders.push(OrderForm::new("trigger", "Run now", record.epoch.get(), explain));
    }
    orders
}

/// What can be ordered about an item.
pub fn item_orders(item: &Item) -> Vec<OrderForm> {
    if item.relocation.is_some() {
        return Vec::new();
    }
    let epoch = item.epoch.get();
    let retry = OrderForm::new("retry", "Retry", epoch, "Puts it back in line, with all its attempts.");
    let cancel = OrderForm::new("cancel", "Cancel", epoch, "Takes it out of the line, for good.").grave();
    let (can_retry, can_cancel) = match item.state {
        State::Dead { .. } => (true, true),
        State::Cancelled { .. } => (true, false),
        State::Ready | State::Claimed(_) => (false, true),
        State::Done { .. } | State::Purged { .. } => return Vec::new(),
    };
    vec![retry.off_unless(can_retry), cancel.off_unless(can_cancel)]
}

/// Reads a form and refuses whoever may not send it.
async fn allowed(visit: &Visit, name: &str, body: &Bytes) -> Result<(Fields, Epoch), Problem> {
    let fields = Fields::of_body(body)?;
    visit.check(fields.get("token").unwrap_or_default()).await?;
    visit.caller.may(Verb::Operate, &visit.namespace, Some(name))?;
    let epoch = fields.get("epoch").unwrap_or_default().parse::<Epoch>()?;
    Ok((fields, epoch))
}

/// An order about a lease.
pub async fn on_lease(
    visit: Visit,
    Path(path): Path<HashMap<String, String>>,
    body: Bytes,
) -> Result<Response, Problem> {
    let name = name_in(&path)?;
    let (fields, epoch) = allowed(&visit, name.as_str(), &body).await?;
    match give(&visit, &name, &fields, epoch, true).await {
        Ok(None) => Ok(done(&visit.frame.to(format!("lease/{name}")), &fields)),
        Ok(Some(token)) => {
            let ttl = fields.get("ttl").unwrap_or(HAND_OFF);
            let text = format!(
                "Handed off for {ttl}, unless it is renewed. This is the new holder's token; it is shown this once."
            );
            let told = Notice { token: Some(token), ..Notice::good(text) };
            lease::show(&visit, &name, Given::told(Some(told))).await
        }
        Err(error) => lease::show(&visit, &name, refused(error, &fields)?).await,
    }
}

/// An order about a job, which is one about its lease.
pub async fn on_job(visit: Visit, Path(path): Path<HashMap<String, String>>, body: Bytes) -> Result<Response, Problem> {
    let name = name_in(&path)?;
    let (fields, epoch) = allowed(&visit, name.as_str(), &body).await?;
    if fields.get("order") == Some("trigger") {
        return match trigger(&visit, &name, &fields, epoch).await? {
            None => Ok(done(&visit.frame.to(format!("job/{name}")), &fields)),
            Some(given) => runs::show(&visit, &name, None, given).await,
        };
    }
    match give(&visit, &name, &fields, epoch, false).await {
        Ok(_) => Ok(done(&visit.frame.to(format!("job/{name}")), &fields)),
        Err(error) => runs::show(&visit, &name, None, refused(error, &fields)?).await,
    }
}

/// Asks for a run of a job. If that is refused, what the page shows of it.
async fn trigger<'a>(
    visit: &Visit,
    job: &LeaseName,
    fields: &'a Fields,
    epoch: Epoch,
) -> Result<Option<Given<'a>>, Problem> {
    let why = match fields.why() {
        Ok(why) => why,
        Err(error) => return refused(error, fields).map(Some),
    };
    let new = NewRequest { id: Nonce::random(), job: job.clone(), epoch, by: visit.who(), why };
    match visit.ask_for_run(new).await {
        Ok(_) => Ok(None),
        Err(problem) if problem.status() == StatusCode::CONFLICT => {
            let text = format!(
                "Nothing was done: {}. The current state is shown below; review it and try again.",
                problem.detail()
            );
            Ok(Some(Given { told: Some(Notice::bad(text)), status: StatusCode::CONFLICT, typed: Some(fields) }))
        }
        Err(problem) => Err(problem),
    }
}

fn done(address: &str, fields: &Fields) -> Response {
    let order = super::form::in_query(fields.get("order").unwrap_or_default());
    notice::and_tell(address, &format!("done={order}"))
}

/// Gives an order about a lease; the token of the new holder for a hand-off.
async fn give(
    visit: &Visit,
    name: &LeaseName,
    fields: &Fields,
    epoch: Epoch,
    takes_away: bool,
) -> Result<Option<String>, Error> {
    let why = fields.why()?;
    let order = match fields.get("order").unwrap_or_default() {
        "pause" => Order::Pause,
        "resume" => Order::Resume { pause: fields.get("pause").unwrap_or_default().parse()? },
        "revoke" if takes_away => Order::Revoke,
        "drain" if takes_away => Order::Drain { within: fields.get("within").unwrap_or("10m").parse()? },
        "hand-off" if takes_away => {
            let to = Label::named("new holder", fields.get("to").unwrap_or_default())?;
            let to = visit.caller.holder(Some(to), Nonce::random());
            Order::HandOff { to, ttl: fields.get("ttl").unwrap_or(HAND_OFF).parse::<Ttl>()? }
        }
        other => return Err(Error::invalid("order", other, "there is no such order here")),
    };
    match visit.coordinator.operate_if(name, visit.who(), why, Some(epoch), order).await? {
        Operated::Done(_) => Ok(None),
        Operated::HandedOff(grant) => Ok(Some(grant.token().wire())),
        Operated::Refused(refusal) => {
            let message =
                format!("Nothing was done: {refusal}. The current state is shown below; review it and try again.");
            Err(Error::new(Kind::Fenced, message))
        }
    }
}

/// An order about an item.
pub async fn on_item(
    visit: Visit,
    Path(path): Path<HashMap<String, String>>,
    body: Bytes,
) -> Result<Response, Problem> {
    let (queue, id) = item::item_in(&path)?;
    let (fields, epoch) = allowed(&visit, queue.as_str(), &body).await?;
    let queue = Queue::new(visit.coordinator.store().clone(), queue);
    match order_item(&visit, &queue, &id, &fields, epoch).await {
        Ok(()) => Ok(done(&visit.frame.to(format!("item/{}/{id}", queue.name())), &fields)),
        Err(error) => item::show(&visit, &queue, &id, Shown::default(), refused(error, &fields)?).await,
    }
}

async fn order_item(visit: &Visit, queue: &Queue, id: &ItemId, fields: &Fields, epoch: Epoch) -> Result<(), Error> {
    let why = fields.why()?;
    let order = match fields.get("order").unwrap_or_default() {
        "retry" => protocol::Order::Retry { past: None },
        "cancel" => protocol::Order::Cancel,
        other => return Err(Error::invalid("order", other, "there is no such order here")),
    };
    queue.operate(id, visit.who(), why, Some(epoch), order).await.map(drop)
}

/// What is shown on the page itself: what was refused, or was wrong in the form. The rest is a problem of its own.
fn refused(error: Error, fields: &Fields) -> Result<Given<'_>, Problem> {
    let status = match error.kind() {
        Kind::Fenced | Kind::Lost | Kind::Contended => StatusCode::CONFLICT,
        Kind::Invalid => StatusCode::BAD_REQUEST,
        _ => return Err(error.into()),
    };
    Ok(Given { told: Some(Notice::bad(error.to_string())), status, typed: Some(fields) })
}
