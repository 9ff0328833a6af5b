//! Hints for a client that waits: one byte whenever a record may have changed, and a sign of life in between.

use super::Body;
use super::rules::Subject;
use super::tended::Hinted;
use crate::access::Caller;
use crate::serve::{In, Problem, Site, Waiter, Waiting};
use axum::body::{Body as Stream, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use leasehold_core::Key;
use leasehold_core::store::{Store, Watch};
use leasehold_core::wire::{ALIVE, HEARTBEAT, HINT};
use std::convert::Infallible;
use std::sync::Arc;

pub(super) async fn watch(
    State(site): State<Site>,
    In(namespace): In,
    caller: Caller,
    waiter: Waiter,
    Body(key): Body<Key>,
) -> Result<Response, Problem> {
    Subject::of(&key).may_read(&caller, &namespace, &key)?;
    let store = site.coordinator(&namespace).await?.store().clone();
    // Set up before the store's own watch, so that changes in between are hinted at once.
    let local = site.tended().hints(&namespace, &key);
    let watch = store.watch(&key).await.unwrap_or(Watch::silent());
    let listening = Listening { watch, local, waiting: waiter.begin()?, is_new: true, _store: store };
    let stream = futures_util::stream::unfold(listening, |mut listening| async {
        let part = listening.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from_static(part)), listening))
    });
    let headers = [(CONTENT_TYPE, "application/octet-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Stream::from_stream(stream)).into_response())
}

struct Listening {
    watch: Watch,
    local: Hinted,
    waiting: Waiting,
    is_new: bool,
    /// Keeps the namespace in use, so that it is not closed.
    _store: Arc<dyn Store>,
}

impl Listening {
    /// The next byte; none when the server shuts down.
    async fn next(&mut self) -> Option<&'static [u8]> {
        // A client reads before it begins to watch: a change in between gave no hint.
        if std::mem::take(&mut self.is_new) {
            return Some(HINT);
        }
        tokio::select! {
            () = self.watch.hint() => Some(HINT),
            () = self.local.hint() => Some(HINT),
            () = tokio::time::sleep(HEARTBEAT) => Some(ALIVE),
            // The client asks again, at another server if there is one, or learns that its key is no longer valid.
            _ = self.waiting.over() => None,
        }
    }
}
