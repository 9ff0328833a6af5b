//! What the store says about a token that the fence in memory does not admit.
//!
//! Promise: the store confirms every newer epoch before the fence moves. A refusal says whether the token is old,
//! foreign or made up, or whether the store went back in time. Non-promise: nothing here lets a request pass.

use super::fence::Fence;
use super::problem::Problem;
use hyper::StatusCode;
use leasehold_core::guard::Rejection;
use leasehold_core::{Epoch, FencedWrite, Kind, Token, TokenKind, TokenState};

impl Fence {
    /// Asks the store whether it granted this token and has granted no other since.
    pub(crate) async fn confirm(&self, token: &Token) -> Result<(), Problem> {
        let found = self.tokens.resolve(token).await?;
        let refuse = |status, kind| {
            let refusal = found.refusal(token);
            Err(Problem::new(status, kind, format!("token refused: resource=`{}` {refusal}", self.resource)))
        };
        match &found.state {
            TokenState::Live(_) | TokenState::Expired => Ok(()),
            TokenState::Moved(_) => refuse(StatusCode::FORBIDDEN, Kind::Moved),
            TokenState::OtherLineage { seen } => {
                let detail = format!(
                    "not this lease: resource=`{}` the token is of a lease `{}` of lineage {}, which the proxy's store has not \
                     granted: its own is of lineage {seen}; use one store for both",
                    self.resource, token.lease, token.lineage
                );
                Err(Problem::new(StatusCode::FORBIDDEN, Kind::Invalid, detail))
            }
            _ if found.epoch > token.epoch => {
                let stale = Rejection::Stale { held: token.epoch, seen: found.epoch };
                self.count(token, found.epoch);
                Err(Problem::rejection(stale, &self.resource))
            }
            TokenState::Ended { .. } => refuse(StatusCode::PRECONDITION_FAILED, Kind::Lost),
            TokenState::NeverGranted if found.epoch == token.epoch => {
                let lease = token.lease.clone();
                Err(Problem::rejection(Rejection::Regressed { lease, seen: token.epoch }, &self.resource))
            }
            // Anybody can make a token up: nobody is called for it.
            _ => refuse(StatusCode::FORBIDDEN, Kind::Invalid),
        }
    }

    /// A stale token is the holder's all the same if the store went back in time.
    pub(crate) async fn explain(&self, token: &Token, rejection: Rejection) -> Problem {
        let found = match &rejection {
            Rejection::Stale { .. } | Rejection::Regressed { .. } => self.tokens.resolve(token).await.ok(),
            _ => None,
        };
        let holder = found.map(|found| found.is_newest());
        match (&rejection, holder) {
            (Rejection::Stale { seen, .. }, Some(true)) => {
                return Problem::rejection_of_store(&self.resource, &token.lease, token.epoch, *seen);
            }
            (Rejection::Stale { seen, .. }, _) => self.count(token, *seen),
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

    /// Counts a refusal, once for each stale epoch: a stale client that keeps trying is one event.
    fn count(&self, token: &Token, seen: Epoch) {
        if TokenKind::of(&token.lease) == TokenKind::Lease
            && self.state().counted.replace(token.epoch) != Some(token.epoch)
        {
            let (coordinator, lease) = (self.coordinator.clone(), token.lease.clone());
            let write = FencedWrite::new(&self.resource, token.epoch, seen, None);
            tokio::spawn(async move { coordinator.count_fenced(&lease, &write).await });
        }
    }
}
