//! The thread that writes a run's output to its file.
//!
//! Promise: who has output to write never waits for a disk. What the disk does not take in time is left out: the
//! beginning, up to half of the bound, and the newest stay. The first error is reported once, and ends the
//! keeping, not the run. Non-promise: a run that prints nothing has no file.

use super::file::Bounded;
use super::folder::Folder;
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
    /// The folder of the job's runs, and what the file is called in it.
    pub folder: PathBuf,
    pub name: String,
    /// How many bytes of a run are kept.
    pub limit: u64,
    /// How many runs of its folder.
    pub runs: u64,
    /// Tells why it cannot be kept.
    pub warn: Box<dyn Fn(&io::Error) + Send>,
}

#[derive(Debug, Default)]
struct Pending {
    /// The beginning of the output, as far as it is still to be written, and at which byte it begins.
    beginning: Vec<u8>,
    begins_at: u64,
    /// What comes behind the beginning.
    bytes: VecDeque<u8>,
    /// At which byte of the output they begin.
    at: u64,
    is_over: bool,
    /// Nobody takes any more.
    is_given_up: bool,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.beginning.is_empty() && self.bytes.is_empty()
    }

    /// Takes what is there: stretches, each with the byte of the output at which it begins.
    fn take(&mut self) -> Vec<(u64, VecDeque<u8>)> {
        let beginning = (self.begins_at, VecDeque::from(std::mem::take(&mut self.beginning)));
        let rest = (self.at, std::mem::take(&mut self.bytes));
        self.begins_at += beginning.1.len() as u64;
        self.at += rest.1.len() as u64;
        [beginning, rest].into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect()
    }
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
    /// How much of what is behind the beginning may wait for the disk.
    limit: usize,
    /// How much of the beginning is still to come.
    beginning: usize,
}

impl Writer {
    /// Starts the thread. The receiver hears when the file is complete: how many bytes there were, or nothing if it could
    /// not be kept.
    pub fn start(plan: Plan) -> io::Result<(Self, oneshot::Receiver<u64>)> {
        let shared = Arc::new(Shared::default());
        let limit = usize::try_from(plan.limit).unwrap_or(usize::MAX);
        let writer = Writer { shared: shared.clone(), limit, beginning: limit / 2 };
        let (done, is_done) = oneshot::channel();
        std::thread::Builder::new().name("output".into()).spawn(move || {
            let written = write(&shared, &plan);
            if written.is_err() {
                give_up(&plan);
                let mut pending = shared.lock();
                pending.is_given_up = true;
                (pending.beginning, pending.bytes) = (Vec::new(), VecDeque::new());
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
        let (first, bytes) = bytes.split_at(bytes.len().min(self.beginning));
        self.beginning -= first.len();
        pending.beginning.extend(first);
        pending.at += first.len() as u64;
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

/// What there is of it stays, unless that is nothing. Older runs go, as after any: they may be what fills the disk.
fn give_up(plan: &Plan) {
    let Ok(folder) = Folder::open(&plan.folder) else { return };
    if folder.read(&plan.name).and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.len() == 0) {
        retention::remove(&folder, &plan.name);
    }
    retention::apply(&plan.folder, &plan.name, plan.runs);
}

fn write(shared: &Shared, plan: &Plan) -> io::Result<u64> {
    let mut file: Option<Bounded> = None;
    // When the first byte was written that nobody can see yet.
    let mut unseen: Option<Moment> = None;
    let mut end = 0;
    loop {
        let (stretches, is_over) = {
            let wait = |pending: &mut Pending| pending.is_empty() && !pending.is_over;
            let waited = shared.changed.wait_timeout_while(shared.lock(), FLUSHED_WITHIN, wait);
            let mut pending = waited.unwrap_or_else(PoisonError::into_inner).0;
            (pending.take(), pending.is_over)
        };
        for (at, bytes) in &stretches {
            end = at + bytes.len() as u64;
            let file = match &mut file {
                Some(file) => file,
                none => none.insert(Bounded::create(Folder::make(&plan.folder)?, &plan.name, plan.limit)?),
            };
            let (first, second) = bytes.as_slices();
            file.write(*at, first)?;
            file.write(at + first.len() as u64, second)?;
            unseen.get_or_insert_with(|| SystemClock.now());
        }
        let is_due = unseen.is_some_and(|since| stretches.is_empty() || SystemClock.now() >= since + FLUSHED_WITHIN);
        if let Some(file) = file.as_mut().filter(|_| is_due) {
            file.flush()?;
            unseen = None;
        }
        if is_over {
            if let Some(file) = file {
                file.finish()?;
                retention::apply(&plan.folder, &plan.name, plan.runs);
            }
            return Ok(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_output::file;

    #[test]
    fn however_fast_it_comes_the_beginning_and_the_end_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (job, name) = (folder.path().join("a/b"), "run.log.gz".to_owned());
        let path = job.join(&name);
        let warn = Box::new(|error: &io::Error| panic!("{error}"));
        let (mut writer, done) = Writer::start(Plan { folder: job, name, limit: 4_096, runs: 10, warn }).unwrap();
        let text: Vec<u8> = (0..10_000).flat_map(|number| format!("{number:05}\n").into_bytes()).collect();
        // At once, while nobody takes any of it.
        let (few, many) = text.split_at(100);
        writer.write(few);
        writer.write(many);
        drop(writer);
        assert_eq!(done.blocking_recv().unwrap(), text.len() as u64);
        let kept = file::read(&path, u64::MAX).unwrap().stretches;
        assert_eq!(kept[0], (0, text[..2_048].to_vec()));
        let (at, last) = kept.last().unwrap();
        assert_eq!(&text[usize::try_from(*at).unwrap()..], last);
    }
}
