//! The guards of a run: looked at before a lease is asked for, sealed once it is held.

use leasehold_core::guard::{self, Guard, Rejection};
use leasehold_core::{Kind, LeaseName, Result, Token};
use std::sync::Arc;

/// Refuses what no grant could make right before one is asked for: a guard of no file, or of another lease's file.
pub(super) async fn check(guards: &[Arc<dyn Guard>], lease: &LeaseName) -> Result<()> {
    for guard in guards {
        match guard.high_water().await {
            Ok(Some(high)) if high.lease != *lease => {
                let foreign = Rejection::Foreign { held: lease.clone(), seen: high.lease };
                return Err(foreign.into_error(&guard.resource()));
            }
            Err(error) if error.kind() == Kind::Invalid => return Err(error),
            // Sealing decides, and tells a resource that is out of reach from one that is wrong.
            _ => {}
        }
    }
    Ok(())
}

/// Shuts older holders out of the guarded resources. The store has just granted this token, so a guard that knows a
/// newer epoch means that the store went back in time.
pub(super) async fn seal(guards: &[Arc<dyn Guard>], token: &Token) -> Result<()> {
    for guard in guards {
        if let Err(error) = guard.seal(token).await {
            return Err(match (error.kind(), guard.high_water().await) {
                (Kind::Fenced, Ok(Some(high))) => guard::regressed(&guard.resource(), &token.lease, high.epoch),
                _ => error,
            });
        }
    }
    Ok(())
}
