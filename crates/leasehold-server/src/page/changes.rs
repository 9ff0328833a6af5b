//! Hints that something of a namespace may have changed, as a stream of events.
//!
//! One task per namespace and server looks for all streams, and only while there are any. It compares the revisions of a bounded
//! number of records. Every few seconds it hints anyway: what lies beyond that number changes too. What the page that has a stream
//! is about ([`Subject`]) is looked at more closely, by one task for all streams that are about it.
//!
//! Promise: hints only. They may be late, doubled or missing; a page that gets one reads for itself, as often as
//! [`FLOOR`] allows. These tasks read as those who wait do, so they keep nobody else from the store, and the streams of one account
//! cause [`MAX_SUBJECTS`] of them at most: any further stream gets the hints of its namespace alone.

use super::Shared;
use super::budget::WATCHED;
use super::form::Fields;
use super::subject::{About, Subject};
use super::visit::Visit;
use crate::access::{Account, Verb};
use crate::serve::{Problem, Waiter, Waiting};
use axum::Extension;
use axum::extract::RawQuery;
use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use leasehold_core::store::Range;
use leasehold_core::{Coordinator, Shelf, Store};
use leasehold_stores::Namespace;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
/// How many different things the streams of one account are about at once, of those that are looked at more closely.
const MAX_SUBJECTS: usize = 64;

/// A namespace, or a single thing in one.
type Topic = (Namespace, Option<About>);
/// Each with its number of hints.
type ByTopic = HashMap<Topic, watch::Receiver<u64>>;
/// How many streams of each account are about each thing.
type ByAccount = HashMap<Account, HashMap<Topic, usize>>;

/// The number of hints so far, for each namespace that somebody watches, and for each single thing in one.
#[derive(Debug, Default)]
pub struct Pulses {
    topics: Mutex<ByTopic>,
    followed: Arc<Mutex<ByAccount>>,
}

/// Hints of one thing, for one stream.
#[derive(Debug)]
struct Followed {
    hints: watch::Receiver<u64>,
    _share: Share,
}

/// That a stream of this account is about this thing.
#[derive(Debug)]
struct Share {
    all: Arc<Mutex<ByAccount>>,
    account: Account,
    topic: Topic,
}

impl Share {
    /// None if the streams of the account are about too many other things.
    fn take(all: &Arc<Mutex<ByAccount>>, account: &Account, topic: &Topic) -> Option<Self> {
        let mut accounts = all.lock().unwrap_or_else(PoisonError::into_inner);
        let own = accounts.entry(account.clone()).or_default();
        if own.len() >= MAX_SUBJECTS && !own.contains_key(topic) {
            return None;
        }
        *own.entry(topic.clone()).or_default() += 1;
        Some(Share { all: all.clone(), account: account.clone(), topic: topic.clone() })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut accounts = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own) = accounts.get_mut(&self.account) else { return };
        if let Some(streams) = own.get_mut(&self.topic) {
            *streams -= 1;
            if *streams == 0 {
                own.remove(&self.topic);
            }
        }
        if own.is_empty() {
            accounts.remove(&self.account);
        }
    }
}

impl Pulses {
    /// Hints of this namespace. The first to ask starts the task that looks.
    fn follow(&self, namespace: &Namespace, coordinator: &Coordinator) -> watch::Receiver<u64> {
        self.get_or_start((namespace.clone(), None), |hints| {
            tokio::spawn(look(coordinator.clone(), hints));
        })
    }

    /// Hints of this one thing, however many streams are about it. None if the account has streams about too many others.
    async fn follow_one(
        &self,
        account: &Account,
        namespace: &Namespace,
        store: &Arc<dyn Store>,
        about: About,
    ) -> Option<Followed> {
        let topic = (namespace.clone(), Some(about.clone()));
        let share = Share::take(&self.followed, account, &topic)?;
        let running = self.all().get(&topic).filter(|pulse| pulse.has_changed().is_ok()).cloned();
        if let Some(mut hints) = running {
            hints.mark_unchanged();
            return Some(Followed { hints, _share: share });
        }
        // As it is before the stream begins. Whoever was faster has started the task meanwhile.
        let subject = Subject::new(store.clone(), about).await;
        let hints = self.get_or_start(topic, |hints| {
            tokio::spawn(look_at_one(subject, hints));
        });
        Some(Followed { hints, _share: share })
    }

    fn get_or_start(&self, key: Topic, start: impl FnOnce(watch::Sender<u64>)) -> watch::Receiver<u64> {
        let mut all = self.all();
        // A task that has ended has dropped its side.
        all.retain(|_, pulse| pulse.has_changed().is_ok());
        let pulse = all.entry(key).or_insert_with(|| {
            let (hints, pulse) = watch::channel(0);
            start(hints);
            pulse
        });
        let mut pulse = pulse.clone();
        // Later subscribers do not get changes that their page already shows.
        pulse.mark_unchanged();
        pulse
    }

    fn all(&self) -> MutexGuard<'_, ByTopic> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at one thing for as long as anybody but the list above listens.
async fn look_at_one(mut subject: Subject, hints: watch::Sender<u64>) {
    while hints.receiver_count() > 1 {
        if subject.has_changed().await {
            hints.send_modify(|count| *count += 1);
        }
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

/// The stream of hints of one browser. Whoever may not read here is refused.
pub async fn stream(
    visit: Visit,
    waiter: Waiter,
    Extension(shared): Extension<Arc<Shared>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    if !visit.caller.scope().verbs.has(Verb::Read) {
        visit.caller.may(Verb::Read, &visit.namespace, None)?;
    }
    // Whoever looks again and again waits.
    let coordinator = visit.coordinator_of_waiter().await?;
    let pulse = shared.pulses.follow(&visit.namespace, &coordinator);
    let about = match Fields::of_query(query.as_deref()).get("about") {
        // A page that cannot be read shows why by itself.
        Some(path) => About::of(&visit, path).ok().flatten(),
        None => None,
    };
    let subject = match about {
        Some(about) => {
            let account = visit.caller.account();
            shared.pulses.follow_one(account, &visit.namespace, coordinator.store(), about).await
        }
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
    subject: Option<Followed>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let floor = u64::try_from(FLOOR.as_millis()).unwrap_or(u64::MAX);
    // The first event says how often a page may be read, and how soon to come back when the stream breaks.
    let first = Event::default().event("floor").data(floor.to_string()).retry(FLOOR);
    stream::unfold((Some(first), waiting, pulse, subject), |(first, mut waiting, mut pulse, mut subject)| async move {
        let event = match first {
            Some(first) => first,
            None => {
                let changed = tokio::select! {
                    _ = waiting.over() => return None,
                    changed = pulse.changed() => changed,
                    changed = changed(subject.as_mut()) => changed,
                };
                changed.ok()?;
                Event::default().event("changed").data(pulse.borrow().to_string())
            }
        };
        Some((Ok(event), (None, waiting, pulse, subject)))
    })
}

async fn changed(subject: Option<&mut Followed>) -> Result<(), watch::error::RecvError> {
    match subject {
        Some(subject) => subject.hints.changed().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Key, MemoryStore};

    #[tokio::test]
    async fn streams_about_the_same_thing_share_one_look() {
        let (pulses, namespace) = (Pulses::default(), Namespace::default());
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let (ada, bob) = (account("aaaaaaaa"), account("bbbbbbbb"));
        let follow = async |account: &Account, namespace: &Namespace, about: About| {
            pulses.follow_one(account, namespace, &store, about).await.unwrap().hints
        };
        let mail = || About::Line("mail".parse().unwrap());
        let first = follow(&ada, &namespace, mail()).await;
        let mut second = follow(&bob, &namespace, mail()).await;
        assert!(first.same_channel(&second));
        let other = About::Records(vec![Key::new(Shelf::Lease, &"mail".parse().unwrap())]);
        let third = follow(&ada, &namespace, other).await;
        assert!(!first.same_channel(&third));
        let elsewhere: Namespace = "elsewhere".parse().unwrap();
        assert!(!first.same_channel(&follow(&ada, &elsewhere, mail()).await));
        let position: leasehold_core::LeaseName = "mail/4/000000000000001/k.a/1".parse().unwrap();
        store.swap(&Key::new(Shelf::Line, &position), None, b"x").await.unwrap();
        second.changed().await.unwrap();
        // Later subscribers do not get changes that their page already shows.
        let late = follow(&ada, &namespace, mail()).await;
        assert!(late.same_channel(&second) && !late.has_changed().unwrap());
    }

    fn account(key: &str) -> Account {
        Account::Key(key.parse().unwrap())
    }

    #[tokio::test]
    async fn however_many_streams_an_account_has_they_cause_a_bounded_number_of_looks() {
        let (pulses, namespace) = (Pulses::default(), Namespace::default());
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let (ada, bob) = (account("aaaaaaaa"), account("bbbbbbbb"));
        let follow = async |account: &Account, number: usize| {
            let about = About::Line(format!("q{number}").parse().unwrap());
            pulses.follow_one(account, &namespace, &store, about).await
        };
        let mut streams = Vec::new();
        for number in 0..200 {
            streams.extend(follow(&ada, number).await);
        }
        assert_eq!((streams.len(), pulses.all().len()), (MAX_SUBJECTS, MAX_SUBJECTS));
        // About what is looked at anyway there may be more of them, and other accounts have their own.
        streams.extend(follow(&ada, 0).await);
        let other = follow(&bob, 199).await;
        assert_eq!((streams.len(), other.is_some()), (MAX_SUBJECTS + 1, true));
        streams.pop();
        assert!(follow(&ada, 198).await.is_none(), "the first stream about it is still there");
        streams.pop();
        assert!(follow(&ada, 198).await.is_some());
        drop((streams, other));
        assert!(pulses.followed.lock().unwrap().is_empty());
    }
}
