//! `revoke`, `hand-off`, `pause`, `resume`, `advance`: operators obey the fence too.

use super::{coordinator, known, migrate};
use crate::args::{Advance, Common, HandOff, Operate};
use crate::config::{Flags, Settings};
use crate::exit::Exit;
use crate::{output, view};
use leasehold::protocol::{Order, Refusal};
use leasehold::{Epoch, Error, HolderId, Kind, Label, LeaseName, Operated, Result, Who, Why};

pub async fn revoke(common: &Common, args: &Operate) -> Result<Exit> {
    order(common, &Settings::gather(common)?, args, Order::Revoke, "revoked").await
}

pub async fn pause(common: &Common, args: &Operate) -> Result<Exit> {
    order(common, &Settings::gather(common)?, args, Order::Pause, "paused").await
}

pub async fn resume(common: &Common, args: &Operate) -> Result<Exit> {
    order(common, &Settings::gather(common)?, args, Order::Resume, "resumed").await
}

pub async fn advance(common: &Common, args: &Advance) -> Result<Exit> {
    let past: Epoch = args.past.parse()?;
    order(common, &Settings::gather(common)?, &args.operate, Order::Advance { past, lineage: None }, "advanced").await
}

pub async fn hand_off(common: &Common, args: &HandOff) -> Result<Exit> {
    let to = HolderId::new(Some(Label::named("--to", &args.to)?));
    let settings = Settings::gather_with(common, Flags { ttl: args.ttl.as_deref(), ..Flags::default() })?;
    let handing_off = Order::HandOff { to, ttl: settings.ttl.value };
    order(common, &settings, &args.operate, handing_off, "handed off").await
}

pub async fn order(common: &Common, settings: &Settings, args: &Operate, order: Order, done: &str) -> Result<Exit> {
    let lease = match order {
        Order::HandOff { .. } => LeaseName::to_hold(&args.name)?,
        _ => LeaseName::new(&args.name)?,
    };
    let why = Why::named("--why", &args.why)?;
    let by = by(args.by.as_deref())?;
    if let Order::Revoke = order {
        known(settings, &lease).await?;
    }
    let coordinator = coordinator(settings).await?;
    if let Order::Resume = order
        && let Some(mark) = coordinator.inspect(&lease).await?.record.paused
        && let Some(elsewhere) = migrate::moved_to(&mark)
    {
        let way = format!(
            "lease `{lease}` was moved to `{elsewhere}` and goes on there; move it back with `leasehold migrate`"
        );
        return Err(Error::new(Kind::Invalid, way));
    }
    match coordinator.operate(&lease, by, why, order).await? {
        Operated::Refused(refusal) => match *refusal {
            // What was asked for is already so: say it, change nothing.
            refusal @ (Refusal::Paused(_) | Refusal::NotPaused) => {
                let now = coordinator.inspect(&lease).await?.now;
                output::say(&format!("{}; nothing changed", view::refusal_line(&lease, &refusal, now)));
                Ok(Exit::Done)
            }
            refusal => {
                let now = coordinator.inspect(&lease).await?.now;
                Err(Error::new(Kind::Invalid, view::refusal_line(&lease, &refusal, now)))
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
                output::json(&view::lease_json(&coordinator.inspect(&lease).await?))?;
            } else {
                let never =
                    if record.epoch == Epoch::ZERO { "; nobody has held it yet, is the name right?" } else { "" };
                output::say(&format!("{done} `{lease}`, epoch {}{never}", record.epoch));
            }
            Ok(Exit::Done)
        }
    }
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
