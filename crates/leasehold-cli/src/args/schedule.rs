//! The command line of schedules.

use super::{Monitoring, Operate, within};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold schedule check                     are the [[job]] tables right, and when do they run next?
  leasehold schedule                           run them; do the same on every machine of the fleet
  leasehold schedule --on gpu -q               on a machine with this label, and quietly
  leasehold schedule --metrics 127.0.0.1:9464  with numbers for Prometheus, and /livez and /readyz
  leasehold schedule next nightly -n 10
  leasehold schedule trigger nightly           now, whatever the schedule says
  leasehold schedule backfill nightly --from 2026-11-01 --to 2026-11-08
  leasehold schedule pause nightly --why 'database upgrade'
  leasehold schedule install                   a service for it; nothing is started
  crontab -l | leasehold schedule import       jobs from a crontab

Jobs are described in docs/schedules.md.")]
pub struct Schedule {
    /// The file with the [[job]] tables [default: leasehold.toml here or above, then the user's]
    #[arg(long, global = true, value_name = "PATH")]
    pub file: Option<PathBuf>,
    // For `schedule` alone, which is `schedule run`.
    #[command(flatten)]
    pub run: ScheduleRun,
    /// What to do [default: run]
    #[command(subcommand)]
    pub verb: Option<ScheduleVerb>,
}

#[derive(Debug, Subcommand)]
pub enum ScheduleVerb {
    /// Run jobs as they come due, until interrupted
    #[command(after_help = "Examples:\n  leasehold schedule run --on gpu --max-running 4")]
    Run(ScheduleRun),
    /// Check the file and print each job's next run
    #[command(after_help = "Examples:\n  leasehold schedule check\n  leasehold schedule check --json")]
    Check,
    /// Print how the file differs from the job definitions that schedulers have published
    #[command(
        after_help = "Examples:\n  leasehold schedule plan\n  leasehold schedule plan --file new/leasehold.toml --json"
    )]
    Plan,
    /// Remove the published definition of a job that no scheduler has any more
    #[command(after_help = "Examples:\n  leasehold schedule retire nightly-report")]
    Retire(OfJob),
    /// Print when jobs run next
    #[command(after_help = "Examples:\n  leasehold schedule next\n  leasehold schedule next nightly-report")]
    Next(Next),
    /// Run the slots of a past span that were not run
    #[command(
        after_help = "Examples:\n  leasehold schedule backfill nightly-report --from 2026-11-01 --to 2026-11-08\n  leasehold schedule backfill nightly-report --from 2026-11-01T22:00:00Z --to 2026-11-02T04:00:00Z"
    )]
    Backfill(Backfill),
    /// Run a job now, as a slot of its own
    #[command(after_help = "Examples:\n  leasehold schedule trigger nightly-report")]
    Trigger(OfJob),
    /// Skip a job's slots until it is resumed
    #[command(after_help = "Examples:\n  leasehold schedule pause nightly-report --why 'the database moves'")]
    Pause(Operate),
    /// Run a job's slots again
    #[command(after_help = "Examples:\n  leasehold schedule resume nightly-report --why 'the database has moved'")]
    Resume(Operate),
    /// Write a service file that runs `leasehold schedule`, with the store in use if it is not the file's
    #[command(after_help = "It is written to ~/.config/systemd/user/leasehold.service, or to \
                      ~/Library/LaunchAgents/leasehold.schedule.plist, with the settings that LEASEHOLD_ variables give here and \
                      without secrets. Nothing is started.\n\nExamples:\n  leasehold schedule install\n  leasehold schedule install --print --kind launchd\n  leasehold schedule install --print --store postgres://db.internal/jobs")]
    Install(Install),
    /// Print [[job]] tables for crontabs and systemd timers, and say what could not be carried over
    #[command(
        after_help = "Examples:\n  crontab -l | leasehold schedule import\n  leasehold schedule import /etc/crontab /etc/cron.d\n  leasehold schedule import /etc/systemd/system/backup.timer >> leasehold.toml"
    )]
    Import(Import),
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub struct ScheduleRun {
    /// A label of this machine, for jobs that say `on` (repeatable); its host name always counts
    #[arg(long, value_name = "LABEL")]
    pub on: Vec<String>,
    /// How many jobs may run at once on this machine [default: 64]
    #[arg(long, value_name = "N", value_parser = within::<1, 10_000>)]
    pub max_running: Option<u32>,
    /// Pass the output of jobs on as it is, without the job's name before each line
    #[arg(long)]
    pub no_prefix: bool,
    /// Say nothing about runs that start and slots that pass
    #[arg(long, short)]
    pub quiet: bool,
    #[command(flatten)]
    pub monitoring: Monitoring,
}

#[derive(Debug, Args)]
pub struct OfJob {
    /// The job
    pub name: String,
}

#[derive(Debug, Args)]
pub struct Next {
    /// Only this job
    pub name: Option<String>,
    /// How many slots, of all jobs together
    #[arg(short = 'n', value_name = "N", default_value_t = 10, value_parser = within::<1, 1_000>)]
    pub count: u32,
    /// From this instant on instead of now; a date alone means midnight in the job's time zone
    #[arg(long, value_name = "INSTANT")]
    pub from: Option<String>,
}

#[derive(Debug, Args)]
pub struct Backfill {
    /// The job
    pub name: String,
    /// The first instant of the span, such as 2026-11-01T22:00:00Z, or a date: midnight in the job's time zone
    #[arg(long, value_name = "INSTANT", required = true)]
    pub from: String,
    /// The last instant of the span, or a date: the midnight at which that day begins
    #[arg(long, value_name = "INSTANT", required = true)]
    pub to: String,
    /// Refuse to run more slots than this
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = within::<1, 10_000>)]
    pub max: u32,
    /// Do not ask first
    #[arg(long)]
    pub yes: bool,
    /// Also run slots of which the journal no longer knows what became of them: they may have succeeded
    #[arg(long)]
    pub again_if_forgotten: bool,
}

#[derive(Debug, Args)]
pub struct Install {
    /// Print it to standard output instead of writing it
    #[arg(long)]
    pub print: bool,
    /// Overwrite a file that differs
    #[arg(long, conflicts_with = "print")]
    pub force: bool,
    /// For which service manager [default: this system's]
    #[arg(long, value_name = "KIND", value_parser = ["systemd", "launchd"])]
    pub kind: Option<String>,
}

#[derive(Debug, Args)]
pub struct Init {
    /// The file to write; one that is there is left alone [default: leasehold.toml]
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Print it instead
    #[arg(long, conflicts_with = "path")]
    pub print: bool,
}

#[derive(Debug, Args)]
pub struct Import {
    /// Crontabs, timers, or folders of them [default: a user's crontab on standard input]
    #[arg(value_name = "PATH")]
    pub files: Vec<PathBuf>,
    /// What they are [default: `system` for /etc/crontab and cron.d, `timer` for *.timer and other folders, else `crontab`]
    #[arg(long, value_name = "KIND", value_parser = ["crontab", "system", "timer"])]
    pub kind: Option<String>,
    /// The time zone that they were run in [default: this machine's]
    #[arg(long, value_name = "ZONE")]
    pub tz: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold runs                                      the newest runs of all jobs
  leasehold runs nightly
  leasehold runs nightly --since 2026-11-01
  leasehold runs nightly --json | jq '.[] | select(.fate == \"failed\")'")]
pub struct Runs {
    /// The job [default: all jobs]
    pub name: Option<String>,
    /// Only slots from this instant on; a date alone means midnight in UTC
    #[arg(long, value_name = "INSTANT")]
    pub since: Option<String>,
    /// At most so many, the newest; 0 means all [default: all of one job, 50 of all jobs]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold logs nightly                              the newest run
  leasehold logs nightly 2026-11-15T03:00:00Z         the run of this slot
  leasehold logs nightly 2026-11-15                   the newest run of a slot of this day, in UTC
  leasehold logs nightly 42 --tail 20                 the end of the run under epoch 42
  leasehold logs nightly --follow                     as it comes, while it runs on this machine
  leasehold logs mail k.welcome                       the newest attempt of an item of a queue

What is kept, where and for how long: docs/output.md.")]
pub struct Logs {
    /// The job, the lease, the queue, or spool:/path
    pub name: String,
    /// The run: its slot, its slot's date or its epoch, or an item of the queue [default: the newest]
    #[arg(value_name = "SLOT|EPOCH|ITEM")]
    pub run: Option<String>,
    /// Print what comes until the run ends; it must be running on this machine
    #[arg(long, short)]
    pub follow: bool,
    /// Only the last N lines
    #[arg(long, short = 'n', value_name = "N")]
    pub tail: Option<usize>,
}
