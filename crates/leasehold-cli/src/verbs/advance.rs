//! `advance`: move a lease's epoch past what a guard has seen, after its store went back in time or was lost.

use super::operate::{Asked, LONGEST_JUMP, order};
use crate::args::{Advance as Args, Common};
use crate::config::{Settings, blame_flag};
use crate::exit::Exit;
use leasehold_core::{Epoch, Error, Kind, LeaseName, Lineage, Ownership, Result, StoredLineage};

pub async fn advance(common: &Common, args: &Args) -> Result<Exit> {
    let past: Epoch = args.past.parse().map_err(|e| blame_flag(e, "--past"))?;
    let lineage = args.lineage.as_deref().map(str::parse::<Lineage>).transpose();
    let lineage = lineage.map_err(|e| blame_flag(e, "--lineage"))?;
    let if_lineage = args.if_lineage.as_deref().map(expected).transpose()?;
    let advance = Advance { past, lineage, if_lineage, force: args.force };
    order(common, &Settings::gather(common)?, &args.operate, Asked::Advance(advance), "advanced").await
}

/// What `advance` was asked for.
pub struct Advance {
    pub past: Epoch,
    pub lineage: Option<Lineage>,
    if_lineage: Option<StoredLineage>,
    force: bool,
}

impl Advance {
    /// Refuses what is most likely a mistake, on the record that the order is decided on.
    pub fn check(&self, settings: &Settings, lease: &LeaseName, record: &Ownership) -> Result<()> {
        if !self.force {
            check_jump(lease, record.epoch, self.past)?;
        }
        let found = record.lineage.map_or(StoredLineage::Nothing, StoredLineage::Lineage);
        check_lineage(settings, lease, found, self.if_lineage, self.lineage)
    }
}

fn expected(text: &str) -> Result<StoredLineage> {
    match text {
        "none" => Ok(StoredLineage::Nothing),
        text => text.parse().map(StoredLineage::Lineage).map_err(|e| blame_flag(e, "--if-lineage")),
    }
}

/// A lineage can be given once, and a line that was meant for another store would take it from a lease that is well. The
/// order itself is refused if the epoch has changed since, and no lineage changes without that.
fn check_lineage(
    settings: &Settings,
    lease: &LeaseName,
    found: StoredLineage,
    expected: Option<StoredLineage>,
    next: Option<Lineage>,
) -> Result<()> {
    let store = &settings.store.value;
    match expected {
        Some(expected) if expected != found => {
            let message = format!(
                "lease `{lease}` has lineage {found} in store `{store}`, not {expected}; nothing was changed. Is this the store \
                 that the message was about?"
            );
            Err(Error::new(Kind::Invalid, message))
        }
        None if next.is_some_and(|next| found != StoredLineage::Lineage(next)) => {
            let allowed = format!(
                "say which lineage it takes the place of, for this can be done once: lease `{lease}` has {found} in store \
                 `{store}`, so if that is the lease that was lost and begun anew, add --if-lineage {found}; nothing was \
                 changed"
            );
            Err(Error::invalid("--lineage", next.map(|next| next.to_string()).unwrap_or_default(), allowed))
        }
        _ => Ok(()),
    }
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
