//! `migrate`: move every lease, journal and queue to another store, with epochs that continue from where they were.
//!
//! The order of steps is the promise. First the new namespace is marked as one that others arrive in, and then the old one as
//! leaving: that excludes other migrations, and no new name comes up in either. Then every record is marked as moving and
//! copied; copies grant nothing. One swap of the old namespace's mark from *moving* to *moved* is the moment of no return:
//! until then everything can be given up (`--abort`), from then on running the same command again finishes it. Only then are
//! the old records *moved* for good, and the copies settled.
//! Non-promise: what is read by nobody but people (counters, journals) may miss what was written while it was copied.

mod course;
mod items;
mod leases;
mod records;

use super::{coordinator, existing, operate};
use crate::args::{Common, Migrate as Args};
use crate::config::{Setting, Settings, Source};
use crate::exit::Exit;
use crate::interrupt::exit_by;
use crate::output;
use crate::patience::Patience;
use crate::remedy;
use crate::supervise::Signals;
use course::{Course, Phase};
use items::Items;
use leasehold_core::lease::protocol::{Holder, Newborn};
use leasehold_core::migration::{self, Arrival, Marks, Migration};
use leasehold_core::relocation::{Address, Relocation, Step};
use leasehold_core::store::Swap;
use leasehold_core::{Coordinator, Error, Inspection, Key, Kind, LeaseName, Nonce, PROXY_FOLDER, Result, Shelf, Why};
use leasehold_stores::StoreUrl;
use leases::Leases;
use records::names;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// A migration in progress.
struct Move {
    from: Coordinator,
    to: Coordinator,
    migration: Migration,
    why: Why,
    holder: Holder,
    /// What records count for that came up in the new store and were never proved.
    newborn: Newborn,
    /// Whether what the new store has of fences and journals is out of date.
    replaces: bool,
    course: Arc<Course>,
}

/// How far an earlier run of this very migration came.
enum Stage {
    /// Nothing was done yet.
    New,
    /// The stores are marked; records are being marked and copied; it can be given up.
    Moving(Nonce),
    /// Only the new store is marked, and the old one has gone elsewhere since: it can only be given up.
    Stranded(Nonce),
    /// It can only be finished.
    Moved(Nonce),
}

/// How often it looks again for records that were created just before the namespace's mark.
const MAX_ROUNDS: usize = 10;

/// The whole migration, where `--timeout` says nothing.
const TIMEOUT: Duration = Duration::from_secs(3_600);

pub async fn migrate(common: &Common, args: &Args) -> Result<Exit> {
    let patience = Patience::from_flag(args.timeout.as_deref(), TIMEOUT, "the two stores")?;
    let (from, to): (StoreUrl, StoreUrl) = (args.from.parse()?, args.to.parse()?);
    if from == to {
        return Err(Error::invalid("TO", &to, "it is the store to move from"));
    }
    for (name, url) in [("FROM", &from), ("TO", &to)] {
        if url.scheme() == "remote" {
            let form = "it is a server; `migrate` needs the URL of the store itself, and runs where that can be opened";
            return Err(Error::invalid(name, url, form));
        }
    }
    let course = Arc::new(Course::new(address(&from)?, address(&to)?, patience.clone()));
    let mut signals = Signals::listen_to_ending()?;
    // If it is interrupted, it is somewhere in between, and the message says how to continue or undo it.
    tokio::select! {
        biased;
        number = signals.next_ending() => {
            output::say(&format!("stopped by a signal: {}", course.account()));
            Ok(exit_by(number))
        }
        done = migrate_patiently(common, args, (from, to), &patience, &course) => done.map_err(|error| course.told(error)),
        () = patience.run_out() => Err(course.told(patience.gave_up(Kind::Unavailable))),
    }
}

async fn migrate_patiently(
    common: &Common,
    args: &Args,
    (from, to): (StoreUrl, StoreUrl),
    patience: &Patience,
    course: &Arc<Course>,
) -> Result<Exit> {
    patience.at(format!("`{from}`"));
    let mut settings = Settings::gather(common)?;
    settings.store = Setting { value: from.clone(), source: Source::Flag };
    let Some(old) = existing(&settings).await? else {
        return Err(Error::invalid("FROM", &from, "there is no store"));
    };
    settings.store = Setting { value: to.clone(), source: Source::Flag };
    patience.at(format!("`{to}`"));
    // A store that is missing is made when there is something to move.
    let mut new = existing(&settings).await?;
    let here = migration::look(old.store().as_ref()).await?.marks;
    let there = match &new {
        Some(new) => migration::look(new.store().as_ref()).await?.marks,
        None => Marks::default(),
    };
    let Some(stage) = stage(&here, &there, course, args.abort)? else {
        if args.abort {
            return Err(too_late(&from, &to, "but it can be moved back"));
        }
        output::say(&format!("`{from}` has moved to `{to}` already; nothing changed"));
        return Ok(Exit::Done);
    };
    if let (Stage::New, true, None) = (&stage, args.abort, &new) {
        return Err(nothing_to_give_up(&from));
    }
    let holder = if args.revoke_held { Holder::Evicted } else { Holder::Stays };
    if let (Stage::New, false, Some(held)) = (&stage, args.abort, held_up(&old, holder).await?) {
        return Ok(held.say());
    }
    if new.is_none() && !args.dry_run {
        new = Some(coordinator(&settings).await?);
    }
    let number = match stage {
        Stage::Moving(number) | Stage::Moved(number) | Stage::Stranded(number) => number,
        Stage::New => Nonce::random(),
    };
    let (old_address, new_address) = (course.from.clone(), course.to.clone());
    let Some(new) = new else { return rehearsed(common, &old, (&from, &to)).await };
    let mut work = Move {
        from: old,
        to: new,
        why: Why::lossy(&format!("moved from {old_address} to {new_address}"), "moved"),
        migration: Migration { number, from: old_address, to: new_address, by: operate::by(args.by.as_deref())? },
        holder,
        newborn: if there.has_left() { Newborn::Discard } else { Newborn::Keep },
        replaces: there.has_left(),
        course: course.clone(),
    };
    work.replaces |= work.is_abandoned().await?;
    patience.at(format!("the leases and queues between `{from}` and `{to}`"));
    if args.dry_run {
        there.may_receive(number)?;
        match stage {
            Stage::Moved(_) => {}
            Stage::New => {
                here.may_leave()?;
                work.check_all().await?;
            }
            _ => work.check().await?,
        }
        return rehearsed(common, &work.from, (&from, &to)).await;
    }
    if let Stage::New = stage {
        let swept = work.sweep().await?;
        if swept > 0 {
            output::say(&format!("took back {swept} marks that a given-up migration had left"));
        }
        if args.abort {
            return if swept > 0 { Ok(Exit::Done) } else { Err(nothing_to_give_up(&from)) };
        }
    }
    resume_from(common, &work, stage, args.abort, (&from, &to)).await
}

/// Something keeps adding to a store that is marked.
fn restless(what: &str) -> Error {
    let message =
        format!("new {what} keep coming up in the old store: point its users to the new one, then run this again");
    Error::new(Kind::Contended, message)
}

fn nothing_to_give_up(from: &StoreUrl) -> Error {
    Error::invalid("FROM", from, "it is not being moved, so there is nothing to give up")
}

fn too_late(from: &StoreUrl, to: &StoreUrl, instead: &str) -> Error {
    Error::new(Kind::Invalid, format!("`{from}` has moved to `{to}` already: it can no longer be given up; {instead}"))
}

/// Does what is left of it, or takes it back.
async fn resume_from(
    common: &Common,
    work: &Move,
    stage: Stage,
    is_abort: bool,
    (from, to): (&StoreUrl, &StoreUrl),
) -> Result<Exit> {
    match (stage, is_abort) {
        (Stage::Moving(_) | Stage::Stranded(_), true) => {
            work.give_up().await?;
            output::say(&format!("gave up moving `{from}` to `{to}`; every lease and queue stays in `{from}`"));
            Ok(Exit::Done)
        }
        (Stage::Moved(_), true) => Err(too_late(from, to, "finish it, and then it can be moved back")),
        (Stage::New, _) => {
            work.refuse_one_store().await?;
            work.check_all().await?;
            work.begin().await?;
            // From here on no name comes up in either store: what did so since the first look is found now.
            if let Err(error) = work.check().await {
                work.give_up().await?;
                return Err(error);
            }
            work.carry(common, from, to).await
        }
        (Stage::Moving(_) | Stage::Stranded(_), false) => {
            work.begin().await?;
            work.check().await?;
            work.carry(common, from, to).await
        }
        (Stage::Moved(_), false) => work.finish(common, from, to).await,
    }
}

/// How far it is, by the marks of both namespaces; nothing if it is over. Another migration's is refused.
fn stage(here: &Marks, there: &Marks, course: &Course, is_abort: bool) -> Result<Option<Stage>> {
    let arriving = there.arriving.as_ref().map(|mark| &mark.state);
    let begun = arriving.filter(|state| *state.address() == course.from).map(Relocation::migration);
    if let (Some(mark), Some(number), false) = (&there.arriving, begun, is_abort)
        && here.has_given_up(number)
    {
        return Err(mark.given_up());
    }
    let Some(mark) = &here.leaving else {
        if begun.is_some() {
            course.enter(Phase::Marking);
        }
        return Ok(Some(begun.map_or(Stage::New, Stage::Moving)));
    };
    if *mark.state.address() != course.to {
        if let (Some(number), true) = (begun.filter(|number| *number != mark.state.migration()), is_abort) {
            return Ok(Some(Stage::Stranded(number)));
        }
        let (from, to) = mark.ends();
        let (finish, give_up) = remedy::migration(from, to);
        let (kind, message) = match &mark.state {
            state @ Relocation::Moved { .. } => (Kind::Moved, format!("FROM is {state}; nothing changed")),
            state => {
                let next = format!("finish that migration with `{finish}`, or give it up with `{give_up}`");
                (Kind::Invalid, format!("FROM is {state}; nothing changed: {next}"))
            }
        };
        return Err(Error::new(kind, message));
    }
    Ok(Some(match &mark.state {
        Relocation::Moved { .. } if mark.finished => return Ok(None),
        Relocation::Moved { migration, .. } => {
            course.enter(Phase::Settling);
            Stage::Moved(*migration)
        }
        state if here.has_given_up(state.migration()) && !is_abort => return Err(mark.given_up()),
        other => {
            course.enter(Phase::Marking);
            Stage::Moving(other.migration())
        }
    }))
}

/// The address of a store as records keep it.
fn address(url: &StoreUrl) -> Result<Address> {
    Address::named("store", url.to_string())
}

/// Says what there is to move; everything that could be in the way was looked at.
async fn rehearsed(common: &Common, old: &Coordinator, (from, to): (&StoreUrl, &StoreUrl)) -> Result<Exit> {
    let (leases, items) = (leases::all(old).await?, Items::read(old.store()).await?.all.len());
    leases::look_at_histories(old, &leases).await?;
    let leases = leases.len();
    if common.json {
        let journals = names(old, Shelf::Runs).await?.len();
        return told(common, (from, to), (leases, journals, items), true);
    }
    output::say(&format!("{} would be moved from `{from}` to `{to}`; nothing changed", counted(leases, items)));
    Ok(Exit::Done)
}

/// What was moved, or would be, for programs.
fn told(
    common: &Common,
    (from, to): (&StoreUrl, &StoreUrl),
    (leases, journals, items): (usize, usize, usize),
    is_dry: bool,
) -> Result<Exit> {
    if common.json {
        let (from, to) = (from.to_string(), to.to_string());
        output::json(&json!({
            "from": from, "to": to, "leases": leases, "journals": journals, "items": items, "dry_run": is_dry,
        }))?;
    } else {
        let what = counted(leases, items);
        output::say(&format!("moved {what} from `{from}` to `{to}`; nothing is granted in `{from}` any more"));
    }
    Ok(Exit::Done)
}

/// What happens to the holder of a lease. A proxy that is at work continues for a moment after it was evicted, by the fence of
/// the old store: it has to be stopped.
fn holder_of(lease: &LeaseName, asked: Holder) -> Holder {
    if lease.folder() == Some(PROXY_FOLDER) { Holder::Stays } else { asked }
}

/// What is held in the old store, if that is in the way.
async fn held_up(store: &Coordinator, holder: Holder) -> Result<Option<HeldUp>> {
    let is_in_the_way = |lease: &Inspection| holder_of(&lease.lease, holder) == Holder::Stays;
    let is_held = |lease: &Inspection| lease.record.live_tenure(lease.now).is_some() && is_in_the_way(lease);
    let held: Vec<Inspection> = leases::all(store).await?.into_iter().filter(is_held).collect();
    let claimed = if holder == Holder::Evicted { Vec::new() } else { Items::read(store.store()).await?.claimed };
    let names =
        held.iter().map(|lease| lease.lease.to_string()).chain(claimed.iter().map(ToString::to_string)).collect();
    let held_up = HeldUp { leases: held.len(), items: claimed.len(), names };
    Ok(Some(held_up).filter(|held| !held.names.is_empty()))
}

/// What somebody holds, so that nothing can be moved yet.
struct HeldUp {
    leases: usize,
    items: usize,
    names: Vec<String>,
}

impl HeldUp {
    fn say(&self) -> Exit {
        let names: Vec<String> = self.names.iter().take(5).map(|name| format!("`{name}`")).collect();
        let more = if self.names.len() > names.len() { " and others" } else { "" };
        let (count, names) = (counted(self.leases, self.items), names.join(", "));
        output::say(&format!(
            "{count} held: {names}{more}; nothing changed: wait for their release, or take them away with --revoke-held (a \
             proxy has to be stopped)"
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
    fn holder_of(&self, lease: &LeaseName) -> Holder {
        holder_of(lease, self.holder)
    }

    /// Looks at everything that this migration has not marked yet: what cannot be read, what is in the way.
    async fn check(&self) -> Result<()> {
        self.refuse_strangers(&leases::all(&self.from).await?).await?;
        self.refuse_items(&Items::read(self.from.store()).await?).await
    }

    /// The same before anything was copied, fences included.
    async fn check_all(&self) -> Result<()> {
        self.check().await?;
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

    /// The first writes: both namespaces are marked, and every other migration of either is refused. The new one comes first:
    /// a lease that came up there behind the old one's mark would be another one than the one that arrives.
    async fn begin(&self) -> Result<()> {
        let (from, to) = (self.from.store().as_ref(), self.to.store().as_ref());
        self.course.enter(Phase::Marking);
        let refused = |error: Error| {
            if error.kind() == Kind::Invalid {
                self.course.enter(Phase::Untouched);
            }
            error
        };
        migration::arrive(to, &self.migration).await.map_err(refused)?;
        let leave = Step::Leave { to: self.migration.to.clone() };
        if let Err(error) = migration::leave(from, &leave, &self.migration).await {
            if error.kind() == Kind::Invalid {
                migration::arrived(to, self.migration.number, Arrival::Abandoned).await?;
            }
            return Err(refused(error));
        }
        Ok(())
    }

    /// Marks and copies everything, then passes the moment of no return.
    async fn carry(&self, common: &Common, from: &StoreUrl, to: &StoreUrl) -> Result<Exit> {
        match self.carry_on(common, from, to).await {
            Err(error) if self.was_given_up().await.unwrap_or(false) => {
                // What this process wrote meanwhile is taken back too.
                self.give_up().await?;
                let message = "somebody gave this migration up while it ran; everything stays where it was";
                Err(Error::new(Kind::Contended, message).with_source(error))
            }
            other => other,
        }
    }

    /// Whether somebody gives it up, or has done so.
    async fn was_given_up(&self) -> Result<bool> {
        Ok(migration::look(self.from.store().as_ref()).await?.marks.has_given_up(self.migration.number))
    }

    async fn carry_on(&self, common: &Common, from: &StoreUrl, to: &StoreUrl) -> Result<Exit> {
        let leases = Leases { work: self };
        let items = Items::default();
        self.course.enter(Phase::Marking);
        let held = match leases.leave().await? {
            None => items.leave(self).await?,
            held => held,
        };
        if let Some(held) = held {
            // Somebody took it after the look and before the mark: as if nothing had been begun.
            self.give_up().await?;
            return Ok(held.say());
        }
        self.course.enter(Phase::Copying);
        leases.arrive().await?;
        // A journal may be there without a lease.
        for shelf in [Shelf::Runs, Shelf::Output, Shelf::Job, Shelf::Watch, Shelf::Fence] {
            self.copy(shelf).await?;
        }
        items.arrive(self).await?;
        let there = migration::look(self.to.store().as_ref()).await?.marks.arriving;
        if there.is_none_or(|mark| mark.state.migration() != self.migration.number) {
            let message = "somebody gave this migration up while it ran; run it again to start over";
            return Err(Error::new(Kind::Contended, message));
        }
        migration::leave(self.from.store().as_ref(), &Step::Depart, &self.migration).await?;
        self.finish(common, from, to).await
    }

    /// What is left when there is no way back: the old records are gone, the copies may be granted.
    async fn finish(&self, common: &Common, from: &StoreUrl, to: &StoreUrl) -> Result<Exit> {
        let all = Leases { work: self };
        self.course.enter(Phase::Settling);
        let leases = all.step(&self.from, &Step::Depart).await?;
        let items = Items::step(self, &self.from, &Step::Depart).await?;
        all.step(&self.to, &Step::Settle).await?;
        Items::step(self, &self.to, &Step::Settle).await?;
        migration::arrived(self.to.store().as_ref(), self.migration.number, Arrival::Complete).await?;
        migration::finish(self.from.store().as_ref(), self.migration.number).await?;
        self.course.enter(Phase::Untouched);
        let journals = names(&self.from, Shelf::Runs).await?.len();
        told(common, (from, to), (leases, journals, items), false)
    }

    /// Takes the copies back, and then the marks: everything stays where it was. Before that, one write sees to it that
    /// another process, which is at this very migration, can no longer finish it.
    async fn give_up(&self) -> Result<()> {
        let all = Leases { work: self };
        migration::give_up(self.from.store().as_ref(), self.migration.number).await.inspect_err(|error| {
            if error.kind() == Kind::Invalid {
                // Another process has finished it meanwhile.
                self.course.enter(Phase::Untouched);
            }
        })?;
        self.course.enter(Phase::GivingUp);
        all.step(&self.to, &Step::Withdraw).await?;
        Items::step(self, &self.to, &Step::Withdraw).await?;
        all.step(&self.from, &Step::Stay).await?;
        Items::step(self, &self.from, &Step::Stay).await?;
        let seen = migration::look(self.from.store().as_ref()).await?.marks.leaving;
        if seen.is_some_and(|mark| mark.state.migration() == self.migration.number) {
            migration::leave(self.from.store().as_ref(), &Step::Stay, &self.migration).await?;
        }
        // Last: while it is there, the same command knows which migration it was.
        migration::arrived(self.to.store().as_ref(), self.migration.number, Arrival::Abandoned).await?;
        self.course.enter(Phase::Untouched);
        Ok(())
    }
}

/// What there is to do where two things have one name.
const WAY_OUT: &str = "two of one name are never merged. Move to an empty store, or to a namespace of its own in \
                                  this one: add `?namespace=NAME` to TO, here and where the jobs name their store";
