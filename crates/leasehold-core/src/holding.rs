//! For which claim a record is read, and until when a renewal is of use.
//!
//! Promise: it changes no answer. A store has no use for it. The client of a server sends it along, so that the server serves
//! what a holder reads before what others read; the server believes it only if the record says the same. Non-promise: a task
//! that is spawned meanwhile does not have it.

use crate::clock::Moment;
use crate::token::Claim;

tokio::task_local! {
    static CLAIM: Option<Claim>;
    static UNTIL: Moment;
}

/// Polls a future whose reads are made in the name of this claim, if there is one.
pub async fn reading_for<F: Future>(claim: Option<Claim>, future: F) -> F::Output {
    CLAIM.scope(claim, future).await
}

/// Polls a future that is of no use from this moment on: it renews what is trusted until then. With several servers it waits no
/// longer for one than leaves time for the others.
pub async fn trusted_until<F: Future>(until: Moment, future: F) -> F::Output {
    UNTIL.scope(until, future).await
}

/// Until when what the current task does is of use, if it renews something.
pub fn until() -> Option<Moment> {
    UNTIL.try_get().ok()
}

/// The claim for which the current task reads.
pub fn claim() -> Option<Claim> {
    CLAIM.try_get().ok().flatten()
}
