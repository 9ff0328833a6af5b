//! A file for each verb, or for a few that belong together. What several share is here.

mod adopt;
mod advise;
mod agents;
mod check;
mod config;
pub mod doctor;
mod drain;
mod drill;
mod forget;
mod gate;
mod git_hook;
mod guarded;
mod hold;
pub mod hook;
mod init;
#[cfg(feature = "server")]
mod key;
mod logs;
mod look;
mod man;
mod mcp;
mod mcp_gate;
mod migrate;
mod notify;
pub mod operate;
#[cfg(feature = "http")]
mod proxy;
mod push;
mod queue;
mod relay;
mod run;
mod runs;
mod schedule;
#[cfg(feature = "server")]
mod serve;
mod sql;
mod stats;
mod work;
mod write;

use crate::args::{Cli, Monitoring, QueueVerb, ScheduleVerb, Verb};
use crate::config::{Flags, Settings};
use crate::context::{Context, coordinator};
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Coordinator, Result};
use operate::OperatorRequest;
use std::sync::Arc;

/// Does what the command line says.
pub async fn execute(cli: Cli) -> Result<Exit> {
    let mut flags = flags(&cli.verb);
    // What the session's folder says of settings is the repository's word, not the run's.
    flags.no_files |= matches!(cli.verb, Verb::Hook(_)) && cli.common.names_store();
    let context = Arc::new(Context::new(cli.common, flags));
    perform(&context, cli.verb).await.map_err(|error| context.complete(error))
}

fn monitored(flags: Flags, said: &Monitoring) -> Flags {
    Flags { metrics: said.metrics.clone(), metrics_leases: said.leases.joined(), ..flags }
}

/// What a verb's own flags say of settings.
fn flags(verb: &Verb) -> Flags {
    let held = |ttl: &Option<String>, label: &Option<String>| Flags {
        ttl: ttl.clone(),
        label: label.clone(),
        ..Flags::default()
    };
    match verb {
        Verb::Run(args) => Flags {
            grace: args.grace.clone(),
            held_exit_code: args.held_exit_code.clone(),
            no_files: args.slot.adopt,
            ..held(&args.ttl, &args.label)
        },
        Verb::Work(args) => {
            let own = Flags { grace: args.grace.clone(), ..held(&args.ttl, &args.label) };
            monitored(own, &args.monitoring)
        }
        Verb::Stats(args) => Flags { metrics_leases: args.leases.joined(), ..Flags::default() },
        Verb::Acquire(args) => held(&args.ttl, &args.label),
        Verb::HandOff(args) => held(&args.holder.ttl, &None),
        Verb::Queue(queue) => match &queue.verb {
            QueueVerb::Claim(args) => held(&args.ttl, &args.label),
            QueueVerb::HandOff(args) => held(&args.holder.ttl, &None),
            _ => Flags::default(),
        },
        #[cfg(feature = "http")]
        Verb::Proxy(args) => Flags { state: args.state.clone(), ..Flags::default() },
        #[cfg(feature = "server")]
        Verb::Serve(args) => monitored(Flags::default(), &args.monitoring),
        Verb::McpGate(args) => Flags { state: args.state.clone(), ..Flags::default() },
        Verb::Schedule(args) => {
            let run = if let Some(ScheduleVerb::Run(run)) = &args.verb { run } else { &args.run };
            monitored(Flags { file: args.file.clone(), ..Flags::default() }, &run.monitoring)
        }
        _ => Flags::default(),
    }
}

async fn perform(context: &Arc<Context>, verb: Verb) -> Result<Exit> {
    match verb {
        Verb::Run(args) => run::run(context, *args).await,
        Verb::Acquire(args) => hold::acquire(context, &args).await,
        Verb::Renew(args) => hold::renew(context, &args).await,
        Verb::Release(args) => hold::release(context, &args).await,
        Verb::Progress(args) => hold::progress(context, &args).await,
        Verb::Ls(args) => look::ls(context, &args).await,
        Verb::Show(args) => look::show(context, &args).await,
        Verb::History(args) => look::history(context, &args).await,
        Verb::Revoke(args) => operate::revoke(context, &args).await,
        Verb::HandOff(args) => operate::hand_off(context, &args).await,
        Verb::Pause(args) => operate::order(context, &args, OperatorRequest::Pause, None).await,
        Verb::Resume(args) => operate::order(context, &args, OperatorRequest::Resume, None).await,
        Verb::Advance(args) => operate::advance(context, &args).await,
        Verb::Rewind(args) => operate::rewind(context, &args).await,
        Verb::Forget(args) => forget::forget(context, &args).await,
        Verb::Schedule(args) => schedule::schedule(context, args).await,
        Verb::Runs(args) => runs::runs(context, &args).await,
        Verb::Check(args) => check::check(context, &args).await,
        Verb::Notify(args) => notify::notify(context, &args).await,
        Verb::Logs(args) => logs::logs(context, &args).await,
        Verb::Stats(args) => stats::stats(context, &args).await,
        Verb::Advise(args) => advise::advise(context, &args).await,
        Verb::Doctor(args) => doctor::doctor(context, &args).await,
        Verb::Drill(args) => drill::drill(context, &args).await,
        Verb::Migrate(args) => migrate::migrate(&context.common, &args).await,
        Verb::Write(args) => write::write(context, &args).await,
        Verb::Publish(args) => write::publish(context, &args).await,
        Verb::Push(args) => push::push(context, &args).await,
        Verb::GitHook(args) => git_hook::git_hook(&args).await,
        Verb::Sql(args) => sql::sql(context, &args).await,
        Verb::Put(args) => write::put(context, &args).await,
        Verb::Adopt(args) => adopt::adopt(context, &args).await,
        Verb::Gate(args) => gate::gate(context, &args).await,
        #[cfg(feature = "http")]
        Verb::Proxy(args) => proxy::proxy(context, &args).await,
        #[cfg(feature = "server")]
        Verb::Serve(args) => serve::serve(context, &args).await,
        #[cfg(feature = "server")]
        Verb::Key(args) => key::key(context, args).await,
        Verb::McpGate(args) => mcp_gate::mcp_gate(context, &args).await,
        Verb::Mcp(args) => mcp::mcp(context, &args).await,
        Verb::Hook(args) => hook::hook(context, &args).await,
        Verb::Agents(args) => agents::agents(context, &args),
        Verb::Queue(args) => queue::queue(context, args.verb).await,
        Verb::Work(args) => work::work(context, *args).await,
        Verb::Init(args) => init::init(&args),
        Verb::Config => config::config(context),
        Verb::Completions(args) => man::completions(&args),
        Verb::Man(args) => man::man(&args),
    }
}

/// The coordinator on a store that is there, for `migrate`, which has two.
async fn existing(settings: &Settings) -> Result<Option<Coordinator>> {
    if settings.store.value.is_missing() { Ok(None) } else { coordinator(settings).await.map(Some) }
}

/// Says what a guard without files of its own cannot promise.
fn rely_on_the_store(coordinator: &Coordinator, resource: &str) {
    let capabilities = coordinator.store().capabilities();
    let (name, class) = (capabilities.name, capabilities.class);
    output::warn(&format!(
        "no state folder: resource=`{resource}` relies on its store alone, so a restored or lost store lets an older epoch in \
         again. That takes a store of class A that is never restored from an old copy; `{name}` is of class {class:?}"
    ));
}
