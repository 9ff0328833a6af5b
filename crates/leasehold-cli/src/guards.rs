//! A guarded resource as a flag names it: one row per kind of guard.

use leasehold::guard::{Guard, Policy};
use leasehold::{Error, Result};
use leasehold_guards::FileGuard;
use std::path::Path;
use std::sync::Arc;

/// What can be guarded, as `--guard` takes it.
#[cfg(feature = "http")]
const FORMS: &str = "file:PATH or http://PROXY";
#[cfg(not(feature = "http"))]
const FORMS: &str = "file:PATH";

/// The guard of the resource that `text` names. Nothing is touched.
pub fn parse(text: &str) -> Result<Arc<dyn Guard>> {
    Ok(match text.split_once(':') {
        Some(("file", path)) if !path.is_empty() => Arc::new(FileGuard::new(Path::new(path), Policy::Reentrant)?),
        #[cfg(feature = "http")]
        Some(("http" | "https", _)) => Arc::new(leasehold_guards::HttpGuard::new(text)?),
        _ => return Err(Error::invalid("guard", text, format!("use {FORMS}"))),
    })
}
