//! Asking for a lease: once, or waiting for it; for one future, or by hand.
//!
//! Promise: [`Lease::run`] starts the work only while the lease is held and every guard is sealed, and drops it when the
//! lease is lost. Non-promise: what the work started elsewhere is not stopped.

use crate::busy::Busy;
use crate::held::{Held, Tenure};
use leasehold_core::guard::Guard;
use leasehold_core::{
    Acquired, Ask, Coordinator, Error, HolderId, Kind, Label, LeaseName, Loss, Outcome, Released, Result, Ttl,
    parse_duration,
};
use std::pin::{Pin, pin};
use std::time::Duration;

/// How long a lease lasts unless renewed, if no TTL is set: the same as for the command.
pub(crate) const TTL: &str = "90s";

/// How a run went. There is no fourth way, so a `match` needs no other arm.
#[derive(Debug)]
#[must_use = "the work may have been skipped, or stopped in the middle"]
pub enum Run<T> {
    /// The work is done, and this is its result.
    Ran(T),
    /// Nothing was started: somebody else holds the lease.
    Skipped(Busy),
    /// The lease was lost. The work was stopped, or ended before the loss was known. What it wrote through guards after
    /// somebody else was granted the lease was refused.
    Lost(Loss),
}

impl<T> Run<T> {
    /// The result of the work, if it was done.
    pub fn ran(self) -> Option<T> {
        match self {
            Run::Ran(value) => Some(value),
            Run::Skipped(_) | Run::Lost(_) => None,
        }
    }
}

/// A lease to be acquired, by [`run`](Lease::run) or [`acquire`](Lease::acquire). These also return the first error in the values
/// that were set before.
#[derive(Debug)]
#[must_use = "nothing happens before `run` or `acquire`"]
pub struct Lease<'a> {
    coordinator: Coordinator,
    asked: Result<LeaseOptions>,
    guards: Vec<&'a dyn Guard>,
}

#[derive(Debug)]
struct LeaseOptions {
    name: LeaseName,
    ttl: Ttl,
    wait: Duration,
    label: Option<Label>,
    stalls_after: Option<Duration>,
    spacing: Option<Duration>,
}

impl<'a> Lease<'a> {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Self {
        let asked = || {
            let (name, ttl) = (name.parse()?, TTL.parse()?);
            Ok(LeaseOptions { name, ttl, wait: Duration::ZERO, label: None, stalls_after: None, spacing: None })
        };
        Lease { coordinator, asked: asked(), guards: Vec::new() }
    }

    /// How long the lease lasts unless renewed: from `1s` to `24h`, by default `90s`. It is renewed every third of that. If this
    /// process dies, nobody else can start before that time is over.
    pub fn ttl(self, ttl: &str) -> Self {
        self.set(lifetime(ttl), |asked, value| asked.ttl = value)
    }

    /// How long to wait while somebody else holds it, such as `10m` or `1h30m`. By default it does not wait.
    pub fn wait(self, limit: &str) -> Self {
        self.set(duration("wait", limit), |asked, value| asked.wait = value)
    }

    /// What the holder calls itself, by default the machine's name. At most 64 bytes; need not be unique.
    pub fn label(self, label: &str) -> Self {
        self.set(Label::named("label", label), |asked, value| asked.label = Some(value))
    }

    /// The least time between the starts of two runs, such as `10m` or `1h30m`, whichever process ran the last one and however it
    /// ended. A run that would start too soon is skipped; it does not wait.
    pub fn min_interval(self, spacing: &str) -> Self {
        self.set(duration("min_interval", spacing), |asked, value| asked.spacing = Some(value))
    }

    /// Gives the lease up after this time without a call of [`Tenure::progress`]. Without a limit, work that hangs holds the lease
    /// for as long as the process lives.
    pub fn progress_timeout(self, limit: &str) -> Self {
        self.set(duration("progress_timeout", limit), |asked, value| asked.stalls_after = Some(value))
    }

    /// Shuts every earlier holder out of this resource before the work begins. May be called for several resources.
    pub fn guard(mut self, guard: &'a dyn Guard) -> Self {
        self.guards.push(guard);
        self
    }

    /// Runs this work under the lease, and releases the lease with its outcome: succeeded, or failed if it returned an error.
    ///
    /// If the lease is lost, the work is dropped at its next await. If the lease cannot be released
    /// afterwards, the result is returned all the same, and the lease expires by itself. It also expires if the work panics.
    ///
    /// # Errors
    /// The work's own errors, and ours converted to that type: a value that was set is wrong, the store could not be reached, or a
    /// guard refused.
    pub async fn run<T, E, F>(self, work: impl FnOnce(Tenure) -> F) -> Result<Run<T>, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        match self.attempt().await? {
            Run::Ran(held) => {
                let work = work(held.tenure());
                under(held, work).await
            }
            Run::Skipped(busy) => Ok(Run::Skipped(busy)),
            Run::Lost(loss) => Ok(Run::Lost(loss)),
        }
    }

    /// Acquires the lease, to be released by hand.
    ///
    /// # Errors
    /// [`Kind::Contended`] if somebody else held it for as long as we waited; [`Error::holder`] says who. Otherwise those of
    /// [`run`](Lease::run).
    pub async fn acquire(self) -> Result<Held> {
        match self.attempt().await? {
            Run::Ran(held) => Ok(held),
            Run::Skipped(busy) => Err(busy.into_error()),
            Run::Lost(loss) => Err(Error::new(Kind::Lost, format!("the lease was lost before it was used: {loss}"))),
        }
    }

    /// Acquires and seals. The grant is renewed from the moment at which the store has granted it.
    ///
    /// Boxed, because otherwise the compiler cannot prove that the future is `Send`.
    fn attempt(self) -> Pin<Box<dyn Future<Output = Result<Run<Held>>> + Send + 'a>> {
        Box::pin(self.attempted())
    }

    async fn attempted(self) -> Result<Run<Held>> {
        let LeaseOptions { name, ttl, wait, label, stalls_after, spacing } = self.asked?;
        let ask = Ask { spacing, ..Ask::new(HolderId::new(label), ttl) };
        let held = match self.coordinator.acquire_within(&[name], &ask, wait).await? {
            Acquired::Granted(grant) => Held::keep(self.coordinator, *grant, stalls_after),
            Acquired::Refused { lease, refusal, now } => return Ok(Run::Skipped(Busy::new(lease, *refusal, now)?)),
        };
        Ok(match held.seal(&self.guards).await? {
            Ok(held) => Run::Ran(held),
            Err(loss) => Run::Lost(loss),
        })
    }

    /// Keeps the first error; later ones make no difference.
    fn set<T>(mut self, value: Result<T>, set: impl FnOnce(&mut LeaseOptions, T)) -> Self {
        self.asked = self.asked.and_then(|mut asked| {
            set(&mut asked, value?);
            Ok(asked)
        });
        self
    }
}

/// Runs work under a lease that is held, and releases it.
pub(crate) async fn under<T, E>(held: Held, work: impl Future<Output = Result<T, E>>) -> Result<Run<T>, E> {
    let ended = {
        // Dropped with this block: before the lease is released or, if this future is dropped, before renewing stops.
        let mut work = pin!(work);
        tokio::select! {
            biased;
            loss = held.lost() => Err(loss),
            ended = &mut work => Ok(ended),
        }
    };
    match ended {
        Err(loss) => {
            // Only a stalled holder still has the lease. One that has moved on needs no release.
            if let Loss::Stalled { .. } = loss {
                let _ = held.end(Outcome::Lost).await;
            }
            Ok(Run::Lost(loss))
        }
        Ok(Err(error)) => {
            let _ = held.end(Outcome::Failed).await;
            Err(error)
        }
        Ok(Ok(value)) => match held.end(Outcome::Succeeded).await {
            Ok(Released::Lost(_)) => Ok(Run::Lost(Loss::Moved("it was taken away while the work ran".into()))),
            Ok(_) | Err(_) => Ok(Run::Ran(value)),
        },
    }
}

/// Reads a duration, for messages that name the field.
pub(crate) fn duration(field: &str, text: &str) -> Result<Duration> {
    parse_duration(text).map_err(|error| error.with_origin(format!("in `{field}`")))
}

/// Reads a TTL, for messages that name the field.
pub(crate) fn lifetime(text: &str) -> Result<Ttl> {
    text.parse().map_err(|error: Error| error.with_origin("in `ttl`"))
}
