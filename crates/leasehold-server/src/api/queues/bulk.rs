//! Orders on many items at once: first they are counted, then what was counted is acted on.
//!
//! Promise: nothing that was not counted is touched: a confirmation is sealed by the server that counted. What was counted and has
//! changed since is left as it is. An order that has begun continues after its client disconnects. Non-promise: a confirmation does
//! not expire, and whoever may give the order may send that of somebody else.

use crate::access::Verb;
use crate::access::seal::Seal;
use crate::api::asked::Asked;
use crate::api::reading::{duration, field, read};
use crate::api::values::Time;
use crate::serve::{Json, Problem};
use axum::body::Bytes;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold_core::{Error, LeaseName, Nonce, Timestamp, Who, Why};
use leasehold_stores::Namespace;
use leasehold_work::queue::protocol::Order;
use leasehold_work::queue::{Item, ItemName, Queue, State};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

const PAGE: usize = 500;
/// How many items one count reads, and one retry puts back.
const MAX_COUNTED: usize = 100_000;
/// How many items one confirmation of a retry names: as text that is some 70 KB, which a shell's argument can hold.
const MAX_NAMED: usize = 5_000;
const MAX_RETRIED: usize = 1_000;
const MAX_AGE: Duration = Duration::from_secs(366 * 86_400 * 10);
const LEAST_AGE: Duration = Duration::from_secs(60);

/// An order on many items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Put dead letters back in line.
    Retry,
    /// Remove what is finished.
    Purge,
}

impl Act {
    const fn word(self) -> &'static str {
        match self {
            Act::Retry => "retry",
            Act::Purge => "purge",
        }
    }
}

/// An order whose items are to be counted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Counting {
    /// The order.
    act: Act,
    /// Of dead letters, only those with this reason.
    reason: Option<String>,
    /// Of what is to be purged, only what was finished so long ago, such as `30d`: at least 1m.
    older_than: Option<String>,
    /// Whether dead letters are purged too.
    #[serde(default)]
    with_dead: bool,
}

/// How many items an order would act on, and what confirms it.
#[derive(Debug, Serialize, ToSchema)]
pub struct Counted {
    /// The order that was counted for.
    act: Act,
    /// The number of items.
    count: u64,
    /// Whether all items of the queue were read. If not, the others are not touched: count again when this is done.
    exact: bool,
    /// What confirms it: give this to `retry` or `purge`.
    confirm: String,
    /// The store's time of the count.
    at: Time,
}

/// What a confirmation says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Confirmation {
    queue: String,
    act: Act,
    until: u64,
    reason: Option<String>,
    with_dead: bool,
    through: Option<String>,
    after: Option<String>,
    /// Of a retry: what was counted, in order. An item's time would not do: it is the time of the decision, which is before the
    /// write and, as estimated by whoever decided, up to a round trip after the store's.
    #[serde(with = "marks")]
    counted: Vec<Mark>,
}

/// An item as it was counted: the beginning of the hash of its name and epoch.
type Mark = [u8; 8];

fn mark(name: &ItemName, item: &Item) -> Mark {
    let hash = digest(&SHA256, format!("{name} {}", item.epoch).as_bytes());
    std::array::from_fn(|at| hash.as_ref()[at])
}

mod marks {
    use super::{Engine, Mark, URL_SAFE_NO_PAD};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(marks: &[Mark], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&URL_SAFE_NO_PAD.encode(marks.as_flattened()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Mark>, D::Error> {
        let bytes = URL_SAFE_NO_PAD.decode(String::deserialize(deserializer)?).map_err(Error::custom)?;
        let (marks, rest) = bytes.as_chunks();
        if rest.is_empty() && marks.is_sorted() {
            Ok(marks.to_vec())
        } else {
            Err(Error::custom("not a list of marks"))
        }
    }
}

impl Confirmation {
    fn seal(&self, seal: &Seal, namespace: &Namespace) -> Result<String, Error> {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        seal.confirmation(&[namespace.as_str(), &self.queue, self.act.word()], bytes)
    }

    async fn read(text: &str, asked: &Asked, queue: &Queue, act: Act) -> Result<Self, Problem> {
        let order = [asked.namespace.as_str(), queue.name().as_str(), act.word()];
        let bytes = asked.site.seal().await?.counted(&order, text);
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or_else(|| {
            let detail = "field `confirm`: it is not what counting this queue for this act answered; count first";
            Problem::invalid(detail).with("field", "confirm")
        })
    }

    fn has(&self, name: &ItemName, item: &Item) -> bool {
        self.is_meant(item) && self.counted.binary_search(&mark(name, item)).is_ok()
    }

    fn is_meant(&self, item: &Item) -> bool {
        item.relocation.is_none() && self.covers(&item.state)
    }

    fn covers(&self, state: &State) -> bool {
        let is_old = || state.finished_at().is_some_and(|at| at <= Timestamp::from_millis(self.until));
        match (self.act, state) {
            (Act::Retry, State::Dead { why, .. }) => self.reason.as_deref().is_none_or(|reason| reason == why.as_str()),
            (Act::Retry, _) => false,
            (Act::Purge, State::Dead { .. }) => self.with_dead && is_old(),
            (Act::Purge, _) => is_old(),
        }
    }
}

/// Counts what an order on many items would act on.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/bulk/count", tag = "operators", request_body = Counting,
    responses((status = 200, description = "How many, and what confirms it.", body = Counted)))]
pub async fn count(asked: Asked, body: Bytes) -> Result<Json<Counted>, Problem> {
    asked.queue_name(Verb::Operate)?;
    let Counting { act, reason, older_than, with_dead } = read(&body)?;
    let age = duration("older_than", older_than, MAX_AGE)?;
    let is_unfit = match act {
        Act::Retry => age.is_some() || with_dead,
        Act::Purge => reason.is_some() || age.is_none_or(|age| age < LEAST_AGE),
    };
    if is_unfit {
        let detail = "to purge, give `older_than` of 1m or more and perhaps `with_dead`; to retry, give neither, and perhaps `reason`";
        return Err(Problem::invalid(detail).with("field", "act"));
    }
    let queue = asked.queue(Verb::Operate).await?;
    let mut wanted = Confirmation {
        queue: queue.name().to_string(),
        act,
        until: 0,
        reason,
        with_dead,
        through: None,
        after: None,
        counted: Vec::new(),
    };
    let (mut after, mut read, mut count) = (None, 0, 0);
    let now = loop {
        let page = queue.list(after.as_ref(), PAGE).await?;
        if wanted.until == 0 {
            let back = crate::api::values::millis(age.unwrap_or_default());
            wanted.until = page.now.as_millis().saturating_sub(back);
        }
        read += PAGE;
        for (name, item) in &page.entries {
            let Some(item) = item.as_ref().ok().filter(|item| wanted.is_meant(item)) else { continue };
            count += 1;
            if act == Act::Retry {
                wanted.counted.push(mark(name, item));
            }
        }
        match page.next {
            None => break page.now,
            Some(next) if read >= MAX_COUNTED || wanted.counted.len() + PAGE > MAX_NAMED => {
                if act == Act::Purge {
                    let detail = format!(
                        "the queue has more than {MAX_COUNTED} items; purge it where its store is, with `leasehold queue purge`"
                    );
                    return Err(crate::api::problems::conflict("too_many", detail));
                }
                wanted.through = Some(next.to_string());
                break page.now;
            }
            Some(next) => after = Some(next),
        }
    };
    wanted.counted.sort_unstable();
    let confirm = wanted.seal(asked.site.seal().await?, &asked.namespace)?;
    let exact = wanted.through.is_none();
    Ok(Json(Counted { act, count, exact, confirm, at: now.into() }))
}

/// A confirmed count, and the reason for the order.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Confirmed {
    /// The `confirm` of a count, or the `next` of an earlier answer.
    confirm: String,
    /// For the items' histories, in one line.
    why: String,
}

/// How much of an order has been carried out.
#[derive(Debug, Serialize, ToSchema)]
pub struct Acted {
    /// The number of items.
    done: u64,
    /// How many items were left alone, because they had changed or could not be read.
    skipped: u64,
    /// There may be more of what was counted: give this as `confirm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Puts back in line what was counted, up to 1000 items at a time.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/bulk/retry", tag = "operators", request_body = Confirmed,
    responses((status = 200, description = "What was done.", body = Acted)))]
pub async fn retry(asked: Asked, body: Bytes) -> Result<Json<Acted>, Problem> {
    asked.queue_name(Verb::Operate)?;
    let Confirmed { confirm, why } = read(&body)?;
    let why = field("why", Why::named("why", why))?;
    let queue = asked.queue(Verb::Operate).await?;
    let mut wanted = Confirmation::read(&confirm, &asked, &queue, Act::Retry).await?;
    let after: Option<LeaseName> = field("confirm", wanted.after.clone().map(LeaseName::new).transpose())?;
    let who = asked.who();
    let (mut acted, next) = retry_all(&queue, &wanted, after, &who, &why).await?;
    wanted.after = next.as_ref().map(ToString::to_string);
    if next.is_some() {
        acted.next = Some(wanted.seal(asked.site.seal().await?, &asked.namespace)?);
    }
    Ok(Json(acted))
}

/// Puts back in line what was counted, from this name on; where to continue if there may be more.
async fn retry_all(
    queue: &Queue,
    wanted: &Confirmation,
    mut after: Option<LeaseName>,
    who: &Who,
    why: &Why,
) -> Result<(Acted, Option<LeaseName>), Error> {
    let mut acted = Acted { done: 0, skipped: 0, next: None };
    loop {
        let page = queue.list(after.as_ref(), PAGE).await?;
        for (name, item) in &page.entries {
            let Ok(item) = item else { continue };
            if !wanted.has(name, item) {
                continue;
            }
            let (nonce, order) = (Nonce::random(), Order::Retry { past: None });
            match queue.operate_as(nonce, &name.id, who.clone(), why.clone(), Some(item.epoch), order).await {
                Ok(_) => acted.done += 1,
                Err(error) if error.is_retryable() && acted.done == 0 && acted.skipped == 0 => return Err(error),
                Err(_) => acted.skipped += 1,
            }
        }
        let is_beyond = |next: &LeaseName| wanted.through.as_ref().is_some_and(|last| next.as_str() >= last.as_str());
        match page.next.filter(|next| !is_beyond(next)) {
            None => return Ok((acted, None)),
            Some(next) if acted.done + acted.skipped >= MAX_RETRIED as u64 => return Ok((acted, Some(next))),
            Some(next) => after = Some(next),
        }
    }
}

/// Removes what was counted. The keys of removed items may be used again.
#[utoipa::path(post, path = "/v1/ns/{namespace}/queues/{queue}/bulk/purge", tag = "operators", request_body = Confirmed,
    responses((status = 200, description = "What was done.", body = Acted)))]
pub async fn purge(asked: Asked, body: Bytes) -> Result<Json<Acted>, Problem> {
    asked.queue_name(Verb::Operate)?;
    let Confirmed { confirm, why } = read(&body)?;
    let why = field("why", Why::named("why", why))?;
    let queue = asked.queue(Verb::Operate).await?;
    let wanted = Confirmation::read(&confirm, &asked, &queue, Act::Purge).await?;
    let (key, queue_name, why) = (asked.caller.key.as_str(), wanted.queue.as_str(), why.as_str());
    // What is gone has no history to write it in, and a server may be killed before the last item.
    let (until, with_dead) = (wanted.until, wanted.with_dead);
    tracing::info!(key, queue = queue_name, until, with_dead, why, "purging items of `{queue_name}` for {key}: {why}");
    let purged = queue.purge(LEAST_AGE, |state| wanted.covers(state)).await;
    match &purged {
        Ok(purged) => {
            let items = purged.items;
            tracing::info!(
                key,
                queue = queue_name,
                items,
                why,
                "purged items of `{queue_name}` for {key}: {items}; {why}"
            );
        }
        Err(error) => {
            tracing::warn!(key, queue = queue_name, why, "purging `{queue_name}` for {key} was interrupted: {error}")
        }
    }
    let done = purged?;
    Ok(Json(Acted { done: done.items as u64, skipped: done.troubles.len() as u64, next: None }))
}
