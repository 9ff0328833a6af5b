//! What this process remembers of leases: those that it left free, as it left them, and how crowded it was.
//!
//! Promise: only records that nobody holds are remembered, each is used once, and the swap still compares; so a memory that
//! is out of date costs a call and never grants anything. Non-promise: it is short, and shared by clones alone.

use crate::clock::Moment;
use crate::grant::Known;
use crate::name::LeaseName;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How many leases are remembered.
const MOST: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Recall {
    free: Mutex<VecDeque<(LeaseName, Known)>>,
    crowds: Mutex<VecDeque<(LeaseName, Duration)>>,
}

impl Recall {
    /// Remembers a record that was just written.
    pub(crate) fn keep(&self, lease: &LeaseName, known: Known) {
        if known.record.tenure.is_some() {
            return;
        }
        put(&self.free, lease, known);
    }

    /// Gives a record up, if it was seen so lately that its time can be told as well as a renewal's.
    pub(crate) fn take(&self, lease: &LeaseName, now: Moment, not_older_than: Duration) -> Option<Known> {
        let known = get(&self.free, lease)?;
        (now.saturating_since(known.anchor.asked) < not_older_than).then_some(known)
    }

    /// Remembers how far apart those who wait for a lease should look.
    pub(crate) fn keep_crowd(&self, lease: &LeaseName, spread: Duration) {
        if !spread.is_zero() {
            put(&self.crowds, lease, spread);
        }
    }

    /// Gives that up; nothing if it is not known to be crowded.
    pub(crate) fn take_crowd(&self, lease: &LeaseName) -> Duration {
        get(&self.crowds, lease).unwrap_or_default()
    }
}

fn put<T>(list: &Mutex<VecDeque<(LeaseName, T)>>, lease: &LeaseName, what: T) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    list.retain(|(name, _)| name != lease);
    if list.len() == MOST {
        list.pop_front();
    }
    list.push_back((lease.clone(), what));
}

fn get<T>(list: &Mutex<VecDeque<(LeaseName, T)>>, lease: &LeaseName) -> Option<T> {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    let at = list.iter().position(|(name, _)| name == lease)?;
    list.remove(at).map(|(_, what)| what)
}
