//! A thread beside the storm, until it is told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a pause looks whether it is over.
const GLANCE: Duration = Duration::from_millis(100);

/// Whether the thread is to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// For what is tried once only.
    pub(crate) fn at_once() -> Self {
        Stop(Arc::new(AtomicBool::new(true)))
    }

    pub(crate) fn is_told(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// For this long, or until it is told.
    pub(crate) fn pause(&self, mut left: Duration) {
        while !left.is_zero() && !self.is_told() {
            std::thread::sleep(left.min(GLANCE));
            left = left.saturating_sub(GLANCE);
        }
    }
}

/// The thread. Dropped, it is told to stop and waited for.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(crate) fn start(work: impl FnOnce(Stop) + Send + 'static) -> Self {
        let stop = Stop::default();
        let told = stop.clone();
        Background { stop, thread: Some(std::thread::spawn(move || work(told))) }
    }

    pub(crate) fn stop(&mut self) {
        self.stop.0.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}
