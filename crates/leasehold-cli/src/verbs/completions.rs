//! `completions`: a shell completion script.

use crate::args::{Cli, Completions as Args};
use crate::exit::Exit;
use crate::output;
use clap::CommandFactory;
use leasehold_core::Result;

pub fn completions(args: &Args) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "leasehold", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
