//! `write`: a file, unless a newer epoch has been there.

use super::{explain, token};
use crate::args::{Common, Write as Args};
use crate::exit::Exit;
use crate::output;
use leasehold::guard::{Guard, Policy};
use leasehold::{Error, Kind, Result};
use leasehold_guards::FileGuard;
use serde_json::json;
use std::fs::File;

pub async fn write(common: &Common, args: &Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let policy = if args.once { Policy::OncePerEpoch } else { Policy::Reentrant };
    let guard = FileGuard::new(&args.file, policy)?;
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
    match written {
        Ok(high) => {
            if common.json {
                let strength = guard.strength().to_string();
                let value = json!({ "resource": guard.resource(), "epoch": high.epoch.get(), "strength": strength });
                output::json(&value)?;
            }
            Ok(Exit::Done)
        }
        Err(error) => Err(explain(common, &guard, &token, error).await),
    }
}
