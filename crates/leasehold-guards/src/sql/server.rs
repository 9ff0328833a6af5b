//! What the guards of database servers have in common: how they are made, and what they do when a commit has no answer.
//!
//! Promise: no answer means unknown until a new write to the fence row was answered; what the row says then is sure, on
//! whichever server is the primary by now. Non-promise: if no such write is answered, it stays unknown, and the error says so.

use super::{Connect, Resource, Settling, outcome, unknown};
use crate::observe::write::{WriteStep, reach};
use leasehold_core::guard::{self, Guard, HighWater, Policy};
use leasehold_core::observe::{Observed, Observer};
use leasehold_core::{Error, Kind, Nonce, Result, Token};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a question to the server may take.
pub(crate) const ASK: Duration = Duration::from_secs(6);
/// How often, and how far apart, the fence is read to see whether a newer holder has come.
const GLANCES: u32 = 4;
const GLANCE: Duration = Duration::from_millis(50);
/// How often a seal or an adoption is tried: doing it again is how one without an answer is made sure.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Guards a database, or a part of it.
#[derive(Clone)]
pub struct ServerGuard<C> {
    pub(super) connect: Connect<C>,
    pub(super) endpoint: String,
    pub(super) resource: Resource,
    pub(super) policy: Policy,
    steps: Observed<WriteStep>,
}

impl<C> fmt::Debug for ServerGuard<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerGuard({}#{})", self.endpoint, self.resource)
    }
}

impl<C> ServerGuard<C> {
    /// A guard for a resource of the database that `connect` leads to; `endpoint` is its name for messages.
    pub fn new(connect: Connect<C>, endpoint: impl Into<String>, resource: Resource, policy: Policy) -> Self {
        ServerGuard { connect, endpoint: endpoint.into(), resource, policy, steps: Observed::NOBODY }
    }

    /// The same guard, watched at every stage.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer<WriteStep>>) -> Self {
        self.steps = Observed::by(observer);
        self
    }

    pub(super) fn reach(&self, step: WriteStep) -> Result<()> {
        reach(&self.steps, step, &format!("{}#{}", self.endpoint, self.resource))
    }
}

impl<C> ServerGuard<C>
where
    ServerGuard<C>: Guard,
{
    /// A session that was ended in the middle was most likely ended by a newer holder, which may still be writing: then
    /// that is the error.
    pub(super) async fn overtaken(&self, token: &Token, error: Error) -> Error {
        for _ in 0..GLANCES {
            if let Ok(Ok(Some(high))) = timeout(ASK, self.high_water()).await
                && let Err(rejection) = guard::seal(Some(&high), token)
            {
                return rejection.into_error(&self.resource());
            }
            sleep(GLANCE).await;
        }
        error
    }

    /// Moves the fence without any other write, by attempts that tell why no answer came, until one was answered.
    pub(super) async fn settle<F>(&self, attempt: impl Fn() -> F) -> Result<HighWater>
    where
        F: Future<Output = Result<(HighWater, Option<String>)>>,
    {
        let mut settling = Settling::default();
        for tried in 0..TRIES {
            if tried > 0 {
                sleep(PAUSE).await;
            }
            if let Some(settled) = settling.add(attempt().await) {
                return settled;
            }
        }
        Err(settling.given_up(&self.resource(), "the server does not answer"))
    }

    /// Finds out what became of a write whose commit was not answered. `confirm` writes to the row, which waits until
    /// nothing of ours is under way there, and gives the row's trail.
    pub(super) async fn resolve<F>(&self, token: &Token, lost: Lost<'_>, confirm: impl Fn() -> F) -> Result<()>
    where
        F: Future<Output = Result<Option<String>>>,
    {
        for _ in 0..lost.looks {
            if self.reach(WriteStep::ReadBack).is_err() {
                break;
            }
            let Ok(Ok(Some(trail))) = timeout(ASK, confirm()).await else {
                sleep(PAUSE).await;
                continue;
            };
            return match outcome(&self.resource(), &trail, lost.write, lost.before, lost.cause) {
                Err(undone) if undone.kind() == Kind::Unavailable => Err(self.overtaken(token, undone).await),
                answer => answer,
            };
        }
        Err(unknown(&self.resource(), "the server does not answer", lost.cause))
    }
}

/// A write whose commit was not answered.
pub(super) struct Lost<'a> {
    pub(super) write: Nonce,
    /// The trail of the row before it.
    pub(super) before: &'a str,
    /// Why no answer came.
    pub(super) cause: &'a str,
    /// How often the server is asked.
    pub(super) looks: u32,
}
