//! The tool for files: a fenced write below the session's root.

use super::tools::Call;
use crate::verbs::guarded;
use leasehold_core::guard::Guard;
use leasehold_core::{Error, Resolver, Result};
use leasehold_guards::FileGuard;
use serde_json::{Value, json};
use std::path::{Component, Path, PathBuf};

pub async fn fenced_write(call: &Call<'_>) -> Result<Value> {
    let (session, token) = (call.session, call.token()?);
    let path = below(&session.root, "file", call.text("file").unwrap_or_default())?;
    let content = call.text("content").unwrap_or_default().to_owned();
    let policy = guarded::policy(call.is_on("once"));
    // The guard may not know yet of a newer epoch that the store has granted.
    let found = session.tokens(&token)?.resolve(&token).await?;
    let guard = FileGuard::new(&path, policy)?;
    found.may_write(&token, &guard.resource())?;
    let strength = guard.strength().to_string();
    let written = tokio::task::spawn_blocking(move || guard.write_from(&token, content.as_bytes())).await;
    let high = written.map_err(|e| Error::unavailable("the write was cancelled", e))??;
    Ok(
        json!({ "status": "written", "file": path.display().to_string(), "epoch": high.epoch.get(), "strength": strength }),
    )
}

/// The path below the root, through whatever links there are.
pub fn below(root: &Path, field: &str, file: &str) -> Result<PathBuf> {
    let refuse = |what: &str| Error::invalid(field, file, format!("{what}; use a path below the server's root folder"));
    let asked = Path::new(file);
    if file.is_empty()
        || file.contains('\0')
        || !asked.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir))
    {
        return Err(refuse("it is empty, absolute or climbs"));
    }
    let whole = root.join(asked);
    let name = whole.file_name().ok_or_else(|| refuse("it has no name"))?.to_owned();
    let folder =
        whole.parent().unwrap_or(root).canonicalize().map_err(|e| refuse("its folder is not there").with_source(e))?;
    if !folder.starts_with(root) {
        return Err(refuse("a link in it leads out"));
    }
    let path = folder.join(name);
    // A guard writes through a link: only where it leads may be written to.
    if path.is_symlink() && !path.canonicalize().is_ok_and(|target| target.starts_with(root)) {
        return Err(refuse("it is a link that leads out"));
    }
    Ok(path)
}
