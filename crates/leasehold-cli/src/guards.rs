//! A guarded resource as a flag names it: one row per kind of guard.

use crate::config::flag_or_variable;
use crate::targets;
use leasehold_core::guard::{Adopt, Guard, Policy};
use leasehold_core::{Error, Kind, LeaseName, Result};
use leasehold_guards::git::FenceNamespace;
use leasehold_guards::{FileGuard, FolderGuard, GitGuard};
use std::path::Path;
use std::sync::Arc;

/// What can be guarded, as `--guard` takes it.
const FORMS: &str = "file:PATH, folder:PATH, git:REMOTE, sqlite:PATH, postgres://host/db, mysql://user@host/database, s3://bucket/key, \
                     gs://bucket/key, az://container/key or http://PROXY";

/// The variable by which `run` tells its command where the fences on git remotes are.
pub const FENCE_NAMESPACE: &str = "LEASEHOLD_FENCE_NAMESPACE";

/// Where the fences on git remotes are: as the flag says, or else the environment that `run` set.
pub fn fence_namespace(flag: &Option<String>) -> Result<Option<FenceNamespace>> {
    flag_or_variable(flag, "fence_namespace", FENCE_NAMESPACE, str::parse)
}

/// The guard of the resource that `text` names. Nothing is touched.
pub fn parse(text: &str) -> Result<Arc<dyn Guard>> {
    parse_with(text, &FenceNamespace::default())
}

/// The same, with the fences of a git remote in this namespace.
pub fn parse_with(text: &str, namespace: &FenceNamespace) -> Result<Arc<dyn Guard>> {
    if let Some(guard) = addressed(text, namespace, None)? {
        return Ok(guard);
    }
    match text.split_once(':') {
        #[cfg(feature = "http")]
        Some(("http" | "https", _)) => Ok(Arc::new(leasehold_server::HttpGuard::new(text)?)),
        #[cfg(not(feature = "http"))]
        Some((scheme @ ("http" | "https"), _)) => Err(targets::lean(scheme)),
        _ => Err(Error::invalid("guard", text, format!("use {FORMS}"))),
    }
}

/// The guard of the resource that `text` names, for an operator who gives it to this lease. Nothing is touched.
pub fn adoptable(text: &str, lease: &LeaseName) -> Result<Arc<dyn Adopt>> {
    if let Some(guard) = addressed(text, &fence_namespace(&None)?.unwrap_or_default(), Some(lease))? {
        return Ok(guard);
    }
    // What is no resource at all is called so.
    let resource = parse(text)?.resource();
    let message = format!(
        "resource=`{resource}` cannot be adopted by its address: its fence is in the store of its proxy; on the machine of the \
         proxy, with its --store and --state, adopt `http:NAME`, where NAME is the proxy's --resource"
    );
    Err(Error::new(Kind::Unsupported, message))
}

/// The guard of a resource that has its fence beside it; none for what has not. On a git remote every lease has a fence of
/// its own.
fn addressed(text: &str, namespace: &FenceNamespace, lease: Option<&LeaseName>) -> Result<Option<Arc<dyn Adopt>>> {
    let policy = Policy::Reentrant;
    Ok(Some(match text.split_once(':') {
        Some(("file", path)) if !path.is_empty() => Arc::new(FileGuard::new(Path::new(path), policy)?),
        Some(("folder", path)) if !path.is_empty() => Arc::new(FolderGuard::new(Path::new(path), policy)?),
        Some(("git", remote)) if !remote.is_empty() => {
            let guard = GitGuard::new(remote, policy)?.with_namespace(namespace.clone());
            Arc::new(match lease {
                Some(lease) => guard.of_lease(lease.clone()),
                None => guard,
            })
        }
        Some((scheme, _)) if targets::SQL.contains(&scheme) => targets::database(text, None, policy)?,
        Some((scheme, _)) if targets::OBJECT.contains(&scheme) => targets::object_guard(text)?,
        _ => return Ok(None),
    }))
}
