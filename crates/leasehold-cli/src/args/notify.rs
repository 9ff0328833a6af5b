//! The command line of notifications.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct Notify {
    #[command(subcommand)]
    pub verb: NotifyVerb,
}

#[derive(Debug, Subcommand)]
pub enum NotifyVerb {
    /// Send a test event to every channel, or to one, and print what came back
    Test(NotifyTest),
}

#[derive(Debug, Args)]
#[command(after_help = "\
The event has the type notify.test. It is sent once, at once, and is not kept: nothing is written into the store. The exit code is 1
if a channel did not take it. `leasehold config` lists the channels.

Examples:
  leasehold notify test
  leasehold notify test ops")]
pub struct NotifyTest {
    /// The channel: the `name` of its [[notify]] table, or as `leasehold config` shows it [default: all of them]
    pub channel: Option<String>,
}
