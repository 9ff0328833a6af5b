//! The command line of `run`.

use super::within;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

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

// The slot that a run is for, and how often it is tried. Not for clap, which would take it for what `run` is about.
#[derive(Debug, Default, Args)]
pub struct RunSlot {
    /// Run the newest due slot of this schedule, unless it already ran: five or six cron fields, @daily, or `@every 45m`
    #[arg(long, value_name = "CRON", conflicts_with_all = ["or", "limit", "token"])]
    pub slot: Option<String>,
    /// The time zone of --slot, by its IANA name [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "slot")]
    pub tz: Option<String>,
    /// For a slot in an hour that does not exist: `shift` to the end of the gap, or `skip` [default: as Debian's cron does:
    /// shift, or skip if the minute or the hour begins with `*`]
    #[arg(long, value_name = "POLICY", requires = "slot")]
    pub dst: Option<String>,
    /// For a slot in an hour that comes twice: `first` or `both` [default: as Debian's cron does: first, or both if the minute
    /// or the hour begins with `*`]
    #[arg(long, value_name = "POLICY", requires = "slot")]
    pub dst_fold: Option<String>,
    /// Leave the slot out when it is older than this [default: 1d]
    #[arg(long, value_name = "DURATION", requires = "slot", allow_hyphen_values = true)]
    pub slot_max_age: Option<String>,
    /// When the command fails: try it again up to this many times, under the same lease
    #[arg(long, value_name = "N", value_parser = within::<0, 100>, default_value_t = 0)]
    pub retries: u32,
    /// Wait this long before the first retry, and twice as long before each further one [default: 10s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub backoff: Option<String>,
    /// The slot at this very instant
    #[arg(long, value_name = "INSTANT", conflicts_with_all = ["or", "limit", "slot"])]
    pub slot_at: Option<String>,
    /// Name this slot to the command without claiming it
    #[arg(long, value_name = "INSTANT", conflicts_with_all = ["slot", "slot_at"])]
    pub as_slot: Option<String>,
    /// Do nothing if the slot has succeeded by the time the lease is held
    #[arg(long, requires = "as_slot")]
    pub unless_succeeded: bool,
    /// Leave no trace of the slot in the journal
    #[arg(long, requires = "slot_at")]
    pub unrecorded: bool,
    /// Run under the lease whose token is in LEASEHOLD_TOKEN
    #[arg(long, conflicts_with_all = ["wait", "retry_after", "or", "limit", "token", "slot"])]
    pub adopt: bool,
}

impl RunSlot {
    /// Whether a scheduler, `trigger` or `backfill` runs it, so that what it does is in a job's table.
    pub const fn is_of_job(&self) -> bool {
        self.adopt || self.slot_at.is_some() || self.as_slot.is_some()
    }
}
