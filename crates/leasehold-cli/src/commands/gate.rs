//! `gate`: check the lease at the last moment, then become the command. For what cannot check a token itself.

use super::{of_token, token};
use crate::args::{Common, Gate as Args};
use crate::config::Settings;
use crate::exit::Exit;
use crate::output;
use leasehold::clock::{Clock, SystemClock};
use leasehold::guard::{Rejection, Strength};
use leasehold::{Error, Event, Kind, Result};
use std::cmp::Ordering;
use std::os::unix::process::CommandExt;
use std::process::Command;

const STRENGTH: Strength =
    Strength::CheckThenAct { window: "from this check to the end of the command the lease may be lost" };

pub async fn gate(common: &Common, args: Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let coordinator = of_token(&Settings::gather(common)?).await?;
    let asked = SystemClock.now();
    let lease = coordinator.inspect(&token.lease).await?;
    if !lease.record.is_held_by(token.claim()) {
        let seen = lease.record.epoch;
        let message = match seen.cmp(&token.epoch) {
            Ordering::Greater => {
                let _ = coordinator.count(&token.lease, Event::Fenced).await;
                return Err(Rejection::Stale { held: token.epoch, seen }.into_error(&args.resource));
            }
            Ordering::Equal => format!("gate closed: resource=`{}` lease `{token}` had been released", args.resource),
            Ordering::Less => format!(
                "gate closed: resource=`{}` lease `{}` held={} seen={seen}; is this the store that the token came from?",
                args.resource, token.lease, token.epoch
            ),
        };
        return Err(Error::new(Kind::Lost, message));
    }
    let left = lease.record.live_tenure(lease.now).map(|t| t.deadline.saturating_since(lease.now));
    let Some(left) = left.filter(|left| SystemClock.now() < asked + *left) else {
        let message = format!("gate closed: resource=`{}` lease `{token}` has run out", args.resource);
        return Err(Error::new(Kind::Lost, message));
    };
    let spent = SystemClock.now().saturating_since(asked);
    output::say(&format!(
        "gate open: resource=`{}` epoch={} strength={STRENGTH}; the check took {:.1}ms, the lease lasts {} without renewal",
        args.resource,
        token.epoch,
        spent.as_secs_f64() * 1000.0,
        output::rough(left)
    ));
    let error = Command::new(&args.command[0]).args(&args.command[1..]).exec();
    output::say(&format!("cannot run `{}`: {error}", args.command[0].to_string_lossy()));
    Ok(Exit::Code(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }))
}
