//! The plain atomic write: what careful programs do without a fence. Also as a process of its own.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fs::{File, rename};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

/// The first argument that makes this program write its input to the file that follows, and do nothing else.
pub const ARGUMENT: &str = "__plain-write";

/// Replaces the file: write, fsync, rename, fsync of the folder.
pub fn write(file: &Path, payload: &[u8]) -> Result<()> {
    let staged = file.with_extension("new");
    let mut new = File::create(&staged)?;
    new.write_all(payload)?;
    new.sync_all()?;
    rename(&staged, file)?;
    File::open(file.parent().context("the file is in no folder")?)?.sync_all()?;
    Ok(())
}

/// The process.
pub fn main(words: &[OsString]) -> ExitCode {
    let done = || -> Result<()> {
        let file = words.first().context("give a file")?;
        let mut payload = Vec::new();
        std::io::stdin().read_to_end(&mut payload)?;
        write(Path::new(file), &payload)
    };
    match done() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plain write: {error:#}");
            ExitCode::FAILURE
        }
    }
}
