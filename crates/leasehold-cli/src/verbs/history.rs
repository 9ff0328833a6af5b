//! `history`: why a lease moved, latest first.

use super::known;
use crate::args::{Common, Name};
use crate::config::Settings;
use crate::exit::Exit;
use crate::{output, view};
use leasehold_core::{LeaseName, Result};
use serde_json::Value;

pub async fn history(common: &Common, args: &Name) -> Result<Exit> {
    let lease = LeaseName::new(&args.name)?;
    let lease = known(&Settings::gather(common)?, &lease).await?;
    let latest_first = lease.record.transfers.iter().rev();
    if common.json {
        output::json(&Value::Array(latest_first.map(|transfer| view::transfer_json(transfer)).collect()))?;
    } else {
        let mut rows = vec![["EPOCH", "WHEN", "REASON", "HOLDER", "ENDED", "WHY"].map(String::from).to_vec()];
        rows.extend(latest_first.map(|transfer| view::transfer_row(transfer, lease.now)));
        output::print(&output::table(&rows))?;
    }
    Ok(Exit::Done)
}
