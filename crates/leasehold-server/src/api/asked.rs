//! A request to the API: its caller, its namespace, its subject, and which attempt at which request it is.

use super::idempotency::{Attempt, Idempotency};
use super::problems::conflict;
use crate::access::{Caller, Verb};
use crate::serve::{Problem, Site, Undo, bearer};
use axum::extract::{FromRequestParts, MatchedPath, Path};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{Coordinator, HolderId, Label, LeaseName, Nonce, Who};
use leasehold_stores::Namespace;
use leasehold_work::notify::Channel;
use leasehold_work::queue::{ItemId, Queue, QueueName};
use std::collections::HashMap;
use std::time::Duration;

const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// What every handler knows about its request. The caller's key is for its namespace.
#[derive(Debug)]
pub struct Asked {
    pub site: Site,
    pub namespace: Namespace,
    pub caller: Caller,
    /// The request that this is an attempt at, if it has an `Idempotency-Key`.
    pub attempt: Option<Idempotency>,
    /// When it was received, which is not before its client sent it.
    pub received: Moment,
    /// What to undo if nobody receives the answer.
    pub undo: Undo,
    path: HashMap<String, String>,
}

impl FromRequestParts<Site> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, site: &Site) -> Result<Self, Problem> {
        let received = SystemClock.now();
        let caller = Caller::from_request_parts(parts, site).await?;
        let Path(path): Path<HashMap<String, String>> = Path::from_request_parts(parts, site)
            .await
            .map_err(|_| Problem::invalid("the path is not valid UTF-8 once its escapes are resolved"))?;
        let namespace = Namespace::new(path.get("namespace").map(String::as_str).unwrap_or_default())?;
        caller.enters(&namespace)?;
        let attempt = attempt(&parts.headers)?.map(|key| {
            // It contains the bearer's secret, so that nobody else can find out what it stands for.
            let secret = bearer(&parts.headers).ok().flatten().unwrap_or(caller.key.as_str());
            let part = |name: &str| path.get(name).map(String::as_str).unwrap_or_default();
            // As decoded, not as spelled: a `/` in a name is sent as `%2F` or `~`.
            let (name, queue, item) = (unescaped(part("name")), part("queue"), part("id"));
            let (method, endpoint) = (parts.method.as_str(), endpoint(parts));
            Idempotency::new(&[secret, namespace.as_str(), method, endpoint, &name, queue, item, key])
        });
        let undo = parts.extensions.get::<Undo>().cloned().unwrap_or_default();
        Ok(Asked { site: site.clone(), namespace, caller, attempt, received, undo, path })
    }
}

/// The route below the version of the API, without the prefix of this server.
fn endpoint(parts: &Parts) -> &str {
    let route = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    route.rsplit_once("/v1/").map_or(route, |(_, endpoint)| endpoint)
}

/// No name has a `~`, and some proxies do not let an escaped `/` pass.
fn unescaped(name: &str) -> String {
    name.replace('~', "/")
}

fn attempt(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| (1..=200).contains(&text.len()));
    match text.filter(|text| text.bytes().all(|b| b.is_ascii_graphic())).filter(|_| values.next().is_none()) {
        Some(text) => Ok(Some(text)),
        None => {
            let detail =
                "the header `Idempotency-Key` has 1 to 200 printable ASCII characters without spaces, and comes once";
            Err(Problem::invalid(detail).with("field", "Idempotency-Key"))
        }
    }
}

fn queue_in(coordinator: &Coordinator, name: QueueName) -> Queue {
    Queue::with_clock(coordinator.store().clone(), name, coordinator.clock().clone())
}

impl Asked {
    fn part(&self, name: &str) -> &str {
        self.path.get(name).map(String::as_str).unwrap_or_default()
    }

    /// The lease, job or resource in the path, if the caller may do this to it.
    pub fn name(&self, verb: Verb) -> Result<LeaseName, Problem> {
        let name = LeaseName::new(unescaped(self.part("name")))?;
        self.caller.may(verb, &self.namespace, Some(name.as_str()))?;
        Ok(name)
    }

    /// Checks that the caller may read something here. The answer is then filtered by name.
    pub fn lists(&self) -> Result<(), Problem> {
        match self.caller.scope().verbs.has(Verb::Read) {
            true => Ok(()),
            // The refusal says what the key lacks.
            false => Ok(self.caller.may(Verb::Read, &self.namespace, None)?),
        }
    }

    /// The name of the queue in the path, if the caller may do this to it. Nobody works on our own notifications here: what they
    /// say, and who delivers them, is for the commands that have the rules.
    pub fn queue_name(&self, verb: Verb) -> Result<QueueName, Problem> {
        let name: QueueName = self.part("queue").parse()?;
        self.caller.may(verb, &self.namespace, Some(name.as_str()))?;
        if verb == Verb::Work {
            check_ours(&name)?;
        }
        Ok(name)
    }

    /// The queue in the path, if the caller may do this to it.
    pub async fn queue(&self, verb: Verb) -> Result<Queue, Problem> {
        let name = self.queue_name(verb)?;
        Ok(queue_in(&self.coordinator().await?, name))
    }

    /// The same for a worker that renews or ends a claim of one of its items.
    pub async fn queue_of_holder(&self) -> Result<Queue, Problem> {
        let name = self.queue_name(Verb::Work)?;
        Ok(queue_in(&self.coordinator_of_holder().await?, name))
    }

    /// The queue in the path, for a caller that found nothing there and waits.
    pub async fn queue_of_waiter(&self) -> Result<Queue, Problem> {
        let name = self.queue_name(Verb::Work)?;
        Ok(queue_in(&self.coordinator_of_waiter().await?, name))
    }

    /// The item in the path.
    pub fn item(&self) -> Result<ItemId, Problem> {
        Ok(self.part("id").parse()?)
    }

    /// The coordinator of the namespace. Call it only once the caller is known to be allowed something there.
    pub async fn coordinator(&self) -> Result<Coordinator, Problem> {
        // Holders use another one.
        Ok(self.site.coordinator(&self.namespace).await?)
    }

    /// The same for a holder that renews or ends what it was granted.
    pub async fn coordinator_of_holder(&self) -> Result<Coordinator, Problem> {
        Ok(self.site.coordinator_of_holder(&self.namespace).await?)
    }

    /// The same for a caller that was refused and waits.
    pub async fn coordinator_of_waiter(&self) -> Result<Coordinator, Problem> {
        Ok(self.site.coordinator_of_waiter(&self.namespace).await?)
    }

    /// The nonce of its grant: the same for each attempt.
    pub fn nonce(&self) -> Nonce {
        self.attempt.as_ref().map_or_else(Nonce::random, Idempotency::nonce)
    }

    /// The mark of an attempt that asks for what these words say; none without an `Idempotency-Key`.
    pub fn attempt_at(&self, words: &[&[u8]]) -> Option<Attempt> {
        self.attempt.as_ref().map(|request| request.at(words))
    }

    /// The holder id for a grant to this caller. Its machine is not known here, so the key stands for it.
    pub fn holder(&self, label: Option<Label>, nonce: Nonce) -> HolderId {
        self.caller.holder(label, nonce)
    }

    /// The operator, as histories name it.
    pub fn who(&self) -> Who {
        let id = &self.caller.key;
        Who::lossy(&format!("{} (key {id})", self.caller.label), id.as_str())
    }

    /// For how long after it sent this request the client may trust a grant that is trusted until then.
    pub fn trust(&self, until: Moment) -> Duration {
        until.saturating_since(self.received)
    }
}

/// Refuses the queues of our own notifications to those who would add to them or take from them.
pub fn check_ours(queue: &QueueName) -> Result<(), Problem> {
    if Channel::is_reserved(queue) {
        let detail = format!(
            "invalid queue name `{queue}`: its items are leasehold's own notifications: look at them, but do not add to them or \
             work on them"
        );
        return Err(Problem::invalid(detail).with("field", "queue"));
    }
    Ok(())
}

/// The refusal of an `Idempotency-Key` that was used for something else.
pub fn key_reused() -> Problem {
    let detail = "this `Idempotency-Key` was used for another request, and nothing was done; use a new one for each";
    conflict("key_reused", detail)
}
