//! `put`: an object in a bucket, unless a newer epoch has been there.

use crate::args::{Common, Put as Args};
use crate::exit::Exit;
use leasehold_core::Result;

#[cfg(feature = "full")]
pub async fn put(common: &Common, args: &Args) -> Result<Exit> {
    use super::tokens::overtaken;
    use super::{admitted, token};
    use crate::targets;
    use leasehold_core::guard::Policy;
    let token = token(args.token.as_deref())?;
    let policy = if args.once { Policy::OncePerEpoch } else { Policy::Reentrant };
    let (guard, kind) = targets::object(&args.url, args.salt.as_deref(), args.content_type.as_deref(), policy)?;
    let body = body(&args.file)?;
    overtaken(common, &guard, &token).await?;
    let written = guard.put(&token, body.into(), &kind).await;
    admitted(common, &guard, &token, written).await
}

/// All that is to be put; more than the limit is not read.
#[cfg(feature = "full")]
fn body(path: &std::path::Path) -> Result<Vec<u8>> {
    use leasehold_core::{Error, Kind};
    use leasehold_guards::object::MAX_BODY_BYTES;
    use std::io::Read;
    let unreadable =
        |e: std::io::Error| Error::new(Kind::Invalid, format!("cannot read `{}`", path.display())).with_source(e);
    let mut body = Vec::new();
    let limit = MAX_BODY_BYTES as u64 + 1;
    if path == std::path::Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut body).map_err(unreadable)?;
    } else {
        std::fs::File::open(path).map_err(unreadable)?.take(limit).read_to_end(&mut body).map_err(unreadable)?;
    }
    if body.len() > MAX_BODY_BYTES {
        return Err(Error::invalid("body", path.display(), format!("at most {} MiB", MAX_BODY_BYTES >> 20)));
    }
    Ok(body)
}

#[cfg(not(feature = "full"))]
pub async fn put(_: &Common, args: &Args) -> Result<Exit> {
    Err(crate::targets::lean(args.url.split_once(':').map_or("", |(scheme, _)| scheme)))
}
