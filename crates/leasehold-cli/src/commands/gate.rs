//! `gate`: check the lease at the last moment, then become the command. For what cannot check a token itself.

use super::relay::{Relay, exit_of};
use super::{of_token, token};
use crate::args::{Common, Gate as Args};
use crate::config::Settings;
use crate::exit::Exit;
use crate::output;
use leasehold::clock::{Clock, Moment, SystemClock};
use leasehold::guard::{Rejection, Strength};
use leasehold::{Coordinator, Error, Event, Kind, Result, Token};
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
    // Measured from the moment of asking: the store's answer may be as old as that.
    let spent = SystemClock.now().saturating_since(asked);
    output::say(&format!(
        "gate open: resource=`{}` epoch={} strength={STRENGTH}; {:.1}ms from the check to the start of the command, the \
         lease lasts {} without renewal",
        args.resource,
        token.epoch,
        spent.as_secs_f64() * 1000.0,
        output::rough(left)
    ));
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    if args.measure {
        return measured(&args, &coordinator, &token, command, asked).await;
    }
    let error = command.exec();
    Ok(cannot_run(&args, &error))
}

fn cannot_run(args: &Args, error: &std::io::Error) -> Exit {
    output::say(&format!("cannot run `{}`: {error}", args.command[0].to_string_lossy()));
    Exit::Code(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Stays until the command has ended, and says how long the window was and whether the lease was lost in it.
async fn measured(
    args: &Args,
    coordinator: &Coordinator,
    token: &Token,
    mut command: Command,
    asked: Moment,
) -> Result<Exit> {
    let relay = Relay::listen()?;
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(cannot_run(args, &error)),
    };
    let status = relay.wait(child, || {}).await?;
    let window = SystemClock.now().saturating_since(asked).as_secs_f64() * 1000.0;
    let end = match coordinator.inspect(&token.lease).await {
        Ok(lease) if lease.record.is_held_by(token.claim()) => "the lease was held all the while".to_owned(),
        Ok(lease) => format!("the lease was LOST in it: held={} seen={}", token.epoch, lease.record.epoch),
        Err(error) => format!("whether the lease was held all the while is unknown: {error}"),
    };
    output::say(&format!("gate closed: resource=`{}` the window was {window:.1}ms; {end}", args.resource));
    Ok(exit_of(status))
}
