//! The thread that writes a run's output to its file.
//!
//! Promise: who has output to write never waits for a disk. What the disk does not take in time is left out, and the newest
//! stays. The first error is told once, and ends the keeping, not the run. Non-promise: a run that prints nothing has no file.

use super::file::Bounded;
use super::retention;
use crate::supervise::Sink;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long output may be unseen by who follows it.
const FLUSHED_WITHIN: Duration = Duration::from_millis(200);

/// What is to be written.
pub struct Plan {
    pub path: PathBuf,
    /// How many bytes of a run are kept.
    pub limit: u64,
    /// How many runs of its folder.
    pub runs: u64,
    /// Tells why it cannot be kept.
    pub warn: Box<dyn Fn(&io::Error) + Send>,
}

#[derive(Debug, Default)]
struct Pending {
    bytes: VecDeque<u8>,
    /// At which byte of the output they begin.
    at: u64,
    is_over: bool,
    /// Nobody takes any more.
    is_given_up: bool,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that takes output.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    limit: usize,
}

impl Writer {
    /// Starts the thread. The receiver hears when the file is complete: how many bytes there were, or nothing if it could
    /// not be kept.
    pub fn start(plan: Plan) -> io::Result<(Self, oneshot::Receiver<u64>)> {
        let shared = Arc::new(Shared::default());
        let writer = Writer { shared: shared.clone(), limit: usize::try_from(plan.limit).unwrap_or(usize::MAX) };
        let (done, is_done) = oneshot::channel();
        std::thread::Builder::new().name("output".into()).spawn(move || {
            let written = write(&shared, &plan);
            if written.is_err() {
                let mut pending = shared.lock();
                pending.is_given_up = true;
                pending.bytes = VecDeque::new();
            }
            match written {
                Ok(bytes) => drop(done.send(bytes)),
                Err(error) => (plan.warn)(&error),
            }
        })?;
        Ok((writer, is_done))
    }
}

impl Sink for Writer {
    fn write(&mut self, bytes: &[u8]) {
        let mut pending = self.shared.lock();
        if pending.is_given_up {
            return;
        }
        pending.bytes.extend(bytes);
        let surplus = pending.bytes.len().saturating_sub(self.limit);
        pending.bytes.drain(..surplus);
        pending.at += surplus as u64;
        self.shared.changed.notify_one();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_one();
    }
}

fn write(shared: &Shared, plan: &Plan) -> io::Result<u64> {
    let mut file: Option<Bounded> = None;
    // When the first byte was written that nobody can see yet.
    let mut unseen: Option<Moment> = None;
    let mut end = 0;
    loop {
        let (at, bytes, is_over) = {
            let wait = |pending: &mut Pending| pending.bytes.is_empty() && !pending.is_over;
            let waited = shared.changed.wait_timeout_while(shared.lock(), FLUSHED_WITHIN, wait);
            let mut pending = waited.unwrap_or_else(PoisonError::into_inner).0;
            let bytes = std::mem::take(&mut pending.bytes);
            let at = pending.at;
            pending.at += bytes.len() as u64;
            (at, bytes, pending.is_over)
        };
        if !bytes.is_empty() {
            end = at + bytes.len() as u64;
            let file = match &mut file {
                Some(file) => file,
                none => none.insert(Bounded::create(plan.path.clone(), plan.limit)?),
            };
            let (first, second) = bytes.as_slices();
            file.write(at, first)?;
            file.write(at + first.len() as u64, second)?;
            unseen.get_or_insert_with(|| SystemClock.now());
        }
        let is_due = unseen.is_some_and(|since| bytes.is_empty() || SystemClock.now() >= since + FLUSHED_WITHIN);
        if let Some(file) = file.as_mut().filter(|_| is_due) {
            file.flush()?;
            unseen = None;
        }
        if is_over {
            if let Some(file) = file {
                file.finish()?;
                retention::apply(&plan.path, plan.runs);
            }
            return Ok(end);
        }
    }
}
