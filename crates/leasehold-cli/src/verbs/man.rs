//! `man` and `completions`: the manual page, in roff, and a shell's completion script.

use crate::args::{Cli, Completions};
use crate::exit::{Exit, TABLE};
use crate::output;
use clap::CommandFactory;
use leasehold_core::{Error, Kind, Result};
use std::io::Write;

pub fn man() -> Result<Exit> {
    let mut page = Vec::new();
    render(&mut page).map_err(|e| Error::new(Kind::Unavailable, "cannot render the manual page").with_source(e))?;
    output::print(&String::from_utf8_lossy(&page))?;
    Ok(Exit::Done)
}

pub fn completions(args: &Completions) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "leasehold", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

fn render(page: &mut Vec<u8>) -> std::io::Result<()> {
    let mut command = Cli::command();
    // Only then do the verbs know the flags of every command, which theirs refer to.
    command.build();
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    writeln!(page, ".SH COMMANDS")?;
    for verb in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        writeln!(page, ".SS {}", verb.get_name())?;
        // What every verb has is said once, above.
        let man = clap_mangen::Man::new(verb.clone().mut_args(|arg| {
            let common = arg.is_global_set() || arg.get_id() == "help";
            arg.hide(common)
        }));
        let mut section = Vec::new();
        man.render_description_section(&mut section)?;
        man.render_options_section(&mut section)?;
        for line in String::from_utf8_lossy(&section).lines().filter(|line| !line.starts_with(".SH ")) {
            writeln!(page, "{line}")?;
        }
    }
    writeln!(page, ".SH EXIT STATUS")?;
    for (exit, meaning) in TABLE {
        writeln!(page, ".TP\n{}\n{}", exit.code(), meaning.replace('-', "\\-"))?;
    }
    man.render_extra_section(page)?;
    man.render_version_section(page)
}
