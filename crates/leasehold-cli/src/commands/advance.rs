//! `advance`: move a lease's epoch past what a guard has seen, after its store went back in time or was lost.

use super::existing;
use super::operate::{Asked, order};
use crate::args::{Advance as Args, Common};
use crate::config::{Settings, blame_flag};
use crate::exit::Exit;
use leasehold::{Epoch, Error, LeaseName, Lineage, Result};

/// A longer jump is most likely a typing error, and epochs never come back.
const LONGEST_JUMP: u64 = 1_000_000;

pub async fn advance(common: &Common, args: &Args) -> Result<Exit> {
    let past: Epoch = args.past.parse().map_err(|e| blame_flag(e, "--past"))?;
    let lineage = args.lineage.as_deref().map(str::parse::<Lineage>).transpose();
    let lineage = lineage.map_err(|e| blame_flag(e, "--lineage"))?;
    let settings = Settings::gather(common)?;
    let lease = LeaseName::new(&args.operate.name)?.of_a_lease()?;
    if !args.force {
        let now = match existing(&settings).await? {
            Some(coordinator) => coordinator.inspect(&lease).await?.record.epoch,
            None => Epoch::ZERO,
        };
        check_jump(&lease, now, past)?;
    }
    order(common, &settings, &args.operate, Asked::Advance { past, lineage }, "advanced").await
}

fn check_jump(lease: &LeaseName, now: Epoch, past: Epoch) -> Result<()> {
    // One that can never be is refused with its own words.
    if past > Epoch::HIGHEST_ADVANCE || past.get().saturating_sub(now.get()) <= LONGEST_JUMP {
        return Ok(());
    }
    let message = format!(
        "lease `{lease}` is at epoch {now}, and a jump of more than {LONGEST_JUMP} is most likely a typing error; nothing \
         was changed. If a guard has really seen that epoch, add --force"
    );
    Err(Error::invalid("epoch", past, message))
}
