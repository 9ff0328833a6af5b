//! `man` and `completions`: one manual page per verb, in roff, and a shell's completion script.

use crate::args::{Completions, Man, arranged};
use crate::exit::{Exit, TABLE};
use crate::output;
use clap::Command;
use leasehold_core::{Error, Kind, Result};
use std::io::Write;
use std::path::Path;

/// What every page is of, at its foot.
const PROGRAM: &str = concat!("leasehold ", env!("CARGO_PKG_VERSION"));

pub fn man(args: &Man) -> Result<Exit> {
    let command = arranged();
    if let Some(folder) = &args.all {
        write_all(&command, folder)?;
        return Ok(Exit::Done);
    }
    let mut found = &command;
    for word in &args.verb {
        found = found.find_subcommand(word).ok_or_else(|| {
            let path = args.verb.join(" ");
            Error::invalid("verb", path, "use one that `leasehold --help` lists, such as `run` or `queue add`")
        })?;
    }
    output::print(&page(found)?)?;
    Ok(Exit::Done)
}

pub fn completions(args: &Completions) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut arranged(), "leasehold", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

/// One file for each verb, named as `man` looks for it.
fn write_all(command: &Command, folder: &Path) -> Result<()> {
    let cannot = |e| Error::unavailable(format!("cannot write manual pages to `{}`", folder.display()), e);
    std::fs::create_dir_all(folder).map_err(cannot)?;
    let path = folder.join(format!("{}.1", title(command)));
    std::fs::write(&path, page(command)?).map_err(cannot)?;
    output::line(&path.display().to_string())?;
    verbs(command).try_for_each(|verb| write_all(verb, folder))
}

fn verbs(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| verb.get_name() != "help")
}

fn title(command: &Command) -> &str {
    command.get_display_name().unwrap_or("leasehold")
}

fn page(command: &Command) -> Result<String> {
    let mut page = Vec::new();
    render(command, &mut page)
        .map_err(|e| Error::new(Kind::Unavailable, "cannot render the manual page").with_source(e))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn render(command: &Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    // Examples are set as they are written, by us.
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let command = command.clone().after_help("").version(env!("CARGO_PKG_VERSION"));
    // Of the program, and not of a verb.
    let man = clap_mangen::Man::new(command.clone()).title(title(&command)).source(PROGRAM);
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if verbs(&command).next().is_some() {
        writeln!(page, ".SH COMMANDS")?;
        for verb in verbs(&command) {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            writeln!(page, ".TP\n\\fB{}\\fR(1)\n{}", escaped(title(verb)), escaped(&about))?;
        }
    }
    if !examples.is_empty() {
        writeln!(page, ".SH EXAMPLES\n.nf")?;
        for line in examples.lines().filter(|line| *line != "Examples:") {
            writeln!(page, "{}", escaped(line))?;
        }
        writeln!(page, ".fi")?;
    }
    writeln!(page, ".SH EXIT STATUS")?;
    for (exit, meaning) in TABLE {
        writeln!(page, ".TP\n{}\n{}", exit.code(), escaped(meaning))?;
    }
    man.render_version_section(page)
}

/// Text as roff takes it for text.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
