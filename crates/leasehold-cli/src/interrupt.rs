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

/// Between two looks at what is still running.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How many looks a process has to end by itself, which lets git remove its files.
const POLITE_LOOKS: u32 = 200;
/// How many looks there are at all: who waits for a disk cannot be ended.
const MOST_LOOKS: u32 = 500;

/// Signals that are meant to end this process, and what is below it.
#[derive(Debug)]
pub struct Watch {
    signals: Signals,
    /// None where processes cannot be watched over.
    tree: Option<Tree>,
}

/// Why work ended before it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// By the signal of this number.
    Signal(i32),
    /// Its time was up.
    OutOfTime,
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
    pub async fn over<T>(&mut self, patience: &Patience, work: impl Future<Output = T>) -> Result<T, Cut> {
        let mut work = pin!(work);
        let cut = tokio::select! {
            biased;
            number = self.signals.next_ending() => Cut::Signal(number),
            done = &mut work => return Ok(done),
            () = patience.run_out() => Cut::OutOfTime,
        };
        // It is not polled any more, so it starts nothing new.
        self.end_processes().await;
        Err(cut)
    }

    /// Does work that blocks. The end of its time, or one signal more than those that are spared, sets its `Stop` and ends its
    /// processes until it returns. The first signal's number is given too, or that its time was up.
    pub async fn beside<T: Send + 'static>(
        &mut self,
        spared: u32,
        patience: &Patience,
        work: impl FnOnce(Stop) -> T + Send + 'static,
    ) -> Result<(T, Option<Cut>)> {
        let broken = |e| Error::new(Kind::Unavailable, "a part of the work broke down").with_source(e);
        let (stop, told) = watch::channel(false);
        let mut work = tokio::task::spawn_blocking(move || work(told));
        let mut cuts = Vec::new();
        let mut end = pin!(patience.run_out());
        while cuts.len() <= spared as usize && !cuts.contains(&Cut::OutOfTime) {
            tokio::select! {
                biased;
                number = self.signals.next_ending() => cuts.push(Cut::Signal(number)),
                done = &mut work => return Ok((done.map_err(broken)?, cuts.first().copied())),
                () = &mut end => cuts.push(Cut::OutOfTime),
            }
        }
        stop.send_replace(true);
        let mut looks = 0;
        let done = loop {
            self.end_once(looks);
            looks += 1;
            tokio::select! {
                done = &mut work => break done,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        };
        self.end_processes().await;
        Ok((done.map_err(broken)?, cuts.first().copied()))
    }

    async fn end_processes(&self) {
        let Some(tree) = &self.tree else { return };
        for looks in 0..MOST_LOOKS {
            if tree.pids().is_ok_and(|pids| pids.is_empty()) {
                return;
            }
            self.end_once(looks);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn end_once(&self, looks: u32) {
        let signal = if looks < POLITE_LOOKS { Signal::TERM } else { Signal::KILL };
        if let Some(tree) = &self.tree {
            // One that is stopped hears of it when it goes on.
            let _ = tree.signal(signal).and_then(|()| tree.signal(Signal::CONT));
        }
    }
}

/// How a process ends that a signal told to.
pub fn exit_by(number: i32) -> crate::exit::Exit {
    crate::exit::Exit::Signal(u8::try_from(number).unwrap_or(15))
}
