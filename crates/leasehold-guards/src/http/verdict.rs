//! What the store says about a token that the fence does not simply let pass.
//!
//! Promise: a client's word moves no fence: the store confirms every newer epoch. A refusal says whether the token is old,
//! foreign, made up, or whether the store went back in time. Non-promise: nothing here lets a request pass.

use super::fence::Fence;
use super::problem::Problem;
use hyper::StatusCode;
use leasehold::guard::Rejection;
use leasehold::{Event, Kind, Ownership, Token};
use std::cmp::Ordering;

impl Fence {
    /// Asks the store whether it granted this token and has granted no other since.
    pub(crate) async fn confirm(&self, token: &Token) -> Result<(), Problem> {
        let record = self.coordinator.inspect(&token.lease).await?.record;
        if is_held_by(&record, token) {
            return Ok(());
        }
        if let Some(problem) = self.not_this_lease(&record, token) {
            return Err(problem);
        }
        Err(match record.epoch.cmp(&token.epoch) {
            Ordering::Greater => {
                let stale = Rejection::Stale { held: token.epoch, seen: record.epoch };
                self.count(token);
                Problem::rejection(stale, &self.resource)
            }
            Ordering::Equal if record.tenure.is_none() => Problem::new(
                StatusCode::PRECONDITION_FAILED,
                Kind::Lost,
                format!("lease refused: resource=`{}` `{token}` had been released", self.resource),
            ),
            Ordering::Equal => {
                let lease = token.lease.clone();
                Problem::rejection(Rejection::Regressed { lease, seen: token.epoch }, &self.resource)
            }
            Ordering::Less => Problem::new(
                StatusCode::FORBIDDEN,
                Kind::Invalid,
                format!(
                    "token refused: resource=`{}` the proxy's store has not granted `{token}`, it is at {}; use one \
                     store for both. If the store was restored from an old copy, heal with: leasehold advance {} --past \
                     {} --why 'store was restored'",
                    self.resource, record.epoch, token.lease, token.epoch
                ),
            ),
        })
    }

    /// The store has a lease of this name, which is another.
    fn not_this_lease(&self, record: &Ownership, token: &Token) -> Option<Problem> {
        let lineage = record.lineage.filter(|lineage| *lineage != token.lineage)?;
        let detail = format!(
            "not this lease: resource=`{}` the token is of a lease `{}` of lineage {}, which the proxy's store has not \
             granted: its own is of lineage {lineage}; use one store for both",
            self.resource, token.lease, token.lineage
        );
        Some(Problem::new(StatusCode::FORBIDDEN, Kind::Invalid, detail))
    }

    /// A stale token is the holder's all the same if the store went back in time.
    pub(crate) async fn explain(&self, token: &Token, rejection: Rejection) -> Problem {
        let record = match &rejection {
            Rejection::Stale { .. } | Rejection::Regressed { .. } => self.coordinator.inspect(&token.lease).await.ok(),
            _ => None,
        };
        let holder = record.as_ref().map(|lease| is_held_by(&lease.record, token));
        match (&rejection, holder) {
            (Rejection::Stale { seen, .. }, Some(true)) => {
                return Problem::rejection_of_store(&self.resource, &token.lease, token.epoch, *seen);
            }
            (Rejection::Stale { .. }, _) => self.count(token),
            // The store does not know this grant of the epoch either: somebody made it up, and nobody is called for it.
            (Rejection::Regressed { seen, .. }, Some(false)) => {
                let detail = format!(
                    "token refused: resource=`{}` has let another grant of epoch {seen} in, and the store does not know \
                     this one",
                    self.resource
                );
                return Problem::new(StatusCode::FORBIDDEN, Kind::Invalid, detail);
            }
            _ => {}
        }
        Problem::rejection(rejection, &self.resource)
    }

    /// Counts a refusal, once for each stale epoch: a zombie that knocks all day is one event.
    fn count(&self, token: &Token) {
        if self.state().counted.replace(token.epoch) != Some(token.epoch) {
            let (coordinator, lease) = (self.coordinator.clone(), token.lease.clone());
            tokio::spawn(async move { coordinator.count(&lease, Event::Fenced).await });
        }
    }
}

fn is_held_by(record: &Ownership, token: &Token) -> bool {
    record.lineage == Some(token.lineage) && record.is_held_by(token.claim())
}
