//! The agenda: which job to check when.
//!
//! Promise: each job is on it at most once. Arming it again moves it, and the earlier time counts. Reading, arming and
//! taking are logarithmic. Non-promise: it reads no clock.

use leasehold_core::Timestamp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const IDLE: u64 = u64::MAX;

/// A heap of times, one per job.
#[derive(Debug, Default)]
pub struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    armed: Vec<u64>,
}

impl Agenda {
    /// An empty agenda for this many jobs.
    pub fn for_jobs(count: usize) -> Self {
        Agenda { heap: BinaryHeap::with_capacity(count), armed: vec![IDLE; count] }
    }

    /// Schedules a check of the job at this time, or earlier if one was already scheduled earlier.
    pub fn arm(&mut self, job: u32, at: Timestamp) {
        let Some(armed) = self.armed.get_mut(job as usize) else { return };
        if at.as_millis() < *armed {
            *armed = at.as_millis();
            self.heap.push(Reverse((at.as_millis(), job)));
        }
    }

    /// Takes a job whose time has come.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<u32> {
        while let Some(Reverse((at, job))) = self.heap.peek().copied() {
            if at > now.as_millis() {
                return None;
            }
            self.heap.pop();
            // An entry that was replaced by an earlier one of the same job is skipped.
            if let Some(armed) = self.armed.get_mut(job as usize).filter(|armed| **armed == at) {
                *armed = IDLE;
                return Some(job);
            }
        }
        None
    }

    /// When to check the next job, or earlier.
    pub fn next(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse((at, _))| Timestamp::from_millis(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_comes_once_at_its_earliest_time() {
        let at = Timestamp::from_millis;
        let mut agenda = Agenda::for_jobs(3);
        agenda.arm(0, at(50));
        agenda.arm(0, at(20));
        agenda.arm(0, at(30));
        agenda.arm(2, at(10));
        agenda.arm(9, at(1));
        assert_eq!(agenda.pop_due(at(9)), None);
        assert_eq!(agenda.next(), Some(at(10)));
        assert_eq!((agenda.pop_due(at(25)), agenda.pop_due(at(25)), agenda.pop_due(at(25))), (Some(2), Some(0), None));
        agenda.arm(0, at(60));
        assert_eq!((agenda.pop_due(at(55)), agenda.pop_due(at(60)), agenda.pop_due(at(99))), (None, Some(0), None));
    }
}
