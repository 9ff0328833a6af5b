//! `advise`: a TTL from recorded run times.
//!
//! The rule: 1.5 to 2 times the worst healthy run, never below the 95th percentile plus two heartbeats. A heartbeat is
//! a third of the TTL, so the latter means three times the 95th percentile.

use super::known;
use crate::args::{Common, Name};
use crate::config::Settings;
use crate::exit::Exit;
use crate::output;
use leasehold_core::{LeaseName, Outcome, Result, Ttl};
use serde_json::json;
use std::time::Duration;

pub async fn advise(common: &Common, args: &Name) -> Result<Exit> {
    let lease = LeaseName::new(&args.name)?;
    let record = known(&Settings::gather(common)?, &lease).await?.record;
    let mut healthy: Vec<u64> = record
        .transfers
        .iter()
        .filter(|t| t.outcome == Some(Outcome::Succeeded))
        .filter_map(|t| t.held_for_ms)
        .collect();
    healthy.sort_unstable();
    let unhealthy =
        record.transfers.iter().filter(|t| matches!(t.outcome, Some(Outcome::Expired | Outcome::Lost))).count();
    let Some(advice) = Advice::from_sorted(&healthy) else {
        if common.json {
            output::json(&json!({ "name": lease.as_str(), "healthy_runs": 0, "ttl_ms": null }))?;
        } else {
            output::line(&format!("no advice yet: no run of `{lease}` has succeeded; keep the default of 90s"))?;
        }
        return Ok(Exit::Done);
    };
    if common.json {
        output::json(&json!({
            "name": lease.as_str(),
            "ttl_ms": advice.ttl.get().as_millis() as u64,
            "healthy_runs": healthy.len(),
            "worst_ms": advice.worst.as_millis() as u64,
            "p95_ms": advice.p95.as_millis() as u64,
            "median_ms": advice.median.as_millis() as u64,
            "lost_or_expired": unhealthy,
        }))?;
    } else {
        output::print(&format!(
            "use --ttl {} for `{lease}`\n\
             why: {} healthy runs, median {}, 95th percentile {}, worst {}.\n\
             The TTL is the larger of 1.75 times the worst healthy run and the 95th percentile plus two heartbeats\n\
             (a heartbeat is a third of the TTL), within 1s to 24h. {unhealthy} runs were lost or expired.\n",
            advice.ttl,
            healthy.len(),
            output::rough(advice.median),
            output::rough(advice.p95),
            output::rough(advice.worst),
        ))?;
        if healthy.len() < 10 {
            output::say("fewer than 10 runs: ask again later");
        }
    }
    Ok(Exit::Done)
}

#[derive(Debug)]
struct Advice {
    ttl: Ttl,
    worst: Duration,
    p95: Duration,
    median: Duration,
}

impl Advice {
    fn from_sorted(runs_ms: &[u64]) -> Option<Self> {
        let (&worst, last) = (runs_ms.last()?, runs_ms.len() - 1);
        // The smallest run that at least that share of runs do not exceed.
        let percentile = |share: usize| runs_ms[((last + 1) * share).div_ceil(100).saturating_sub(1).min(last)];
        let (p95, median) = (percentile(95), percentile(50));
        let wanted = (worst.saturating_mul(7) / 4).max(p95.saturating_mul(3));
        let ttl = Ttl::new(round_up(wanted).clamp(Ttl::MIN.get(), Ttl::MAX.get())).ok()?;
        let ms = Duration::from_millis;
        Some(Advice { ttl, worst: ms(worst), p95: ms(p95), median: ms(median) })
    }
}

/// To a round figure that people would have written.
fn round_up(ms: u64) -> Duration {
    let grain = match ms {
        0..60_000 => 1_000,
        60_000..600_000 => 10_000,
        _ => 60_000,
    };
    Duration::from_millis(ms.div_ceil(grain).saturating_mul(grain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_within_the_rule() {
        for runs in [vec![41_000; 20], (1..=32).map(|n| n * 2_000).collect(), vec![10], vec![68_000, 68_000, 41_000]] {
            let mut runs = runs;
            runs.sort_unstable();
            let advice = Advice::from_sorted(&runs).unwrap();
            let ttl = advice.ttl.get();
            assert!(ttl >= advice.worst * 3 / 2 || ttl == Ttl::MAX.get());
            assert!(ttl >= advice.p95 + ttl / 3 * 2 - Duration::from_millis(1), "{advice:?}");
        }
        assert!(Advice::from_sorted(&[]).is_none());
        assert_eq!(round_up(119_000), Duration::from_secs(120));
    }
}
