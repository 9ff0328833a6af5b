//! Evidence that the work moves, apart from the fact that its process exists.
//!
//! Only what was asked for counts: a `leasehold progress` call always does (it shows in the record), output and
//! touched files only when named, for a spinner prints for ever.

use leasehold_core::clock::{Clock, Moment, SystemClock};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long a pipe may be silent before it counts as ended, once everything that could write is dead.
const SILENCE: Duration = Duration::from_secs(1);

/// Which evidence counts, and when the last was seen.
#[derive(Debug, Clone)]
pub struct Evidence {
    output: Output,
    files: Vec<PathBuf>,
    last_output: Arc<AtomicU64>,
}

/// Whether output counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// It does.
    Counts,
    /// It does not, and is not looked at.
    Ignored,
}

impl Evidence {
    /// Evidence from these sources, besides `leasehold progress`.
    pub fn new(output: Output, files: Vec<PathBuf>) -> Self {
        Evidence { output, files, last_output: Arc::default() }
    }

    /// Whether the command's output must pass through us.
    pub fn wants_output(&self) -> bool {
        self.output == Output::Counts
    }

    /// What tells the keeper the latest moment of evidence.
    pub fn reader(&self) -> Arc<dyn Fn() -> Option<Moment> + Send + Sync> {
        let this = self.clone();
        // A file's time is in some other clock: only that it changed since we last looked is evidence.
        let seen: Mutex<(Vec<Option<SystemTime>>, Option<Moment>)> = Mutex::new((this.touched(), None));
        Arc::new(move || {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let touched = this.touched();
            if touched != seen.0 {
                *seen = (touched, Some(SystemClock.now()));
            }
            let output = match this.last_output.load(Ordering::Relaxed) {
                0 => None,
                nanos => Some(Moment::from_nanos(nanos)),
            };
            seen.1.max(output)
        })
    }

    fn touched(&self) -> Vec<Option<SystemTime>> {
        self.files.iter().map(|file| std::fs::metadata(file).and_then(|m| m.modified()).ok()).collect()
    }

    /// Copies the command's output to ours, noting when there was any.
    pub fn copy_output(self, child: &mut Child) -> Copying {
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        let (ended, has_ended) = watch::channel(false);
        let task = tokio::spawn(async move {
            tokio::join!(
                copy(stdout, tokio::io::stdout(), &self.last_output, has_ended.clone()),
                copy(stderr, tokio::io::stderr(), &self.last_output, has_ended)
            );
        });
        Copying { task, ended }
    }
}

/// Output on its way to our own. Dropped, what has not arrived is lost.
#[derive(Debug)]
pub struct Copying {
    task: JoinHandle<()>,
    ended: watch::Sender<bool>,
}

impl Copying {
    /// Waits until everything has arrived, however slow its reader is. To be called once all that could write is dead:
    /// a process that is not below us may hold the other end for ever, so a pipe that then stays silent has ended.
    pub async fn arrive(&mut self) {
        self.ended.send_replace(true);
        let _ = (&mut self.task).await;
    }

    /// Whether it has.
    pub fn has_arrived(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn copy(
    from: Option<OwnedFd>,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    last: &AtomicU64,
    mut ended: watch::Receiver<bool>,
) {
    let Some(Ok(mut from)) = from.map(tokio::net::unix::pipe::Receiver::from_owned_fd) else { return };
    let mut buffer = vec![0; 16 * 1024];
    loop {
        // Only the reading is bounded: a write that its reader keeps waiting is not cut off.
        let read = tokio::select! {
            biased;
            read = from.read(&mut buffer) => read.unwrap_or(0),
            () = silence(&mut ended) => 0,
        };
        if read == 0 {
            return;
        }
        last.store(SystemClock.now().as_nanos(), Ordering::Relaxed);
        if to.write_all(&buffer[..read]).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

/// Returns when nothing more is to be expected.
async fn silence(ended: &mut watch::Receiver<bool>) {
    if ended.wait_for(|ended| *ended).await.is_ok() {
        tokio::time::sleep(SILENCE).await;
    }
}
