//! The command line of the verbs that set a machine or a store up.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold doctor                              the store in force
  leasehold doctor postgres://db.internal/jobs  another one, before you move to it
  leasehold doctor --folder /srv/www            and the file guard on a folder
  leasehold doctor spool:/srv/mail              a spool, as the user who asks")]
pub struct Doctor {
    /// The store or spool to test, instead of the store in force
    #[arg(conflicts_with = "store")]
    pub url: Option<String>,
    /// Test the file guard on this folder too
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
    /// Give up after this long, and remove what was made [default: 5m]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold migrate sqlite: postgres://db.internal/jobs --dry-run
  leasehold migrate dir:/mnt/team/leases redis://cache.internal

From then on everything in the old store ends with exit code 78 and the new address. While it is under way, nothing is granted
in the old store and no new lease or queue item comes up in the new one (exit code 69). Interrupted, by Ctrl-C or by a crash,
it is finished by the same command, or given up with --abort. FROM and TO are used instead of --store.")]
pub struct Migrate {
    /// The store to move from
    #[arg(conflicts_with = "store")]
    pub from: String,
    /// The store to move to
    pub to: String,
    /// Take held leases and queue items away from their holders, as `revoke` does, instead of refusing while there are any
    #[arg(long)]
    pub revoke_held: bool,
    /// Look at everything that could be in the way, and only say what would be moved; ends with the code of the real run
    #[arg(long)]
    pub dry_run: bool,
    /// Stop after this long; what was begun is finished by the same command, or given up with --abort [default: 1h]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub timeout: Option<String>,
    /// Give up a migration that was begun and interrupted: everything stays in the old store
    #[arg(long, conflicts_with_all = ["revoke_held", "dry_run"])]
    pub abort: bool,
    /// Who you are [default: user@host]
    #[arg(long, value_name = "TEXT")]
    pub by: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold"
)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold man | man -l -
  leasehold man queue add | man -l -
  leasehold man --all ~/.local/share/man/man1")]
pub struct Man {
    /// The verb [default: the command as a whole]
    #[arg(conflicts_with = "all")]
    pub verb: Vec<String>,
    /// Write the page of every verb to this folder, and print the files' names
    #[arg(long, value_name = "FOLDER")]
    pub all: Option<PathBuf>,
}
