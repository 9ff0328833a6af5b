//! The results: a table for people, JSON for programs.

use crate::scratch::Scratch;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// What is asked of a ratio.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Demand {
    /// Our time is at most so many times the peer's.
    AtMostTheTime(f64),
    /// We are at least so many times as fast as the peer.
    AtLeastTheSpeed(f64),
    /// Our time is at most this.
    AtMost(Duration),
    /// Nothing: it is shown.
    None,
}

/// How the two figures are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Milliseconds for one.
    #[serde(rename = "ms")]
    Milliseconds,
    /// How many in a second.
    #[serde(rename = "per_second")]
    PerSecond,
    /// A number, of which each is given as a millisecond.
    #[serde(rename = "count")]
    Count,
    /// Kilobytes, given so too.
    #[serde(rename = "kB")]
    Kilobytes,
    /// Megabytes, of which each is given as a millisecond.
    #[serde(rename = "MB")]
    Megabytes,
}

/// One comparison of a figure of ours with a peer's, and what is demanded of it.
#[derive(Debug, Serialize)]
pub struct Row {
    what: String,
    peer_is: String,
    unit: Unit,
    ours: f64,
    /// Absent if the peer could not be run; then the demand is not met.
    peer: Option<f64>,
    ratio: Option<f64>,
    demand: Demand,
    met: bool,
}

impl Row {
    /// Compares what one operation took here and there.
    pub fn new(
        what: impl Into<String>,
        peer_is: impl Into<String>,
        unit: Unit,
        ours: Duration,
        peer: Option<Duration>,
        demand: Demand,
    ) -> Self {
        let (ratio, met) = match demand {
            Demand::AtMostTheTime(most) => {
                let ratio = peer.map(|peer| ours.as_secs_f64() / peer.as_secs_f64());
                (ratio, ratio.is_some_and(|ratio| ratio <= most))
            }
            Demand::AtLeastTheSpeed(least) => {
                let ratio = peer.map(|peer| peer.as_secs_f64() / ours.as_secs_f64());
                (ratio, ratio.is_some_and(|ratio| ratio >= least))
            }
            Demand::AtMost(most) => (None, ours <= most),
            Demand::None => (peer.map(|peer| ours.as_secs_f64() / peer.as_secs_f64()), true),
        };
        let figure = |time: Duration| match unit {
            Unit::Milliseconds | Unit::Megabytes | Unit::Kilobytes | Unit::Count => time.as_secs_f64() * 1e3,
            Unit::PerSecond => 1.0 / time.as_secs_f64(),
        };
        let (ours, peer) = (figure(ours), peer.map(figure));
        Row { what: what.into(), peer_is: peer_is.into(), unit, ours, peer, ratio, demand, met }
    }

    fn cells(&self) -> [String; 6] {
        let figure = |value: f64| match self.unit {
            Unit::Milliseconds => format!("{value:.2} ms"),
            Unit::PerSecond => format!("{value:.0} /s"),
            Unit::Megabytes => format!("{value:.0} MB"),
            Unit::Kilobytes => format!("{value:.2} kB"),
            Unit::Count => format!("{value:.0}"),
        };
        let demand = match self.demand {
            Demand::AtMostTheTime(most) => format!("at most {most}x the time"),
            Demand::AtLeastTheSpeed(least) => format!("at least {least}x as fast"),
            Demand::AtMost(most) => {
                let unit = match self.unit {
                    Unit::Megabytes => " MB",
                    Unit::Kilobytes => " kB",
                    Unit::Count => "",
                    Unit::Milliseconds | Unit::PerSecond => " ms",
                };
                format!("at most {}{unit}", most.as_millis())
            }
            Demand::None => "-".into(),
        };
        [
            self.what.clone(),
            figure(self.ours),
            match (self.peer, self.demand) {
                (None, Demand::AtMost(_) | Demand::None) => "-".into(),
                (peer, _) => format!("{} {}", self.peer_is, peer.map_or_else(|| "did not run".into(), figure)),
            },
            self.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            demand,
            match (self.demand, self.met) {
                (Demand::None, _) => "-",
                (_, true) => "yes",
                (_, false) => "NO",
            }
            .into(),
        ]
    }
}

/// All comparisons, and where they were made.
#[derive(Debug, Serialize)]
pub struct Report {
    file_system: String,
    processors: usize,
    kernel: String,
    rows: Vec<Row>,
}

impl Report {
    /// An empty report on this machine.
    pub fn new(scratch: &Scratch) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".into());
        Report {
            file_system: scratch.file_system().to_owned(),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: format!("{} {}", std::env::consts::OS, kernel.trim()),
            rows: Vec::new(),
        }
    }

    /// Adds rows below those that are there.
    pub fn extend(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    /// Whether every demand is met.
    pub fn all_met(&self) -> bool {
        self.rows.iter().all(|row| row.met)
    }

    /// Writes the JSON form.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "file system {}, {} processors, {}", self.file_system, self.processors, self.kernel)?;
        writeln!(f, "medians of turns taken in the same run")?;
        writeln!(f)?;
        let header = ["what", "leasehold", "peer", "ratio", "demand", "met"].map(String::from);
        let table: Vec<_> = std::iter::once(header).chain(self.rows.iter().map(Row::cells)).collect();
        let widths: [usize; 6] =
            std::array::from_fn(|at| table.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
        for (index, row) in table.iter().enumerate() {
            let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(f, "| {} |", cells.join(" | "))?;
            if index == 0 {
                writeln!(f, "|{}|", widths.map(|width| "-".repeat(width + 2)).join("|"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours_ms: u64, peer_ms: Option<u64>, demand: Demand) -> Row {
        let ms = Duration::from_millis;
        Row::new("w", "p", Unit::Milliseconds, ms(ours_ms), peer_ms.map(ms), demand)
    }

    #[test]
    fn a_demand_is_met_at_its_bound_and_not_beyond() {
        assert!(row(40, Some(10), Demand::AtMostTheTime(4.0)).met);
        assert!(!row(41, Some(10), Demand::AtMostTheTime(4.0)).met);
        assert!(row(10, Some(30), Demand::AtLeastTheSpeed(3.0)).met);
        assert!(!row(10, Some(29), Demand::AtLeastTheSpeed(3.0)).met);
    }

    #[test]
    fn a_peer_that_did_not_run_meets_no_demand() {
        let row = row(1, None, Demand::AtMostTheTime(4.0));
        assert!(!row.met);
        assert_eq!(row.cells()[2], "p did not run");
    }
}
