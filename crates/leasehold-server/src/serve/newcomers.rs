//! Connections on which nobody has shown a key that counts.
//!
//! Promise: where all places are taken, the one of these that has been here for longest is closed for a new one: connections that
//! are opened and say nothing keep nobody out, and one with a key has time to show it. Non-promise: whoever has a key may take
//! every place with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// They all, in the order in which they came.
#[derive(Debug, Clone, Default)]
pub struct Newcomers(Arc<Mutex<Line>>);

#[derive(Debug, Default)]
struct Line {
    next: u64,
    all: BTreeMap<u64, oneshot::Sender<()>>,
}

/// One of them. It is none any more when it is dropped, or known.
#[derive(Debug, Clone)]
pub struct Newcomer(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    number: u64,
    newcomers: Newcomers,
}

impl Newcomers {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, and what tells it to leave.
    pub fn join(&self) -> (Newcomer, oneshot::Receiver<()>) {
        let (leave, told) = oneshot::channel();
        let mut line = self.line();
        let number = line.next;
        line.next += 1;
        line.all.insert(number, leave);
        (Newcomer(Arc::new(Entry { number, newcomers: self.clone() })), told)
    }

    /// Tells the one that has been here for longest to leave; false if there is none.
    pub fn turn_one_out(&self) -> bool {
        let mut line = self.line();
        while let Some((_, leave)) = line.all.pop_first() {
            if leave.send(()).is_ok() {
                return true;
            }
        }
        false
    }
}

impl Newcomer {
    /// It has shown a key that counts.
    pub fn is_known(&self) {
        self.0.newcomers.line().all.remove(&self.0.number);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.newcomers.line().all.remove(&self.number);
    }
}
