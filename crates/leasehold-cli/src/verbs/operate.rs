//! `revoke`, `hand-off`, `pause`, `resume`, `advance`, `rewind`: operators obey the fence too.
//!
//! `advance` moves an epoch past what a guard has seen, after the store went back in time or was lost. `rewind` sets a
//! job's slots back to the store's time, after its clock was ahead: only those that are still to come, so that no slot up
//! to the store's time can run again. Non-promise: it does not know whether the clock is right now; `doctor` compares.

use super::drain;
use crate::args::{Advance as AdvanceArgs, HandOff, Operate, Revoke};
use crate::config::{Settings, blame_flag};
use crate::context::{Context, never_held};
use crate::exit::Exit;
use crate::{output, view};
use leasehold_core::lease::protocol::{Order, Refusal};
use leasehold_core::migration;
use leasehold_core::{
    Epoch, Error, HolderId, Inspection, Kind, Label, LeaseName, Lineage, Nonce, Operated, Ownership, Result, Slot,
    SlotMark, SlotState, StoredLineage, Timestamp, Ttl, Who, Why,
};
use leasehold_work::schedule::{Journals, slot_text};

/// A longer jump of an epoch is most likely a typing error, and epochs never come back.
pub const LONGEST_JUMP: u64 = 1_000_000;

pub async fn revoke(context: &Context, args: &Revoke) -> Result<Exit> {
    order(context, &args.operate, OperatorRequest::Revoke, drain::within(&args.draining)?).await
}

pub async fn hand_off(context: &Context, args: &HandOff) -> Result<Exit> {
    let to = HolderId::new(Some(Label::named("--to", &args.holder.to)?));
    let asked = OperatorRequest::HandOff { to, ttl: context.settings()?.ttl.value };
    order(context, &args.operate, asked, drain::within(&args.draining)?).await
}

pub async fn advance(context: &Context, args: &AdvanceArgs) -> Result<Exit> {
    let past: Epoch = args.past.parse().map_err(|e| blame_flag(e, "--past"))?;
    let lineage = args.lineage.as_deref().map(str::parse::<Lineage>).transpose();
    let lineage = lineage.map_err(|e| blame_flag(e, "--lineage"))?;
    let if_lineage = args.if_lineage.as_deref().map(expected).transpose()?;
    order(
        context,
        &args.operate,
        OperatorRequest::Advance(Advance { past, lineage, if_lineage, force: args.force }),
        None,
    )
    .await
}

pub async fn rewind(context: &Context, args: &Operate) -> Result<Exit> {
    let job = LeaseName::new(&args.name)?.of_a_lease()?;
    Why::named("--why", &args.order.why)?;
    let record = context.lease(&args.name).await?.record;
    let coordinator = context.coordinator().await?;
    if let Some(state) = &record.relocation {
        return Err(migration::elsewhere(coordinator.store().as_ref(), &format!("lease `{job}`"), state).await);
    }
    let journals = Journals::new(coordinator.clone());
    let (journal, now) = journals.read(&job).await?;
    let newest = record.slot.map(|mark| mark.slot).max(journal.settled_until());
    if newest.is_none_or(|newest| newest.0 <= now) {
        let newest = newest.map_or("it has none".into(), |slot| format!("its newest is {}", slot_text(slot)));
        let now = slot_text(Slot(now));
        let message =
            format!("no slot of `{job}` is ahead of the store's clock, which shows {now}: {newest}. Nothing changed");
        return Err(Error::new(Kind::Invalid, message));
    }
    let exit = order(context, args, OperatorRequest::Rewind, None).await?;
    // After the record, which decides: what is left of the journal until then keeps slots back, and lets none run twice.
    journals.rewind(&job).await.map_err(|error| {
        let message = format!("`{job}` was set back, but its journal still has slots to come; run this again");
        Error::new(Kind::Indeterminate, message).with_source(error)
    })?;
    Ok(exit)
}

/// What the operator asked for; what it becomes depends on the record that is there.
pub enum OperatorRequest {
    Revoke,
    HandOff {
        to: HolderId,
        ttl: Ttl,
    },
    Pause,
    /// The same for a job that is in the file: its name is valid, even if it never ran.
    PauseJob,
    Resume,
    Advance(Advance),
    Rewind,
}

impl OperatorRequest {
    /// Refuses what cannot be meant, on the record that the order is decided on.
    fn check(&self, settings: &Settings, lease: &LeaseName, record: &Ownership) -> Result<()> {
        match self {
            OperatorRequest::Revoke | OperatorRequest::Rewind if *record == Ownership::default() => {
                Err(never_held(lease))
            }
            OperatorRequest::Advance(advance) => advance.check(settings, lease, record),
            _ => Ok(()),
        }
    }

    fn takes_away(&self) -> bool {
        matches!(self, OperatorRequest::Revoke | OperatorRequest::Advance(_) | OperatorRequest::Rewind)
    }

    /// What is said if nobody has ever held the lease: the order may be meant in advance, or the name may be misspelt.
    fn in_advance(&self, record: &Ownership) -> &'static str {
        match self {
            _ if record.epoch != Epoch::ZERO => "",
            OperatorRequest::Pause => {
                "; nobody has ever held it, and it is paused anyway. Is the name correct? `leasehold ls` lists the leases there are"
            }
            OperatorRequest::HandOff { .. } => {
                "; nobody has ever held it, and it is handed off anyway. Is the name correct? `leasehold ls` lists the leases \
                 there are"
            }
            OperatorRequest::Advance(_) => "; nobody has ever held it in this store",
            OperatorRequest::Revoke | OperatorRequest::PauseJob | OperatorRequest::Resume | OperatorRequest::Rewind => {
                ""
            }
        }
    }

    /// What was done.
    const fn done(&self) -> &'static str {
        match self {
            OperatorRequest::Revoke => "revoked",
            OperatorRequest::HandOff { .. } => "handed off",
            OperatorRequest::Pause | OperatorRequest::PauseJob => "paused",
            OperatorRequest::Resume => "resumed",
            OperatorRequest::Advance(_) => "advanced",
            OperatorRequest::Rewind => "rewound",
        }
    }
}

/// The order as it is decided on this record: it says which pause it ends, and for the rest on which epoch it was decided.
fn decided(asked: OperatorRequest, record: &Ownership, if_epoch: Option<Epoch>) -> (Option<Epoch>, Order) {
    let seen = Some(if_epoch.unwrap_or(record.epoch));
    match asked {
        OperatorRequest::Revoke => (seen, Order::Revoke),
        OperatorRequest::HandOff { to, ttl } => (seen, Order::HandOff { to, ttl }),
        OperatorRequest::Advance(Advance { past, lineage, .. }) => (seen, Order::Advance { past, lineage }),
        OperatorRequest::Rewind => (seen, Order::Rewind),
        OperatorRequest::Pause | OperatorRequest::PauseJob => (if_epoch, Order::Pause),
        // Where none is seen, a pause that nobody made: that it is not paused is confirmed by a write.
        OperatorRequest::Resume => {
            (if_epoch, Order::Resume { pause: record.paused.as_ref().map_or_else(Nonce::random, |mark| mark.nonce) })
        }
    }
}

/// Carries an order out; with a time, only after the holder was asked to finish and had that time for it.
pub async fn order(context: &Context, args: &Operate, asked: OperatorRequest, drain: Option<Ttl>) -> Result<Exit> {
    let settings = context.settings()?;
    let lease = match asked {
        OperatorRequest::HandOff { .. } => LeaseName::to_hold(&args.name)?,
        _ => LeaseName::new(&args.name)?.of_a_lease()?,
    };
    let if_epoch = args.order.if_epoch.as_deref().map(|epoch| epoch_of("--if-epoch", epoch)).transpose()?;
    let why = Why::named("--why", &args.order.why)?;
    let by = by(args.order.by.as_deref())?;
    if settings.store.value.is_missing() {
        // Before it is made.
        asked.check(settings, &lease, &Ownership::default())?;
    }
    let coordinator = context.coordinator().await?;
    let mut seen = coordinator.inspect(&lease).await?;
    asked.check(settings, &lease, &seen.record)?;
    let (takes_away, done, in_advance) = (asked.takes_away(), asked.done(), asked.in_advance(&seen.record));
    let (expected, order) = decided(asked, &seen.record, if_epoch);
    if let Some(within) = drain {
        let asking = drain::Asking { by: by.clone(), why: why.clone(), expected, within };
        seen = drain::drain(coordinator, seen, asking).await?;
    }
    let carried = match coordinator.operate_if(&lease, by, why, expected, order).await? {
        Operated::Done(carried) => *carried,
        Operated::HandedOff(grant) => {
            let token = grant.token();
            let (ttl, lost) = (grant.ttl(), who_lost_it(&seen, true));
            output::say(&format!(
                "handed `{token}` off for {ttl}: whoever has the token takes it up, or it expires{lost}{in_advance}"
            ));
            return context.print(|| view::token_json(token), || format!("{}\n", token.wire()));
        }
        Operated::Refused(refusal) => {
            let now = coordinator.inspect(&lease).await?.now;
            return match *refusal {
                // What was asked for is already so: say it, change nothing.
                Refusal::Paused(_) | Refusal::NotPaused => {
                    output::say(&format!("{}; nothing changed", view::refusal_line(&lease, &refusal, now)));
                    Ok(Exit::Done)
                }
                refusal => Err(refused(&lease, &refusal, now)),
            };
        }
    };
    let (epoch, told, record) = (carried.epoch(), who_lost_it(&seen, takes_away), carried.record);
    let open = if takes_away { open_slot(&record) } else { String::new() };
    // The answer was lost, and others had the lease before this was known.
    let since = match record.epoch {
        now if now == epoch => String::new(),
        now => format!(". No answer came in time: the lease has moved on since, and is at epoch {now} now"),
    };
    if context.common.json && !in_advance.is_empty() {
        output::say(&format!("{done} `{lease}`{in_advance}"));
    }
    context.tell(
        // From what the order's own write answered: a second look could fail, and the order would be taken for refused.
        || view::order_json(&Inspection { lease: lease.clone(), record, now: seen.now }, epoch),
        || {
            format!(
                "{done} `{lease}` in store `{}`, epoch {epoch}{told}{in_advance}{since}{open}",
                settings.store.value
            )
        },
    )
}

/// Who had the lease that was taken away, for people.
fn who_lost_it(seen: &Inspection, is_taken: bool) -> String {
    match &seen.record.tenure {
        _ if seen.record.epoch == Epoch::ZERO => String::new(),
        Some(tenure) if is_taken && seen.now < tenure.deadline => format!("; {} has lost it", tenure.holder),
        _ if is_taken => "; nobody held it".into(),
        _ => String::new(),
    }
}

/// Says that the job may be started again at once, for people who meant to get it off a machine.
fn open_slot(record: &Ownership) -> String {
    let is_open = |mark: &SlotMark| matches!(mark.state, SlotState::Running);
    match record.slot.filter(is_open).filter(|_| record.paused.is_none()) {
        Some(mark) => format!(
            "; slot {} is open, and a scheduler may run it again at once, also on the same machine: `pause` keeps it from that",
            slot_text(mark.slot)
        ),
        None => String::new(),
    }
}

/// An order that was not carried out.
pub fn refused(lease: &LeaseName, refusal: &Refusal, now: Timestamp) -> Error {
    // One that was decided on an older epoch is as stale as a write under one.
    let kind = if let Refusal::Changed { .. } = refusal { Kind::Fenced } else { Kind::Invalid };
    Error::new(kind, view::refusal_line(lease, refusal, now))
}

/// An epoch that was given by hand.
pub fn epoch_of(flag: &str, text: &str) -> Result<Epoch> {
    text.parse().map_err(|_| Error::invalid(flag, text, "use a whole number, as `leasehold show` prints it"))
}

/// Who gives the order.
pub fn by(flag: Option<&str>) -> Result<Who> {
    match flag {
        Some(by) => Who::named("--by", by),
        None => Ok(Who::lossy(&format!("{}@{}", user(), leasehold_system::host::name()), "unknown")),
    }
}

fn user() -> String {
    ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
        .unwrap_or_else(leasehold_system::accounts::own)
}

/// What `advance` was asked for.
pub struct Advance {
    past: Epoch,
    lineage: Option<Lineage>,
    if_lineage: Option<StoredLineage>,
    force: bool,
}

impl Advance {
    /// Refuses what is most likely a mistake, on the record that the order is decided on.
    fn check(&self, settings: &Settings, lease: &LeaseName, record: &Ownership) -> Result<()> {
        if !self.force {
            check_jump(lease, record.epoch, self.past)?;
        }
        let found = record.lineage.map_or(StoredLineage::Nothing, StoredLineage::Lineage);
        check_lineage(settings, lease, found, self.if_lineage, self.lineage)
    }
}

fn expected(text: &str) -> Result<StoredLineage> {
    match text {
        "none" => Ok(StoredLineage::Nothing),
        text => text.parse().map(StoredLineage::Lineage).map_err(|e| blame_flag(e, "--if-lineage")),
    }
}

/// A lineage can be given once, and a line that was meant for another store would take it from a lease that is well. The
/// order itself is refused if the epoch has changed since, and no lineage changes without that.
fn check_lineage(
    settings: &Settings,
    lease: &LeaseName,
    found: StoredLineage,
    expected: Option<StoredLineage>,
    next: Option<Lineage>,
) -> Result<()> {
    let store = &settings.store.value;
    match expected {
        Some(expected) if expected != found => {
            let message = format!(
                "lease `{lease}` has lineage {found} in store `{store}`, not {expected}; nothing was changed. Is this the store \
                 that the message was about?"
            );
            Err(Error::new(Kind::Invalid, message))
        }
        None if next.is_some_and(|next| found != StoredLineage::Lineage(next)) => {
            let allowed = format!(
                "say which lineage it takes the place of, for this can be done once: lease `{lease}` has {found} in store \
                 `{store}`, so if that is the lease that was lost and created again, add --if-lineage {found}; nothing was \
                 changed"
            );
            Err(Error::invalid("--lineage", next.map(|next| next.to_string()).unwrap_or_default(), allowed))
        }
        _ => Ok(()),
    }
}

fn check_jump(lease: &LeaseName, now: Epoch, past: Epoch) -> Result<()> {
    // One that can never be is refused with its own words.
    if past > Epoch::HIGHEST_ADVANCE || past.get().saturating_sub(now.get()) <= LONGEST_JUMP {
        return Ok(());
    }
    let message = format!(
        "lease `{lease}` is at epoch {now}, and a jump of more than {LONGEST_JUMP} is most likely a typing error; nothing \
         was changed. If a guard has really seen that epoch, add --force"
    );
    Err(Error::invalid("epoch", past, message))
}
