//! What this process left free, as it left it: who comes back soon need not read it again.
//!
//! Promise: only records that nobody holds are remembered, each is used once, and the swap still compares; so a memory that
//! is out of date costs a call and never grants anything. Non-promise: it is short, and shared by clones alone.

use crate::clock::Moment;
use crate::grant::Known;
use crate::name::LeaseName;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many records are remembered.
const MOST: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Recall(Mutex<VecDeque<(LeaseName, Known)>>);

impl Recall {
    /// Remembers a record that was just written.
    pub(crate) fn keep(&self, lease: &LeaseName, known: Known) {
        if known.record.tenure.is_some() {
            return;
        }
        let mut kept = self.kept();
        kept.retain(|(name, _)| name != lease);
        if kept.len() == MOST {
            kept.pop_front();
        }
        kept.push_back((lease.clone(), known));
    }

    /// Gives a record up, if it was seen so lately that its time can be told as well as a renewal's.
    pub(crate) fn take(&self, lease: &LeaseName, now: Moment, not_older_than: Duration) -> Option<Known> {
        let mut kept = self.kept();
        let at = kept.iter().position(|(name, _)| name == lease)?;
        let (_, known) = kept.remove(at)?;
        (now.saturating_since(known.anchor.asked) < not_older_than).then_some(known)
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<(LeaseName, Known)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
