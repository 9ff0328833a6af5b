//! `revoke`, `hand-off`, `pause`, `resume`, and the order behind `advance`: operators obey the fence too.

use super::advance::Advance;
use super::{coordinator, never_held};
use crate::args::{Common, HandOff, Operate};
use crate::config::{Flags, Settings};
use crate::exit::Exit;
use crate::{output, view};
use leasehold_core::lease::protocol::{Order, Refusal};
use leasehold_core::{
    Epoch, Error, HolderId, Inspection, Kind, Label, LeaseName, Nonce, Operated, Ownership, Result, Ttl, Who, Why,
};

/// A longer jump of an epoch is most likely a typing error, and epochs never come back.
pub const LONGEST_JUMP: u64 = 1_000_000;

pub async fn revoke(common: &Common, args: &Operate) -> Result<Exit> {
    order(common, &Settings::gather(common)?, args, Asked::Revoke, "revoked").await
}

pub async fn pause(common: &Common, args: &Operate) -> Result<Exit> {
    order(common, &Settings::gather(common)?, args, Asked::Pause, "paused").await
}

pub async fn resume(common: &Common, args: &Operate) -> Result<Exit> {
    order(common, &Settings::gather(common)?, args, Asked::Resume, "resumed").await
}

pub async fn hand_off(common: &Common, args: &HandOff) -> Result<Exit> {
    let to = HolderId::new(Some(Label::named("--to", &args.to)?));
    let settings = Settings::gather_with(common, Flags { ttl: args.ttl.as_deref(), ..Flags::default() })?;
    let handing_off = Asked::HandOff { to, ttl: settings.ttl.value };
    order(common, &settings, &args.operate, handing_off, "handed off").await
}

/// What the operator asked for; what it becomes depends on the record that is there.
pub enum Asked {
    Revoke,
    HandOff { to: HolderId, ttl: Ttl },
    Pause,
    Resume,
    Advance(Advance),
    Rewind,
}

impl Asked {
    /// Refuses what cannot be meant, on the record that the order is decided on.
    fn check(&self, settings: &Settings, lease: &LeaseName, record: &Ownership) -> Result<()> {
        match self {
            Asked::Revoke | Asked::Rewind if *record == Ownership::default() => Err(never_held(lease)),
            Asked::Advance(advance) => advance.check(settings, lease, record),
            _ => Ok(()),
        }
    }

    fn takes_away(&self) -> bool {
        matches!(self, Asked::Revoke | Asked::Advance(_) | Asked::Rewind)
    }
}

/// The order as it is decided on this record: it says which pause it ends, and for the rest on which epoch it was decided.
fn decided(asked: Asked, record: &Ownership, if_epoch: Option<Epoch>) -> (Option<Epoch>, Order) {
    let seen = Some(if_epoch.unwrap_or(record.epoch));
    match asked {
        Asked::Revoke => (seen, Order::Revoke),
        Asked::HandOff { to, ttl } => (seen, Order::HandOff { to, ttl }),
        Asked::Advance(Advance { past, lineage, .. }) => (seen, Order::Advance { past, lineage }),
        Asked::Rewind => (seen, Order::Rewind),
        Asked::Pause => (if_epoch, Order::Pause),
        // Where none is seen, a pause that nobody made: that it is not paused is confirmed by a write.
        Asked::Resume => {
            (if_epoch, Order::Resume { pause: record.paused.as_ref().map_or_else(Nonce::random, |mark| mark.nonce) })
        }
    }
}

pub async fn order(common: &Common, settings: &Settings, args: &Operate, asked: Asked, done: &str) -> Result<Exit> {
    let lease = match asked {
        Asked::HandOff { .. } => LeaseName::to_hold(&args.name)?,
        _ => LeaseName::new(&args.name)?.of_a_lease()?,
    };
    let if_epoch = args.if_epoch.as_deref().map(|epoch| epoch_of("--if-epoch", epoch)).transpose()?;
    let why = Why::named("--why", &args.why)?;
    let by = by(args.by.as_deref())?;
    if settings.store.value.is_missing() {
        // Before it is made.
        asked.check(settings, &lease, &Ownership::default())?;
    }
    let coordinator = coordinator(settings).await?;
    let seen = coordinator.inspect(&lease).await?;
    asked.check(settings, &lease, &seen.record)?;
    let takes_away = asked.takes_away();
    let (expected, order) = decided(asked, &seen.record, if_epoch);
    match coordinator.operate_if(&lease, by, why, expected, order).await? {
        Operated::Refused(refusal) => match *refusal {
            // What was asked for is already so: say it, change nothing.
            refusal @ (Refusal::Paused(_) | Refusal::NotPaused) => {
                let now = coordinator.inspect(&lease).await?.now;
                output::say(&format!("{}; nothing changed", view::refusal_line(&lease, &refusal, now)));
                Ok(Exit::Done)
            }
            refusal => {
                let now = coordinator.inspect(&lease).await?.now;
                // An order that was decided on an older epoch is as stale as a write under one.
                let kind = if let Refusal::Changed { .. } = refusal { Kind::Fenced } else { Kind::Invalid };
                Err(Error::new(kind, view::refusal_line(&lease, &refusal, now)))
            }
        },
        Operated::HandedOff(grant) => {
            if common.json {
                output::json(&view::token_json(grant.token()))?;
            } else {
                output::line(&grant.token().wire())?;
            }
            Ok(Exit::Done)
        }
        Operated::Done(record) => {
            if common.json {
                // From what the order's own write answered: a second look could fail, and the order would be taken for refused.
                output::json(&view::lease_json(&Inspection { lease: lease.clone(), record: *record, now: seen.now }))?;
            } else {
                let told = match (&seen.record.tenure, takes_away) {
                    _ if record.epoch == Epoch::ZERO || seen.record.epoch == Epoch::ZERO => {
                        "; nobody has held it yet, is the name right?".into()
                    }
                    (Some(tenure), true) if seen.now < tenure.deadline => format!("; {} has lost it", tenure.holder),
                    (_, true) => "; nobody held it".into(),
                    _ => String::new(),
                };
                output::say(&format!(
                    "{done} `{lease}` in store `{}`, epoch {}{told}",
                    settings.store.value, record.epoch
                ));
            }
            Ok(Exit::Done)
        }
    }
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
        .unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()))
}
