//! The command line of operators: orders that say who gives them, and why.

use clap::Args;

#[derive(Debug, Args)]
pub struct Operate {
    /// The lease
    pub name: String,
    #[command(flatten)]
    pub order: Order,
}

// Whether the holder is asked first.
#[derive(Debug, Args)]
pub struct Draining {
    /// Ask the holder to finish first: its command gets SIGTERM, keeps its lease meanwhile, and is killed only when the time is over.
    /// Nobody new gets it until then. A script that took it with `acquire` or `queue claim` is told when it renews
    #[arg(long)]
    pub drain: bool,
    /// How long the holder has to finish (1s to 24h); then it is taken as without --drain [default: 5m]
    #[arg(long, value_name = "DURATION", requires = "drain", allow_hyphen_values = true)]
    pub within: Option<String>,
}

#[derive(Debug, Args)]
pub struct Revoke {
    #[command(flatten)]
    pub operate: Operate,
    #[command(flatten)]
    pub draining: Draining,
}

// What every order of an operator says. Not for clap, which would take it for what a verb is about.
#[derive(Debug, Args)]
pub struct Order {
    /// Why; it is kept in the record
    #[arg(long, value_name = "TEXT", required = true)]
    pub why: String,
    /// Who you are [default: user@host]
    #[arg(long, value_name = "TEXT")]
    pub by: Option<String>,
    /// Only if the epoch is still this one, as `show` printed it [default: the epoch when the command starts]
    #[arg(long, value_name = "EPOCH", allow_negative_numbers = true)]
    pub if_epoch: Option<String>,
}

// To whom it is handed off.
#[derive(Debug, Args)]
pub struct NewHolder {
    /// What the new holder calls itself
    #[arg(long, value_name = "TEXT", required = true)]
    pub to: String,
    /// How long the new holder has before it must renew (1s to 24h) [default: the setting `ttl`, or 90s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ttl: Option<String>,
}

#[derive(Debug, Args)]
pub struct HandOff {
    #[command(flatten)]
    pub operate: Operate,
    #[command(flatten)]
    pub holder: NewHolder,
    #[command(flatten)]
    pub draining: Draining,
}

#[derive(Debug, Args)]
pub struct Advance {
    #[command(flatten)]
    pub operate: Operate,
    /// The highest epoch that a guard has seen
    #[arg(long, value_name = "EPOCH", required = true, allow_negative_numbers = true)]
    pub past: String,
    /// The lineage that the guard knows, if the store was lost and the lease has begun a new one; possible once
    #[arg(long, value_name = "LINEAGE")]
    pub lineage: Option<String>,
    /// Only if this is the lineage that the lease has now (`none` if there is no such lease yet); --lineage needs it
    #[arg(long, value_name = "LINEAGE")]
    pub if_lineage: Option<String>,
    /// Jump over more than 1,000,000 epochs
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct Forget {
    #[command(flatten)]
    pub operate: Operate,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}
