//! `renew`: keep a lease for another TTL.

use super::{of_token, token};
use crate::args::{Common, Renew as Args};
use crate::config::Settings;
use crate::exit::Exit;
use crate::{output, view};
use leasehold::Result;

pub async fn renew(common: &Common, args: &Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let coordinator = of_token(&Settings::gather(common)?).await?;
    let mut grant = coordinator.adopt(&token).await?;
    coordinator.renew(&mut grant, None).await?;
    if common.json {
        let lease = coordinator.inspect(&token.lease).await?;
        output::json(&view::lease_json(&lease))?;
    }
    Ok(Exit::Done)
}
