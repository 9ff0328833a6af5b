//! The harness's own pulse: when this machine did not get to do what was due.

use crate::background::Background;
use crate::facts::{Happened, What};
use crate::log::now_ms;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BEAT_MS: u64 = 100;
/// A beat that takes so much longer, with the start of a process in it, is a stall.
const LATE_MS: u64 = 250;

/// Beats until it is dropped.
#[derive(Debug)]
pub(crate) struct Pulse {
    stalls: Arc<Mutex<Vec<Happened>>>,
    _beating: Background,
}

impl Pulse {
    pub(crate) fn start() -> Self {
        let stalls = Arc::new(Mutex::new(Vec::new()));
        let found = stalls.clone();
        let beating = Background::start(move |stop| {
            while !stop.is_told() {
                let from = now_ms();
                std::thread::sleep(Duration::from_millis(BEAT_MS));
                // Those who are judged have to start processes too.
                let _ = Command::new("true").stdin(Stdio::null()).status();
                let to = now_ms();
                if to > from + BEAT_MS + LATE_MS {
                    found.lock().unwrap().push(Happened { from: from + BEAT_MS, to, what: What::Stall });
                }
            }
        });
        Pulse { stalls, _beating: beating }
    }

    /// The stalls so far.
    pub(crate) fn stalls(&self) -> Vec<Happened> {
        self.stalls.lock().unwrap().clone()
    }

    /// How long they were together.
    pub(crate) fn stalled_ms(&self) -> u64 {
        self.stalls().iter().map(|stall| stall.to - stall.from).sum()
    }
}
