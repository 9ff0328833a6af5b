//! `advise`: a TTL from what was recorded, one for `run`, which renews, and one for scripts that do not.
//!
//! The rule for `run`: twelve times the slowest renewal seen, so that one which takes four times as long is still answered
//! within the third of the TTL that it has; never below [`SHORTEST`]. How long a run takes does not matter.
//!
//! The rule for scripts that do not renew: 1.5 to 2 times the worst healthy run, never below the 95th percentile plus two
//! heartbeats. A heartbeat is a third of the TTL, so the latter means three times the 95th percentile.

use crate::args::Name;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Distribution, LeaseName, Outcome, Result, Ttl};
use serde_json::{Value, json};
use std::time::Duration;

/// The shortest TTL that is advised for `run`: a store may be away for two thirds of it.
const SHORTEST: Duration = Duration::from_secs(15);
const TIMES_SLOWEST: u64 = 12;
/// No advice is given on fewer runs.
const FEW: u64 = 10;

pub async fn advise(context: &Context, args: &Name) -> Result<Exit> {
    let seen = context.lease(&args.name).await?;
    let (lease, history) = (&seen.lease, context.history(&seen).await?);
    let (transfers, damaged) = (history.transfers, history.damaged);
    let renewals = match context.existing().await? {
        Some(coordinator) => coordinator.counters(lease).await?.renewals,
        None => Distribution::default(),
    };
    let ended = |outcomes: &[Outcome]| -> Vec<_> {
        transfers.iter().filter(|t| t.outcome.is_some_and(|outcome| outcomes.contains(&outcome))).collect()
    };
    let mut healthy: Vec<u64> = ended(&[Outcome::Succeeded]).iter().filter_map(|t| t.held_for_ms).collect();
    healthy.sort_unstable();
    let unhealthy = ended(&[Outcome::Expired, Outcome::Lost]).len();
    let (renewing, unrenewed) = (renewing_ttl(&renewals), Advice::from_sorted(&healthy));
    let runs = healthy.len();
    let few = |count: u64| (1..FEW).contains(&count);
    if (few(runs as u64) || few(renewals.count())) && !context.common.json {
        output::say(&format!("fewer than {FEW} runs or renewals were seen: ask again later"));
    }
    context.print(
        || as_json(lease, renewing, &renewals, unrenewed.as_ref(), runs, unhealthy),
        || {
            let script = match &unrenewed {
                Some(advice) => advice.text(lease, runs, unhealthy),
                None => format!(
                    "for scripts that take `{lease}` with `acquire` and do not renew: no advice yet, no run of it has succeeded\n"
                ),
            };
            format!("{}{script}", renewing_text(lease, renewing, &renewals))
        },
    )?;
    Ok(damaged.first().map_or(Exit::Done, Exit::from))
}

/// The TTL for who renews, if any renewal was seen.
fn renewing_ttl(renewals: &Distribution) -> Option<Ttl> {
    let slowest = u64::try_from(renewals.worst().as_millis()).unwrap_or(u64::MAX);
    let wanted = round_up(slowest.saturating_mul(TIMES_SLOWEST)).clamp(SHORTEST, Ttl::MAX.get());
    if renewals.is_empty() { None } else { Ttl::new(wanted).ok() }
}

fn renewing_text(lease: &LeaseName, ttl: Option<Ttl>, renewals: &Distribution) -> String {
    let Some(ttl) = ttl else {
        return format!(
            "with `run`, which renews: keep the default of 90s; no renewal of `{lease}` was seen yet, so runs were shorter than a \
             third of the TTL\n"
        );
    };
    let (renewed, slowest) = (output::count(renewals.count() as usize, "renewal"), milliseconds(renewals.worst()));
    let away = output::rough(ttl.get() * 2 / 3);
    format!(
        "use --ttl {ttl} for `{lease}` with `run`, which renews however long the command takes\n\
         why: {renewed}, the slowest answered in {slowest}. The TTL is {TIMES_SLOWEST} times that, and at least 15s.\n\
         After a crash the next run can begin within {ttl}. A store that is away for longer than {away} stops the command:\n\
         if yours may be, use a longer TTL.\n"
    )
}

fn milliseconds(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{}ms", duration.as_millis().max(1))
    } else {
        output::rough(duration)
    }
}

fn as_json(
    lease: &LeaseName,
    renewing: Option<Ttl>,
    renewals: &Distribution,
    unrenewed: Option<&Advice>,
    runs: usize,
    unhealthy: usize,
) -> Value {
    let ms = |duration: Duration| duration.as_millis() as u64;
    let slowest = (!renewals.is_empty()).then(|| ms(renewals.worst()));
    let mut value = json!({
        "name": lease.as_str(), "run_ttl_ms": renewing.map(|ttl| ms(ttl.get())), "renewals": renewals.count(),
        "slowest_renewal_ms": slowest, "ttl_ms": null, "healthy_runs": runs,
    });
    if let Some(Advice { ttl, worst, p95, median }) = unrenewed {
        value["ttl_ms"] = json!(ms(ttl.get()));
        value["worst_ms"] = json!(ms(*worst));
        value["p95_ms"] = json!(ms(*p95));
        value["median_ms"] = json!(ms(*median));
        value["lost_or_expired"] = json!(unhealthy);
    }
    value
}

#[derive(Debug)]
struct Advice {
    ttl: Ttl,
    worst: Duration,
    p95: Duration,
    median: Duration,
}

impl Advice {
    fn text(&self, lease: &LeaseName, runs: usize, unhealthy: usize) -> String {
        let ttl = self.ttl;
        let [median, p95, worst] = [self.median, self.p95, self.worst].map(output::rough);
        format!(
            "use --ttl {ttl} for scripts that take `{lease}` with `acquire` and do not renew\n\
             why: {runs} healthy {}, median {median}, 95th percentile {p95}, worst {worst}.\n\
             The TTL is the larger of 1.75 times the worst healthy run and the 95th percentile plus two heartbeats\n\
             (a heartbeat is a third of the TTL), within 1s to 24h. {} lost or expired.\n",
            if runs == 1 { "run" } else { "runs" },
            if unhealthy == 1 { "1 run was".to_owned() } else { format!("{unhealthy} runs were") },
        )
    }

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
    use leasehold_core::distribution::REQUESTS;

    #[test]
    fn who_renews_needs_a_ttl_for_slow_answers_only() {
        let seen = |ms: &[u64]| {
            let mut renewals = Distribution::default();
            ms.iter().for_each(|ms| renewals.add(REQUESTS, Duration::from_millis(*ms)));
            renewing_ttl(&renewals).map(|ttl| ttl.get().as_secs())
        };
        assert_eq!(seen(&[]), None);
        assert_eq!(seen(&[3, 7, 2]), Some(15));
        assert_eq!(seen(&[3, 2_000]), Some(24));
        assert_eq!(seen(&[u64::MAX / 1_000_000]), Some(24 * 3_600));
    }

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
