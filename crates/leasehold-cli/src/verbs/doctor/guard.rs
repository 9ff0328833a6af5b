//! The file guard on the user's own folder.

use super::{Finding, Verdict, finding};
use leasehold_core::guard::{Guard, Policy};
use leasehold_core::observe::Observer;
use leasehold_core::{Epoch, Error, Kind, LeaseName, Nonce, Result, Token};
use leasehold_guards::{FileGuard, FileStep};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;

/// A writer that passed its check and is overtaken must not publish. In a thread of its own: a network mount may block.
pub async fn guard(folder: PathBuf) -> Result<Vec<Finding>> {
    let tried = tokio::task::spawn_blocking(move || tried_in(&folder)).await;
    tried.map_err(|e| Error::new(Kind::Unavailable, "the test of the folder crashed").with_source(e))?
}

fn tried_in(folder: &Path) -> Result<Vec<Finding>> {
    let scratch = folder.join(format!(".leasehold-doctor-{}", Nonce::random()));
    std::fs::create_dir(&scratch)
        .map_err(|e| Error::new(Kind::Unsupported, format!("cannot write in `{}`", folder.display())).with_source(e))?;
    let findings = Handle::current().block_on(overtake(&scratch));
    let removed = std::fs::remove_dir_all(&scratch);
    let mut findings = findings?;
    if let Err(error) = removed {
        findings.push(finding(Verdict::Note, "scratch folder", format!("could not be removed: {error}")));
    }
    Ok(findings)
}

async fn overtake(scratch: &Path) -> Result<Vec<Finding>> {
    let target = scratch.join("probe");
    let token = |epoch| -> Result<Token> {
        Ok(Token {
            lease: LeaseName::new("doctor")?,
            lineage: leasehold_core::Lineage::from_u128(1),
            epoch: Epoch::new(epoch)?,
            nonce: Nonce::random(),
            seq: 0,
        })
    };
    let (old, new) = (token(1)?, token(2)?);
    let plain = FileGuard::new(&target, Policy::Reentrant)?;
    let overtaken = FileGuard::new(&target, Policy::Reentrant)?
        .with_observer(Arc::new(Overtaker { guard: FileGuard::new(&target, Policy::Reentrant)?, new: new.clone() }));
    let stale = overtaken.write_from(&old, &b"stale"[..]);
    let seen = std::fs::read(&target).unwrap_or_default();
    let late = plain.write_from(&old, &b"stale"[..]);
    let high = plain.high_water().await?;
    let refused = |result: &Result<_>| matches!(result, Err(error) if error.kind() == Kind::Fenced);
    let sound = refused(&stale)
        && refused(&late)
        && seen == b"new"
        && std::fs::read(&target).unwrap_or_default() == b"new"
        && high.is_some_and(|high| high.epoch == new.epoch);
    let detail = if sound {
        format!("{}: a writer that was overtaken between check and publish was refused", plain.strength())
    } else {
        "a stale write was not refused: this file system does not rename and remove as POSIX says".into()
    };
    Ok(vec![finding(if sound { Verdict::Good } else { Verdict::Bad }, "file guard", detail)])
}

/// Lets a newer epoch write at the worst moment: when the old one is about to publish.
#[derive(Debug)]
struct Overtaker {
    guard: FileGuard,
    new: Token,
}

impl Observer<FileStep> for Overtaker {
    fn reach(&self, step: FileStep) -> std::io::Result<()> {
        if step == FileStep::Publish {
            self.guard.write_from(&self.new, &b"new"[..]).map_err(std::io::Error::other)?;
        }
        Ok(())
    }
}
