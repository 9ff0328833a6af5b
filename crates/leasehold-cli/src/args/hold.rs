//! The command line of the verbs that take, keep and give back a lease by its token.

use clap::Args;

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
