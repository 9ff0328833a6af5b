//! `write`, `publish`, `put`: a file, a folder or an object in a bucket, unless a newer epoch has been there.

use super::guarded::{self, Expired};
use crate::args::{Publish, Put, Write};
use crate::context::Context;
use crate::exit::Exit;
use leasehold_core::guard::Policy;
use leasehold_core::{Error, Kind, Result};
use leasehold_guards::{FileGuard, FolderGuard};
use std::fs::File;
use std::io::{Read, Stdin};
use std::path::Path;

pub async fn write(context: &Context, args: &Write) -> Result<Exit> {
    let token = context.token(args.token.as_deref())?;
    let guard = FileGuard::new(&args.file, guarded::policy(args.once))?;
    guarded::write(context, &guard, &token, Expired::of(args.strict), async || {
        let Some(path) = &args.from else { return guard.write_from(&token, std::io::stdin().lock()) };
        let file = open(path, "--from ")?;
        if file.metadata().is_ok_and(|m| m.is_dir()) {
            return Err(Error::invalid("--from", path.display(), "it is a folder; use `leasehold publish`"));
        }
        guard.write_from(&token, file)
    })
    .await
}

pub async fn publish(context: &Context, args: &Publish) -> Result<Exit> {
    let token = context.token(args.token.as_deref())?;
    let guard = FolderGuard::new(&args.target, Policy::Reentrant)?.keeping(args.keep);
    // The guard would find out only after it has shut older holders out.
    let stat = std::fs::metadata(&args.folder).map_err(|e| unreadable(&args.folder, "the folder ", e))?;
    if !stat.is_dir() {
        let allowed = "use a folder; single files are for `leasehold write`";
        return Err(Error::invalid("source", args.folder.display(), allowed));
    }
    guarded::write(context, &guard, &token, Expired::of(args.strict), async || guard.publish(&token, &args.folder))
        .await
}

#[cfg(feature = "full")]
pub async fn put(context: &Context, args: &Put) -> Result<Exit> {
    use leasehold_guards::object::MAX_BODY_BYTES;
    let (salt, kind, policy) = (args.salt.as_deref(), args.content_type.as_deref(), guarded::policy(args.once));
    let token = context.token(args.token.as_deref())?;
    let (guard, kind) = crate::targets::object(&args.url, salt, kind, policy)?;
    let mut body = Vec::new();
    read_bounded(&args.file, "", "body", MAX_BODY_BYTES, |from| from.read_to_end(&mut body))?;
    guarded::write(context, &guard, &token, Expired::of(args.strict), async || {
        guard.put(&token, body.into(), &kind).await
    })
    .await
}

#[cfg(not(feature = "full"))]
pub async fn put(_: &Context, args: &Put) -> Result<Exit> {
    Err(crate::targets::lean(args.url.split_once(':').map_or("", |(scheme, _)| scheme)))
}

/// The error about a file that was named and cannot be read; `what` it is ends in a space.
pub fn unreadable(path: &Path, what: &str, error: std::io::Error) -> Error {
    Error::new(Kind::Invalid, format!("cannot read {what}`{}`", path.display())).with_source(error)
}

/// A file that was named.
pub fn open(path: &Path, what: &str) -> Result<File> {
    File::open(path).map_err(|e| unreadable(path, what, e))
}

/// Reads all of a file, or of standard input for `-`; one that has more than the limit is refused, and not read further.
pub fn read_bounded(
    path: &Path,
    what: &str,
    field: &str,
    limit: usize,
    read: impl FnOnce(&mut dyn Read) -> std::io::Result<usize>,
) -> Result<()> {
    let most = limit as u64 + 1;
    let stdin: Stdin = std::io::stdin();
    let read = if path == Path::new("-") {
        read(&mut stdin.lock().take(most))
    } else {
        read(&mut open(path, what)?.take(most))
    };
    if read.map_err(|e| unreadable(path, what, e))? > limit {
        return Err(Error::invalid(field, path.display(), format!("at most {} MiB", limit >> 20)));
    }
    Ok(())
}
