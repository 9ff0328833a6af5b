//! `man`: the manual page, in roff.

use crate::args::Cli;
use crate::exit::{Exit, TABLE};
use crate::output;
use clap::CommandFactory;
use leasehold::{Error, Kind, Result};
use std::io::Write;

pub fn man() -> Result<Exit> {
    let mut page = Vec::new();
    render(&mut page).map_err(|e| Error::new(Kind::Unavailable, "cannot render the manual page").with_source(e))?;
    output::print(&String::from_utf8_lossy(&page))?;
    Ok(Exit::Done)
}

fn render(page: &mut Vec<u8>) -> std::io::Result<()> {
    let command = Cli::command();
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    writeln!(page, ".SH COMMANDS")?;
    for verb in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        writeln!(page, ".SS {}", verb.get_name())?;
        clap_mangen::Man::new(verb.clone()).render_description_section(page)?;
        clap_mangen::Man::new(verb.clone()).render_options_section(page)?;
    }
    writeln!(page, ".SH EXIT STATUS")?;
    for (exit, meaning) in TABLE {
        writeln!(page, ".TP\n{}\n{}", exit.code(), meaning.replace('-', "\\-"))?;
    }
    man.render_extra_section(page)?;
    man.render_version_section(page)
}
