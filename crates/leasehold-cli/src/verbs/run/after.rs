//! Whom a run is told to: monitoring services and `[[notify]]`.
//!
//! Promise: they are told in the background, and after the lease was given back for [`AFTER_RUN`] at most, until a signal
//! comes. Whatever goes wrong with them, the run's exit code is its own.

use crate::config::{Settings, blame_flag, variable};
use crate::exit::Exit;
use crate::kept;
use crate::notify::{AFTER_RUN, Notifier, Target};
use crate::ping::{self, PingUrl, Pings};
use crate::supervise::Signals;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{Coordinator, Grant, LeaseName, Reason, Result, Token};
use leasehold_work::notify::{Detail, Rule, Subject};
use std::io::IsTerminal;
use tokio::task::JoinHandle;

/// Who wants to hear of a run.
pub struct Listeners {
    ping: Option<PingUrl>,
    notify: Vec<(Rule, Target)>,
}

impl Listeners {
    pub fn new(ping: Option<&str>, settings: &Settings) -> Result<Self> {
        let ping = match ping {
            Some(url) => Some(PingUrl::parse(url).map_err(|e| blame_flag(e, "--ping"))?),
            None => variable(ping::VARIABLE, "ping", PingUrl::parse)?,
        };
        Ok(Listeners { ping, notify: settings.notify.read()? })
    }

    /// Whether the last lines of a run's output are to be told. On a terminal they are not: the command would find none.
    pub fn want_output(&self, leases: &[LeaseName], settings: &Settings) -> bool {
        let is_about = |rule: &Rule| {
            leases.iter().any(|lease| Subject::is_told_of(lease) && rule.is_about(&Subject::Job(lease.clone())))
        };
        let is_wanted = self.ping.as_ref().is_some_and(PingUrl::takes_output)
            || self.notify.iter().any(|(rule, _)| rule.tells_of_ends() && is_about(rule));
        let is_seen = std::io::stdout().is_terminal() || std::io::stderr().is_terminal();
        is_wanted && !is_seen && !matches!(settings.output.value, Some(kept::Target::Off))
    }

    /// Says that a run starts under this grant.
    pub fn start(&self, coordinator: &Coordinator, grant: &Grant) -> After {
        let notifier = Notifier::new(coordinator, self.notify.clone());
        // The run before it said nothing of its end, and by the end of this one the job has recovered.
        let died = grant.record().transfers.last().is_some_and(|transfer| transfer.reason == Reason::Expired);
        let telling = notifier.clone().filter(|_| died).map(|notifier| {
            let lease = grant.token().lease.clone();
            tokio::spawn(async move { notifier.run_ended(&lease, None).await })
        });
        After { pings: self.ping.as_ref().map(Pings::start), notifier, telling }
    }
}

/// What is left to be told.
pub struct After {
    pings: Option<Pings>,
    notifier: Option<Notifier>,
    /// Tells of the run before.
    telling: Option<JoinHandle<()>>,
}

impl After {
    /// Tells how the run ended, now that its lease is given back.
    pub async fn tell(
        &mut self,
        token: &Token,
        exit: Exit,
        begun: Moment,
        tail: Option<String>,
        signals: &mut Signals,
    ) {
        let (pings, notifier, telling) = (self.pings.take(), self.notifier.take(), self.telling.take());
        if pings.is_none() && notifier.is_none() {
            return;
        }
        let ran_for_ms = Some(SystemClock.now().saturating_since(begun).as_millis() as u64);
        let detail = Detail { epoch: token.epoch, exit_code: Some(exit.code()), ran_for_ms, tail };
        let pinging = async {
            if let Some(pings) = pings {
                pings.end(exit.code(), detail.tail.clone()).await;
            }
        };
        let notifying = async {
            if let Some(notifier) = notifier {
                if let Some(telling) = telling {
                    let _ = telling.await;
                }
                notifier.run_ended(&token.lease, Some(detail.clone())).await;
                notifier.deliver_for(AFTER_RUN).await;
            }
        };
        tokio::select! {
            _ = tokio::time::timeout(AFTER_RUN, async { tokio::join!(pinging, notifying) }) => {}
            _ = signals.next_ending() => {}
        }
    }
}
