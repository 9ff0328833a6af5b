//! `init`: a `leasehold.toml` that says what can be set.

use crate::args::Init;
use crate::exit::Exit;
use crate::{output, whole_file};
use leasehold_core::{Error, Kind, Result};
use std::path::Path;

/// Every setting with its default, as a comment, and a job.
pub const TEMPLATE: &str = include_str!("init.toml");

pub fn init(args: &Init) -> Result<Exit> {
    if args.print {
        output::print(TEMPLATE)?;
        return Ok(Exit::Done);
    }
    let path = args.path.as_deref().unwrap_or(Path::new("leasehold.toml"));
    let shown = path.display();
    whole_file::create(path, TEMPLATE).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            let message = format!("there is a `{shown}` already; nothing was changed. See `leasehold init --print`");
            Error::new(Kind::Invalid, message)
        }
        _ => Error::new(Kind::Unsupported, format!("cannot write `{shown}`")).with_source(e),
    })?;
    output::say(&format!("wrote `{shown}`; `leasehold config` shows what is in force"));
    Ok(Exit::Done)
}
