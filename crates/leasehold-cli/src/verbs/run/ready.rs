//! What a run needs before its command starts: guards that are fit and sealed, and its environment.

use crate::config::Setting;
use crate::run_context::{ContextFile, RunContext};
use leasehold_core::guard::{self, Guard, Rejection};
use leasehold_core::{Kind, LeaseName, Result, Slot, Token};
use leasehold_stores::StoreUrl;
use leasehold_work::schedule::{self, slot_text};
use std::sync::Arc;

/// Refuses what no grant could make right before one is asked for: a guard of no file, or of another lease's file.
pub async fn check(guards: &[Arc<dyn Guard>], lease: &LeaseName) -> Result<()> {
    for guard in guards {
        match guard.high_water().await {
            Ok(Some(high)) if high.lease != *lease => {
                let foreign = Rejection::Foreign { held: lease.clone(), seen: high.lease };
                return Err(foreign.into_error(&guard.resource()));
            }
            Err(error) if error.kind() == Kind::Invalid => return Err(error),
            // Sealing decides, and distinguishes an unreachable resource from a wrong one.
            _ => {}
        }
    }
    Ok(())
}

/// Shuts older holders out of the guarded resources. The store has just granted this token, so a guard that knows a
/// newer epoch means that the store went back in time.
pub async fn seal(guards: &[Arc<dyn Guard>], token: &Token) -> Result<()> {
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

/// The file in which the command finds its lease, not yet written.
pub fn context_file(store: &Setting<StoreUrl>, token: &Token, slot: Option<Slot>) -> Option<ContextFile> {
    ContextFile::alone(RunContext::new(store, token, slot, idempotency_key(token, slot)))
}

/// The same for each attempt to run a slot, whatever the epoch.
fn idempotency_key(token: &Token, slot: Option<Slot>) -> String {
    slot.map_or_else(
        || format!("{}@{}", token.lease, token.epoch),
        |slot| schedule::idempotency_key(&token.lease, slot),
    )
}

/// What the command finds in its environment beside the store, so that `leasehold write` inside it needs no flags.
pub fn environment(token: &Token, slot: Option<Slot>) -> Vec<(&'static str, String)> {
    let key = idempotency_key(token, slot);
    let mut environment = vec![
        ("LEASEHOLD_NAME", token.lease.to_string()),
        ("LEASEHOLD_EPOCH", token.epoch.to_string()),
        ("LEASEHOLD_TOKEN", token.wire()),
        ("LEASEHOLD_IDEMPOTENCY_KEY", key),
    ];
    environment.extend(slot.map(|slot| ("LEASEHOLD_SLOT", slot_text(slot))));
    environment
}
