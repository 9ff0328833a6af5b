//! `acquire`: take a lease and print its token.

use super::coordinator;
use crate::args::{Acquire as Args, Common};
use crate::config::{Flags, Settings, duration_of};
use crate::exit::Exit;
use crate::{output, view};
use leasehold::{Acquired, Ask, Event, HolderId, LeaseName, Outcome, Result};
use serde_json::json;

pub async fn acquire(common: &Common, args: &Args) -> Result<Exit> {
    let lease = LeaseName::to_hold(&args.name)?;
    let wait = duration_of("--wait", args.wait.as_deref())?;
    let flags = Flags { ttl: args.ttl.as_deref(), label: args.label.as_deref(), ..Flags::default() };
    let settings = Settings::gather_with(common, flags)?;
    let coordinator = coordinator(&settings).await?;
    let ask = Ask::new(HolderId::new(settings.label.value), settings.ttl.value);
    let acquired = match wait {
        Some(limit) => coordinator.acquire_within(std::slice::from_ref(&lease), &ask, limit).await?,
        None => coordinator.acquire(&lease, &ask).await?,
    };
    match acquired {
        Acquired::Granted(grant) => {
            let _ = coordinator.count(&lease, Event::Granted).await;
            let printed = if common.json {
                let mut value = view::token_json(grant.token());
                value["ttl_ms"] = json!(grant.ttl().get().as_millis() as u64);
                output::json(&value)
            } else {
                output::line(&grant.token().wire())
            };
            if let Err(error) = printed {
                // A lease whose token nobody has is held by nobody.
                let _ = coordinator.release(&grant, Outcome::Failed).await;
                return Err(error);
            }
            Ok(Exit::Done)
        }
        Acquired::Refused { lease, refusal, now } => {
            let event = super::run::skip_event(&refusal);
            let _ = coordinator.count(&lease, event).await;
            output::say(&view::refusal_line(&lease, &refusal, now));
            Ok(Exit::Held)
        }
    }
}
