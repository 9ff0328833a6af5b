//! A store, and a spool's watcher, under which this process dies at one named step.

use async_trait::async_trait;
use leasehold_core::observe::Observer;
use leasehold_core::store::{Capabilities, Change, Next, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{Key, Result, Shelf};
use leasehold_work::spool::SpoolStep;
use rustix::process::{Signal, getpid, kill_process};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Every kind of call that an item's life is made of, before it is made and after it was answered.
pub const STORE_STEPS: [&str; 14] = [
    "before swap item",
    "after swap item",
    "before swap line",
    "after swap line",
    "before erase line",
    "after erase line",
    "before list line",
    "after list line",
    "before read item",
    "after read item",
    "before read queue",
    "after read queue",
    "before swap queue",
    "after swap queue",
];

pub fn spool_step(step: SpoolStep) -> String {
    format!("{step:?}")
}

pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

/// Dies when a step is reached for the nth time.
#[derive(Debug)]
pub struct Fate {
    step: String,
    left: AtomicU64,
}

impl Fate {
    pub fn new(step: &str, nth: u64) -> Arc<Self> {
        Arc::new(Fate { step: step.into(), left: AtomicU64::new(nth) })
    }

    fn meet(&self, step: &str) {
        if step == self.step && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            say(&format!("dying at {step}"));
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
        }
    }
}

impl Observer<SpoolStep> for Fate {
    fn reach(&self, step: SpoolStep) -> std::io::Result<()> {
        self.meet(&spool_step(step));
        Ok(())
    }
}

#[derive(Debug)]
pub struct Mortal {
    pub store: Arc<dyn Store>,
    pub fate: Arc<Fate>,
}

impl Mortal {
    fn around<T>(&self, what: &str, shelf: Shelf, when: &str, through: T) -> T {
        self.fate.meet(&format!("{when} {what} {}", shelf.as_str()));
        through
    }
}

#[async_trait]
impl Store for Mortal {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.around("read", key.shelf, "before", ());
        let answer = self.store.read(key).await;
        self.around("read", key.shelf, "after", answer)
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let (what, shelf) = (if let Next::Erase = change.next { "erase" } else { "swap" }, change.key.shelf);
        self.around(what, shelf, "before", ());
        let answer = self.store.write(change).await;
        self.around(what, shelf, "after", answer)
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.around("list", shelf, "before", ());
        let answer = self.store.list(shelf, range).await;
        self.around("list", shelf, "after", answer)
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.store.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.store.survey().await
    }
}
