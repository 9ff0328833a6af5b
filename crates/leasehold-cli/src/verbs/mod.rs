//! One verb, one file. What several share is here.

mod acquire;
mod adopt;
mod advance;
mod advise;
mod completions;
mod config;
pub mod doctor;
mod drill;
mod gate;
mod git_hook;
mod history;
mod ls;
mod man;
mod mcp;
mod mcp_gate;
mod migrate;
pub mod operate;
mod progress;
#[cfg(feature = "http")]
mod proxy;
mod publish;
mod push;
mod put;
mod queue;
mod relay;
mod release;
mod renew;
mod rewind;
mod run;
mod runs;
mod schedule;
mod show;
mod sql;
mod stats;
mod tokens;
mod work;
mod write;

use crate::args::{Cli, Common, Verb};
use crate::config::{Settings, Source, blame};
use crate::exit::Exit;
use crate::output;
use leasehold_core::guard::{Guard, HighWater};
use leasehold_core::{Coordinator, Error, Inspection, Kind, LeaseName, Ownership, Result, Right, Token};
use leasehold_stores::open;
use serde_json::json;
use tokens::explain;

/// Does what the command line says.
pub async fn execute(cli: Cli) -> Result<Exit> {
    let Cli { common, verb } = cli;
    perform(&common, verb).await.map_err(|error| tokens::in_what_was_used(&common, error))
}

async fn perform(common: &Common, verb: Verb) -> Result<Exit> {
    match verb {
        Verb::Run(args) => run::run(common, *args).await,
        Verb::Acquire(args) => acquire::acquire(common, &args).await,
        Verb::Renew(args) => renew::renew(common, &args).await,
        Verb::Release(args) => release::release(common, &args).await,
        Verb::Progress(args) => progress::progress(common, args).await,
        Verb::Ls(args) => ls::ls(common, &args).await,
        Verb::Show(args) => show::show(common, &args).await,
        Verb::History(args) => history::history(common, &args).await,
        Verb::Revoke(args) => operate::revoke(common, &args).await,
        Verb::HandOff(args) => operate::hand_off(common, &args).await,
        Verb::Pause(args) => operate::pause(common, &args).await,
        Verb::Resume(args) => operate::resume(common, &args).await,
        Verb::Advance(args) => advance::advance(common, &args).await,
        Verb::Rewind(args) => rewind::rewind(common, &args).await,
        Verb::Schedule(args) => schedule::schedule(common, args).await,
        Verb::Runs(args) => runs::runs(common, &args).await,
        Verb::Stats(args) => stats::stats(common, &args).await,
        Verb::Advise(args) => advise::advise(common, &args).await,
        Verb::Doctor(args) => doctor::doctor(common, &args).await,
        Verb::Drill(args) => drill::drill(common, args).await,
        Verb::Migrate(args) => migrate::migrate(common, &args).await,
        Verb::Write(args) => write::write(common, &args).await,
        Verb::Publish(args) => publish::publish(common, &args).await,
        Verb::Push(args) => push::push(common, &args).await,
        Verb::GitHook(args) => git_hook::git_hook(&args).await,
        Verb::Sql(args) => sql::sql(common, &args).await,
        Verb::Put(args) => put::put(common, &args).await,
        Verb::Adopt(args) => adopt::adopt(common, &args).await,
        Verb::Gate(args) => gate::gate(common, args).await,
        #[cfg(feature = "http")]
        Verb::Proxy(args) => proxy::proxy(common, &args).await,
        Verb::McpGate(args) => mcp_gate::mcp_gate(common, args).await,
        Verb::Mcp(args) => mcp::mcp(common, &args).await,
        Verb::Queue(args) => queue::queue(common, *args).await,
        Verb::Work(args) => work::work(common, *args).await,
        Verb::Config => config::config(common),
        Verb::Completions(args) => completions::completions(&args),
        Verb::Man => man::man(),
    }
}

/// The coordinator on the store that the settings name, which is made if it is missing.
async fn coordinator(settings: &Settings) -> Result<Coordinator> {
    let url = &settings.store.value;
    let missing = url.scheme() == "dir" && url.is_missing();
    let coordinator = Coordinator::new(open(url).await?);
    if missing {
        // Below a mount point whose share is not mounted, this is the moment at which a fleet splits in two.
        output::say(&format!("made a new store at `{url}`; if other machines share it, see that it is mounted here"));
    }
    Ok(coordinator)
}

/// The same for those who only look, or ask for what a missing store cannot have: they make none.
async fn existing(settings: &Settings) -> Result<Option<Coordinator>> {
    if settings.store.value.is_missing() { Ok(None) } else { coordinator(settings).await.map(Some) }
}

/// The same for those who bring a token: a store that is missing has not granted it.
async fn of_token(settings: &Settings) -> Result<Coordinator> {
    existing(settings).await?.ok_or_else(|| {
        let message = format!(
            "there is no store at `{}` (from {}); is this the store that the token came from?",
            settings.store.value, settings.store.source
        );
        Error::new(Kind::Unavailable, message)
    })
}

/// Says what a guard without files of its own cannot promise.
fn rely_on_the_store(coordinator: &Coordinator, resource: &str) {
    let capabilities = coordinator.store().capabilities();
    let (name, class) = (capabilities.name, capabilities.class);
    output::say(&format!(
        "no state folder: resource=`{resource}` relies on its store alone, so a restored or lost store lets an older epoch in \
         again. That takes a store of class A that is never restored from an old copy; `{name}` is of class {class:?}"
    ));
}

/// The token from the flag, or from the environment that `run` set.
fn token(flag: Option<&str>) -> Result<Token> {
    token_or(flag, "no token: run this inside `leasehold run`, or give --token with what `leasehold acquire` printed")
}

/// The same, with what to say if there is none.
fn token_or(flag: Option<&str>, missing: &str) -> Result<Token> {
    const VARIABLE: &str = "LEASEHOLD_TOKEN";
    match flag {
        Some(text) => text.parse(),
        None => match std::env::var(VARIABLE) {
            Ok(text) if !text.is_empty() => text.parse().map_err(|e| blame(e, "token", &Source::Environment(VARIABLE))),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Error::new(Kind::Invalid, format!("environment variable {VARIABLE} is not text")))
            }
            _ => Err(Error::new(Kind::Invalid, missing)),
        },
    }
}

/// A record of a lease that somebody once held or operated on; a name nobody used is most likely a typing error.
async fn known(settings: &Settings, lease: &LeaseName) -> Result<Inspection> {
    if let Some(coordinator) = existing(settings).await? {
        let inspection = coordinator.inspect(lease).await?;
        if inspection.record != Ownership::default() {
            return Ok(inspection);
        }
    }
    Err(never_held(lease))
}

/// The error about a name that no lease of the store has.
fn never_held(lease: &LeaseName) -> Error {
    let parts: Vec<&str> = lease.as_str().split('/').collect();
    let message = match (Right::of(lease), &parts[..]) {
        (Right::Item, [_, queue, id]) => {
            format!("`{lease}` is an item of a queue; see `leasehold queue show {queue} {id}`")
        }
        (Right::SpoolFile, [_, id]) => {
            format!("`{lease}` is an item of a spool; see `leasehold queue show spool:PATH {id}`")
        }
        _ => format!("nobody ever held a lease `{lease}`; see `leasehold ls` for those there are"),
    };
    Error::new(Kind::Invalid, message)
}

/// The end of a guarded write: what was admitted as JSON, or why it was not.
async fn admitted(common: &Common, guard: &dyn Guard, token: &Token, written: Result<HighWater>) -> Result<Exit> {
    let high = match written {
        Ok(high) => high,
        Err(error) => return Err(explain(common, guard, token, error).await),
    };
    if common.json {
        let strength = guard.strength().to_string();
        output::json(&json!({ "resource": guard.resource(), "epoch": high.epoch.get(), "strength": strength }))?;
    }
    Ok(Exit::Done)
}
