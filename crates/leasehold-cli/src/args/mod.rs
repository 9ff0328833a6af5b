//! The command line as clap reads it: words only. What they mean is in [`crate::config`] and in each command.

mod agents;
mod boundary;
mod data;
#[cfg(test)]
mod examples;
mod git;
mod help;
mod meant;
mod monitoring;
mod notify;
mod operate;
mod queue;
mod schedule;
#[cfg(feature = "server")]
mod server;

pub use agents::{Agents, AgentsInstall, AgentsPrint, AgentsVerb, Hook, HookFlags, HookHost, Host};
#[cfg(feature = "http")]
pub use boundary::Proxy;
pub use boundary::{Mcp, McpGate};
pub use data::{Adopt, Drill, Gate, Publish, Put, Sql, Write};
pub use git::{GitHook, GitHookInstall, GitHookRun, GitHookVerb, Push};
pub use help::{arranged, page, with_hint};
pub use monitoring::{LabelledLeases, Monitoring};
pub use notify::{Notify, NotifyVerb};
pub use operate::{Advance, Draining, Forget, HandOff, NewHolder, Operate, Order, Revoke};
pub use queue::*;
pub use schedule::{Backfill, Import, Init, Install, Logs, Next, RunSlot, Runs, Schedule, ScheduleRun, ScheduleVerb};
#[cfg(feature = "server")]
pub use server::{KeyArgs, KeyCreate, KeyExchange, KeyRevoke, KeyRotate, KeyVerb, Serve};

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
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
    /// Where leases are kept, such as `sqlite:` (default), `dir:/shared/folder`, `postgres://host/db` or `redis://host`
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
    /// Drop what is known of a lease that has been free for more than a day, but for its epoch
    #[command(
        after_help = "Its history, progress, checkpoint and counters are dropped, and `ls` no longer shows it. A tombstone stays, so that its epochs \
                      go on from there if the name is used again: guards refuse old tokens as before. It cannot be taken back.\n\nExamples:\n  \
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

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold run nightly -- ./backup.sh
  leasehold run nightly --ttl 2m --wait 10m -- ./backup.sh
  leasehold run gpu --limit 2 -- ./train.sh
  leasehold run nightly --slot '0 3 * * *' --tz Europe/Berlin -- ./backup.sh
  leasehold run report --guard file:out.json -- sh -c './report >new && leasehold write out.json --from new'

The command gets LEASEHOLD_NAME, LEASEHOLD_EPOCH, LEASEHOLD_TOKEN, LEASEHOLD_STORE and LEASEHOLD_IDEMPOTENCY_KEY in its
environment, LEASEHOLD_SLOT with --slot, and LEASEHOLD_FENCE_NAMESPACE with --fence-namespace. LEASEHOLD_CONTEXT names a file that
has them too, for programs that do not get the others. If the lease is lost, every process of the command is ended before anybody
else can start.")]
pub struct Run {
    /// The lease
    pub name: String,
    /// How long the lease lasts without renewal (1s to 24h); renewed every third of it [default: the setting `ttl`, or 90s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ttl: Option<String>,
    /// What this holder calls itself [default: the machine's name]
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// When it is held: wait up to this long for it
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, conflicts_with = "retry_after")]
    pub wait: Option<String>,
    /// When it is held: try once more after this long
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub retry_after: Option<String>,
    /// When it is held: take this lease instead (repeatable)
    #[arg(long = "or", value_name = "NAME", conflicts_with = "limit")]
    pub or: Vec<String>,
    /// Let up to this many run at once, each with its own lease: NAME, NAME/seat-2, ...
    #[arg(long, value_name = "N", value_parser = within::<1, 1000>)]
    pub limit: Option<u32>,
    /// Skip the run if the last one began less than this long ago, whoever ran it and however it ended; --wait does not wait for
    /// that
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, conflicts_with_all = ["or", "limit", "token", "slot", "slot_at"])]
    pub min_interval: Option<String>,
    /// The exit code when the run is skipped [default: 0]
    #[arg(long, value_name = "CODE", allow_negative_numbers = true)]
    pub held_exit_code: Option<String>,
    /// How long the command has between SIGTERM and SIGKILL when the lease is lost [default: a sixth of the TTL, at most 10s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub grace: Option<String>,
    /// Give the lease up when there was no progress for this long (a `leasehold progress` call counts)
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub progress_timeout: Option<String>,
    /// Count the command's output as progress
    #[arg(long, requires = "progress_timeout")]
    pub progress_output: bool,
    /// Count a change of this file as progress (repeatable)
    #[arg(long, value_name = "PATH", requires = "progress_timeout")]
    pub progress_file: Vec<PathBuf>,
    /// Stop the command after this long, whatever it does
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub max_runtime: Option<String>,
    /// Shut older holders out of this resource before the command starts: file:PATH, folder:PATH, git:REMOTE, a database, an object in a
    /// bucket, or http://HOST of a `leasehold proxy` (repeatable)
    #[arg(long, value_name = "RESOURCE", conflicts_with = "limit")]
    pub guard: Vec<String>,
    /// Where the fences on git remotes are, as for `push`, for --guard git:REMOTE and, in LEASEHOLD_FENCE_NAMESPACE, for the
    /// command [default: LEASEHOLD_FENCE_NAMESPACE, or refs/fence]
    #[arg(long, value_name = "REFS")]
    pub fence_namespace: Option<String>,
    /// Hold flock(2) on this file too, for scripts that have not moved over yet
    #[arg(long, value_name = "PATH")]
    pub also_flock: Option<PathBuf>,
    /// Run under a lease that was taken by `acquire` or `hand-off`, instead of taking it
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["wait", "retry_after", "or", "limit", "ttl", "label"])]
    pub token: Option<String>,
    /// Tell this URL when the command starts and how it ended, as Healthchecks or Sentry Crons take it [default: LEASEHOLD_PING]
    #[arg(long, value_name = "URL")]
    pub ping: Option<String>,
    /// Keep the command's output, for `leasehold logs NAME`
    #[arg(long)]
    pub keep_output: bool,
    /// Put NAME before each line of the command's output
    #[arg(long)]
    pub prefix_output: bool,
    #[command(flatten)]
    pub slot: RunSlot,
    /// Only say whether it would run now, and who is in the way; changes nothing. Exit code 0 if it would, 11 if not
    #[arg(long, conflicts_with = "token")]
    pub dry_run: bool,
    /// Say nothing when the run is skipped
    #[arg(long, short)]
    pub quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  token=$(leasehold acquire nightly --ttl 5m) || exit $(($? == 11 ? 0 : $?))   # 11: somebody else holds it
  LEASEHOLD_TOKEN=$token leasehold renew
  LEASEHOLD_TOKEN=$token leasehold release")]
pub struct Acquire {
    /// The lease
    pub name: String,
    /// How long it lasts without renewal (1s to 24h) [default: the setting `ttl`, or 90s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ttl: Option<String>,
    /// What this holder calls itself [default: the machine's name]
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Wait up to this long for it
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub wait: Option<String>,
}

#[derive(Debug, Args)]
pub struct Renew {
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
pub struct Release {
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Record that the work failed
    #[arg(long)]
    pub failed: bool,
}

#[derive(Debug, Args)]
pub struct Progress {
    /// How far the work has come, in your own words
    pub marker: Option<String>,
    /// What the next attempt needs to carry on (shown by `show`)
    #[arg(long, value_name = "TEXT")]
    pub checkpoint: Option<String>,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
pub struct Ls {
    /// Only leases whose name begins with this; with a `*` (any characters) or a `?` (one), those whose whole name is like it
    pub pattern: Option<String>,
    /// Only leases that are held now
    #[arg(long)]
    pub held: bool,
    /// Only leases that nobody holds and that are not paused (also with --held or --paused, for both)
    #[arg(long)]
    pub free: bool,
    /// Only leases that are paused
    #[arg(long)]
    pub paused: bool,
    /// Show also leases that have been free for more than a day
    #[arg(long, short)]
    pub all: bool,
    /// Show changes as they happen, until interrupted
    #[arg(long)]
    pub watch: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Schedulers publish the jobs of their files. With [[notify]] tables in the settings, what is found is told too, as a scheduler
would. The exit code is 1 if a job is late or was missed, and 78 if no job is published in this store.

Examples:
  leasehold check --missed
  leasehold check --missed --store postgres://db.internal/jobs || echo 'is a scheduler down?'")]
pub struct Check {
    /// Look for slots that are late or were missed
    #[arg(long, required = true)]
    pub missed: bool,
}

#[derive(Debug, Args)]
pub struct Name {
    /// The lease
    pub name: String,
}

#[derive(Debug, Args)]
pub struct History {
    /// The lease
    pub name: String,
    /// Show at most this many transfers; 0 for all that are kept
    #[arg(long, short = 'n', default_value_t = 50)]
    pub limit: usize,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold stats\n  leasehold stats daily-publish --json\n  leasehold stats --prometheus > leasehold.prom.new && mv leasehold.prom.new leasehold.prom   # in the folder of the collector"
)]
pub struct Stats {
    /// Only this lease
    pub name: Option<String>,
    /// Print what `--metrics` serves, in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "name"])]
    pub prometheus: bool,
    #[command(flatten)]
    pub leases: LabelledLeases,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold doctor                              the store in force
  leasehold doctor postgres://db.internal/jobs  another one, before you move to it
  leasehold doctor --folder /srv/www            and the file guard on a folder
  leasehold doctor spool:/srv/mail              a spool, as the user who asks")]
pub struct Doctor {
    /// The store or spool to test, instead of the store in force
    #[arg(conflicts_with = "store")]
    pub url: Option<String>,
    /// Test the file guard on this folder too
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
    /// Give up after this long, and remove what was made [default: 5m]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold migrate sqlite: postgres://db.internal/jobs --dry-run
  leasehold migrate dir:/mnt/team/leases redis://cache.internal

From then on everything in the old store ends with exit code 78 and the new address. While it is under way, nothing is granted
in the old store and no new lease or queue item comes up in the new one (exit code 69). Interrupted, by Ctrl-C or by a crash,
it is finished by the same command, or given up with --abort. FROM and TO are used instead of --store.")]
pub struct Migrate {
    /// The store to move from
    #[arg(conflicts_with = "store")]
    pub from: String,
    /// The store to move to
    pub to: String,
    /// Take held leases and queue items away from their holders, as `revoke` does, instead of refusing while there are any
    #[arg(long)]
    pub revoke_held: bool,
    /// Look at everything that could be in the way, and only say what would be moved; ends with the code of the real run
    #[arg(long)]
    pub dry_run: bool,
    /// Stop after this long; what was begun is finished by the same command, or given up with --abort [default: 1h]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub timeout: Option<String>,
    /// Give up a migration that was begun and interrupted: everything stays in the old store
    #[arg(long, conflicts_with_all = ["revoke_held", "dry_run"])]
    pub abort: bool,
    /// Who you are [default: user@host]
    #[arg(long, value_name = "TEXT")]
    pub by: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold"
)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold man | man -l -
  leasehold man queue add | man -l -
  leasehold man --all ~/.local/share/man/man1")]
pub struct Man {
    /// The verb [default: the command as a whole]
    #[arg(conflicts_with = "all")]
    pub verb: Vec<String>,
    /// Write the page of every verb to this folder, and print the files' names
    #[arg(long, value_name = "FOLDER")]
    pub all: Option<PathBuf>,
}

/// A number from `LOW` to `HIGH`, refused in the words of every other wrong value.
fn within<const LOW: u32, const HIGH: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (LOW..=HIGH).contains(number));
    number.ok_or_else(|| format!("use {LOW} to {HIGH}"))
}
