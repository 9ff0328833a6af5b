//! A dead-man that was started and runs nothing yet.

use super::wire::Arguments;
use crate::log;
use leasehold_core::{Error, Kind, Nonce, Result};
use leasehold_system::process::{Tree, check_table, own_program};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// The dead-man and our end of the channel to it. Dropped, it ends by itself.
#[derive(Debug)]
pub struct Standby {
    pub(super) tree: Tree,
    pub(super) cgroup_key: Option<String>,
    pub(super) child: Child,
    pub(super) reports: Lines<BufReader<OwnedReadHalf>>,
    pub(super) orders: OwnedWriteHalf,
}

/// What a command is fed with besides its arguments.
#[derive(Debug, Default)]
pub struct Feed {
    /// Its standard input.
    pub input: Option<File>,
    /// Variables to set, whatever is in them.
    pub environment: Vec<(&'static str, OsString)>,
    /// Where its output goes.
    pub output: Piping,
}

/// Where a command's output goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Piping {
    /// To where ours goes: a terminal stays a terminal.
    #[default]
    Inherited,
    /// To us, by a [`Capture`].
    ///
    /// [`Capture`]: super::Capture
    Piped,
}

impl Standby {
    /// Starts the dead-man with its end of the channel.
    pub fn start(command: Vec<OsString>, store: &str, feed: Feed) -> Result<Self> {
        let cannot = |error: std::io::Error| Error::unavailable("cannot start the command", error);
        let cgroup_key = wants_cgroup()?.then(|| Nonce::random().to_string());
        // If the dead-man is killed, what was below it falls to us. Before it is started: what is below us now is not ours.
        let tree = Tree::begin().map_err(unwatchable)?;
        let (ours, theirs) = StdUnixStream::pair().map_err(cannot)?;
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(|e| cannot(e.into()))?;
        let arguments = Arguments { channel: theirs.as_raw_fd(), cgroup_key, command };
        let mut command = Command::new(own_program().map_err(cannot)?);
        // Here and not over the channel, because a path may have any character.
        command.arg0("leasehold").args(arguments.to_args()).env("LEASEHOLD_STORE", store).process_group(0);
        log::hand_down_format(&mut command);
        if feed.output == Piping::Piped {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command.envs(feed.environment);
        if let Some(input) = feed.input {
            command.stdin(input);
        }
        let child = command.spawn().map_err(cannot)?;
        drop(theirs);
        ours.set_nonblocking(true).map_err(cannot)?;
        let (reports, orders) = UnixStream::from_std(ours).map_err(cannot)?.into_split();
        Ok(Standby { tree, cgroup_key: arguments.cgroup_key, child, reports: BufReader::new(reports).lines(), orders })
    }
}

/// Whether commands get a control group where one can be made: `auto` (unless said otherwise) or `off`.
pub const CGROUP: &str = "LEASEHOLD_CGROUP";

/// What the environment says of [`CGROUP`].
pub(super) fn wants_cgroup() -> Result<bool> {
    match std::env::var_os(CGROUP) {
        None => Ok(true),
        Some(word) if word.is_empty() || word == "auto" => Ok(true),
        Some(word) if word == "off" => Ok(false),
        Some(word) => Err(Error::invalid(CGROUP, word.display(), "it is `auto` or `off`")),
    }
}

/// Refuses what would have to start processes where they could not be watched over. To be asked before a lease or an item
/// is taken for it.
pub fn check() -> Result<()> {
    wants_cgroup()?;
    check_table().map_err(unwatchable)
}

/// Why processes cannot be watched over, as an error that says whether trying again may help.
pub fn unwatchable(error: std::io::Error) -> Error {
    let kind = if error.kind() == std::io::ErrorKind::Unsupported { Kind::Unsupported } else { Kind::Unavailable };
    Error::new(kind, "cannot watch over processes").with_source(error)
}
