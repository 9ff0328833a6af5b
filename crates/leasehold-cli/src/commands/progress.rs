//! `progress`: say that the work has moved on.

use super::{of_token, token};
use crate::args::{Common, Progress as Args};
use crate::config::Settings;
use crate::exit::Exit;
use leasehold::protocol::Report;
use leasehold::{Checkpoint, Marker, Result};

pub async fn progress(common: &Common, args: Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let report = Report {
        marker: args.marker.map(|text| Marker::named("marker", text)).transpose()?,
        checkpoint: args.checkpoint.map(Checkpoint::new).transpose()?,
    };
    let coordinator = of_token(&Settings::gather(common)?).await?;
    coordinator.checkpoint_by_token(&token, report).await?;
    Ok(Exit::Done)
}
