//! How an answer goes through a listing: from name to name, past what the caller may not see, in a bounded number of steps.
//!
//! Promise: names before those that the caller may see cost nothing, if prefixes can tell them apart. A walk that ends before the
//! last name says where to continue, so that an answer never claims that nothing is there when it has not looked. Non-promise:
//! names that only a pattern such as `*/docs` can tell apart are checked one by one.

use super::cursor::Beginnings;
use leasehold_core::LeaseName;

/// A walk through the names of a shelf.
#[derive(Debug)]
pub struct Walk {
    reach: Beginnings,
    at: Option<LeaseName>,
    is_over: bool,
    steps: Steps,
}

/// How much a walk reads.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    /// How many records its first step reads: as many as are wanted, if none is hidden.
    pub first: usize,
    /// How many each further step reads.
    pub further: usize,
    /// How many steps it takes at most.
    pub most: usize,
}

impl Walk {
    /// A walk after this name, or from the beginning.
    pub fn new(reach: Beginnings, after: Option<&LeaseName>, steps: Steps) -> Self {
        let at = after.map_or_else(|| reach.first(), |after| reach.after(after));
        let is_over = reach.is_empty() || (after.is_some() && at.is_none());
        Walk { reach, at, is_over, steps }
    }

    /// Where to list from next, and how many; none if there are no more, or the steps are used up.
    pub fn step(&mut self) -> Option<(Option<LeaseName>, usize)> {
        if self.is_over {
            return None;
        }
        self.steps.most = self.steps.most.checked_sub(1)?;
        Some((self.at.clone(), std::mem::replace(&mut self.steps.first, self.steps.further)))
    }

    /// Notes that this name was seen.
    pub fn pass(&mut self, name: &LeaseName) {
        self.at = Some(name.clone());
    }

    /// Ends a step. `more` says whether there are names after the last one that was seen.
    pub fn end(&mut self, more: bool) {
        let next = self.at.as_ref().filter(|_| more).and_then(|at| self.reach.after(at));
        self.is_over = next.is_none();
        self.at = next;
    }

    /// Where to continue, if there may be more.
    pub fn next(self) -> Option<LeaseName> {
        self.at.filter(|_| !self.is_over)
    }
}
