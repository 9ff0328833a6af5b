//! `advise`: a TTL from recorded run times.
//!
//! The rule: 1.5 to 2 times the worst healthy run, never below the 95th percentile plus two heartbeats. A heartbeat is
//! a third of the TTL, so the latter means three times the 95th percentile.

use crate::args::Name;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Outcome, Result, Ttl};
use serde_json::json;
use std::time::Duration;

pub async fn advise(context: &Context, args: &Name) -> Result<Exit> {
    let seen = context.lease(&args.name).await?;
    let (lease, transfers) = (&seen.lease, context.history(&seen).await?);
    let ended = |outcomes: &[Outcome]| -> Vec<_> {
        transfers.iter().filter(|t| t.outcome.is_some_and(|outcome| outcomes.contains(&outcome))).collect()
    };
    let mut healthy: Vec<u64> = ended(&[Outcome::Succeeded]).iter().filter_map(|t| t.held_for_ms).collect();
    healthy.sort_unstable();
    let unhealthy = ended(&[Outcome::Expired, Outcome::Lost]).len();
    let Some(Advice { ttl, worst, p95, median }) = Advice::from_sorted(&healthy) else {
        return context.print(
            || json!({ "name": lease.as_str(), "healthy_runs": 0, "ttl_ms": null }),
            || format!("no advice yet: no run of `{lease}` has succeeded; keep the default of 90s\n"),
        );
    };
    let ms = |duration: Duration| duration.as_millis() as u64;
    let runs = healthy.len();
    if runs < 10 && !context.common.json {
        output::say("fewer than 10 runs: ask again later");
    }
    context.print(
        || {
            json!({
                "name": lease.as_str(), "ttl_ms": ms(ttl.get()), "healthy_runs": runs, "worst_ms": ms(worst),
                "p95_ms": ms(p95), "median_ms": ms(median), "lost_or_expired": unhealthy,
            })
        },
        || {
            let [median, p95, worst] = [median, p95, worst].map(output::rough);
            format!(
                "use --ttl {ttl} for `{lease}`\n\
                 why: {runs} healthy runs, median {median}, 95th percentile {p95}, worst {worst}.\n\
                 The TTL is the larger of 1.75 times the worst healthy run and the 95th percentile plus two heartbeats\n\
                 (a heartbeat is a third of the TTL), within 1s to 24h. {unhealthy} runs were lost or expired.\n"
            )
        },
    )
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
