//! The command line as clap reads it: words only. What they mean is in [`crate::config`] and in each command.

mod agents;
mod boundary;
mod data;
#[cfg(test)]
mod examples;
mod git;
mod help;
mod hold;
mod look;
mod meant;
mod monitoring;
mod notify;
mod operate;
mod queue;
mod run;
mod schedule;
#[cfg(feature = "server")]
mod server;
mod setup;

pub use agents::{Agents, AgentsInstall, AgentsPrint, AgentsVerb, Hook, HookFlags, HookHost, Host};
#[cfg(feature = "http")]
pub use boundary::Proxy;
pub use boundary::{Mcp, McpGate};
pub use data::{Adopt, Drill, Gate, Publish, Put, Sql, Write};
pub use git::{GitHook, GitHookInstall, GitHookRun, GitHookVerb, Push};
pub use help::{arranged, page, with_hint};
pub use hold::{Acquire, Progress, Release, Renew};
pub use look::{Check, History, Ls, Name, Stats};
pub use monitoring::{LabelledLeases, Monitoring};
pub use notify::{Notify, NotifyVerb};
pub use operate::{Advance, Draining, Forget, HandOff, NewHolder, Operate, Order, Revoke};
pub use queue::*;
pub use run::{Run, RunSlot};
pub use schedule::{Backfill, Import, Init, Install, Logs, Next, Runs, Schedule, ScheduleRun, ScheduleVerb};
#[cfg(feature = "server")]
pub use server::{KeyArgs, KeyCreate, KeyExchange, KeyRevoke, KeyRotate, KeyVerb, Serve};
pub use setup::{Completions, Doctor, Man, Migrate};

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const ABOUT: &str = "Lets many background jobs share work safely: a lease decides who may try, a fence decides whose \
                     writes still count.";

const EXAMPLES: &str = "\
Examples:
  leasehold run daily-publish -- ./publish.sh        one run at a time, on this machine
  leasehold run daily-publish --store dir:/mnt/team/leases -- ./publish.sh
                                                     one run at a time, on every machine with that folder
  leasehold run report --guard file:out.json -- sh -c './report >new && leasehold write out.json --from new'
                                                     a stalled run that wakes up late cannot overwrite out.json
  leasehold ls                                       who holds what, and until when
  leasehold doctor                                   is this store fit for leases?

Exit codes are listed in `leasehold man` and in docs/exit-codes.md. `leasehold man | man -l -` shows the manual page,
`leasehold man --all ~/.local/share/man/man1` installs one for each command, and `leasehold completions SHELL` prints
completions.";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, about = ABOUT, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// What is common to all commands.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Flags of every command.
#[derive(Debug, Args)]
pub struct Common {
    /// Where leases are kept, such as `sqlite:` (default), `dir:/shared/folder`, `postgres://host/db`, `redis://host`, or a server:
    /// `leasehold://host/namespace`, with its key in LEASEHOLD_KEY, or in the file that LEASEHOLD_KEY_FILE names
    #[arg(long, global = true, value_name = "URL")]
    pub store: Option<String>,
    /// Take the store and the token from this file of a run [default: LEASEHOLD_CONTEXT, which `run` and `work` set]
    #[arg(long, global = true, value_name = "PATH")]
    pub context: Option<PathBuf>,
    /// Print JSON instead of text, where a command prints data
    #[arg(long, global = true)]
    pub json: bool,
    /// Log from this level on: off, error, warn, info, debug or trace; see docs/logs.md
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Log as `text` (default) or `json`
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

impl Common {
    /// Whether the command line or the environment says where the store is.
    pub fn names_store(&self) -> bool {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let variables = ["LEASEHOLD_STORE", "LEASEHOLD_STORE_FILE", "LEASEHOLD_CONTEXT"];
        self.store.is_some() || self.context.is_some() || variables.into_iter().any(is_set)
    }
}

/// The verbs. The flags of one are made when it is asked for: those of all of them are much of what a start costs.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum Verb {
    /// Run a command while holding a lease
    Run(Box<Run>),
    /// Take a lease and print its token, for scripts that renew and release it themselves
    Acquire(Acquire),
    /// Keep a lease for another TTL
    #[command(after_help = "Examples:\n  leasehold renew --token \"$token\"")]
    Renew(Renew),
    /// Give a lease back
    #[command(
        after_help = "Examples:\n  leasehold release --token \"$token\"\n  leasehold release --token \"$token\" --failed"
    )]
    Release(Release),
    /// Say that the work has moved on
    #[command(
        after_help = "Examples:\n  leasehold progress 'row 500 of 900'          # inside `leasehold run`\n  leasehold progress --checkpoint '{\"row\":500}' --token \"$token\""
    )]
    Progress(Progress),
    /// List leases: who holds them, since when, until when; held ones first
    #[command(
        after_help = "Examples:\n  leasehold ls\n  leasehold ls team/ --held\n  leasehold ls 'team/*/nightly' --all\n  leasehold ls --watch"
    )]
    Ls(Ls),
    /// Show one lease in full
    #[command(after_help = "Examples:\n  leasehold show daily-publish\n  leasehold show daily-publish --json")]
    Show(Name),
    /// Show why a lease moved, from the latest transfer back
    #[command(after_help = "Examples:\n  leasehold history daily-publish\n  leasehold history daily-publish --limit 0")]
    History(History),
    /// Take a lease from whoever holds it: a command that runs under it is killed at once, or asked to finish with --drain
    #[command(after_help = "\
Afterwards the lease is free, and a scheduler may start the job again at once, on the same machine too. To prevent
that, `pause` it first. To get work off a machine, send SIGTERM to its schedulers and workers.

Examples:\n  \
                      leasehold revoke daily-publish --why 'it has been stuck since nine'\n  \
                      leasehold revoke daily-publish --drain --within 10m --why 'it blocks the release'")]
    Revoke(Revoke),
    /// Take a lease from whoever holds it, as `revoke` does, and give it to somebody else; prints the new token
    #[command(
        after_help = "Examples:\n  token=$(leasehold hand-off daily-publish --to ann --why 'ann finishes it by hand')\n  token=$(leasehold hand-off daily-publish --to ann --drain --why 'after this run')"
    )]
    HandOff(HandOff),
    /// Keep new holders out; the current holder keeps its lease
    #[command(after_help = "Examples:\n  leasehold pause daily-publish --why 'the database moves'")]
    Pause(Operate),
    /// Let holders in again
    #[command(after_help = "Examples:\n  leasehold resume daily-publish --why 'the database has moved'")]
    Resume(Operate),
    /// Move a lease's epoch past a number, to heal a store that was restored from an old copy; whoever holds it loses it
    #[command(
        after_help = "Examples:\n  leasehold advance daily-publish --past 41 --why 'the store was restored from an old copy'\n  leasehold advance daily-publish --past 41 --lineage 9f2c... --if-lineage 07aa... --why 'the store was lost'"
    )]
    Advance(Advance),
    /// Set a job's slots back to the store's time, after the store's clock was ahead
    #[command(
        after_help = "Slots that were claimed or dropped while the clock was ahead are still to come, and can then run when \
                      their time comes. Whoever holds the lease is evicted.\n\nExamples:\n  \
                      leasehold rewind nightly-report --why 'the database server was a year ahead'"
    )]
    Rewind(Operate),
    /// Drop what is known of a lease that has been free for more than a day, except its epoch
    #[command(
        after_help = "Its history, progress, checkpoint and counters are dropped, and `ls` no longer shows it. A tombstone stays, so that its epochs \
                      continue from there if the name is used again: guards refuse old tokens as before. It cannot be taken back.\n\nExamples:\n  \
                      leasehold forget experiment-7 --why 'it was an experiment'\n  \
                      leasehold forget experiment-7 --yes --why 'it was an experiment'"
    )]
    Forget(Forget),
    /// Run jobs on a schedule, each slot once in the whole fleet
    Schedule(Schedule),
    /// Show every due slot of a scheduled job and what became of it
    Runs(Runs),
    /// Find published jobs that are late or were missed, whoever should have run them
    Check(Check),
    /// Try the channels of the [[notify]] tables
    Notify(Notify),
    /// Print what a run has printed
    Logs(Logs),
    /// Count what became of runs, and what waits in queues
    Stats(Stats),
    /// Recommend a TTL: for `run`, from renewals seen; for scripts that do not renew, from recorded run times
    #[command(after_help = "Examples:\n  leasehold advise daily-publish")]
    Advise(Name),
    /// Test whether the store, and a folder, keep their promises
    Doctor(Doctor),
    /// Hold a fire drill on a guarded resource: stop a holder, transfer its lease, resume it, and see it refused
    Drill(Drill),
    /// Move every lease to another store, with epochs that continue from where they were
    Migrate(Migrate),
    /// Write a file, unless a newer epoch has been there
    Write(Write),
    /// Publish a folder in one step, unless a newer epoch has been there
    Publish(Publish),
    /// Push to a git remote, unless a newer epoch has been there
    Push(Push),
    /// Install or run the hooks by which a git server refuses pushes that go around the fence
    GitHook(GitHook),
    /// Run SQL in one transaction, unless a newer epoch has been there
    Sql(Sql),
    /// Put an object into a bucket, unless a newer epoch has been there
    Put(Put),
    /// Give a guarded resource to another lease: its former lease is shut out for good
    Adopt(Adopt),
    /// Check the lease at the last moment, then run a command
    Gate(Gate),
    /// Put an HTTP service behind a fence: requests of older epochs are refused
    #[cfg(feature = "http")]
    Proxy(Box<Proxy>),
    /// Serve leases, queues and jobs over HTTP, to those who have a key and not the store's password
    #[cfg(feature = "server")]
    Serve(Box<Serve>),
    /// Make, list, rotate and revoke the keys of `serve`
    #[cfg(feature = "server")]
    Key(KeyArgs),
    /// Put an MCP server behind a gate: tool calls of a holder that lost its lease are refused
    McpGate(McpGate),
    /// Serve leases and fenced writes to MCP clients, on standard input and output
    Mcp(Mcp),
    /// Answer a hook of Claude Code, Codex or Gemini CLI: deny tool calls of a session that lost its lease
    Hook(Hook),
    /// Print or install what the hosts of agents need
    Agents(Agents),
    /// Add to a queue, look at it, and operate on its items
    Queue(Box<Queue>),
    /// Run a command for each item of a queue
    Work(Box<Work>),
    /// Write a leasehold.toml with the settings, an example job and an example notification as comments
    #[command(after_help = "Examples:\n  leasehold init\n  leasehold init ~/.config/leasehold/leasehold.toml")]
    Init(Init),
    /// Print the settings in force and where each came from
    #[command(
        after_help = "Examples:\n  leasehold config\n  LEASEHOLD_STORE=dir:/shared/leases leasehold config --json"
    )]
    Config,
    /// Print a shell completion script
    Completions(Completions),
    /// Print a manual page, or write all of them
    Man(Man),
}

/// A number of bytes from `LOW` to `HIGH`, with or without a unit: `65536`, `64KiB`, `1MiB`. Units are steps of 1024.
fn sized<const LOW: u64, const HIGH: u64>(text: &str) -> Result<u64, String> {
    let bytes = crate::run_output::bytes_of(text).filter(|bytes| (LOW..=HIGH).contains(bytes));
    bytes.ok_or_else(|| format!("use {LOW} to {HIGH}, or with a unit, such as 64KiB or 1MiB"))
}

/// A number from `LOW` to `HIGH`, refused in the words of every other wrong value.
fn within<const LOW: u32, const HIGH: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (LOW..=HIGH).contains(number));
    number.ok_or_else(|| format!("use {LOW} to {HIGH}"))
}
