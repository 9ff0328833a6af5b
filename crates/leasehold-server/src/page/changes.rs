//! Hints that something of a namespace may have changed, as a stream of events.
//!
//! One task per namespace and server looks for all streams, and only while there are any. It compares the revisions of a bounded
//! number of records. Every few seconds it hints anyway: what lies beyond that number changes too. Each stream also looks at what
//! the page that has it is about ([`Subject`]).
//!
//! Promise: hints only. They may be late, doubled or missing; a page that hears one reads for itself, as often as
//! [`FLOOR`] allows.

use super::Shared;
use super::budget::WATCHED;
use super::form::Fields;
use super::subject::Subject;
use super::visit::Visit;
use crate::access::Verb;
use crate::serve::{Problem, Waiter, Waiting};
use axum::Extension;
use axum::extract::RawQuery;
use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use leasehold_core::store::Range;
use leasehold_core::{Coordinator, Shelf};
use leasehold_stores::Namespace;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// No page is read again sooner than that after it was read.
pub const FLOOR: Duration = Duration::from_secs(2);
/// How often it is looked for changes.
pub const LOOK: Duration = Duration::from_secs(1);
/// After so many looks without a change there is a hint all the same.
const ANYWAY: u32 = 15;
/// So that proxies see that the stream lives.
const ALIVE: Duration = Duration::from_secs(15);

/// The number of hints so far, for each namespace that somebody watches.
#[derive(Debug, Default)]
pub struct Pulses(Mutex<HashMap<Namespace, watch::Receiver<u64>>>);

impl Pulses {
    /// Hints of this namespace. The first to ask starts the task that looks.
    fn follow(&self, namespace: &Namespace, coordinator: &Coordinator) -> watch::Receiver<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A task that has ended has dropped its side.
        all.retain(|_, pulse| pulse.has_changed().is_ok());
        if let Some(pulse) = all.get(namespace) {
            return pulse.clone();
        }
        let (hints, pulse) = watch::channel(0);
        all.insert(namespace.clone(), pulse.clone());
        tokio::spawn(look(coordinator.clone(), hints));
        pulse
    }
}

/// Looks for changes for as long as anybody but the list above listens.
async fn look(coordinator: Coordinator, hints: watch::Sender<u64>) {
    let (mut seen, mut quiet) = (digest(&coordinator).await, 0);
    loop {
        tokio::time::sleep(LOOK).await;
        if hints.receiver_count() <= 1 {
            return;
        }
        let now = digest(&coordinator).await;
        quiet += 1;
        if (now.is_some() && now != seen) || quiet >= ANYWAY {
            (seen, quiet) = (now.or(seen), 0);
            hints.send_modify(|count| *count += 1);
        }
    }
}

/// The revisions of the first records, as one number; none if the store does not answer.
async fn digest(coordinator: &Coordinator) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    for shelf in [Shelf::Lease, Shelf::Runs, Shelf::Line] {
        let page = coordinator.store().list(shelf, Range::new(None, WATCHED)).await.ok()?;
        for (name, value) in page.entries {
            (name, value.revision).hash(&mut hasher);
        }
    }
    Some(hasher.finish())
}

/// The stream.
pub async fn stream(
    visit: Visit,
    waiter: Waiter,
    Extension(shared): Extension<Arc<Shared>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    if !visit.caller.scope().verbs.has(Verb::Read) {
        visit.caller.may(Verb::Read, &visit.namespace, None)?;
    }
    let pulse = shared.pulses.follow(&visit.namespace, &visit.coordinator);
    let subject = match Fields::of_query(query.as_deref()).get("about") {
        // A page that cannot be read shows why by itself.
        Some(path) => Subject::of(&visit, path).await.ok().flatten(),
        None => None,
    };
    let events = hints(waiter.begin()?, pulse, subject);
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE)).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that collect answers would keep the hints to themselves.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

fn hints(
    waiting: Waiting,
    pulse: watch::Receiver<u64>,
    subject: Option<Subject>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let floor = u64::try_from(FLOOR.as_millis()).unwrap_or(u64::MAX);
    // The first event says how often a page may be read, and how soon to come back when the stream breaks.
    let first = Event::default().event("floor").data(floor.to_string()).retry(FLOOR);
    stream::unfold((Some(first), waiting, pulse, subject), |(first, mut waiting, mut pulse, mut subject)| async move {
        let event = match first {
            Some(first) => first,
            None => tokio::select! {
                _ = waiting.over() => return None,
                changed = pulse.changed() => match changed {
                    Ok(()) => Event::default().event("changed").data(pulse.borrow_and_update().to_string()),
                    Err(_) => return None,
                },
                () = changed(subject.as_mut()) => Event::default().event("changed").data(pulse.borrow().to_string()),
            },
        };
        Some((Ok(event), (None, waiting, pulse, subject)))
    })
}

async fn changed(subject: Option<&mut Subject>) {
    match subject {
        Some(subject) => subject.changed().await,
        None => std::future::pending().await,
    }
}
