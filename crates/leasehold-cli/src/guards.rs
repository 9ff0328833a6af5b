//! A guarded resource as a flag names it: one row per kind of guard.

use crate::targets;
use leasehold::guard::{Guard, Policy};
use leasehold::{Error, Result};
use leasehold_guards::{FileGuard, GitGuard};
use std::path::Path;
use std::sync::Arc;

/// What can be guarded, as `--guard` takes it.
const FORMS: &str = "file:PATH, git:REMOTE, sqlite:PATH, postgres://host/db, mysql://user@host/database, s3://bucket/key, \
                     gs://bucket/key, az://container/key or http://PROXY";

/// The guard of the resource that `text` names. Nothing is touched.
pub fn parse(text: &str) -> Result<Arc<dyn Guard>> {
    Ok(match text.split_once(':') {
        Some(("file", path)) if !path.is_empty() => Arc::new(FileGuard::new(Path::new(path), Policy::Reentrant)?),
        Some(("git", remote)) if !remote.is_empty() => Arc::new(GitGuard::new(remote, Policy::Reentrant)?),
        Some((scheme, _)) if targets::SQL.contains(&scheme) => {
            // Only what every guard can do is asked of it here.
            targets::database(text, None, Policy::Reentrant)? as Arc<dyn Guard>
        }
        Some((scheme, _)) if targets::OBJECT.contains(&scheme) => targets::object_guard(text)?,
        #[cfg(feature = "http")]
        Some(("http" | "https", _)) => Arc::new(leasehold_guards::HttpGuard::new(text)?),
        #[cfg(not(feature = "http"))]
        Some((scheme @ ("http" | "https"), _)) => return Err(targets::lean(scheme)),
        _ => return Err(Error::invalid("guard", text, format!("use {FORMS}"))),
    })
}
