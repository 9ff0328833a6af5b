//! The signals that end or concern the command.

use leasehold_core::{Error, Kind, Result};
use leasehold_system::process::is_ignored;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

/// Signals that are passed on to the command. The dead-man, which watches over both, withstands them.
pub(super) const PASSED_ON: [fn() -> SignalKind; 7] = [
    SignalKind::hangup,
    SignalKind::interrupt,
    SignalKind::quit,
    SignalKind::terminate,
    SignalKind::user_defined1,
    SignalKind::user_defined2,
    SignalKind::window_change,
];
/// Those of them that are meant to end a process.
const ENDING: [fn() -> SignalKind; 4] =
    [SignalKind::hangup, SignalKind::interrupt, SignalKind::quit, SignalKind::terminate];

/// Signals as they come in.
#[derive(Debug)]
pub struct Signals {
    receiver: mpsc::Receiver<i32>,
    told_to_end: bool,
}

impl Signals {
    /// Collects them from now on, instead of ending this process. What our caller had ignored, as `nohup` does, stays
    /// ignored, by us and by the command.
    pub fn listen() -> Result<Self> {
        Signals::listen_to(&PASSED_ON)
    }

    /// Only those that are meant to end a process, for what has to clean up.
    pub fn listen_to_ending() -> Result<Self> {
        Signals::listen_to(&ENDING)
    }

    fn listen_to(kinds: &[fn() -> SignalKind]) -> Result<Self> {
        let (sender, receiver) = mpsc::channel(16);
        for kind in kinds {
            let number = kind().as_raw_value();
            if is_ignored(number) {
                continue;
            }
            let mut stream =
                signal(kind()).map_err(|e| Error::new(Kind::Unsupported, "cannot listen to signals").with_source(e))?;
            let sender = sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(number).await.is_ok() {} });
        }
        Ok(Signals { receiver, told_to_end: false })
    }

    /// The same for a worker, which is asked to end once, to finish what it is at, and is ended by the second time. Gives
    /// what counts how often it was asked.
    pub fn draining(mut self) -> (Self, watch::Sender<u32>) {
        let (sender, receiver) = mpsc::channel(16);
        let asked = watch::Sender::new(0);
        let count = asked.clone();
        tokio::spawn(async move {
            loop {
                let number = self.next().await;
                let ends = Signals::is_ending(number);
                if ends {
                    count.send_modify(|count| *count += 1);
                }
                if (!ends || *count.borrow() > 1) && sender.send(number).await.is_err() {
                    return;
                }
            }
        });
        (Signals { receiver, told_to_end: false }, asked)
    }

    /// Whether a signal is meant to end a process.
    pub fn is_ending(number: i32) -> bool {
        ENDING.iter().any(|kind| kind().as_raw_value() == number)
    }

    /// Forgets those that came while there was no command.
    pub fn forget(&mut self) {
        while self.receiver.try_recv().is_ok() {}
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> i32 {
        match self.receiver.recv().await {
            Some(number) => {
                self.told_to_end |= Signals::is_ending(number);
                number
            }
            None => std::future::pending().await,
        }
    }

    /// One that has come already and is meant to end a process, for when there is no command yet.
    pub async fn pending_ending(&mut self) -> Option<i32> {
        // Once for the system's signal to be seen, once for it to be passed on to us.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        while let Ok(number) = self.receiver.try_recv() {
            if Signals::is_ending(number) {
                self.told_to_end = true;
                return Some(number);
            }
        }
        None
    }

    /// An operator asked for the end, which counts as much as a signal.
    pub fn tell_to_end(&mut self) {
        self.told_to_end = true;
    }

    /// Whether one came that is meant to end a process.
    pub fn told_to_end(&self) -> bool {
        self.told_to_end
    }

    /// The next one that is meant to end a process, for when there is no command yet.
    pub async fn next_ending(&mut self) -> i32 {
        loop {
            let number = self.next().await;
            if Signals::is_ending(number) {
                return number;
            }
        }
    }
}
