//! Counts the outcomes of leases that are held over the API, as the command does, for `stats`, metrics and alerts.
//!
//! Promise: no answer waits for a count, and whatever is asked for at once, one count is written at a time. Repeating a request
//! at this server counts once for each epoch, and each resource that refused it. Non-promise: a count may be missed when the
//! server ends, when too many are to be written, or while the store is away; a request that is repeated at another server may
//! count twice.

use leasehold_core::lease::protocol::Refusal;
use leasehold_core::{Coordinator, EndedRun, Epoch, Event, FencedWrite, LeaseName, TokenKind};
use leasehold_stores::Namespace;
use leasehold_system::sync::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// How many different counts may wait to be written. More are missed.
const MAX_PENDING: usize = 10_000;
/// How many events are remembered as counted, before that is forgotten.
const MAX_KNOWN: usize = 100_000;

/// Whose count, which, of which epoch, and where a write was refused.
type What = (Namespace, LeaseName, Event, Option<Epoch>, Option<FencedWrite>);

#[derive(Debug, Default)]
struct Pending {
    /// How often each is to be counted.
    counts: BTreeMap<What, (Coordinator, u64)>,
    is_written: bool,
    once: HashSet<What>,
}

/// Counts that are to be written. Cloning it is cheap.
#[derive(Debug, Clone, Default)]
pub struct Tally(Arc<Mutex<Pending>>);

impl Tally {
    /// An acquisition under this epoch, however often it is asked for. `died` if the holder before it ran out of time.
    pub fn granted(&self, namespace: &Namespace, leases: &Coordinator, lease: &LeaseName, epoch: Epoch, died: bool) {
        for event in [Some(Event::Granted), died.then_some(Event::Died)].into_iter().flatten() {
            self.once(namespace, leases, lease, event, epoch);
        }
    }

    /// An acquisition that was refused.
    pub fn refused(&self, namespace: &Namespace, leases: &Coordinator, lease: &LeaseName, refusal: &Refusal) {
        let event = match refusal {
            Refusal::Paused(_) => Event::Paused,
            Refusal::AlreadyRun(_) | Refusal::TooSoon { .. } => Event::AlreadyRun,
            _ => Event::SkippedOverlap,
        };
        self.add((namespace.clone(), lease.clone(), event, None, None), leases);
    }

    /// What became of an epoch: however often it is said, it counts once.
    pub fn once(&self, namespace: &Namespace, leases: &Coordinator, lease: &LeaseName, event: Event, epoch: Epoch) {
        if self.is_new((namespace.clone(), lease.clone(), event, Some(epoch), None)) {
            // Only of a loss does the epoch tell more.
            let epoch = Some(epoch).filter(|_| event == Event::Lost);
            self.add((namespace.clone(), lease.clone(), event, epoch, None), leases);
        }
    }

    /// A stale write that was refused: once for each epoch and resource.
    pub fn fenced(&self, namespace: &Namespace, leases: &Coordinator, lease: &LeaseName, write: FencedWrite) {
        let what = (namespace.clone(), lease.clone(), Event::Fenced, Some(write.held), Some(write));
        if self.is_new(what.clone()) {
            self.add(what, leases);
        }
    }

    /// Whether it was not counted yet. Items have no counters.
    fn is_new(&self, what: What) -> bool {
        if TokenKind::of(&what.1) != TokenKind::Lease {
            return false;
        }
        let mut pending = self.0.lock();
        if pending.once.len() >= MAX_KNOWN {
            pending.once.clear();
        }
        pending.once.insert(what)
    }

    fn add(&self, what: What, leases: &Coordinator) {
        let mut pending = self.0.lock();
        if pending.counts.len() >= MAX_PENDING && !pending.counts.contains_key(&what) {
            return;
        }
        pending.counts.entry(what).or_insert_with(|| (leases.clone(), 0)).1 += 1;
        if !std::mem::replace(&mut pending.is_written, true) {
            tokio::spawn(self.clone().write());
        }
    }

    async fn write(self) {
        loop {
            let next = {
                let mut pending = self.0.lock();
                let next = pending.counts.pop_first();
                pending.is_written = next.is_some();
                next
            };
            let Some(((_, lease, event, epoch, write), (leases, times))) = next else { return };
            let counted = match (&write, epoch) {
                (Some(write), _) => leases.count_fenced(&lease, write).await,
                // A lease that an operator took away counts as that.
                (None, Some(_)) => {
                    leases.count_run(&lease, &EndedRun { event: Some(event), epoch, ..EndedRun::default() }).await
                }
                (None, None) => leases.count_many(&lease, event, times).await,
            };
            if let Err(error) = counted {
                tracing::debug!("what became of `{lease}` was not counted: {error}");
            }
        }
    }
}
