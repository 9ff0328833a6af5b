//! `acquire`: take a lease and print its token.

use super::coordinator;
use crate::args::{Acquire as Args, Common};
use crate::config::{Flags, Settings, duration_of};
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::view;
use leasehold_core::{Acquired, Ask, Error, Event, HolderId, Kind, LeaseName, Outcome, Result};
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
            let text = if common.json {
                let mut value = view::token_json(grant.token());
                value["ttl_ms"] = json!(grant.ttl().get().as_millis() as u64);
                value.to_string()
            } else {
                grant.token().wire()
            };
            let error = match output::deliver(&format!("{text}\n")) {
                Ok(Reader::There) => return Ok(Exit::Done),
                Ok(Reader::Gone) => Error::new(Kind::Unavailable, "nobody reads the token: the lease was released"),
                Err(_) => Error::new(Kind::Unavailable, "cannot print the token: the lease was released"),
            };
            // A lease whose token nobody has is held by nobody.
            match coordinator.release(&grant, Outcome::Failed).await {
                Ok(_) => Err(error),
                Err(why) => Err(Error::new(
                    error.kind(),
                    format!(
                        "nobody has the token of `{lease}`, and it was not released; it expires after {}: {why}",
                        grant.ttl()
                    ),
                )),
            }
        }
        Acquired::Refused { lease, refusal, now } => {
            let event = super::run::skip_event(&refusal);
            let _ = coordinator.count(&lease, event).await;
            output::say(&view::refusal_line(&lease, &refusal, now));
            Ok(Exit::Held)
        }
    }
}
