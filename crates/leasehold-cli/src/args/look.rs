//! The command line of the verbs that look at leases.

use super::LabelledLeases;
use clap::Args;

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
Schedulers publish the jobs of their files. With [[notify]] tables in the settings, findings are also sent as notifications,
as a scheduler would. The exit code is 1 if a job is late or was missed, and 78 if no job is published in this store.

Examples:
  leasehold check --missed
  leasehold check --missed --store postgres://db.internal/jobs || echo 'is a scheduler down?'")]
pub struct Check {
    /// Look for slots that are late or were missed
    #[arg(long, required = true)]
    pub missed: bool,
}
