//! What happens in a namespace, as a stream of server-sent events.
//!
//! Promise: an id is a time of the store's clock, in milliseconds: everything that happened up to it was sent. A client that
//! comes back with `Last-Event-ID` is sent what happened since, from the records themselves, and some of it again: an event is
//! known by its `what`, `name`, `epoch` and `at`. What the records no longer remember is told as `reset`: read again. A stream
//! ends when its key counts no more, or the server ends. Non-promise: no state is kept for a stream, so events come within a
//! second or so, and in a namespace of very many leases when it was gone through.

mod feed;
mod past;

use crate::api::asked::Asked;
use crate::api::cursor::{self, Beginnings};
use crate::api::reading::{Params, optional};
use crate::api::values::Time;
use crate::serve::{Problem, Site, Waiter, Waiting};
use axum::Extension;
use axum::http::header::{CACHE_CONTROL, HeaderMap, HeaderName};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use feed::{Batch, EventFeed, EventFeeds};
use futures_util::stream::{Stream, unfold};
use leasehold_core::{LeaseVerbs, NamePattern, Timestamp};
use past::Past;
use serde::{Deserialize, Serialize};
use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// How long ago a stream may have ended that is resumed.
const RESUMED: Duration = Duration::from_secs(3_600);
/// How many streams are resumed at once: each goes through the records, and holds what it finds.
const RESUMING: usize = 4;
/// How many events one of them is told, and how many all hold in memory; more is a `reset`.
const MOST_RESUMED: usize = 10_000;
const MOST_HELD: usize = 100_000;
/// How often a quiet stream gives a sign of life, and its id moves on.
const ALIVE: Duration = Duration::from_secs(15);

pub(super) fn routes() -> OpenApiRouter<Site> {
    OpenApiRouter::new()
        .routes(routes!(events))
        .layer(Extension(EventFeeds::default()))
        .layer(Extension(Resuming::new()))
}

/// What all streams of a server that are resumed share.
#[derive(Debug, Clone)]
pub struct Resuming {
    turns: Arc<Semaphore>,
    /// A permit for each event that is held.
    held: Arc<Semaphore>,
}

impl Resuming {
    fn new() -> Self {
        Resuming { turns: Arc::new(Semaphore::new(RESUMING)), held: Arc::new(Semaphore::new(MOST_HELD)) }
    }

    /// What one stream is resumed with, of which the feed may send again what is as new as `oldest`. None if all together would
    /// hold too much.
    fn hold(&self, events: &[Arc<EventData>], oldest: u64) -> Option<Resumed> {
        let permits = self.held.clone().try_acquire_many_owned(u32::try_from(events.len()).ok()?).ok()?;
        let sent = events.iter().filter(|event| event.at_ms >= oldest).cloned().collect();
        Some(Resumed { sent, permits: Some(permits) })
    }
}

/// What a stream that was resumed holds of the past: first all that it was resumed with, then what of it is so new that the feed
/// may send it again.
#[derive(Debug, Default)]
struct Resumed {
    sent: HashSet<Arc<EventData>>,
    /// One for each event, for as long as it is held.
    permits: Option<OwnedSemaphorePermit>,
}

impl Resumed {
    /// Whether the stream was resumed with this event, which the feed sends now.
    fn has_sent(&mut self, event: &EventData) -> bool {
        self.sent.remove(event)
    }

    /// Forgets what the feed does not send again. Nothing waits to be sent any more.
    fn forget_before(&mut self, oldest: u64) {
        self.sent.retain(|event| event.at_ms >= oldest);
        if self.sent.is_empty() {
            *self = Resumed::default();
        } else if let Some(permits) = &mut self.permits {
            let spare = permits.num_permits().saturating_sub(self.sent.len());
            drop(permits.split(spare));
        }
    }
}

/// Which events are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// Only of names like this: `*` stands for any characters, `?` for one.
    name: Option<String>,
}

/// What the data of an event is. `ready`, `reset` and `end` have no name when they are about the whole stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, ToSchema)]
pub struct EventData {
    /// `acquired`, `released`, `expired`, `revoked`, `handed_off`, `advanced`, `rewound`, `paused`, `resumed`, `draining` or
    /// `progress` of a lease; `run` of a job; `queue` of a queue to which work came; `ready`, `reset` or `end`.
    pub what: &'static str,
    /// The lease, job or queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The epoch that it happened under, or that it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// When it happened, in milliseconds of the store's clock.
    pub at_ms: u64,
    /// What the holder calls itself; of an `expired` or `released`, the holder that it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Who gave the order: the key's label and id, or what the command was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The operator's reason, why a lease was free, how a tenure ended, a marker, or why there is a `reset` or an `end`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Of a run, the slot, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_ms: Option<u64>,
}

impl EventData {
    fn about_the_stream(what: &'static str, at: Timestamp, why: Option<String>) -> Self {
        let at_ms = at.as_millis();
        EventData { what, name: None, epoch: None, at_ms, holder: None, by: None, why, slot_ms: None }
    }

    fn to_event(&self, id: Timestamp) -> Event {
        let data = serde_json::to_string(self).unwrap_or_default();
        Event::default().event(self.what).id(id.as_millis().to_string()).data(data)
    }
}

/// What happens to leases, jobs and queues, as it happens: server-sent events.
#[utoipa::path(get, path = "/v1/ns/{namespace}/events", tag = "events", params(Wanted),
    responses((status = 200, description = "A stream.", content_type = "text/event-stream", body = EventData)))]
pub async fn events(
    asked: Asked,
    Params(wanted): Params<Wanted>,
    Extension(feeds): Extension<EventFeeds>,
    Extension(resuming): Extension<Resuming>,
    waiter: Waiter,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    asked.lists()?;
    let pattern = optional("name", wanted.name, |name| name.parse::<NamePattern>())?;
    let last = last_event(&headers)?;
    let coordinator = asked.coordinator().await?;
    let now = LeaseVerbs::now(&coordinator).await?;
    let feed = feeds.feed(&asked.namespace, coordinator, now);
    // From here on nothing is missed, and what was before is looked for.
    let batches = feed.listen();
    let told = feed.now().await?;
    let mut waiting = waiter.begin()?;
    let _turn = match last {
        Some(_) => tokio::select! {
            turn = resuming.turns.clone().acquire_owned() => turn.ok(),
            over = waiting.over() => return Err(over.into()),
        },
        None => None,
    };
    let mut stream = Streaming {
        asked,
        pattern,
        feed,
        batches,
        waiting,
        ready: VecDeque::new(),
        resumed: Resumed::default(),
        told,
        telling: told,
    };
    match last {
        Some(last) => stream.resume(last, &resuming).await?,
        None => stream.tell("ready", None),
    }
    let events = Sse::new(stream.into_stream()).keep_alive(KeepAlive::new().interval(ALIVE));
    let unbuffered = HeaderName::from_static("x-accel-buffering");
    Ok(([(CACHE_CONTROL, "no-store"), (unbuffered, "no")], events).into_response())
}

fn last_event(headers: &HeaderMap) -> Result<Option<Timestamp>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let ms = value.to_str().ok().filter(|text| text.len() <= 16).and_then(|text| text.parse::<u64>().ok());
    match ms {
        Some(ms) => Ok(Some(Timestamp::from_millis(ms))),
        None => Err(Problem::invalid(
            "the header `Last-Event-ID` is not an id of an event stream; use the last one that a stream sent, or none",
        )
        .with("field", "Last-Event-ID")),
    }
}

/// One client's stream, and what it has still to be sent.
struct Streaming {
    asked: Asked,
    pattern: Option<NamePattern>,
    feed: Arc<EventFeed>,
    batches: Receiver<Arc<Batch>>,
    waiting: Waiting,
    ready: VecDeque<Arc<EventData>>,
    /// What was sent from the records, so that the feed does not say it again.
    resumed: Resumed,
    /// Everything up to this time was sent.
    told: Timestamp,
    /// The same, once `ready` is empty.
    telling: Timestamp,
}

impl Streaming {
    /// Looks for what happened since.
    async fn resume(&mut self, last: Timestamp, resuming: &Resuming) -> Result<(), Problem> {
        let now = self.told;
        let gap = now.saturating_since(last);
        if gap > RESUMED || last > now.plus(feed::OVERLAP) {
            let why =
                format!("the stream ended at {}, which is too long ago to be resumed; read again", Time::from(last).at);
            self.tell("reset", Some(why));
            return Ok(());
        }
        let text = self.pattern.as_ref().map(ToString::to_string).unwrap_or_default();
        let reach = Beginnings::of(self.asked.caller.scope()).within(cursor::prefix(&text));
        // What it is not to see is not held for it either.
        let past = self.feed.since(last, reach, MOST_RESUMED, &|name| self.is_for(name)).await?;
        let held = match past {
            Past::All(events) => {
                let events: Vec<_> = events.into_iter().map(Arc::new).collect();
                // The feed sends again only what happened recently.
                resuming.hold(&events, feed::told_since(now)).map(|resumed| (events, resumed))
            }
            Past::TooMany => None,
        };
        let Some((events, resumed)) = held else {
            let why = "too much happened since, or the namespace has too many leases to look for it; read again";
            self.tell("reset", Some(why.to_owned()));
            return Ok(());
        };
        if !events.is_empty() {
            (self.told, self.telling) = (last, now);
            self.resumed = resumed;
            self.ready.extend(events);
        }
        Ok(())
    }

    fn take(&mut self, event: &EventData) {
        if event.name.as_ref().is_some_and(|name| self.is_for(name)) {
            self.ready.push_back(Arc::new(event.clone()));
        }
    }

    /// Says something about the stream itself.
    fn tell(&mut self, what: &'static str, why: Option<String>) {
        self.ready.push_back(Arc::new(EventData::about_the_stream(what, self.told, why)));
    }

    /// Whether events of this name are wanted, and allowed.
    fn is_for(&self, name: &str) -> bool {
        let is_wanted = self.pattern.as_ref().is_none_or(|pattern| pattern.matches(name));
        is_wanted && self.asked.caller.sees(&self.asked.namespace, name)
    }

    fn into_stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        unfold(Some(self), |stream| async move {
            let mut stream = stream?;
            loop {
                if let Some(event) = stream.ready.pop_front() {
                    // A client that is cut off in between comes back for the rest.
                    if stream.ready.is_empty() {
                        stream.resumed.forget_before(feed::told_since(stream.telling));
                        stream.told = stream.told.max(stream.telling);
                    }
                    return Some((Ok(event.to_event(stream.told)), Some(stream)));
                }
                tokio::select! {
                    batch = stream.batches.recv() => match batch {
                        Ok(batch) => {
                            let is_quiet = !stream.take_batch(&batch);
                            if is_quiet && batch.through.saturating_since(stream.told) >= ALIVE {
                                stream.told = batch.through;
                                // Without data nothing is dispatched, and the id moves on.
                                let id = Event::default().id(stream.told.as_millis().to_string());
                                return Some((Ok(id), Some(stream)));
                            }
                        }
                        Err(RecvError::Lagged(_)) => {
                            let why = "the client reads too slowly; read again".to_owned();
                            stream.tell("reset", Some(why));
                        }
                        Err(RecvError::Closed) => return None,
                    },
                    over = stream.waiting.over() => {
                        let problem = Problem::from(over);
                        let why = problem.to_json()["kind"].as_str().map(str::to_owned);
                        let end = EventData::about_the_stream("end", stream.told, why);
                        return Some((Ok(end.to_event(stream.told)), None));
                    }
                }
            }
        })
    }

    /// Takes in what the feed found; says whether there was anything to send.
    fn take_batch(&mut self, batch: &Batch) -> bool {
        for event in &batch.events {
            if !self.resumed.has_sent(event) {
                self.take(event);
            }
        }
        self.telling = batch.through;
        self.resumed.forget_before(feed::told_since(batch.through));
        !self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_resumed_streams_hold_is_counted_until_they_no_longer_hold_it() {
        let resuming = Resuming { turns: Arc::new(Semaphore::new(1)), held: Arc::new(Semaphore::new(10)) };
        let event = |at| Arc::new(EventData::about_the_stream("progress", Timestamp::from_millis(at), None));
        let events: Vec<_> = (1..=6).map(event).collect();
        let mut one = resuming.hold(&events, 4).unwrap();
        assert!(resuming.hold(&events, 4).is_none(), "there is one of six, and four are free");
        assert!(resuming.hold(&events[..4], 0).is_some());
        // All is sent; the last three may come again.
        one.forget_before(4);
        assert_eq!(resuming.held.available_permits(), 7);
        assert!(one.has_sent(&events[5]) && !one.has_sent(&events[5]) && !one.has_sent(&events[0]));
        one.forget_before(5);
        assert_eq!(resuming.held.available_permits(), 9, "one of them was sent again, and one is too old for it");
        one.forget_before(6);
        assert_eq!((resuming.held.available_permits(), one.sent.capacity()), (10, 0));
    }
}
