//! Requests that change something go on without their client.
//!
//! Promise: what has begun is carried out to its end, whoever hangs up meanwhile, so that nothing of several steps is cut in
//! half; a server that ends waits for it as for its connections. What was granted by an answer that nobody took is given back
//! ([`Unheard`]); whoever only waits hears that its client is gone ([`ClientLeft`]). Non-promise: an answer that was handed to the
//! connection, and is lost on its way, counts as heard.

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

/// What goes on without a connection.
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
    /// Carries it out, whoever waits.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.send_modify(|count| *count += 1);
        let counted = Counted(self.clone());
        tokio::spawn(async move {
            task.await;
            drop(counted);
        });
    }

    /// Waits until there is nothing.
    pub(super) async fn ended(&self) {
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// What is to be undone if nobody takes the answer.
#[derive(Clone, Default)]
pub struct Unheard(Arc<Mutex<Option<Task>>>);

impl fmt::Debug for Unheard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unheard")
    }
}

impl Unheard {
    /// Undoes it so.
    pub fn undo_by(&self, task: impl Future<Output = ()> + Send + 'static) {
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
    /// Waits until it has.
    pub async fn left(&mut self) {
        // Nothing is ever sent.
        while self.0.changed().await.is_ok() {}
    }
}

/// An answer on its way. Dropped there, what it granted is given back.
struct Answer {
    response: Response,
    unheard: Unheard,
    ongoing: Ongoing,
}

impl Answer {
    fn taken(mut self) -> Response {
        drop(self.unheard.take());
        std::mem::take(&mut self.response)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(undo) = self.unheard.take() {
            self.ongoing.spawn(undo);
        }
    }
}

/// Handles a request to its end. What is returned may be dropped meanwhile, as it is when the client hangs up.
pub(super) async fn to_its_end<F>(ongoing: &Ongoing, handle: impl FnOnce(Unheard, ClientLeft) -> F) -> Response
where
    F: Future<Output = Response> + Send + 'static,
{
    let (is_here, left) = watch::channel(());
    let (answer, answered) = oneshot::channel();
    let (unheard, of_answer) = (Unheard::default(), ongoing.clone());
    let handling = handle(unheard.clone(), ClientLeft(left));
    ongoing.spawn(async move {
        let response = handling.await;
        // One that is not taken is dropped, here or where it is on its way.
        drop(answer.send(Answer { response, unheard, ongoing: of_answer }));
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
