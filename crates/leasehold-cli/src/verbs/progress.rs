//! `progress`: say that the work has moved on.

use super::{token, tokens};
use crate::args::{Common, Progress as Args};
use crate::exit::Exit;
use leasehold_core::lease::protocol::Report;
use leasehold_core::{Checkpoint, Marker, Result};

pub async fn progress(common: &Common, args: Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let report = Report {
        marker: args.marker.map(|text| Marker::named("marker", text)).transpose()?,
        checkpoint: args.checkpoint.map(Checkpoint::new).transpose()?,
    };
    tokens::open(common, &token).await?.tokens.progress(&token, report).await?;
    Ok(Exit::Done)
}
