//! A page of a shelf, for a caller that may see a part of it.
//!
//! Promise: what a page shows depends only on the records that the caller may see, and not on where among the hidden ones it
//! began or how many of those it skipped. So a listing begins at names in the key's scope, or at the first name; `skip` and
//! `limit` count shown records; and hidden ones are skipped here. Non-promise: a page reads a bounded number of records. If more
//! than those are hidden in a row, it says that there may be more, so the number of such pages shows roughly how many records are
//! hidden.

use super::rules::{Subject, begins, continues_at, is_listed, sees_all};
use super::{MAX_ENTRIES, hide};
use crate::access::Caller;
use leasehold_core::store::{Range, Store};
use leasehold_core::{Key, LeaseName, Result, Shelf, Timestamp, wire};
use leasehold_stores::Namespace;

/// How often one request reads on past hidden records, and how many records it then reads at least at once.
const MAX_READS: usize = 20;
const LEAST_READ: usize = 250;

/// What is asked for, and by whom.
pub(super) struct ListingRequest<'a> {
    pub(super) caller: &'a Caller,
    pub(super) namespace: &'a Namespace,
    pub(super) shelf: Shelf,
    pub(super) after: Option<&'a LeaseName>,
    /// Where an earlier page without results stopped: just after a name that the caller may not know.
    pub(super) stopped_at: Option<LeaseName>,
    pub(super) skip: usize,
    pub(super) limit: usize,
}

/// A page of the listing.
pub(super) struct ListedEntries {
    pub(super) entries: Vec<(LeaseName, wire::Value)>,
    pub(super) more: bool,
    /// Where to continue if the page is empty.
    pub(super) stopped_at: Option<LeaseName>,
    pub(super) now: Timestamp,
}

impl ListingRequest<'_> {
    pub(super) async fn find(&self, store: &dyn Store) -> Result<ListedEntries> {
        let start = self.after.map(|after| Key::new(self.shelf, after));
        // What begins in a queue, or at a lineage, is about that one alone, unless the caller may see all others.
        let sees_all = sees_all(self.caller, self.namespace, self.shelf);
        let one_queue = !sees_all && matches!(self.shelf, Shelf::Item | Shelf::Line);
        let own = start
            .as_ref()
            .filter(|_| !sees_all && matches!(self.shelf, Shelf::Item | Shelf::Line | Shelf::History | Shelf::Output));
        let own = own.map(Subject::of);
        // A store skips faster than what is read here, where nothing is hidden on the way.
        let (skipped_there, mut skip) = match sees_all || (one_queue && own.is_some()) {
            true => (self.skip, 0),
            false => (0, self.skip),
        };
        let mut at = match &self.stopped_at {
            Some(stopped_at) => Some(stopped_at.clone()),
            None => self.begin(start.as_ref(), sees_all),
        };
        // One more than is shown, because what follows may be hidden.
        let wanted = if sees_all { self.limit } else { self.limit + 1 };
        let mut found =
            ListedEntries { entries: Vec::new(), more: false, stopped_at: None, now: Timestamp::from_millis(0) };
        for read in 0..MAX_READS {
            let range = match read {
                0 => Range { skip: skipped_there, ..Range::new(at.as_ref(), wanted + skip) },
                _ => Range::new(at.as_ref(), wanted.max(LEAST_READ)),
            };
            let page = store.list(self.shelf, Range { limit: range.limit.min(MAX_ENTRIES + 1), ..range }).await?;
            found.now = page.now;
            let Some((last, _)) = page.entries.last() else { return Ok(found) };
            let last = last.clone();
            for (name, value) in page.entries {
                let key = Key::new(self.shelf, &name);
                let subject = Subject::of(&key);
                if subject == Subject::Nobody || own.as_ref().is_some_and(|own| subject != *own) {
                    return Ok(found);
                }
                let is_before = self.after.is_some_and(|after| name.as_str() <= after.as_str());
                if is_before || !is_listed(self.caller, self.namespace, &key, start.as_ref()) {
                    continue;
                }
                let Some(value) = hide::shown(self.caller, self.namespace, &key, value)? else { continue };
                if skip > 0 {
                    skip -= 1;
                } else if found.entries.len() == self.limit {
                    found.more = true;
                    return Ok(found);
                } else {
                    found.entries.push((name, wire::Value::of(value, &key)?));
                }
            }
            if !page.more {
                return Ok(found);
            }
            if sees_all && !found.entries.is_empty() {
                found.more = true;
                return Ok(found);
            }
            at = match sees_all {
                true => Some(last),
                false => match continues_at(self.caller, self.shelf, &last) {
                    Some(next) => Some(next),
                    None => return Ok(found),
                },
            };
        }
        found.more = true;
        found.stopped_at = at.filter(|_| found.entries.is_empty());
        Ok(found)
    }

    /// Where to begin: after the requested name if the caller may know it, otherwise before the first that it may know.
    fn begin(&self, start: Option<&Key>, sees_all: bool) -> Option<LeaseName> {
        match start {
            Some(key) if sees_all || is_listed(self.caller, self.namespace, key, start) => Some(key.name.clone()),
            _ => begins(self.caller, self.shelf),
        }
    }
}
