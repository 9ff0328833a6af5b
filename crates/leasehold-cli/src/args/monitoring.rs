//! The flags of what runs for long, and is watched.

use clap::Args;

#[derive(Debug, Default, Clone, PartialEq, Eq, Args)]
pub struct Monitoring {
    /// Answer GET /metrics, /livez and /readyz on this address (an IP address, not a name), such as 127.0.0.1:9464; with port 0 the
    /// system chooses one
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    #[command(flatten)]
    pub leases: LabelledLeases,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Args)]
pub struct LabelledLeases {
    /// Give each lease that matches this pattern its own series, as jobs have, such as 'team/*': `*` is any characters, `?` one
    /// (repeatable)
    #[arg(long = "metrics-leases", value_name = "PATTERN")]
    pub metrics_leases: Vec<String>,
}

impl LabelledLeases {
    /// As the settings have it.
    pub fn joined(&self) -> Option<String> {
        (!self.metrics_leases.is_empty()).then(|| self.metrics_leases.join(","))
    }
}
