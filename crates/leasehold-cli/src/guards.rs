//! A guarded resource as a flag names it: one row per kind of guard.

use leasehold::guard::{Guard, Policy};
use leasehold::{Error, Result};
use leasehold_guards::{FileGuard, GitGuard};
use std::path::Path;
use std::sync::Arc;

/// What can be guarded, as `--guard` takes it.
const FORMS: &str = "file:PATH or git:REMOTE";

/// The guard of the resource that `text` names. Nothing is touched.
pub fn parse(text: &str) -> Result<Arc<dyn Guard>> {
    Ok(match text.split_once(':') {
        Some(("file", path)) if !path.is_empty() => Arc::new(FileGuard::new(Path::new(path), Policy::Reentrant)?),
        Some(("git", remote)) if !remote.is_empty() => Arc::new(GitGuard::new(remote, Policy::Reentrant)?),
        _ => return Err(Error::invalid("guard", text, format!("use {FORMS}"))),
    })
}
