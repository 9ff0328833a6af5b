//! The words of `queue` and `work`.

use super::{Draining, Monitoring, NewHolder, Order, within};
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  echo 'to: ada' | leasehold queue add mail            one item, its payload from standard input
  leasehold queue add mail --each-line < list.txt      one item per line
  leasehold work mail -j 4 -- ./send.sh                four at a time, the payload on standard input
  leasehold queue ls                                   what is in each queue
  leasehold queue ls mail --dead                       dead letters, by reason
  leasehold queue retry mail --all --why 'server is back'
  leasehold queue add spool:/srv/mail < letter.txt     a queue as a plain folder

NAME is a queue in the store, or `spool:/path` for a folder that workers with `mv` can share.")]
pub struct Queue {
    #[command(subcommand)]
    pub verb: QueueVerb,
}

#[derive(Debug, Subcommand)]
pub enum QueueVerb {
    /// Add an item; prints its id
    #[command(
        after_help = "Examples:\n  echo '{\"page\":7}' | leasehold queue add pages\n  ls *.wav | leasehold queue add encode --each-line\n  leasehold queue add mail --text hello --key welcome-ann --delay 10m --priority 8"
    )]
    Add(Add),
    /// Count what is in each queue, or list the items of one in the order of claiming
    #[command(
        after_help = "Examples:\n  leasehold queue ls\n  leasehold queue ls pages --state dead\n  leasehold queue ls pages --dead"
    )]
    Ls(QueueLs),
    /// Show one item in full: state, payload, result, history
    #[command(after_help = "Examples:\n  leasehold queue show pages ID --json")]
    Show(ItemArgs),
    /// Claim the next item and print its token, for scripts that do the work themselves
    Claim(ClaimArgs),
    /// Keep a claimed item for another TTL, and note how far the work has come
    #[command(
        after_help = "Examples:\n  leasehold queue progress pages --token \"$token\" --checkpoint '{\"row\":500}'"
    )]
    Progress(ItemProgress),
    /// Complete a claimed item
    #[command(after_help = "Examples:\n  leasehold queue complete pages --token \"$token\" --result-from result.json")]
    Complete(Complete),
    /// Give an attempt up: the item is tried again, or becomes a dead letter
    #[command(after_help = "Examples:\n  leasehold queue fail pages --token \"$token\" --why 'no such page'")]
    Fail(Fail),
    /// Put an item back in line, or all dead letters, with all their attempts; whoever works on it is fenced at once, or asked to
    /// finish with --drain
    #[command(
        after_help = "Examples:\n  leasehold queue retry pages ID --why 'the site is back'\n  leasehold queue retry pages --all --reason 'exit code 7' --why 'the site is back'"
    )]
    Retry(RetryItem),
    /// Take an item out of the line for good; whoever works on it is fenced at once, or asked to finish with --drain
    #[command(
        after_help = "Examples:\n  leasehold queue cancel pages ID --why 'not needed any more'\n  leasehold queue cancel pages ID --drain --within 10m --why 'the customer called it off'"
    )]
    Cancel(OperateItem),
    /// Put an item into somebody's hands; prints the new token
    #[command(after_help = "Examples:\n  token=$(leasehold queue hand-off pages ID --to ann --why 'by hand')")]
    HandOff(HandOffItem),
    /// Put back expired items, and repair the line; workers do so by themselves
    #[command(after_help = "Examples:\n  leasehold queue janitor pages")]
    Janitor(QueueArg),
    /// Erase items that were finished long ago; their keys may be used again
    #[command(after_help = "Examples:\n  leasehold queue purge pages --older-than 30d")]
    Purge(Purge),
}

#[derive(Debug, Args)]
pub struct QueueArg {
    /// The queue, or spool:/path
    pub queue: String,
}

#[derive(Debug, Args)]
pub struct Add {
    /// The queue, or spool:/path
    pub queue: String,
    /// The payload, instead of standard input
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["from", "each_line"])]
    pub text: Option<String>,
    /// Read the payload from this file instead of standard input
    #[arg(long, value_name = "PATH", conflicts_with = "each_line")]
    pub from: Option<PathBuf>,
    /// Add one item for each line of standard input
    #[arg(long, conflicts_with = "key")]
    pub each_line: bool,
    /// 0 to 9, higher first [default: 5]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub priority: Option<String>,
    /// Do not let it be claimed before this long
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub delay: Option<String>,
    /// Add it only if there is no item with this key
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// How often it is tried before it is a dead letter [default: 5]
    #[arg(long, value_name = "N", value_parser = within::<1, 1000>)]
    pub attempts: Option<u32>,
    /// The pause after the first failure; it doubles with each [default: 10s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub backoff: Option<String>,
}

#[derive(Debug, Args)]
pub struct QueueLs {
    /// The queue, or spool:/path; without one, the store's queues are listed
    pub queue: Option<String>,
    /// Only items in this state: ready, delayed (not due yet), claimed, done, dead or cancelled
    #[arg(long, value_name = "STATE")]
    pub state: Option<String>,
    /// Count dead letters by reason
    #[arg(long, requires = "queue", conflicts_with = "state")]
    pub dead: bool,
}

#[derive(Debug, Args)]
pub struct ItemArgs {
    /// The queue, or spool:/path
    pub queue: String,
    /// The item, as `ls` shows it
    pub id: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  token=$(leasehold queue claim mail --ttl 5m --payload letter.txt) || exit $(($? == 11 ? 0 : $?))   # 11: nothing to claim
  ./send.sh letter.txt && exec leasehold queue complete mail --token \"$token\"
  leasehold queue fail mail --token \"$token\" --why 'send.sh failed'")]
pub struct ClaimArgs {
    /// The queue, or spool:/path
    pub queue: String,
    /// How long it may be silent (1s to 24h) [default: the setting `ttl`, or 90s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ttl: Option<String>,
    /// What this worker calls itself [default: the machine's name]
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Wait up to this long for an item
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub wait: Option<String>,
    /// Write the payload to this file
    #[arg(long, value_name = "PATH")]
    pub payload: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ItemProgress {
    /// The queue, or spool:/path
    pub queue: String,
    /// How far the work has come, in your own words
    pub marker: Option<String>,
    /// What the next attempt needs to carry on; it gets it as LEASEHOLD_CHECKPOINT
    #[arg(long, value_name = "TEXT")]
    pub checkpoint: Option<String>,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
pub struct Complete {
    /// The queue, or spool:/path
    pub queue: String,
    /// What the work came to
    #[arg(long, value_name = "TEXT", conflicts_with = "result_from")]
    pub result: Option<String>,
    /// Read that from this file
    #[arg(long, value_name = "PATH")]
    pub result_from: Option<PathBuf>,
    /// Add what this file says, in the same step: one JSON object per line, such as {"payload": "...", "queue": "next"}
    #[arg(long, value_name = "PATH")]
    pub follow_ups: Option<PathBuf>,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
pub struct Fail {
    /// The queue, or spool:/path
    pub queue: String,
    /// What went wrong
    #[arg(long, value_name = "TEXT", required = true)]
    pub why: String,
    /// Try again after this long, instead of by the item's own backoff
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, conflicts_with = "for_good")]
    pub retry_in: Option<String>,
    /// Make it a dead letter at once
    #[arg(long)]
    pub for_good: bool,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
pub struct OperateItem {
    /// The queue, or spool:/path
    pub queue: String,
    /// The item, as `ls` shows it
    pub id: String,
    #[command(flatten)]
    pub order: Order,
    #[command(flatten)]
    pub draining: Draining,
}

#[derive(Debug, Args)]
pub struct RetryItem {
    /// The queue, or spool:/path
    pub queue: String,
    /// The item, as `ls` shows it
    #[arg(required_unless_present = "all")]
    pub id: Option<String>,
    #[command(flatten)]
    pub order: Order,
    /// Every dead letter: they are counted, you are asked, and those that were counted are put back
    #[arg(long, conflicts_with_all = ["id", "past", "if_epoch", "drain"])]
    pub all: bool,
    /// With --all: only those whose reason has this text in it
    #[arg(long, value_name = "TEXT", requires = "all")]
    pub reason: Option<String>,
    /// With --all: do not ask first
    #[arg(long, requires = "all")]
    pub yes: bool,
    /// The highest epoch that a guard has seen of it, if the store was restored from an old copy
    #[arg(long, value_name = "EPOCH", allow_negative_numbers = true)]
    pub past: Option<String>,
    #[command(flatten)]
    pub draining: Draining,
}

#[derive(Debug, Args)]
pub struct HandOffItem {
    #[command(flatten)]
    pub operate: OperateItem,
    #[command(flatten)]
    pub holder: NewHolder,
}

#[derive(Debug, Args)]
pub struct Purge {
    /// The queue, or spool:/path
    pub queue: String,
    /// How long they must have been finished [default: 7d]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub older_than: Option<String>,
    /// Purge dead letters too; asks first
    #[arg(long)]
    pub dead: bool,
    /// Do not ask
    #[arg(long, requires = "dead")]
    pub yes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold work mail -- ./send.sh                 the payload on standard input
  leasehold work mail -j 4 -- ./send.sh {}         the payload in a file, whose path stands for {}
  leasehold work mail --until-idle -- ./send.sh    end when there is nothing to claim now
  leasehold work mail --until-done -- ./send.sh    end when every item is finished, whoever works on it
  leasehold work spool:/srv/mail -- ./send.sh

The command gets LEASEHOLD_QUEUE, LEASEHOLD_ITEM, LEASEHOLD_EPOCH, LEASEHOLD_TOKEN, LEASEHOLD_IDEMPOTENCY_KEY,
LEASEHOLD_ATTEMPT, LEASEHOLD_CHECKPOINT, LEASEHOLD_PAYLOAD (a path), LEASEHOLD_RESULT and LEASEHOLD_FOLLOW_UPS (paths
that it may write) in its environment. Exit 0 completes the item, any other code fails the attempt. SIGTERM drains: what
is running is finished, and nothing more is claimed; a second one ends it.")]
pub struct Work {
    /// The queue, or spool:/path
    pub queue: String,
    /// How many at a time
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = within::<1, 256>)]
    pub jobs: u32,
    /// How long a worker may be silent before its item goes to another (1s to 24h) [default: the setting `ttl`, or 90s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ttl: Option<String>,
    /// What this worker calls itself [default: the machine's name]
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// How long the command has between SIGTERM and SIGKILL when its item is lost
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub grace: Option<String>,
    /// Stop an attempt after this long; it counts as failed
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub max_runtime: Option<String>,
    /// End when there is nothing to claim now; other workers may still be at items, and some may be delayed
    #[arg(long, conflicts_with = "until_done")]
    pub until_idle: bool,
    /// End when nothing is left: no item waits, is delayed, or is claimed by anybody
    #[arg(long)]
    pub until_done: bool,
    /// End after this many items
    #[arg(long, value_name = "N", conflicts_with = "jobs")]
    pub items: Option<u64>,
    /// Pass output on as it is, without the queue and the item before each line
    #[arg(long)]
    pub no_prefix: bool,
    #[command(flatten)]
    pub monitoring: Monitoring,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
