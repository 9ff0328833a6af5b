//! `show`: one lease in full.

use super::known;
use crate::args::{Common, Name};
use crate::config::Settings;
use crate::exit::Exit;
use crate::{output, view};
use leasehold_core::{LeaseName, Result};

pub async fn show(common: &Common, args: &Name) -> Result<Exit> {
    let lease = LeaseName::new(&args.name)?;
    let lease = known(&Settings::gather(common)?, &lease).await?;
    if common.json {
        output::json(&view::lease_json(&lease))?;
    } else {
        output::print(&view::lease_page(&lease))?;
    }
    Ok(Exit::Done)
}
