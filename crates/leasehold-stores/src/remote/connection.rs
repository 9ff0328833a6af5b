//! The servers behind one URL: which one is asked, and what happens when it is unreachable.
//!
//! Promise: a read tries the next server when one is unreachable; a write does so only
//! when it certainly was not carried out. A write without an answer is *unknown*. A renewal waits for none of several servers so
//! long that the others cannot be asked while the lease is still trusted.
//! Non-promise: nothing here balances load; the server that answered last is asked again.

use super::config::{Endpoint, KeySource};
use super::error::{CallError, advised, refused};
use crate::http::client::untimed;
use crate::phase::Phase;
use crate::url::Secret;
use leasehold_core::wire::{PROTOCOL, SPEAKS};
use leasehold_core::{Error, Kind, Result, format_duration, holding};
use leasehold_system::clock;
use reqwest::{Client, Method, RequestBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long to wait for one of several servers at first. Each time that no answer comes, the wait becomes a second
/// longer, up to [`MAX_PATIENCE`]: then it is the store that is slow.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest wait: see [`PATIENCE`].
const MAX_PATIENCE: Duration = Duration::from_secs(6);

/// How many calls are under way at once; the others wait for their turn. Thousands of leases that one process holds would
/// need as many connections otherwise, as soon as the server is slow for a moment.
const CALLS: usize = 128;
/// How many watches are open at once, each on a connection of its own.
const WATCHES: usize = 256;
/// The least that a renewal waits for one of several servers, however little trust is left.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);

/// The servers of one URL, and the key for them.
pub(super) struct Connection {
    pub(super) client: Client,
    /// None for a client that is about to get its key.
    pub(super) key: Option<KeySource>,
    pub(super) endpoints: Vec<Endpoint>,
    /// The path below each server's base: `/v1/ns/NAMESPACE`.
    pub(super) path: String,
    /// The index of the server that answered last.
    good: AtomicUsize,
    /// How many calls in a row got no answer in time: reads, and writes, which may be slower.
    unanswered: [AtomicU32; 2],
    calls: Semaphore,
    /// Permits to watch a record.
    pub(super) watches: Semaphore,
}

impl Connection {
    pub(super) fn new(client: Client, key: Option<KeySource>, endpoints: Vec<Endpoint>, path: String) -> Self {
        Connection {
            client,
            key,
            endpoints,
            path,
            good: AtomicUsize::new(0),
            unanswered: [const { AtomicU32::new(0) }; 2],
            calls: Semaphore::new(CALLS),
            watches: Semaphore::new(WATCHES),
        }
    }

    /// The index of the server that answered last.
    pub(super) fn good(&self) -> usize {
        self.good.load(Ordering::Relaxed) % self.endpoints.len()
    }

    /// Turns away from a server that did not answer: the next call asks another.
    pub(super) fn leave(&self, index: usize) {
        let next = (index + 1) % self.endpoints.len();
        let _ = self.good.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn request(&self, index: usize, method: Method, operation: &str) -> RequestBuilder {
        let url = format!("{}{}{operation}", self.endpoints[index].base, self.path);
        let request = self.client.request(method, url).header(SPEAKS, PROTOCOL);
        match self.key() {
            Some(key) => request.bearer_auth(key.reveal()),
            None => request,
        }
    }

    fn key(&self) -> Option<Secret> {
        self.key.as_ref().map(KeySource::key)
    }

    /// Whether a refused key has been replaced in its file since.
    fn has_another_key(&self, refused: Option<&Secret>) -> bool {
        matches!((&self.key, refused), (Some(source), Some(refused)) if source.is_replaced(refused))
    }

    /// Sends a read without parameters.
    pub(super) async fn get<T: DeserializeOwned>(&self, operation: &str) -> Result<T> {
        self.try_each(Phase::Reading, |index| self.request(index, Method::GET, operation)).await
    }

    /// Sends a request, to one server after the other where that is safe.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        operation: &str,
        question: &impl Serialize,
        phase: Phase,
    ) -> Result<T> {
        self.try_each(phase, |index| self.request(index, Method::POST, operation).json(question)).await
    }

    async fn try_each<T: DeserializeOwned>(
        &self,
        phase: Phase,
        request: impl Fn(usize) -> RequestBuilder,
    ) -> Result<T> {
        let (first, count) = (self.good(), self.endpoints.len());
        let mut failed = None;
        for turn in 0..count {
            let index = (first + turn) % count;
            let key = self.key();
            let mut answer = self.ask(index, phase, request(index)).await;
            // Refused because of its key, so certainly not carried out.
            if matches!(&answer, Err(CallError { status: Some(401), .. })) && self.has_another_key(key.as_ref()) {
                answer = self.ask(index, phase, request(index)).await;
            }
            match answer.map_err(|failed| failed.error) {
                Ok(answer) => {
                    self.good.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                // Certainly not carried out: another server may reach the store, or not be overloaded.
                Err(error) if error.kind() == Kind::Unavailable => {
                    self.leave(index);
                    failed.get_or_insert(error);
                }
                Err(error) => {
                    if error.kind() == Kind::Indeterminate {
                        self.leave(index);
                    }
                    return Err(error);
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(Kind::Unavailable, "no server answers; try again")))
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        index: usize,
        phase: Phase,
        request: RequestBuilder,
    ) -> Result<T, CallError> {
        let display_name = self.endpoints[index].display_name.as_str();
        let _turn = self.calls.acquire().await;
        let exchange = untimed(request, phase, display_name);
        let answer = match self.endpoints.len() {
            1 => exchange.await.map_err(|error| advised(error, &self.endpoints[index]))?,
            _ => {
                let unanswered = &self.unanswered[usize::from(phase == Phase::Writing)];
                let count = unanswered.load(Ordering::Relaxed);
                let asked = clock::now();
                let left = holding::until().map(|until| until.saturating_since(asked));
                let patience = patience(count, left, self.endpoints.len());
                let answer = timeout(patience, exchange)
                    .await
                    .unwrap_or_else(|_| {
                        unanswered.fetch_add(1, Ordering::Relaxed);
                        let message = format!("{display_name} did not answer within {}", format_duration(patience));
                        Err(Error::new(phase.unanswered(), message))
                    })
                    .map_err(|error| advised(error, &self.endpoints[index]))?;
                // An answer that came later shows that the longer wait is still needed.
                if clock::now().saturating_since(asked) < PATIENCE {
                    unanswered.store(0, Ordering::Relaxed);
                }
                answer
            }
        };
        if answer.status != 200 {
            let error = refused(display_name, answer.status, &answer.body, phase);
            return Err(CallError { error, status: Some(answer.status) });
        }
        serde_json::from_slice(&answer.body).map_err(|e| {
            let message = format!("{display_name} gave an answer that is none of a leasehold server's; check the URL");
            Error::new(phase.unanswered(), message).with_source(e).into()
        })
    }
}

/// How long to wait for one of several servers, after so many calls without an answer, if what is renewed is still trusted for so
/// long. The rest is divided: each of the others can be asked, and the one that answers once more.
fn patience(unanswered: u32, left: Option<Duration>, servers: usize) -> Duration {
    let usual = PATIENCE.saturating_mul(unanswered.saturating_add(1)).min(MAX_PATIENCE);
    let turns = u32::try_from(servers).unwrap_or(u32::MAX).saturating_add(1);
    left.map_or(usual, |left| usual.min((left / turns).max(LEAST_PATIENCE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_leaves_time_to_ask_the_other_servers() {
        let (ms, long) = (Duration::from_millis, Duration::from_secs(60));
        assert_eq!(patience(0, None, 3), PATIENCE);
        assert_eq!(patience(0, Some(long), 3), PATIENCE);
        assert_eq!(patience(9, Some(long), 3), MAX_PATIENCE);
        // Of three servers two do not answer, and the third still has as long as each of them had.
        for lasts in [ms(1_200), ms(2_000), ms(2_600)] {
            let mut left = lasts;
            for unanswered in 0..2 {
                left -= patience(unanswered, Some(left), 3);
            }
            assert!(left >= patience(2, Some(left), 3) && left >= lasts / 2, "{lasts:?}: {left:?}");
        }
        assert_eq!(patience(0, Some(Duration::ZERO), 3), LEAST_PATIENCE);
    }
}
