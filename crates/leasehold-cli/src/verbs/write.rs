//! `write`: a file, unless a newer epoch has been there.

use super::tokens::overtaken;
use super::{admitted, token};
use crate::args::{Common, Write as Args};
use crate::exit::Exit;
use leasehold_core::guard::Policy;
use leasehold_core::{Error, Kind, Result};
use leasehold_guards::FileGuard;
use std::fs::File;

pub async fn write(common: &Common, args: &Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let policy = if args.once { Policy::OncePerEpoch } else { Policy::Reentrant };
    let guard = FileGuard::new(&args.file, policy)?;
    overtaken(common, &guard, &token).await?;
    let written = match &args.from {
        None => guard.write_from(&token, std::io::stdin().lock()),
        Some(path) => {
            let file = File::open(path).map_err(|e| {
                Error::new(Kind::Invalid, format!("cannot read --from `{}`", path.display())).with_source(e)
            })?;
            if file.metadata().is_ok_and(|m| m.is_dir()) {
                return Err(Error::invalid("--from", path.display(), "it is a folder; use `leasehold publish`"));
            }
            guard.write_from(&token, file)
        }
    };
    admitted(common, &guard, &token, written).await
}
