//! Fences that gates and proxies keep in the store, moved through a server.
//!
//! Promise: a fence only moves forward, by a token that this store granted and that has no newer successor. The fence of a gate
//! (`mcp/NAME`) is moved only for a token in force, by a key that takes part in its lease. The fence of a proxy (`http/NAME`) is
//! moved only by the holder of the lease `proxy/NAME`. Non-promise: the server cannot check what the proxy admitted under it.

use super::hide::known_adoptions;
use super::rules::name_of;
use super::{takes_part_in, verb_of};
use crate::access::Caller;
use crate::serve::Problem;
use leasehold_core::store::Swap;
use leasehold_core::{Coordinator, Epoch, Key, LeaseName, Nonce, PROXY_FOLDER, Resolver, Revision, wire};
use leasehold_guards::stored::{FenceDocument, FenceRecord, named};
use leasehold_stores::Namespace;
use leasehold_work::Tokens;

/// Who keeps and moves a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    Gate,
    Proxy,
}

impl Keeper {
    /// Who keeps the fence of this key, and for which resource.
    fn of(key: &Key) -> Option<(Self, LeaseName)> {
        let (folder, resource) = key.name.as_str().split_once('/')?;
        let keeper = match folder {
            "mcp" => Keeper::Gate,
            "http" => Keeper::Proxy,
            _ => return None,
        };
        Some((keeper, LeaseName::new(resource).ok()?))
    }
}

/// Moves a fence as the client asks, if it may. None if the fence no longer has the revision that the client saw.
pub(super) async fn change(
    caller: &Caller,
    namespace: &Namespace,
    coordinator: &Coordinator,
    key: &Key,
    expected: Option<&Revision>,
    text: &str,
) -> Result<Option<Swap>, Problem> {
    let direct = || Problem::from(wire::direct(key));
    let (keeper, resource) = Keeper::of(key).ok_or_else(direct)?;
    let mut next = FenceRecord::decode(text.as_bytes(), key).map_err(|e| Problem::invalid(e.to_string()))?;
    let seen = FenceDocument::new(coordinator, &key.name).look().await?;
    if seen.revision.as_ref() != expected {
        return Ok(None);
    }
    // Leases outside the caller's scope were hidden from it; they stay in the record.
    if next.adopted == known_adoptions(caller, namespace, &seen.record.adopted) {
        next.adopted.clone_from(&seen.record.adopted);
    }
    if !seen.record.may_become(&next) {
        return Err(direct());
    }
    let is_kept = (seen.record.by, seen.record.horizon) == (next.by, next.horizon);
    match keeper {
        Keeper::Gate if !is_kept => return Err(direct()),
        Keeper::Gate => {}
        Keeper::Proxy => holds_proxy(coordinator, &resource, next.by).await?,
    }
    if let Some(high) = next.high.as_ref().filter(|high| seen.record.high.as_ref() != Some(high)) {
        let token = high.token();
        // Checked before anything is said about the lease.
        if keeper == Keeper::Gate && !takes_part_in(caller, namespace, &token.lease) {
            caller.may(verb_of(&token.lease), namespace, Some(&name_of(&token.lease)))?;
        }
        let found = Tokens::new(coordinator.clone()).resolve(&token).await?;
        match keeper {
            Keeper::Gate => drop(found.in_force(&token)?),
            Keeper::Proxy => found.may_write(&token, key.name.as_str())?,
        }
    }
    Ok(Some(coordinator.store().document(key, expected, &next.encode()?).await?))
}

/// Refuses a caller that does not hold the lease of this resource's proxy now.
async fn holds_proxy(
    coordinator: &Coordinator,
    resource: &LeaseName,
    by: Option<(Epoch, Nonce)>,
) -> Result<(), Problem> {
    let seen = coordinator.inspect(&named(PROXY_FOLDER, resource)?).await?;
    let holder = seen.record.live_tenure(seen.now).map(|tenure| (seen.record.epoch, tenure.holder.nonce()));
    if by.is_some() && by == holder {
        return Ok(());
    }
    let detail = format!("the fence of `http:{resource}` is moved only by the proxy that holds `proxy/{resource}`");
    Err(crate::api::problems::conflict("lost", detail))
}
