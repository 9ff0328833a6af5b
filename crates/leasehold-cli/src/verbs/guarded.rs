//! What the verbs that write through a guard have in common.

use crate::config::Source;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use leasehold_core::guard::{self, Guard, HighWater, Policy};
use leasehold_core::{Error, Kind, Remedy, Resolved, Result, StoredLineage, Token, TokenState};
use serde_json::json;
use std::sync::Once;

/// Whether a resource admits one write per epoch, or any number.
pub const fn policy(once: bool) -> Policy {
    if once { Policy::OncePerEpoch } else { Policy::Reentrant }
}

/// What to do about a token that has expired without a newer grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expired {
    /// It counts, for epochs decide, and that is said.
    Counts,
    /// It is refused, and so is one of which the store cannot tell.
    Refused,
}

impl Expired {
    pub const fn of(strict: bool) -> Self {
        if strict { Expired::Refused } else { Expired::Counts }
    }
}

/// One guarded write: what was admitted as JSON, or why it was not.
pub async fn write(
    context: &Context,
    guard: &dyn Guard,
    token: &Token,
    expired: Expired,
    write: impl AsyncFnOnce() -> Result<HighWater>,
) -> Result<Exit> {
    overtaken(context, guard, token, expired).await?;
    admitted(context, guard, token, write().await).await
}

/// The end of a guarded write.
pub async fn admitted(context: &Context, guard: &dyn Guard, token: &Token, written: Result<HighWater>) -> Result<Exit> {
    let high = match written {
        Ok(high) => high,
        Err(error) => return Err(explain(context, guard, token, error).await),
    };
    let (resource, strength) = (guard.resource(), guard.strength().to_string());
    context.print_json(|| json!({ "resource": resource, "epoch": high.epoch.get(), "strength": strength }))
}

/// Refuses a token that its record knows to be stale before anything is written: the guard may not know of it
/// yet. Best effort, because a guard needs no store; the guard decides.
pub async fn overtaken(context: &Context, guard: &dyn Guard, token: &Token, expired: Expired) -> Result<()> {
    let looked = async {
        let opened = context.open_token(token).await?;
        let found = opened.resolve().await?;
        Ok((opened, found))
    };
    let (opened, found) = match (looked.await, expired) {
        (Ok(looked), _) => looked,
        (Err(_), Expired::Counts) => return Ok(()),
        (Err(error), Expired::Refused) => return Err(error),
    };
    let elsewhere = matches!(found.state, TokenState::Missing | TokenState::OtherLineage { .. });
    // A store that nobody named may have nothing to do with the token.
    if elsewhere && opened.source == Source::Default {
        return Ok(());
    }
    // The resource knows this very lease, and the store does not: it is the store that has lost it.
    if found.state == TokenState::Missing
        && let Ok(Some(HighWater { lease, lineage, epoch, .. })) = guard.high_water().await
        && (&lease, lineage) == (&token.lease, token.lineage)
    {
        let message = format!(
            "store regressed: resource=`{}` has seen epoch {epoch} of {}, which {} does not know at all: name the store that \
             the token came from; if that is this one and it was lost, stop the job first",
            guard.resource(),
            token.lease,
            found.location,
        );
        let remedy = Remedy::lost(&guard.resource(), &lease, epoch, lineage, StoredLineage::Nothing);
        return Err(Error::new(Kind::Regressed, message).with_remedy(remedy));
    }
    let checked = found.may_write(token, &guard.resource());
    if checked.as_ref().is_err_and(|e| e.kind() == Kind::Fenced) {
        opened.count_fenced(&guard.resource(), Some(found.epoch)).await;
    }
    match (found.state == TokenState::Expired, expired) {
        (true, Expired::Refused) => Err(not_in_time(&found, token, &guard.resource())),
        (true, Expired::Counts) => {
            // A push may ask several times.
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                output::say(&format!(
                    "`{token}` has expired, and nobody newer has come: epochs decide, so this write counts (--strict refuses it)"
                ));
            });
            checked
        }
        _ => checked,
    }
}

/// The refusal of a write that would count, and that was to be made in time.
fn not_in_time(found: &Resolved, token: &Token, resource: &str) -> Error {
    let message = format!("resource=`{resource}` was not written, for --strict was given");
    Error::new(Kind::Lost, message).with_source(found.refusal(token))
}

/// Turns a guard's refusal into what is really wrong: if the record still says that this token is the newest, then it
/// is not the token that is stale but the store that went back in time. Counts real refusals.
pub async fn explain(context: &Context, guard: &dyn Guard, token: &Token, error: Error) -> Error {
    if error.kind() != Kind::Fenced {
        return error;
    }
    let Ok(opened) = context.open_token(token).await else { return error };
    if let Ok(found) = opened.resolve().await
        && found.is_newest()
        && let Ok(Some(high)) = guard.high_water().await
        && high.epoch > token.epoch
    {
        return guard::regressed(&guard.resource(), &token.lease, high.epoch);
    }
    // Without one, it was this very epoch that the resource has seen: a repeated write, or a second one.
    let seen = error.epochs().map_or(token.epoch, |(_, seen)| seen);
    opened.count_fenced(&guard.resource(), Some(seen)).await;
    error
}
