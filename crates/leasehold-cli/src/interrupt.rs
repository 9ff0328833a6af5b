//! Work that a signal, or the end of its time, ends together with every process that it has started.
//!
//! Promise: when the work is given up, nothing that was started for it is left running, as far as this user may end it.
//! Non-promise: what it had done by then is not undone; that is for its caller.

use crate::patience::Patience;
use crate::supervise::{Signals, unwatchable};
use leasehold_core::{Error, Kind, Result};
use leasehold_system::process::{Signal, Tree};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;

/// Between two checks of what is still running.
const POLL: Duration = Duration::from_millis(10);
/// How many polls a process has to end by itself, in which git removes its files.
const POLLS_BEFORE_KILL: u32 = 200;
/// How many polls there are at all: a process that waits for a disk cannot be ended.
const MAX_POLLS: u32 = 500;

/// Signals that are meant to end this process, and what is below it.
#[derive(Debug)]
pub struct Watch {
    signals: Signals,
    /// None where processes cannot be watched over.
    tree: Option<Tree>,
}

/// Why work ended before it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// By the signal of this number.
    Signal(i32),
    /// Its time was up.
    TimedOut,
}

/// Turns true when work that blocks is to end.
pub type Stop = watch::Receiver<bool>;

impl Watch {
    /// From now on such a signal ends the work, and not this process.
    pub fn begin() -> Result<Self> {
        let tree = Tree::begin().map_err(unwatchable)?;
        Ok(Watch { signals: Signals::listen_to_ending()?, tree: Some(tree) })
    }

    /// The same, also where processes cannot be watched over: then only those are ended whose handles do it when dropped.
    pub fn begin_anyway() -> Result<Self> {
        Ok(Watch { signals: Signals::listen_to_ending()?, tree: Tree::begin().ok() })
    }

    /// Does the work, or says what ended it.
    pub async fn run<T>(&mut self, patience: &Patience, work: impl Future<Output = T>) -> Result<T, Interruption> {
        let mut work = pin!(work);
        let cut = tokio::select! {
            biased;
            number = self.signals.next_ending() => Interruption::Signal(number),
            done = &mut work => return Ok(done),
            () = patience.run_out() => Interruption::TimedOut,
        };
        // It is not polled any more, so it starts nothing new.
        self.end_processes().await;
        Err(cut)
    }

    /// Does work that blocks. The end of its time, or one signal more than those that are to be ignored, sets its `Stop` and ends its
    /// processes until it returns. The first signal's number is given too, or that its time was up.
    pub async fn run_blocking<T: Send + 'static>(
        &mut self,
        ignored: u32,
        patience: &Patience,
        work: impl FnOnce(Stop) -> T + Send + 'static,
    ) -> Result<(T, Option<Interruption>)> {
        let broken = |e| Error::new(Kind::Unavailable, "a part of the work crashed").with_source(e);
        let (stop, told) = watch::channel(false);
        let mut work = tokio::task::spawn_blocking(move || work(told));
        let mut cuts = Vec::new();
        let mut end = pin!(patience.run_out());
        while cuts.len() <= ignored as usize && !cuts.contains(&Interruption::TimedOut) {
            tokio::select! {
                biased;
                number = self.signals.next_ending() => cuts.push(Interruption::Signal(number)),
                done = &mut work => return Ok((done.map_err(broken)?, cuts.first().copied())),
                () = &mut end => cuts.push(Interruption::TimedOut),
            }
        }
        stop.send_replace(true);
        let mut polls = 0;
        let done = loop {
            self.end_once(polls);
            polls += 1;
            tokio::select! {
                done = &mut work => break done,
                () = tokio::time::sleep(POLL) => {}
            }
        };
        self.end_processes().await;
        Ok((done.map_err(broken)?, cuts.first().copied()))
    }

    async fn end_processes(&self) {
        let Some(tree) = &self.tree else { return };
        for polls in 0..MAX_POLLS {
            if tree.pids().is_ok_and(|pids| pids.is_empty()) {
                return;
            }
            self.end_once(polls);
            tokio::time::sleep(POLL).await;
        }
    }

    fn end_once(&self, polls: u32) {
        let signal = if polls < POLLS_BEFORE_KILL { Signal::TERM } else { Signal::KILL };
        if let Some(tree) = &self.tree {
            // A stopped process gets it when it is continued.
            let _ = tree.signal(signal).and_then(|()| tree.signal(Signal::CONT));
        }
    }
}

/// How a process ends that a signal told to.
pub fn exit_by(number: i32) -> crate::exit::Exit {
    crate::exit::Exit::Signal(u8::try_from(number).unwrap_or(15))
}
