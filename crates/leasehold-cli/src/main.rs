//! The leasehold command: a file for each verb, or for a few that belong together.

mod args;
mod bar;
mod config;
mod context;
mod exit;
#[cfg(feature = "server")]
mod first_key;
mod guards;
mod interrupt;
#[cfg(any(feature = "http", feature = "server"))]
mod listen;
mod log;
mod metrics;
mod mistyped;
mod notify;
mod oidc;
mod orphans;
mod outbound;
mod output;
mod patience;
mod ping;
mod private_folder;
mod remedy;
mod run_context;
mod run_output;
mod service;
mod source;
mod stopping;
mod supervise;
mod table;
mod targets;
mod toml_reader;
mod verbs;
mod view;
mod whole_file;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use exit::Exit;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    leasehold_core::put_into_words(remedy::words);
    let words: Vec<_> = std::env::args_os().collect();
    match words.get(1).and_then(|word| word.to_str()) {
        Some(supervise::deadman::ARGUMENT) => return supervise::deadman::main(&words[2..]),
        Some(supervise::trial::ARGUMENT) => return supervise::trial::main(),
        Some(supervise::overdue::ASK) => return supervise::overdue::ask(&words[2..]),
        Some(verbs::doctor::CONTENDER) => {
            stopping::hold_back();
            return verbs::doctor::contend(&words[2..]);
        }
        _ => stopping::hold_back(),
    }
    let exit = if is_hook(&words) { verbs::hook::fail_closed(|| begin(&words)) } else { begin(&words) };
    log::finish();
    exit.into()
}

/// Whether these words are of a hook, as far as that can be told before they are understood.
fn is_hook(words: &[OsString]) -> bool {
    const WITH_VALUE: [&str; 4] = ["--store", "--context", "--log", "--log-format"];
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some(flag) if WITH_VALUE.contains(&flag) => drop(words.next()),
            Some(flag) if flag.starts_with('-') => {}
            verb => return verb == Some("hook"),
        }
    }
    false
}

/// Does what the words say.
fn begin(words: &[OsString]) -> Exit {
    let mut command = args::Cli::command();
    let parsed = command.try_get_matches_from_mut(words).and_then(|found| args::Cli::from_arg_matches(&found));
    let parsed = parsed.map_err(|error| error.format(&mut command));
    // Thousands of small pieces: the end of the process frees them at once.
    std::mem::forget(command);
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return refuse(error, words),
    };
    if let Err(error) = log::install(&cli) {
        return output::fail(&error);
    }
    mistyped::warn();
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::say(&format!("cannot start: {error}"));
            return Exit::Unavailable;
        }
    };
    let exit = runtime.block_on(verbs::execute(cli)).unwrap_or_else(|error| output::fail(&error));
    // A store's thread may still wait for a server or a disk; nobody waits for it.
    runtime.shutdown_background();
    if let Exit::Signal(number) = exit {
        log::finish();
        // Returns only if the signal could not be raised.
        let _ = signal_hook::low_level::emulate_default_handler(number.into());
    }
    exit
}

/// Prints the page that was asked for, or what is wrong with these words.
fn refuse(error: clap::Error, words: &[OsString]) -> Exit {
    match error.kind() {
        ErrorKind::DisplayHelp => {
            return output::print(&args::page(words)).map_or_else(|e| Exit::from(&e), |()| Exit::Done);
        }
        ErrorKind::DisplayVersion => {
            let _ = error.print();
            return Exit::Done;
        }
        _ => log::install_for(words),
    }
    let (error, hint) = args::with_hint(error, words);
    match log::format() {
        log::Format::Text if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{}", args::page(words));
        }
        log::Format::Text => {
            let _ = error.print();
            hint.iter().for_each(|hint| eprintln!("\n{hint}"));
        }
        log::Format::Json => {
            let told: Vec<_> = [error.to_string().trim_end().to_owned()].into_iter().chain(hint).collect();
            tracing::error!(target: log::SAY, exit_code = Exit::Usage.code(), "{}", told.join("; "));
        }
    }
    Exit::Usage
}

const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// The runtime of a command, with its first thread.
///
/// Where blocking work is to be done (SQLite, folders, the names of hosts), tokio panics if it has no thread and can make
/// none; if it has one, the work waits for it. So the first is made at the start, and none that was made is given up: a
/// moment without threads delays what is under way, and ends nothing.
fn runtime() -> std::io::Result<Runtime> {
    let runtime = Builder::new_current_thread().enable_all().thread_keep_alive(FOR_EVER).build()?;
    // Writes nothing. Of all that makes a thread, only writing gives an error where none can be made.
    let written = runtime.block_on(async { tokio::io::stderr().write(&[]).await });
    written.map_err(|_| std::io::Error::new(std::io::ErrorKind::WouldBlock, "the system has no thread for it now"))?;
    Ok(runtime)
}
