//! Hints in the background: a busy task learns that a record may have changed.
//!
//! Promise: a store that does not answer delays nobody, because a separate task
//! listens to it. Non-promise: hints may be late, duplicated or lost.

use crate::name::Key;
use crate::store::{Store, Watch, Watching};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A watch that is being set up; none where the store cannot push hints.
pub type Opening = Pin<Box<dyn Future<Output = Option<Watch>> + Send>>;

/// Watches a record of a store.
pub fn watch(store: Arc<dyn Store>, key: Key) -> Opening {
    Box::pin(async move {
        match store.capabilities().watch {
            Watching::Hints => store.watch(&key).await.ok(),
            Watching::None => None,
        }
    })
}

/// Passes hints on until dropped.
#[derive(Debug)]
pub struct Hints(JoinHandle<()>);

impl Hints {
    /// Notifies once when the watch is set up, because earlier changes gave no hint, and then at each hint.
    pub fn pass_on(opening: impl Future<Output = Option<Watch>> + Send + 'static, to: Arc<Notify>) -> Self {
        Hints(tokio::spawn(async move {
            let Some(mut watch) = opening.await else { return };
            loop {
                to.notify_one();
                watch.hint().await;
            }
        }))
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        self.0.abort();
    }
}
