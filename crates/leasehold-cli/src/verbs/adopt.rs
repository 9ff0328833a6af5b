//! `adopt`: a guarded resource is given to another lease.

use super::{guarded, operate};
use crate::args::Adopt as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::guards;
use leasehold_core::guard::{Adopt, HighWater};
use leasehold_core::{Error, Kind, LeaseName, Result, Token, Why};
use leasehold_guards::{Behind, StoreFence};
use serde_json::{Value, json};
use std::sync::Arc;

pub async fn adopt(context: &Context, args: &Args) -> Result<Exit> {
    let token = context.token(args.token.as_deref())?;
    let why = Why::named("--why", &args.why)?;
    let by = operate::by(args.by.as_deref())?;
    let guard = match stored_fence(context, &args.resource, &token).await? {
        Some(guard) => guard,
        None => guards::adoptable(&args.resource, &token.lease)?,
    };
    let resource = guard.resource();
    guarded::overtaken(context, &*guard, &token, guarded::Expired::Counts).await?;
    let Some(before) = guard.high_water().await? else {
        let message = match resource.starts_with("git:") {
            true => format!(
                "resource=`{resource}` has no fence of lease `{}`: nothing to adopt, because on a git remote each lease has a \
                 fence of its own and guards the branches that it pushes",
                token.lease
            ),
            false => format!("resource=`{resource}` has no fence: nothing to adopt, any lease may write there first"),
        };
        return Err(Error::new(Kind::Invalid, message));
    };
    let after = guard.adopt(&before, &token, &by, &why).await?;
    context.tell(
        || {
            let (before, after) = (fence(&before), fence(&after));
            json!({ "resource": resource, "before": before, "after": after, "by": by.as_str(), "why": why.as_str() })
        },
        || format!("resource=`{resource}` was fenced by {}, and is now fenced by {}", line(&before), line(&after)),
    )
}

/// A resource whose fence is in the store: `http:NAME` of a proxy, `mcp:NAME` of a gate.
async fn stored_fence(context: &Context, resource: &str, token: &Token) -> Result<Option<Arc<dyn Adopt>>> {
    let Some((scheme @ ("http" | "mcp"), name)) = resource.split_once(':').filter(|(_, name)| !name.starts_with("//"))
    else {
        return Ok(None);
    };
    let name = LeaseName::new(name)?;
    let state = context.settings()?.state_folder(false)?;
    let coordinator = context.fence_store(token).await?.clone();
    let known = Arc::new(context.open_token(token).await?.tokens);
    let behind = match scheme {
        "http" if cfg!(feature = "http") => Behind::Proxies,
        "mcp" => Behind::Gates,
        _ => return Ok(None),
    };
    Ok(Some(Arc::new(StoreFence::new(coordinator, known, behind, &name, state.as_deref())?)))
}

fn line(high: &HighWater) -> String {
    format!("lease `{}` (epoch {}, lineage {})", high.lease, high.epoch, high.lineage)
}

fn fence(high: &HighWater) -> Value {
    json!({ "lease": high.lease.to_string(), "lineage": high.lineage.to_string(), "epoch": high.epoch.get() })
}
