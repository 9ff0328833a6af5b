//! Fences of a lease that are in the store: those of the API, of proxies and of gates, and how high their water is.
//!
//! A fence is known by its resource and says by which lease it is moved, so those of one lease are found by looking through all
//! of them, a bounded number at a time.
//!
//! Promise: a fence that is above its lease is marked: the store has gone back, or is another one. Non-promise: guards that keep
//! their number at the target itself (files, folders, databases, objects, git) are not here.

use super::budget::FENCES;
use super::times::thousands;
use super::visit::Visit;
use crate::remote::may_know;
use leasehold_core::store::{Range, Versioned};
use leasehold_core::{Key, LeaseName, Ownership, Shelf};
use leasehold_guards::stored::{FenceRecord, behind};

/// A fence of this lease.
#[derive(Debug)]
pub struct Fence {
    /// The resource, such as `http:billing`.
    pub resource: String,
    /// The highest epoch that it has seen of this lease.
    pub epoch: u64,
    /// How that compares with the lease, in words.
    pub note: String,
    /// Whether the store does not know what the resource has seen.
    pub is_above: bool,
}

/// The fences that were found.
#[derive(Debug)]
pub struct Fences {
    /// Those of this lease.
    pub found: Vec<Fence>,
    /// Those that cannot be read: they may be of this lease.
    pub damaged: Vec<String>,
    /// How many that the visitor may see were looked at.
    pub looked_at: String,
    /// Where to look further, if there are more.
    pub next: Option<LeaseName>,
}

impl Fences {
    /// Looks through the fences behind this one for those of a lease.
    pub async fn of(
        visit: &Visit,
        lease: &LeaseName,
        record: &Ownership,
        after: Option<&LeaseName>,
    ) -> leasehold_core::Result<Self> {
        let page = visit.coordinator.store().list(Shelf::Fence, Range::new(after, FENCES)).await?;
        let mut fences = Fences {
            found: Vec::new(),
            damaged: Vec::new(),
            looked_at: String::new(),
            next: page.entries.last().filter(|_| page.more).map(|(name, _)| name.clone()),
        };
        let mut looked_at = 0;
        for (name, value) in &page.entries {
            let (scheme, resource) = name.as_str().split_once('/').unwrap_or(("", name.as_str()));
            // A key is for resources by their names, as it is for leases.
            if visit.sees(resource) {
                looked_at += 1;
                fences.see(visit, name, format!("{scheme}:{resource}"), value, lease, record);
            }
        }
        fences.looked_at = thousands(looked_at);
        Ok(fences)
    }

    fn see(
        &mut self,
        visit: &Visit,
        name: &LeaseName,
        resource: String,
        value: &Versioned,
        lease: &LeaseName,
        record: &Ownership,
    ) {
        let fence = match FenceRecord::decode(&value.bytes, &Key::new(Shelf::Fence, name)) {
            Ok(fence) => fence,
            Err(error) => return self.damaged.push(error.to_string()),
        };
        match &fence.high {
            Some(high) if high.lease == *lease => {
                let above = behind(&resource, high, record);
                let (is_above, epoch) = (above.is_some(), high.epoch.get());
                let note = match above {
                    Some(above) => above.to_string(),
                    None if high.epoch < record.epoch => format!("refuses epochs below {epoch}"),
                    None if high.seq == 0 => "sealed at the lease's epoch; nothing was written under it yet".to_owned(),
                    None => "at the lease's epoch".to_owned(),
                };
                self.found.push(Fence { resource, epoch, note, is_above });
            }
            now => {
                let former =
                    fence.adopted.iter().filter(|former| former.lease() == lease).max_by_key(|former| former.epoch());
                let Some(former) = former else { return };
                let to = now
                    .as_ref()
                    .filter(|now| may_know(&visit.caller, &visit.namespace, &now.lease))
                    .map(|now| format!(" to lease `{}`", now.lease))
                    .unwrap_or_default();
                let note = format!("given{to} by an operator; it takes nothing of this lease any more");
                self.found.push(Fence { resource, epoch: former.epoch().get(), note, is_above: false });
            }
        }
    }
}
