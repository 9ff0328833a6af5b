//! Requests that change something continue when their client disconnects.
//!
//! Promise: a request that has begun is carried out to its end although its client disconnects, so that several steps are never cut
//! in half. A server that shuts down waits for it as for its connections. What was granted in an answer that nobody received is
//! given back ([`Undo`]). A request that only waits learns that its client has left ([`ClientLeft`]). Non-promise: an answer that
//! was handed to the connection, and is lost on the way, counts as received.

use super::problem::Problem;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{oneshot, watch};

/// The last segments of routes that only read, although their method is POST.
const READS: [&str; 5] = ["read", "recall", "list", "watch", "count"];

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whether a request by this route may change something.
pub(super) fn is_change(method: &Method, route: &str) -> bool {
    let is_read = READS.contains(&route.rsplit('/').next().unwrap_or_default());
    !is_read && method != Method::GET && method != Method::HEAD
}

/// Counts the work that continues without a connection.
#[derive(Debug, Clone)]
pub struct Ongoing(watch::Sender<usize>);

impl Default for Ongoing {
    fn default() -> Self {
        Ongoing(watch::Sender::new(0))
    }
}

struct Counted(Ongoing);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

impl Ongoing {
    /// Runs a task to its end, whether or not anybody waits for it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.send_modify(|count| *count += 1);
        let counted = Counted(self.clone());
        tokio::spawn(async move {
            task.await;
            drop(counted);
        });
    }

    /// Waits until no such work is left.
    pub(super) async fn ended(&self) {
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// What to undo if nobody receives the answer.
#[derive(Clone, Default)]
pub struct Undo(Arc<Mutex<Option<Task>>>);

impl fmt::Debug for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undo")
    }
}

impl Undo {
    /// Runs this task if nobody receives the answer.
    pub fn set(&self, task: impl Future<Output = ()> + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::pin(task));
    }

    fn take(&self) -> Option<Task> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Tells a request whether its client has left.
#[derive(Debug, Clone)]
pub struct ClientLeft(watch::Receiver<()>);

impl ClientLeft {
    /// Waits until the client has left.
    pub async fn left(&mut self) {
        // Nothing is ever sent.
        while self.0.changed().await.is_ok() {}
    }
}

/// An answer on its way to the client. If it is dropped, what it granted is given back.
struct Answer {
    response: Response,
    undo: Undo,
    ongoing: Ongoing,
}

impl Answer {
    fn taken(mut self) -> Response {
        drop(self.undo.take());
        std::mem::take(&mut self.response)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            self.ongoing.spawn(undo);
        }
    }
}

/// Handles a request to its end, even if the returned future is dropped because the client disconnects.
pub(super) async fn to_its_end<F>(ongoing: &Ongoing, handle: impl FnOnce(Undo, ClientLeft) -> F) -> Response
where
    F: Future<Output = Response> + Send + 'static,
{
    let (is_here, left) = watch::channel(());
    let (answer, answered) = oneshot::channel();
    let (undo, of_answer) = (Undo::default(), ongoing.clone());
    let handling = handle(undo.clone(), ClientLeft(left));
    ongoing.spawn(async move {
        let response = handling.await;
        // If nobody receives it, it is dropped, here or on its way.
        drop(answer.send(Answer { response, undo, ongoing: of_answer }));
    });
    let answered = answered.await;
    drop(is_here);
    match answered {
        Ok(answer) => answer.taken(),
        Err(_) => {
            let detail = "the request broke off, and what was done is not known; look before you ask again";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail).into_response()
        }
    }
}
