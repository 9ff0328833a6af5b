//! `migrate`: move every lease, journal and queue to another store, with epochs that go on from where they were.
//!
//! The order of steps is the promise. First the old namespace is marked as leaving: that excludes other migrations, and no new
//! name comes up there. Then every record is marked as moving and copied; copies grant nothing. One swap of the namespace's
//! mark from *moving* to *moved* is the moment of no return: until then everything can be given up (`--abort`), from then on
//! running the same command again finishes it. Only then are the old records *moved* for good, and the copies settled.
//! Non-promise: what is read by nobody but people (counters, journals) may miss what was written while it was copied.

use super::migrate_items::Items;
use super::migrate_leases::{self as leases, Leases};
use super::{coordinator, existing, operate};
use crate::args::{Common, Migrate as Args};
use crate::config::{Setting, Settings, Source};
use crate::exit::Exit;
use crate::output;
use crate::patience::Patience;
use leasehold::protocol::Holder;
use leasehold::relocation::{Address, Relocation, Step};
use leasehold::residence::{self, Came, Residence};
use leasehold::store::Swap;
use leasehold::{Coordinator, Error, Inspection, Key, Kind, LeaseName, Nonce, Result, Shelf, Who, Why};
use leasehold_stores::StoreUrl;
use serde_json::json;
use std::time::Duration;

/// One migration.
pub(super) struct Move {
    pub(super) from: Coordinator,
    pub(super) to: Coordinator,
    /// The addresses, without passwords, as the records of the other side name them.
    pub(super) old: Address,
    pub(super) new: Address,
    pub(super) migration: Nonce,
    pub(super) by: Who,
    pub(super) why: Why,
    pub(super) holder: Holder,
}

/// How far an earlier run of this very migration came.
enum Stage {
    /// Nothing was done yet.
    New,
    /// Records are being marked and copied; it can be given up.
    Moving(Nonce),
    /// It can only be finished.
    Moved(Nonce),
    /// There is nothing left to do.
    Over,
}

/// The whole migration, where `--timeout` says nothing.
const TIMEOUT: Duration = Duration::from_secs(3_600);

pub async fn migrate(common: &Common, args: &Args) -> Result<Exit> {
    let patience = Patience::from_flag(args.timeout.as_deref(), TIMEOUT, "the two stores")?;
    // Cut off, it is somewhere in between: the same command carries it on.
    patience.over(Kind::Indeterminate, migrate_patiently(common, args, &patience)).await
}

async fn migrate_patiently(common: &Common, args: &Args, patience: &Patience) -> Result<Exit> {
    let (from, to): (StoreUrl, StoreUrl) = (args.from.parse()?, args.to.parse()?);
    patience.at(format!("`{from}`"));
    if from == to {
        return Err(Error::invalid("TO", &to, "it is the store to move from"));
    }
    let mut settings = Settings::gather(common)?;
    settings.store = Setting { value: from.clone(), source: Source::Flag };
    let Some(old) = existing(&settings).await? else {
        return Err(Error::invalid("FROM", &from, "there is no store"));
    };
    let (old_address, new_address) = (address(&from)?, address(&to)?);
    let stage = stage(&residence::look(old.store().as_ref()).await?, &new_address)?;
    if args.dry_run {
        let what = counted(leases::all(&old).await?.len(), Items::read(old.store()).await?.all.len());
        output::say(&format!("{what} would be moved from `{from}` to `{to}`; nothing changed"));
        return Ok(Exit::Done);
    }
    let holder = if args.revoke_held { Holder::Evicted } else { Holder::Stays };
    if let (Stage::New, false, Some(held)) = (&stage, args.abort, held_up(&old, holder).await?) {
        return Ok(held.say());
    }
    settings.store = Setting { value: to.clone(), source: Source::Flag };
    patience.at(format!("`{to}`"));
    let to_store = coordinator(&settings).await?;
    let stage = match stage {
        Stage::Moved(migration) if !is_arriving(&to_store, migration).await? => Stage::Over,
        stage => stage,
    };
    let migration = match stage {
        Stage::Moving(migration) | Stage::Moved(migration) => migration,
        Stage::New | Stage::Over => Nonce::random(),
    };
    let work = Move {
        from: old,
        to: to_store,
        by: operate::by(args.by.as_deref())?,
        why: Why::lossy(&format!("moved from {old_address} to {new_address}"), "moved"),
        old: old_address,
        new: new_address,
        migration,
        holder,
    };
    patience.at(format!("the leases and queues between `{from}` and `{to}`"));
    match (stage, args.abort) {
        (Stage::New, true) => {
            Err(Error::invalid("FROM", &from, "it is not being moved, so there is nothing to give up"))
        }
        (Stage::Moved(_) | Stage::Over, true) => {
            let message = format!("`{from}` has moved to `{to}` already: it can no longer be given up, but moved back");
            Err(Error::new(Kind::Invalid, message))
        }
        (Stage::Moving(_), true) => {
            work.give_up().await?;
            output::say(&format!("gave up moving `{from}` to `{to}`; every lease and queue stays in `{from}`"));
            Ok(Exit::Done)
        }
        (Stage::Over, false) => {
            output::say(&format!("`{from}` has moved to `{to}` already; nothing changed"));
            Ok(Exit::Done)
        }
        (Stage::New, false) => {
            work.check().await?;
            work.begin().await?;
            work.carry(common, &from, &to).await
        }
        (Stage::Moving(_), false) => {
            work.begin().await?;
            work.carry(common, &from, &to).await
        }
        (Stage::Moved(_), false) => work.finish(common, &from, &to, (0, 0, 0)).await,
    }
}

/// How far it is, by the old namespace's mark. Another migration's is refused.
fn stage(seen: &Residence, new: &Address) -> Result<Stage> {
    let Some(state) = &seen.leaving else { return Ok(Stage::New) };
    if state.address() != new {
        let message = format!("FROM is {state}; nothing changed. Finish that migration, or give it up with --abort");
        return Err(Error::new(
            if let Relocation::Moved { .. } = state { Kind::Moved } else { Kind::Invalid },
            message,
        ));
    }
    Ok(match state {
        Relocation::Moved { migration, .. } => Stage::Moved(*migration),
        other => Stage::Moving(other.migration()),
    })
}

/// Whether the copies of this migration are still to be settled.
async fn is_arriving(store: &Coordinator, migration: Nonce) -> Result<bool> {
    let seen = residence::look(store.store().as_ref()).await?;
    Ok(seen.arriving.is_some_and(|state| state.migration() == migration))
}

/// The address of a store as records keep it.
fn address(url: &StoreUrl) -> Result<Address> {
    Address::named("store", url.to_string())
}

/// What is held in the old store, if that is in the way.
async fn held_up(store: &Coordinator, holder: Holder) -> Result<Option<HeldUp>> {
    if holder == Holder::Evicted {
        return Ok(None);
    }
    let is_held = |lease: &Inspection| lease.record.live_tenure(lease.now).is_some();
    let held: Vec<Inspection> = leases::all(store).await?.into_iter().filter(is_held).collect();
    let claimed = Items::read(store.store()).await?.claimed;
    let names =
        held.iter().map(|lease| lease.lease.to_string()).chain(claimed.iter().map(ToString::to_string)).collect();
    let held_up = HeldUp { leases: held.len(), items: claimed.len(), names };
    Ok(Some(held_up).filter(|held| !held.names.is_empty()))
}

/// What somebody holds, so that nothing can be moved yet.
pub(super) struct HeldUp {
    pub(super) leases: usize,
    pub(super) items: usize,
    pub(super) names: Vec<String>,
}

impl HeldUp {
    fn say(&self) -> Exit {
        let names: Vec<String> = self.names.iter().take(5).map(|name| format!("`{name}`")).collect();
        let more = if self.names.len() > names.len() { " and others" } else { "" };
        let (count, names) = (counted(self.leases, self.items), names.join(", "));
        output::say(&format!(
            "{count} held: {names}{more}; nothing changed: wait for their release, or take them away with --revoke-held"
        ));
        Exit::Held
    }
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

impl Move {
    /// Looks at everything before anything is changed: what cannot be read, what is in the way.
    async fn check(&self) -> Result<()> {
        self.refuse_one_store().await?;
        self.refuse_strangers(&leases::all(&self.from).await?).await?;
        self.refuse_items(&Items::read(self.from.store()).await?).await?;
        self.refuse_fences().await
    }

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

    /// The first writes: both namespaces are marked, and every other migration of either is refused.
    async fn begin(&self) -> Result<()> {
        residence::leave(self.from.store().as_ref(), &Step::Leave { to: self.new.clone() }, self.migration).await?;
        let arriving = Relocation::Arriving { from: self.old.clone(), migration: self.migration };
        if let Err(error) = residence::arrive(self.to.store().as_ref(), &arriving).await {
            if error.kind() == Kind::Invalid {
                residence::leave(self.from.store().as_ref(), &Step::Stay, self.migration).await?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Marks and copies everything, then passes the moment of no return.
    async fn carry(&self, common: &Common, from: &StoreUrl, to: &StoreUrl) -> Result<Exit> {
        let leases = Leases { work: self };
        let items = Items::default();
        let held = match leases.leave().await? {
            None => items.leave(self).await?,
            held => held,
        };
        if let Some(held) = held {
            // Somebody took it after the look and before the mark: as if nothing had been begun.
            self.give_up().await?;
            return Ok(held.say());
        }
        let (moved, journals) = leases.arrive().await?;
        // A journal may be there without a lease.
        let journals = journals + self.copy(Shelf::Runs).await?;
        self.copy(Shelf::Fence).await?;
        let carried = items.arrive(self).await?;
        residence::leave(self.from.store().as_ref(), &Step::Depart, self.migration).await?;
        self.finish(common, from, to, (moved, journals, carried)).await
    }

    /// What is left when there is no way back: the old records are gone, the copies may be granted.
    async fn finish(
        &self,
        common: &Common,
        from: &StoreUrl,
        to: &StoreUrl,
        (leases, journals, items): (usize, usize, usize),
    ) -> Result<Exit> {
        let all = Leases { work: self };
        all.step(&self.from, &Step::Depart).await?;
        Items::step(self, &self.from, &Step::Depart).await?;
        all.step(&self.to, &Step::Settle).await?;
        Items::step(self, &self.to, &Step::Settle).await?;
        residence::arrived(self.to.store().as_ref(), self.migration, Came::ToStay).await?;
        if common.json {
            let (from, to) = (from.to_string(), to.to_string());
            output::json(&json!({ "from": from, "to": to, "leases": leases, "journals": journals, "items": items }))?;
        } else {
            let what = counted(leases, items);
            output::say(&format!("moved {what} from `{from}` to `{to}`; nothing is granted in `{from}` any more"));
        }
        Ok(Exit::Done)
    }

    /// Takes the copies back, and then the marks: everything stays where it was.
    async fn give_up(&self) -> Result<()> {
        let all = Leases { work: self };
        all.step(&self.to, &Step::Withdraw).await?;
        Items::step(self, &self.to, &Step::Withdraw).await?;
        residence::arrived(self.to.store().as_ref(), self.migration, Came::GivenUp).await?;
        all.step(&self.from, &Step::Stay).await?;
        Items::step(self, &self.from, &Step::Stay).await?;
        residence::leave(self.from.store().as_ref(), &Step::Stay, self.migration).await
    }

    /// Fences of resources that keep none themselves go along. Where the new store has another one, somebody uses it.
    async fn refuse_fences(&self) -> Result<()> {
        if residence::look(self.to.store().as_ref()).await?.leaving.is_some() {
            return Ok(());
        }
        let mut after = None;
        loop {
            let page = self.from.store().list(Shelf::Fence, after.as_ref(), 100).await?;
            for (name, value) in &page.entries {
                let there = self.to.store().read(&Key::new(Shelf::Fence, name)).await?.value;
                if there.is_some_and(|there| there.bytes != value.bytes) {
                    let message = format!(
                        "fence `{name}` is in TO already and is another one: move to an empty store or namespace; nothing changed"
                    );
                    return Err(Error::new(Kind::Unsupported, message));
                }
            }
            after = page.entries.last().map(|(name, _)| name.clone());
            if !page.more || after.is_none() {
                return Ok(());
            }
        }
    }

    /// The records of a shelf go along. Where the new store had left for elsewhere, what it has of them is out of date.
    async fn copy(&self, shelf: Shelf) -> Result<usize> {
        let replaces = residence::look(self.to.store().as_ref()).await?.leaving.is_some();
        let (mut after, mut copied) = (None, 0);
        loop {
            let page = self.from.store().list(shelf, after.as_ref(), 100).await?;
            for (name, _) in &page.entries {
                copied += usize::from(self.carry_one(&Key::new(shelf, name), replaces).await?);
            }
            after = page.entries.last().map(|(name, _)| name.clone());
            if !page.more || after.is_none() {
                return Ok(copied);
            }
        }
    }

    /// One record goes along, in place of what the new store has of its name if that is to be replaced; whether it did.
    pub(super) async fn carry_one(&self, key: &Key, replaces: bool) -> Result<bool> {
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
