//! Output that is kept: of each run a file on this machine or an object in a bucket, and its end in the store.
//!
//! Promise: whatever goes wrong with it, the run is neither stopped nor delayed nor failed; one warning says what is not kept.
//! Non-promise: docs/output.md says what a crash leaves of it.

pub mod file;
mod folder;
pub mod followed;
pub mod layout;
mod object;
mod retention;
mod setting;
mod writer;

pub use object::Bucket;
pub use setting::{OUTPUT, OUTPUT_RUNS, OUTPUT_SIZE, Size, Target, bytes_of, check_variables, parse_runs};

use crate::config::DEFAULT_OUTPUT_SIZE;
use crate::supervise::settlement::PATIENCE;
use crate::supervise::{Gathered, Sink, Tail};
use layout::RunFile;
use leasehold_core::item::QueueName;
use leasehold_core::{Coordinator, LeaseName, Right, Slot, Timestamp, Token};
use leasehold_work::output::{Ring, RunOutput, Usage};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;
use tracing::warn;

/// How long an upload may take after the lease is released. What is not uploaded by then goes with the next run's.
const UPLOAD: Duration = Duration::from_secs(10);

/// How output is kept here.
#[derive(Debug, Clone)]
pub struct Keeping {
    /// Of this machine; what goes to a bucket waits there.
    pub root: PathBuf,
    pub bucket: Option<Bucket>,
    pub size: u64,
    pub runs: u64,
    /// The spool that the items are of.
    pub spool: Option<String>,
}

/// One run's output, of all its tries.
#[derive(Debug)]
pub struct Keep {
    keeping: Keeping,
    token: Token,
    file: RunFile,
    pub gathered: Gathered,
    /// Hears when the file is complete.
    written: Mutex<Option<oneshot::Receiver<u64>>>,
}

/// What is known of a run when it has ended.
#[derive(Debug, Clone)]
pub struct RunFacts {
    pub slot: Option<Slot>,
    pub exit: Option<u8>,
    /// Why it was ended, if it did not end by itself.
    pub why: Option<String>,
    pub usage: Option<Usage>,
}

impl Keeping {
    /// How many bytes of a run's output are shown at most: a file or an object may be compressed to a thousandth, and need not
    /// be of our making.
    pub fn most_shown(&self) -> u64 {
        self.size.max(DEFAULT_OUTPUT_SIZE.0)
    }

    /// Begins to keep the output of a run under this token. If it cannot be kept, a warning says so, and the run continues.
    pub fn begin(&self, token: &Token) -> Keep {
        let file = RunFile::new(token, self.spool.as_deref());
        let folder = self.root.join(layout::home()).join(&file.folder);
        let name = file.name();
        let path = folder.join(&name);
        let (lease, epoch, shown) = (token.lease.to_string(), token.epoch.get(), path.display().to_string());
        let warn = move |error: &std::io::Error| {
            warn!(lease, epoch, %error, "the output of `{lease}:{epoch}` is not kept in `{shown}`: {error}; the run continues");
        };
        let told = warn.clone();
        let plan = writer::Plan { folder, name, limit: self.size, runs: self.runs, warn: Box::new(warn) };
        let (sink, written) = match writer::Writer::start(plan) {
            Ok((writer, written)) => (Some(Box::new(writer) as Box<dyn Sink>), Some(written)),
            Err(error) => {
                told(&error);
                (None, None)
            }
        };
        let written = Mutex::new(written);
        Keep { keeping: self.clone(), token: token.clone(), file, gathered: Gathered::new(sink), written }
    }
}

impl Keep {
    /// Whether `logs` will find something.
    pub fn has_some(&self) -> bool {
        self.gathered.bytes() > 0
    }

    /// Ends it, and writes the record; gives its name if it has any output. The lease is released by then, so this may take a moment, not more.
    pub async fn end(&self, coordinator: Option<&Coordinator>, facts: RunFacts) -> Option<LeaseName> {
        self.gathered.close();
        let total = self.gathered.bytes();
        if total == 0 && facts.why.is_none() {
            // Nothing is worth two requests to the store.
            return None;
        }
        let written = self.written.lock().ok().and_then(|mut written| written.take());
        let bytes = match written {
            Some(written) => match tokio::time::timeout(PATIENCE, written).await {
                Ok(bytes) => bytes.ok(),
                Err(_) => {
                    let (lease, epoch) = (self.token.lease.as_str(), self.token.epoch.get());
                    warn!(lease, epoch, "the end of the output of `{lease}:{epoch}` is not kept: the disk is too slow");
                    None
                }
            },
            None => None,
        };
        let Tail { text, is_cut } = self.gathered.tail();
        let output = RunOutput {
            lease: self.token.lease.clone(),
            epoch: self.token.epoch,
            slot: facts.slot,
            host: leasehold_system::host::name(),
            at: Timestamp::from_millis(0),
            exit: facts.exit,
            why: facts.why,
            usage: facts.usage,
            bytes: total,
            file: bytes.filter(|bytes| *bytes > 0).map(|_| format!("{}/{}", layout::home(), self.file.path())),
            is_cut,
            tail: text,
        };
        let (coordinator, ring) = (coordinator?, self.ring()?);
        let writing = leasehold_work::output::write(coordinator, &ring, &self.token, &output);
        let problem = match tokio::time::timeout(PATIENCE, writing).await {
            Ok(Ok(name)) => return Some(name).filter(|_| total > 0),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the store does not answer".to_owned(),
        };
        let (lease, epoch) = (self.token.lease.as_str(), self.token.epoch.get());
        warn!(lease, epoch, error = problem, "the last lines of `{lease}:{epoch}` are not in the store: {problem}");
        None
    }

    /// Uploads it where it goes to a bucket, with what earlier runs could not.
    pub fn upload(&self) -> impl Future<Output = ()> + Send + use<> {
        let (keeping, token, name) = (self.keeping.clone(), self.token.clone(), self.file.folder.clone());
        async move {
            let Some(bucket) = &keeping.bucket else { return };
            let folder = keeping.root.join(layout::home()).join(&name);
            let problem = match tokio::time::timeout(UPLOAD, bucket.upload(&folder, &name, keeping.runs)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("it took longer than {} s", UPLOAD.as_secs()),
            };
            let folder = folder.display();
            let (lease, epoch) = (token.lease.as_str(), token.epoch.get());
            warn!(
                lease,
                epoch,
                error = problem,
                "the output of `{token}` is not in `{bucket}` yet: {problem}; it stays in `{folder}` until the next run \
                 uploads it"
            );
        }
    }

    fn ring(&self) -> Option<Ring> {
        ring(&self.token, self.keeping.runs)
    }
}

/// Where the ends of the runs of this token's lease or queue are; none for a spool, which has no store.
pub fn ring(token: &Token, runs: u64) -> Option<Ring> {
    match Right::of(&token.lease) {
        Right::Lease => Some(Ring::of_lease(&token.lease, token.lineage, runs)),
        Right::Item => {
            let queue: QueueName = token.lease.as_str().split('/').nth(1)?.parse().ok()?;
            Some(Ring::of_queue(&queue, runs))
        }
        Right::SpoolFile => None,
    }
}

/// The files of runs in a folder of this machine, newest first.
pub fn files_in(path: &Path) -> Vec<(SystemTime, PathBuf)> {
    let files = folder::Folder::open(path).map(|folder| retention::list_runs(&folder)).unwrap_or_default();
    files.into_iter().map(|(at, name)| (at, path.join(name))).collect()
}

/// What is put before each line that is passed on: the job, or the queue and the item.
pub fn prefix(lease: &LeaseName) -> String {
    let name = lease.as_str().strip_prefix("queue/").unwrap_or(lease.as_str());
    format!("{name} | ")
}

/// Uploads of a worker, beside the items that come after. One at a time: it takes along what others left.
#[derive(Debug, Default)]
pub struct Uploads(Option<tokio::task::JoinHandle<()>>);

impl Uploads {
    pub fn begin(&mut self, keep: &Keep) {
        if self.0.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) && keep.keeping.bucket.is_some() {
            self.0 = Some(tokio::spawn(keep.upload()));
        }
    }

    /// Waits for the last, which is bounded.
    pub async fn finish(self) {
        if let Some(upload) = self.0 {
            let _ = upload.await;
        }
    }
}
