//! For which claim a record is read.
//!
//! Promise: it changes no answer. A store has no use for it. The client of a server sends it along, so that the server serves
//! what a holder reads before what others read; the server believes it only if the record says the same. Non-promise: a task
//! that is spawned meanwhile does not have it.

use crate::token::Claim;

tokio::task_local! {
    static CLAIM: Option<Claim>;
}

/// Polls a future whose reads are made in the name of this claim, if there is one.
pub async fn reading_for<F: Future>(claim: Option<Claim>, future: F) -> F::Output {
    CLAIM.scope(claim, future).await
}

/// The claim for which the current task reads.
pub fn claim() -> Option<Claim> {
    CLAIM.try_get().ok().flatten()
}
