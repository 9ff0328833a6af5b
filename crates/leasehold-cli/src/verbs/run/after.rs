//! Who is notified of a run: monitoring services and `[[notify]]`.
//!
//! Promise: they are notified in the background, and after the lease was released for [`AFTER_RUN`] at most, until a signal
//! comes. Whatever goes wrong with them, the run's exit code is its own.

use crate::config::{Settings, flag_or_variable};
use crate::exit::Exit;
use crate::notify::{AFTER_RUN, Notifier, NotifyTables, Told as Rules, location};
use crate::output;
use crate::ping::{self, PingUrl, Pings, Signal};
use crate::run_output;
use crate::supervise::Signals;
use crate::supervise::settlement::Verdict;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Grant, LeaseName, Reason, Result, Token, Transfer};
use leasehold_work::notify::{Detail, Rule, StoreLocation, Subject};
use std::io::IsTerminal;
use tokio::task::JoinHandle;

/// The configured targets for notifications of a run.
pub struct Listeners {
    ping: Option<PingUrl>,
    /// The rules, and where the store is; none without rules.
    notify: Option<(Vec<Rules>, StoreLocation)>,
}

impl Listeners {
    pub fn new(ping: &Option<String>, settings: &Settings) -> Result<Self> {
        let ping = match flag_or_variable(ping, "ping", ping::VARIABLE, PingUrl::parse) {
            // Nobody is here to fix the setting, and running the job matters more than notifying.
            Err(error) if ping.is_none() => {
                output::warn(&format!("{error}; this run sends no ping"));
                None
            }
            ping => ping?,
        };
        let tables = Some(&settings.notify).filter(|tables| !tables.tables.is_none());
        let rules = tables.map(NotifyTables::read_or_say).filter(|rules| !rules.is_empty());
        Ok(Listeners { ping, notify: rules.map(|rules| (rules, location(settings))) })
    }

    /// Whether messages contain the last lines of a run's output. Not on a terminal: captured, the command would no longer see one.
    pub fn want_output(&self, leases: &[LeaseName], settings: &Settings) -> bool {
        let is_about = |rule: &Rule| {
            leases.iter().any(|lease| Subject::is_reported(lease) && rule.is_about(&Subject::Job(lease.clone())))
        };
        let is_wanted = self.ping.as_ref().is_some_and(PingUrl::takes_output)
            || self.notify.iter().flat_map(|(rules, _)| rules).any(|(rule, _)| rule.tells_of_ends() && is_about(rule));
        let is_seen = std::io::stdout().is_terminal() || std::io::stderr().is_terminal();
        is_wanted && !is_seen && !matches!(settings.output.value, Some(run_output::Target::Off))
    }

    /// Says that a run starts under this grant.
    pub fn start(&self, coordinator: &Coordinator, grant: &Grant) -> After {
        let notify = self.notify.clone();
        let notifier = notify.and_then(|(rules, location)| Notifier::new(coordinator, rules, location));
        // The run before it said nothing of its end, and by the end of this one the job has recovered.
        let died = |transfer: &Transfer| match transfer.reason {
            Reason::Expired | Reason::Recovered => true,
            Reason::Triggered => transfer.from.is_some(),
            _ => false,
        };
        let died = grant.record().transfers.last().is_some_and(|transfer| died(transfer));
        let telling = notifier.clone().filter(|_| died).map(|notifier| {
            let lease = grant.token().lease.clone();
            tokio::spawn(async move { notifier.run_ended(&lease, None).await })
        });
        After { pings: self.ping.as_ref().map(Pings::start), notifier, telling }
    }
}

/// What to report about a run that is over.
pub struct Told {
    pub exit: Exit,
    /// None if that is not known.
    pub verdict: Option<Verdict>,
    pub ran_for_ms: u64,
    /// Why it was ended, if it did not end by itself.
    pub why: Option<String>,
    /// Whether `logs` finds its output.
    pub is_kept: bool,
    /// The last lines of its output.
    pub tail: Option<String>,
}

/// The reports that are still to be sent.
pub struct After {
    pings: Option<Pings>,
    notifier: Option<Notifier>,
    /// Tells of the run before.
    telling: Option<JoinHandle<()>>,
}

impl After {
    /// Tells how the run ended, now that its lease is given back.
    pub async fn tell(&mut self, token: &Token, told: Told, signals: &mut Signals) {
        let Told { exit, verdict, ran_for_ms, why, is_kept, tail } = told;
        let (pings, notifier, telling) = (self.pings.take(), self.notifier.take(), self.telling.take());
        if pings.is_none() && notifier.is_none() {
            return;
        }
        let (exit_code, ran_for_ms) = (Some(exit.code()), Some(ran_for_ms));
        let detail = Detail { epoch: token.epoch, exit_code, ran_for_ms, why, is_kept, tail };
        let pinging = async {
            if let Some(pings) = pings {
                let tail = detail.tail.clone();
                pings
                    .end(match verdict {
                        Some(Verdict::Drained) => Signal::Drained(tail),
                        _ => Signal::Ended(exit.code(), tail),
                    })
                    .await;
            }
        };
        let until = SystemClock.now() + AFTER_RUN;
        let notifying = async {
            if let Some(notifier) = notifier {
                if let Some(telling) = telling {
                    let _ = telling.await;
                }
                notifier.run_ended(&token.lease, Some(detail.clone())).await;
                notifier.deliver_until(until).await;
            }
        };
        tokio::select! {
            _ = tokio::time::timeout(AFTER_RUN, async { tokio::join!(pinging, notifying) }) => {}
            _ = signals.next_ending() => {}
        }
    }
}
