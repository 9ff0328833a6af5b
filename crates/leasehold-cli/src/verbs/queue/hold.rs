//! `queue claim`, `progress`, `complete`, `fail`: for scripts that do the work themselves.

use super::{Open, Target, follow_ups, open_file, read_bounded, spool_follow_ups, view};
use crate::args::{ClaimArgs, Common, Complete, Fail, ItemProgress};
use crate::config::{Flags, Settings, duration_of};
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::verbs::token_or;
use leasehold_core::lease::protocol::Report;
use leasehold_core::{Checkpoint, Error, HolderId, Kind, Marker, Result, Right, Token};
use leasehold_work::queue::{Claimed, Claimer, ItemName, Payload, Queue, Reason};
use leasehold_work::spool::{Spool, SpoolClaimer};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

pub async fn claim(common: &Common, args: &ClaimArgs) -> Result<Exit> {
    let flags = Flags { ttl: args.ttl.as_deref(), label: args.label.as_deref(), ..Flags::default() };
    let settings = Settings::gather_with(common, flags)?;
    let target = Target::parse(&args.queue)?;
    let wait = duration_of("--wait", args.wait.as_deref())?;
    let (label, ttl) = (settings.label.value.clone(), settings.ttl.value);
    // An item whose token nobody has is claimed by nobody: it goes back untried.
    match Open::new(&settings, &target).await? {
        Open::Queue(queue) => {
            let mut claimer = Claimer::new(queue, label, ttl)?;
            let grant = match wait {
                Some(wait) => claimer.next_within(wait).await?,
                None => match claimer.claim().await? {
                    Claimed::Item(grant) => Some(*grant),
                    Claimed::Nothing { held_up: Some(error), .. } => return Err(error),
                    Claimed::Nothing { held_up: None, .. } => None,
                },
            };
            claimer.troubles().iter().for_each(|error| output::say(&error.to_string()));
            let Some(grant) = grant else { return nothing(&target) };
            let value = view::item(grant.name(), grant.item(), true);
            let told = tell(common, args, grant.token(), &mut grant.item().payload.bytes(), value);
            if told.is_err() {
                let _ = claimer.queue().give_back(&grant).await;
            }
            told
        }
        Open::Spool(spool) => {
            let label = label.unwrap_or_else(|| HolderId::new(None).label);
            let mut claimer =
                SpoolClaimer::new(spool.clone(), &label, ttl)?.warning(|odd| output::say(&odd.to_string()));
            let mut waited = std::pin::pin!(tokio::time::sleep(wait.unwrap_or_default()));
            let (grant, mut payload) = loop {
                let grant = match wait {
                    Some(_) => tokio::select! {
                        biased;
                        grant = claimer.next() => Some(grant?),
                        () = &mut waited => None,
                    },
                    None => claimer.claim()?,
                };
                let Some(grant) = grant else { return nothing(&target) };
                match File::open(grant.path()) {
                    Ok(payload) => break (grant, payload),
                    // Its own trouble: given back untried, it would be the first in line again.
                    Err(error) => {
                        let why = format!("its payload cannot be read: {error}");
                        output::say(&format!("`{}` failed: {why}", grant.name().id));
                        spool.fail(&grant, &Reason::lossy(&why, "its payload cannot be read"), None, false)?;
                    }
                }
            };
            let told = spool.show(&grant.name().id).and_then(|shown| {
                let text = spool.payload(&shown.item, view::SHOWN_PAYLOAD);
                let value = view::shown(&shown, text.as_ref().map(Option::as_deref));
                tell(common, args, grant.token(), &mut payload, value)
            });
            if told.is_err() {
                let _ = spool.give_back(&grant);
            }
            told
        }
    }
}

fn nothing(target: &Target) -> Result<Exit> {
    output::say(&format!("nothing to claim in `{}`", target.portable()));
    Ok(Exit::Held)
}

/// Hands over what was claimed. An error means that nobody has it.
fn tell(common: &Common, args: &ClaimArgs, token: &Token, payload: &mut dyn Read, mut value: Value) -> Result<Exit> {
    if let Some(path) = &args.payload {
        keep(path, payload)?;
    }
    let text = if common.json {
        value["token"] = json!(token.wire());
        value.to_string()
    } else {
        token.wire()
    };
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
async fn held(common: &Common, queue: &str, flag: Option<&str>) -> Result<(Open, Token)> {
    let settings = Settings::gather(common)?;
    let target = Target::parse(queue)?;
    let missing =
        "no token: run this inside `leasehold work`, or give --token with what `leasehold queue claim` printed";
    let token = token_or(flag, missing)?;
    check_target(&token, &target)?;
    Ok((Open::existing(&settings, &target).await?, token))
}

/// Refuses a token of something else than an item of this queue.
fn check_target(token: &Token, target: &Target) -> Result<()> {
    let belongs = match Right::of(&token.lease) {
        Right::Lease => {
            let claim = format!("leasehold queue claim {}", target.portable());
            let form = format!("it belongs to a lease; give the one that `{claim}` printed");
            return Err(Error::invalid("token", token, form));
        }
        Right::Item => format!("queue `{}`", ItemName::of(token)?.queue),
        Right::SpoolFile => "a spool".to_owned(),
    };
    let asked = match target {
        Target::Queue(name) => format!("queue `{name}`"),
        Target::Spool(_) => "a spool".to_owned(),
    };
    if belongs == asked {
        return Ok(());
    }
    let asked = if let Target::Spool(_) = target { format!("`{}`", target.portable()) } else { asked };
    Err(Error::invalid("token", token, format!("it belongs to {belongs}, not to {asked}")))
}

pub async fn progress(common: &Common, args: ItemProgress) -> Result<Exit> {
    let marker = args.marker.map(|marker| Marker::named("marker", marker)).transpose()?;
    let checkpoint = args.checkpoint.map(Checkpoint::new).transpose()?;
    match held(common, &args.queue, args.token.as_deref()).await? {
        (Open::Queue(queue), token) => {
            let mut grant = queue.adopt(&token).await?;
            queue.renew(&mut grant).await?;
            queue.progress(&token, Report { marker, checkpoint }).await?;
        }
        (Open::Spool(spool), token) => {
            let mut grant = spool.adopt(&token).map_err(as_lost)?;
            spool.renew(&mut grant)?;
            if let Some(checkpoint) = checkpoint {
                spool.checkpoint(&grant, &checkpoint)?;
            }
        }
    }
    Ok(Exit::Done)
}

/// A claim that cannot be renewed is lost; only what is refused at its end is fenced.
fn as_lost(error: Error) -> Error {
    if error.kind() == Kind::Fenced { Error::new(Kind::Lost, error.to_string()) } else { error }
}

pub async fn complete(common: &Common, args: Complete) -> Result<Exit> {
    let result = match (args.result, &args.result_from) {
        (Some(text), _) => Some(Payload::result(text)?),
        (None, Some(path)) => {
            let mut file = open_file(path, "--result-from")?;
            Some(Payload::result(read_bounded(&mut file, Payload::MAX_RESULT_BYTES, "the result")?)?)
        }
        (None, None) => None,
    };
    if let Some(path) = &args.follow_ups {
        open_file(path, "--follow-ups")?;
    }
    let follow_ups = args.follow_ups.as_deref();
    let value = match held(common, &args.queue, args.token.as_deref()).await? {
        (Open::Queue(queue), token) => complete_item(&queue, &token, result, follow_ups).await?,
        (Open::Spool(spool), token) => complete_file(&spool, &token, result.as_ref(), follow_ups)?,
    };
    if common.json {
        output::json(&value)?;
    }
    Ok(Exit::Done)
}

async fn complete_item(
    queue: &Queue,
    token: &Token,
    result: Option<Payload>,
    path: Option<&Path>,
) -> Result<serde_json::Value> {
    let grant = queue.by_token(token).await?;
    let now = leasehold_core::Timestamp::from_millis(leasehold_system::clock::wall_ms());
    let add = path.map_or_else(|| Ok(Vec::new()), |path| follow_ups(queue, path, now))?;
    let item = queue.complete(&grant, result, add).await?;
    Ok(view::item(grant.name(), &item, true))
}

fn complete_file(
    spool: &Spool,
    token: &Token,
    result: Option<&Payload>,
    path: Option<&Path>,
) -> Result<serde_json::Value> {
    let grant = spool.adopt(token)?;
    let add = path.map_or_else(|| Ok(Vec::new()), spool_follow_ups)?;
    spool.complete(&grant, result, &add)?;
    Ok(view::spooled_now(spool, &grant.name().id))
}

pub async fn fail(common: &Common, args: &Fail) -> Result<Exit> {
    let why = Reason::named("--why", &args.why)?;
    let retry_in: Option<Duration> = duration_of("--retry-in", args.retry_in.as_deref())?;
    let value = match held(common, &args.queue, args.token.as_deref()).await? {
        (Open::Queue(queue), token) => {
            let grant = queue.by_token(&token).await?;
            let item = queue.fail(&grant, why, retry_in, args.for_good).await?;
            view::item(grant.name(), &item, true)
        }
        (Open::Spool(spool), token) => {
            let grant = spool.adopt(&token)?;
            spool.fail(&grant, &why, retry_in, args.for_good)?;
            view::spooled_now(&spool, &grant.name().id)
        }
    };
    if common.json {
        output::json(&value)?;
    }
    Ok(Exit::Done)
}
