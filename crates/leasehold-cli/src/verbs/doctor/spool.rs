//! A spool, as the user who asks finds it: `doctor spool:/path`.

use super::{Finding, Verdict, finding};
use crate::context::{Context, Target};
use leasehold_core::{Error, Kind, Result};
use leasehold_work::spool::{Fitness, Presence, Spool, examine_empty};

/// Looks at an existing spool, or at an empty folder that is to become one; nothing is made, also of a mistyped path.
pub async fn examine(context: &Context, url: &str) -> Result<Vec<Finding>> {
    let path = Target::spool(url)?;
    let target = Target::Spool(path.clone());
    let checks = if Presence::at(&path)? == Presence::Empty {
        aside(move || examine_empty(&path)).await??
    } else {
        context.existing_queue(&target).await?;
        let spool = Spool::open(&path)?;
        aside(move || spool.examine()).await?
    };
    let verdict = |fitness| match fitness {
        Fitness::Good => Verdict::Good,
        Fitness::Note => Verdict::Note,
        Fitness::Bad => Verdict::Bad,
    };
    let findings = checks.into_iter().map(|check| finding(verdict(check.fitness), check.what, check.detail));
    Ok(std::iter::once(finding(Verdict::Good, "spool", target.portable())).chain(findings).collect())
}

/// In a thread of its own: a network mount may block.
async fn aside<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let looked = tokio::task::spawn_blocking(look).await;
    looked.map_err(|e| Error::new(Kind::Unavailable, "the test of the spool crashed").with_source(e))
}
