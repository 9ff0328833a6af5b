//! `gate`: check the lease at the last moment, then become the command. For what cannot check a token itself.

use super::relay::{Relay, cannot_run, exit_of};
use crate::args::Gate as Args;
use crate::context::{Context, OpenToken};
use crate::exit::Exit;
use crate::output;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::guard::Strength;
use leasehold_core::{Error, Result, Token, TokenState};
use std::os::unix::process::CommandExt;
use std::process::Command;

const STRENGTH: Strength =
    Strength::CheckThenAct { window: "from this check to the end of the command the lease may be lost" };

pub async fn gate(context: &Context, args: &Args) -> Result<Exit> {
    let token = context.token(args.token.as_deref())?;
    let opened = context.open_token(&token).await?;
    let asked = SystemClock.now();
    let found = opened.resolve().await?;
    let closed = |error: Error| Error::new(error.kind(), format!("gate closed: resource=`{}` {error}", args.resource));
    if let TokenState::Superseded { .. } = found.state {
        opened.count_fenced(&args.resource, Some(found.epoch)).await;
        found.may_write(&token, &args.resource).map_err(closed)?;
    }
    let left = found.in_force(&token).map_err(closed)?.trust_until.saturating_since(SystemClock.now());
    if left.is_zero() {
        return Err(closed(found.refusal(&token)));
    }
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
        return measured(args, &opened, &token, command, asked).await;
    }
    let error = command.exec();
    Ok(cannot_run(&args.command[0], &error))
}

/// Stays until the command has ended, and says how long the window was and whether the lease was lost in it.
async fn measured(args: &Args, opened: &OpenToken, token: &Token, mut command: Command, asked: Moment) -> Result<Exit> {
    let mut relay = Relay::listen()?;
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(cannot_run(&args.command[0], &error)),
    };
    let status = relay.wait(child, async {}).await?;
    let window = SystemClock.now().saturating_since(asked).as_secs_f64() * 1000.0;
    let end = match opened.resolve().await {
        Ok(found) if found.is_newest() => "the lease was held all the while".to_owned(),
        Ok(found) => format!("the lease was LOST in it: {}", found.refusal(token)),
        Err(error) => format!("whether the lease was held all the while is unknown: {error}"),
    };
    output::say(&format!("gate closed: resource=`{}` the window was {window:.1}ms; {end}", args.resource));
    Ok(exit_of(status))
}
