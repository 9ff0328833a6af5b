//! The claim for which a record is read, and the time until which a renewal is useful.
//!
//! Promise: it changes no answer. Stores ignore it. The client of a server sends it along, so that the server serves a holder's
//! reads before others; the server believes it only if the record says the same. Non-promise: a task that is spawned meanwhile
//! does not inherit it.

use crate::clock::Moment;
use crate::token::Claim;

tokio::task_local! {
    static CLAIM: Option<Claim>;
    static UNTIL: Moment;
}

/// Runs a future whose reads are made for this claim, if there is one.
pub async fn reading_for<F: Future>(claim: Option<Claim>, future: F) -> F::Output {
    CLAIM.scope(claim, future).await
}

/// Runs a future that is useless after this moment, because it renews what is trusted until then. With several servers it leaves
/// time to ask the others.
pub async fn trusted_until<F: Future>(until: Moment, future: F) -> F::Output {
    UNTIL.scope(until, future).await
}

/// Until when the current task's work is useful, if it renews something.
pub fn until() -> Option<Moment> {
    UNTIL.try_get().ok()
}

/// The claim for which the current task reads.
pub fn claim() -> Option<Claim> {
    CLAIM.try_get().ok().flatten()
}
