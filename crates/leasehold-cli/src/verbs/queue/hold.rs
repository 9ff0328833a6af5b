//! `queue claim`, `progress`, `complete`, `fail`: for scripts that do the work themselves.

use super::{follow_ups, open, say_error, view};
use crate::args::{ClaimArgs, Complete, Fail, ItemProgress};
use crate::config::duration_of;
use crate::context::{Context, Open, Target, with_backlog};
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::verbs::hold::{report, tell_asked};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Error, Kind, Result, Token, TokenKind};
use leasehold_work::Backlog;
use leasehold_work::backlog::{Attempt, Content, Wait, read_bounded};
use leasehold_work::queue::{ItemName, Payload, Reason};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

pub async fn claim(context: &Context, args: &ClaimArgs) -> Result<Exit> {
    let settings = context.settings()?;
    let target = Target::parse(&args.queue)?;
    target.check_ours("claim from")?;
    let wait = duration_of("--wait", args.wait.as_deref())?;
    let (label, ttl) = (settings.label.value.clone(), settings.ttl.value);
    with_backlog!(context.queue(&target).await?, backlog => {
        let claimer = backlog.claimer(label, ttl, say_error)?;
        match claim_one(context, args, &backlog, claimer, wait).await? {
            Some(exit) => Ok(exit),
            None => {
                output::say(&format!("nothing to claim in `{}`", target.portable()));
                Ok(Exit::Held)
            }
        }
    })
}

/// Claims an item and prints its token; none if no item is ready. If the token cannot be printed, the item goes
/// back untried.
async fn claim_one<B: Backlog>(
    context: &Context,
    args: &ClaimArgs,
    backlog: &B,
    mut claimer: B::Claimer,
    wait: Option<Duration>,
) -> Result<Option<Exit>> {
    let until = wait.map(|wait| SystemClock.now() + wait);
    loop {
        let wait = until.map_or(Wait::Not, |until| Wait::For(until.saturating_since(SystemClock.now())));
        let Some(grant) = B::claim(&mut claimer, wait).await? else { return Ok(None) };
        let Attempt { id, token, payload, .. } = backlog.attempt(&grant);
        let mut payload: Box<dyn Read> = match payload {
            Content::Bytes(bytes) => Box::new(std::io::Cursor::new(bytes)),
            Content::File(path) => match File::open(path) {
                Ok(file) => Box::new(file),
                // Its own trouble: given back untried, it would be the first in line again.
                Err(error) => {
                    let why = format!("its payload cannot be read: {error}");
                    output::say(&format!("`{id}` failed: {why}"));
                    backlog.fail(&grant, Reason::lossy(&why, "its payload cannot be read"), None, false).await?;
                    continue;
                }
            },
        };
        let shown = backlog.claimed(&grant).await;
        let told = shown.and_then(|seen| tell(context, args, &token, &mut payload, view::seen(&seen)));
        if told.is_err() {
            let _ = backlog.give_back(&grant).await;
        }
        return told.map(Some);
    }
}

/// Hands over what was claimed. After an error nobody has it.
fn tell(context: &Context, args: &ClaimArgs, token: &Token, payload: &mut dyn Read, mut value: Value) -> Result<Exit> {
    if let Some(path) = &args.payload {
        keep(path, payload)?;
    }
    let mut text = token.wire();
    if context.common.json {
        value["token"] = json!(text);
        text = value.to_string();
    }
    match output::deliver(&format!("{text}\n"))? {
        Reader::There => Ok(Exit::Done),
        Reader::Gone => Err(Error::new(Kind::Unavailable, "nobody reads the token: the item was given back untried")),
    }
}

fn keep(path: &Path, payload: &mut dyn Read) -> Result<()> {
    File::create(path).and_then(|mut file| std::io::copy(payload, &mut file)).map(|_| ()).map_err(|e| {
        let message = format!("the payload cannot be written to `{}`; the item was given back untried", path.display());
        Error::new(Kind::Unavailable, message).with_source(e)
    })
}

/// What the command was asked about, and by which token.
async fn held(context: &Context, queue: &str, flag: Option<&str>) -> Result<(Open, Token)> {
    let target = Target::parse(queue)?;
    let missing =
        "no token: run this inside `leasehold work`, or give --token with what `leasehold queue claim` printed";
    let token = context.token_or(flag, missing)?;
    check_target(&token, &target)?;
    Ok((context.existing_queue(&target).await?, token))
}

/// Refuses a token of something else than an item of this queue.
fn check_target(token: &Token, target: &Target) -> Result<()> {
    let asked = target.portable();
    let belongs = match (TokenKind::of(&token.lease), target) {
        (TokenKind::Lease, _) => {
            let form = format!("it belongs to a lease; give the one that `leasehold queue claim {asked}` printed");
            return Err(Error::invalid("token", token, form));
        }
        (TokenKind::SpoolFile, Target::Spool(_)) => return Ok(()),
        (TokenKind::SpoolFile, Target::Queue(_)) => "a spool".to_owned(),
        (TokenKind::Item, _) => match ItemName::of(token)?.queue {
            queue if queue.as_str() == asked => return Ok(()),
            queue => format!("queue `{queue}`"),
        },
    };
    let asked = if let Target::Queue(_) = target { format!("queue `{asked}`") } else { format!("`{asked}`") };
    Err(Error::invalid("token", token, format!("it belongs to {belongs}, not to {asked}")))
}

pub async fn progress(context: &Context, args: &ItemProgress) -> Result<Exit> {
    let report = report(args.marker.as_deref(), args.checkpoint.as_deref())?;
    let (open, token) = held(context, &args.queue, args.token.as_deref()).await?;
    let asked = with_backlog!(open, backlog => backlog.report(&token, report).await?);
    if let Some(drain) = asked {
        tell_asked(&token, &drain);
    }
    Ok(Exit::Done)
}

pub async fn complete(context: &Context, args: Complete) -> Result<Exit> {
    let result = match (args.result, &args.result_from) {
        (Some(text), _) => Some(Payload::result(text)?),
        (None, Some(path)) => {
            let file = open(path, "--result-from ")?;
            Some(Payload::result(read_bounded(file, Payload::MAX_RESULT_BYTES, "the result")?)?)
        }
        (None, None) => None,
    };
    if let Some(path) = &args.follow_ups {
        open(path, "--follow-ups ")?;
    }
    let (open, token) = held(context, &args.queue, args.token.as_deref()).await?;
    let seen = with_backlog!(open, backlog => {
        let grant = Backlog::by_token(&backlog, &token).await?;
        let add = args.follow_ups.as_deref().map_or_else(|| Ok(Vec::new()), follow_ups)?;
        Backlog::complete(&backlog, &grant, result, add).await?
    });
    context.print_json(|| view::seen(&seen))
}

pub async fn fail(context: &Context, args: &Fail) -> Result<Exit> {
    let why = Reason::named("--why", &args.why)?;
    let retry_in: Option<Duration> = duration_of("--retry-in", args.retry_in.as_deref())?;
    let (open, token) = held(context, &args.queue, args.token.as_deref()).await?;
    let seen = with_backlog!(open, backlog => {
        let grant = Backlog::by_token(&backlog, &token).await?;
        Backlog::fail(&backlog, &grant, why, retry_in, args.for_good).await?
    });
    context.print_json(|| view::seen(&seen))
}
