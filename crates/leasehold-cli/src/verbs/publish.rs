//! `publish`: a folder in one step, unless a newer epoch has been there.

use super::tokens::overtaken;
use super::{admitted, token};
use crate::args::{Common, Publish as Args};
use crate::exit::Exit;
use leasehold_core::guard::Policy;
use leasehold_core::{Error, Kind, Result};
use leasehold_guards::FolderGuard;

pub async fn publish(common: &Common, args: &Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let guard = FolderGuard::new(&args.target, Policy::Reentrant)?.keeping(args.keep);
    // The guard would find out only after it has shut older holders out.
    let stat = std::fs::metadata(&args.folder).map_err(|e| {
        Error::new(Kind::Invalid, format!("cannot read the folder `{}`", args.folder.display())).with_source(e)
    })?;
    if !stat.is_dir() {
        let allowed = "use a folder; single files are for `leasehold write`";
        return Err(Error::invalid("source", args.folder.display(), allowed));
    }
    overtaken(common, &guard, &token).await?;
    admitted(common, &guard, &token, guard.publish(&token, &args.folder)).await
}
