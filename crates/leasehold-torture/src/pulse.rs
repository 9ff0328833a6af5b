//! The harness's own pulse: when this machine did not get to do what was due.

use crate::facts::{Happened, What};
use crate::log::now_ms;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const BEAT_MS: u64 = 100;
/// A beat that takes so much longer, with the start of a process in it, is a stall.
const LATE_MS: u64 = 250;

/// Beats until it is stopped.
#[derive(Debug)]
pub(crate) struct Pulse {
    stop: Arc<AtomicBool>,
    stalls: Arc<Mutex<Vec<Happened>>>,
    thread: Option<JoinHandle<()>>,
}

impl Pulse {
    pub(crate) fn start() -> Self {
        let (stop, stalls) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (told, found) = (stop.clone(), stalls.clone());
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::SeqCst) {
                let from = now_ms();
                std::thread::sleep(Duration::from_millis(BEAT_MS));
                // Those who are judged have to start processes too.
                let _ = Command::new("true").stdin(Stdio::null()).status();
                let to = now_ms();
                if to > from + BEAT_MS + LATE_MS {
                    let stall = Happened { from: from + BEAT_MS, to, what: What::Stall };
                    found.lock().unwrap_or_else(PoisonError::into_inner).push(stall);
                }
            }
        });
        Pulse { stop, stalls, thread: Some(thread) }
    }

    /// The stalls so far.
    pub(crate) fn stalls(&self) -> Vec<Happened> {
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How long they were together.
    pub(crate) fn stalled_ms(&self) -> u64 {
        self.stalls().iter().map(|stall| stall.to - stall.from).sum()
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
