//! Connections that have not shown a valid key yet, or whose key was refused last.
//!
//! Promise: when all places are taken, the oldest of these connections is closed for a new one. So connections that are opened and
//! send nothing keep nobody out, and one with a key has time to show it. Non-promise: a client with a key may take every place.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// All of these connections, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Newcomers(Arc<Mutex<Line>>);

#[derive(Debug, Default)]
struct Line {
    next: u64,
    all: BTreeMap<u64, oneshot::Sender<()>>,
    /// Those that have shown a valid key.
    known: HashMap<u64, oneshot::Sender<()>>,
}

/// One such connection, until it is dropped or has shown a key.
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

    /// Adds a connection; the receiver is notified when it has to close.
    pub fn join(&self) -> (Newcomer, oneshot::Receiver<()>) {
        let (leave, told) = oneshot::channel();
        let mut line = self.line();
        let number = line.next;
        line.next += 1;
        line.all.insert(number, leave);
        (Newcomer(Arc::new(Entry { number, newcomers: self.clone() })), told)
    }

    /// Asks the oldest one to close; false if there is none.
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
    /// Notes that it has shown a valid key.
    pub fn is_known(&self) {
        let mut line = self.0.newcomers.line();
        if let Some(leave) = line.all.remove(&self.0.number) {
            line.known.insert(self.0.number, leave);
        }
    }

    /// Notes that it has shown a key that is not valid, or no longer: it keeps nobody out any more.
    pub fn is_unknown(&self) {
        let mut line = self.0.newcomers.line();
        if let Some(leave) = line.known.remove(&self.0.number) {
            line.all.insert(self.0.number, leave);
        }
    }

    /// Notes that it takes no place that another connection could have.
    pub fn takes_no_place(&self) {
        self.0.newcomers.line().all.remove(&self.0.number);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut line = self.newcomers.line();
        line.all.remove(&self.number);
        line.known.remove(&self.number);
    }
}
