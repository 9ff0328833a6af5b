//! Evidence that the work moves, apart from the fact that its process exists.
//!
//! Only what was asked for counts: a `leasehold progress` call always does (it shows in the record), output and
//! touched files only when named, for a spinner prints for ever.

use leasehold::clock::{Clock, Moment, SystemClock};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

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
    pub fn copy_output(self, child: &mut Child) -> JoinHandle<()> {
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        tokio::spawn(async move {
            tokio::join!(
                copy(stdout, tokio::io::stdout(), &self.last_output),
                copy(stderr, tokio::io::stderr(), &self.last_output)
            );
        })
    }
}

async fn copy(from: Option<OwnedFd>, mut to: impl tokio::io::AsyncWrite + Unpin, last: &AtomicU64) {
    let Some(Ok(mut from)) = from.map(tokio::net::unix::pipe::Receiver::from_owned_fd) else { return };
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 {
            break;
        }
        last.store(SystemClock.now().as_nanos(), Ordering::Relaxed);
        if to.write_all(&buffer[..read]).await.is_err() || to.flush().await.is_err() {
            break;
        }
    }
}
