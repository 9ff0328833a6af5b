//! `migrate`: move every lease, journal and queue to another store, with epochs that go on from where they were.
//!
//! Each lease is paused in the old store before its record is read for the last time, and stays so: whoever still asks
//! there is told where it went. A pause that an operator had ordered goes along, and gives way to that one only then. So no epoch can be granted behind the copy's back, and a migration that was broken off
//! can simply be run again.

use super::migrate_items::Items;
use super::{coordinator, existing, operate};
use crate::args::{Common, Migrate as Args};
use crate::config::{Setting, Settings, Source};
use crate::exit::Exit;
use crate::output;
use leasehold::protocol::{Order, Refusal};
use leasehold::store::Swap;
use leasehold::{
    Coordinator, Error, Inspection, Key, Kind, LeaseName, Nonce, Operated, OperatorMark, Ownership, Result, Shelf, Who,
    Why,
};
use leasehold_stores::StoreUrl;
use serde_json::json;
use std::collections::HashSet;

const PAGE: usize = 500;
const MOVED_TO: &str = "moved to ";
/// Leases that come to be in the old store meanwhile are moved too, so many times.
const MAX_ROUNDS: usize = 10;

struct Move {
    from: Coordinator,
    to: Coordinator,
    by: Who,
    /// Why the old store's leases are paused.
    gone: Why,
    /// Why the new store's leases begin where they do.
    came: Why,
    /// Why leases of the new store are paused that were moved to the old one before.
    home: Why,
    revoke_held: bool,
}

/// Where a lease went, if that is why it is paused.
pub fn moved_to(mark: &OperatorMark) -> Option<String> {
    let place = mark.why.as_str().strip_prefix(MOVED_TO)?;
    place.parse::<StoreUrl>().ok().map(|_| place.to_owned())
}

pub async fn migrate(common: &Common, args: &Args) -> Result<Exit> {
    let (from, to): (StoreUrl, StoreUrl) = (args.from.parse()?, args.to.parse()?);
    if from == to {
        return Err(Error::invalid("TO", &to, "it is the store to move from"));
    }
    let mut settings = Settings::gather(common)?;
    settings.store = Setting { value: from.clone(), source: Source::Flag };
    let Some(old) = existing(&settings).await? else {
        return Err(Error::invalid("FROM", &from, "there is no store"));
    };
    let leases = readable(&old).await?;
    let held: Vec<&Inspection> = leases.iter().filter(|lease| lease.record.live_tenure(lease.now).is_some()).collect();
    let items = Items::read(old.store()).await?;
    let names: Vec<String> =
        held.iter().map(|lease| lease.lease.to_string()).chain(items.claimed.iter().map(ToString::to_string)).collect();
    if !names.is_empty() && !args.revoke_held {
        return refuse(held.len(), items.claimed.len(), &names);
    }
    if args.dry_run {
        let what = counted(leases.len(), items.all.len());
        output::say(&format!("{what} would be moved from `{from}` to `{to}`; nothing changed"));
        return Ok(Exit::Done);
    }
    settings.store = Setting { value: to.clone(), source: Source::Flag };
    let work = Move {
        from: old,
        to: coordinator(&settings).await?,
        by: operate::by(args.by.as_deref())?,
        gone: Why::lossy(&format!("{MOVED_TO}{to}"), "moved"),
        came: Why::lossy(&format!("moved from {from}"), "moved"),
        home: Why::lossy(&format!("{MOVED_TO}{from}"), "moved"),
        revoke_held: args.revoke_held,
    };
    work.refuse_one_store().await?;
    work.refuse_what_is_elsewhere(&leases).await?;
    work.refuse_what_was_here_before(&items).await?;
    let (moved, journals) = work.all(leases).await?;
    // A journal may be there without a lease.
    let journals = journals + work.copy(Shelf::Runs).await?;
    let items = Items::carry(&work.from, &work.to, &work.by, &work.gone).await?;
    if common.json {
        let (from, to) = (from.to_string(), to.to_string());
        output::json(&json!({ "from": from, "to": to, "leases": moved, "journals": journals, "items": items }))?;
    } else {
        let rest = if items == 0 { "the old ones are paused" } else { "the old ones are paused, and cancelled" };
        output::say(&format!("moved {} from `{from}` to `{to}`; {rest}", counted(moved, items)));
    }
    Ok(Exit::Done)
}

fn counted(count: usize, items: usize) -> String {
    let leases = if count == 1 { "1 lease".into() } else { format!("{count} leases") };
    let counted = if items == 1 { "1 queue item".into() } else { format!("{items} queue items") };
    match (count, items) {
        (_, 0) => leases,
        (0, _) => counted,
        _ => format!("{leases} and {counted}"),
    }
}

fn refuse(leases: usize, items: usize, held: &[String]) -> Result<Exit> {
    let names: Vec<String> = held.iter().take(5).map(|name| format!("`{name}`")).collect();
    let more = if held.len() > names.len() { " and others" } else { "" };
    let (count, names) = (counted(leases, items), names.join(", "));
    output::say(&format!(
        "{count} held: {names}{more}; nothing changed: wait for their release, or take them away with --revoke-held"
    ));
    Ok(Exit::Held)
}

/// Every record. One that cannot be read stops everything before anything is changed.
async fn readable(store: &Coordinator) -> Result<Vec<Inspection>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(after.as_ref(), PAGE).await?;
        after = page.entries.last().map(|(lease, _)| lease.clone());
        for (_, record) in page.entries {
            all.push(record?);
        }
        if !page.more {
            return Ok(all);
        }
    }
}

impl Move {
    /// Two URLs may lead to one store: what is written through one is then seen through the other.
    async fn refuse_one_store(&self) -> Result<()> {
        let key = Key::new(Shelf::Probe, &LeaseName::new(format!("migrate/{}", Nonce::random()))?);
        let Swap::Done { revision, .. } = self.from.store().swap(&key, None, b"probe").await? else { return Ok(()) };
        let seen = self.to.store().read(&key).await;
        self.from.store().erase(&key, &revision).await?;
        match seen?.value {
            Some(_) => Err(Error::new(Kind::Invalid, "both urls lead to one store; nothing was moved")),
            None => Ok(()),
        }
    }

    /// A lease that was moved elsewhere goes on there: neither its old record may be moved on from here, nor may it be woken
    /// there by another's.
    async fn refuse_what_is_elsewhere(&self, leases: &[Inspection]) -> Result<()> {
        let there = readable(&self.to).await?;
        for (leases, here, allowed) in [(leases, "FROM", &self.gone), (&there[..], "TO", &self.home)] {
            for lease in leases {
                if let Some(mark) = lease.record.paused.as_ref().filter(|mark| mark.why != *allowed)
                    && let Some(place) = moved_to(mark)
                {
                    let message = format!(
                        "lease `{}` of {here} was moved to `{place}` and goes on there, or where it went from there: move it \
                         back the way it came, or to an empty store; nothing changed",
                        lease.lease
                    );
                    return Err(Error::new(Kind::Invalid, message));
                }
            }
        }
        Ok(())
    }

    /// Unfinished items and fences that the new store has from before are not taken in a second time, and would be lost.
    async fn refuse_what_was_here_before(&self, items: &Items) -> Result<()> {
        let refuse = |what: &str, name: &dyn std::fmt::Display| {
            let message = format!(
                "{what} `{name}` was moved away from TO before and cannot be moved back to it: move to an empty store or \
                 namespace, or finish it first; nothing changed"
            );
            Err(Error::new(Kind::Unsupported, message))
        };
        for name in &items.open {
            if self.to.store().read(&name.key()?).await?.value.is_some() {
                return refuse("queue item", name);
            }
        }
        let is_home = |lease: &Inspection| lease.record.paused.as_ref().is_some_and(|mark| mark.why == self.home);
        if !readable(&self.to).await?.iter().any(is_home) {
            return Ok(());
        }
        let mut after = None;
        loop {
            let page = self.from.store().list(Shelf::Fence, after.as_ref(), 100).await?;
            for (name, value) in &page.entries {
                let there = self.to.store().read(&Key::new(Shelf::Fence, name)).await?.value;
                if there.is_some_and(|there| there.bytes != value.bytes) {
                    return refuse("fence", name);
                }
            }
            after = page.entries.last().map(|(name, _)| name.clone());
            if !page.more || after.is_none() {
                return Ok(());
            }
        }
    }

    /// Moves these, and then what came to be meanwhile; gives how many leases and journals there were.
    async fn all(&self, leases: Vec<Inspection>) -> Result<(usize, usize)> {
        let (mut moved, mut journals, mut todo) = (HashSet::new(), 0, leases);
        for _ in 0..MAX_ROUNDS {
            for lease in &todo {
                journals += usize::from(self.one(lease).await?);
                moved.insert(lease.lease.clone());
            }
            todo = readable(&self.from).await?;
            todo.retain(|lease| lease.record.paused.is_none() || !moved.contains(&lease.lease));
            if todo.is_empty() {
                self.copy(Shelf::Fence).await?;
                return Ok((moved.len(), journals));
            }
        }
        let message = "new leases keep coming up in the old store: point its users to the new one, then run this again";
        Err(Error::new(Kind::Contended, message))
    }

    /// Moves one lease; whether it had a journal to be taken along.
    async fn one(&self, seen: &Inspection) -> Result<bool> {
        let lease = &seen.lease;
        let users_pause = seen.record.paused.clone().filter(|mark| mark.why != self.gone);
        let is_paused_now = seen.record.paused.is_none();
        if is_paused_now {
            self.order(&self.from, lease, &self.gone, Order::Pause).await?;
        }
        let mut last = self.from.inspect(lease).await?;
        if last.record.live_tenure(last.now).is_some() && !self.revoke_held {
            // It was taken after the look and before the pause: as if the pause had not been.
            if is_paused_now {
                self.order(&self.from, lease, &self.gone, Order::Resume).await?;
            }
            let message = format!("lease `{lease}` was acquired meanwhile; run this again, or with --revoke-held");
            return Err(Error::new(Kind::Contended, message));
        }
        if last.record.tenure.is_some() {
            // Whoever had it and ran out of time could still complete its slot there, after the copy.
            self.order(&self.from, lease, &self.gone, Order::Revoke).await?;
            last = self.from.inspect(lease).await?;
        }
        // What it left home with, it comes home with, and more. Before it can be had there.
        let is_home = self.is_kept_for_us(lease).await?;
        self.carry(&Key::new(Shelf::Counters, lease), is_home).await?;
        let has_journal = self.carry(&Key::new(Shelf::Runs, lease), is_home).await?;
        // There before it is lifted here, so that it is in force in one of the two wherever this is broken off.
        let record = Box::new(Ownership { paused: users_pause.clone(), ..last.record });
        self.order(&self.to, lease, &self.came, Order::Import { record }).await?;
        if users_pause.is_some() {
            self.order(&self.from, lease, &self.gone, Order::Retire).await?;
        }
        // It comes home: what kept holders out there was that it was here.
        if self.is_kept_for_us(lease).await? {
            self.order(&self.to, lease, &self.came, Order::Resume).await?;
        }
        Ok(has_journal)
    }

    /// Whether the new store has the lease only to say that it was moved to the old one.
    async fn is_kept_for_us(&self, lease: &LeaseName) -> Result<bool> {
        Ok(self.to.inspect(lease).await?.record.paused.is_some_and(|mark| mark.why == self.home))
    }

    async fn order(&self, store: &Coordinator, lease: &LeaseName, why: &Why, order: Order) -> Result<()> {
        match store.operate(lease, self.by.clone(), why.clone(), order).await? {
            Operated::Refused(refusal) => match *refusal {
                Refusal::Paused(_) | Refusal::NotPaused => Ok(()),
                Refusal::Held { tenure, epoch } => {
                    let message = format!(
                        "lease `{lease}` is held in the new store by {} under epoch {epoch}; move it when it is free",
                        tenure.holder
                    );
                    Err(Error::new(Kind::Contended, message))
                }
                other => Err(Error::new(Kind::Invalid, format!("lease `{lease}` cannot be moved: {other:?}"))),
            },
            _ => Ok(()),
        }
    }

    /// The records of a shelf go along, each unless the new store has one of its name; gives how many did.
    async fn copy(&self, shelf: Shelf) -> Result<usize> {
        let (mut after, mut copied) = (None, 0);
        loop {
            let page = self.from.store().list(shelf, after.as_ref(), 100).await?;
            for (name, value) in &page.entries {
                let swap = self.to.store().swap(&Key::new(shelf, name), None, &value.bytes).await?;
                copied += usize::from(matches!(swap, Swap::Done { .. }));
            }
            after = page.entries.last().map(|(name, _)| name.clone());
            if !page.more || after.is_none() {
                return Ok(copied);
            }
        }
    }

    /// One record goes along, in place of what the new store has of its name if that is to be replaced; whether it did.
    async fn carry(&self, key: &Key, replaces: bool) -> Result<bool> {
        let Some(value) = self.from.store().read(key).await?.value else { return Ok(false) };
        let there = self.to.store().read(key).await?.value;
        if there.as_ref().is_some_and(|there| !replaces || there.bytes == value.bytes) {
            return Ok(false);
        }
        let swap = self.to.store().swap(key, there.as_ref().map(|there| &there.revision), &value.bytes).await?;
        if swap == Swap::Mismatch && replaces {
            let message = format!("`{key}` of the new store was written to meanwhile; run this again");
            return Err(Error::new(Kind::Contended, message));
        }
        Ok(swap != Swap::Mismatch)
    }
}
