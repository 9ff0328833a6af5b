//! An errand: a command next to the work, such as one that notifies people, with a time limit.
//!
//! Promise: when the time is over, or the waiting future is dropped, every process of it is ended, however it was started; what
//! it leaves in the background is ended when it has ended itself. Non-promise: its standard output is read by nobody.

use super::deadlines::Deadlines;
use super::finished::{Ended, Trouble};
use super::standby::wants_cgroup;
use super::wire::{self, Arguments, Order, Outbox, Report};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Error, Nonce, Result};
use leasehold_system::process::own_program;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// Between SIGTERM and SIGKILL, and between that and the end of the time.
const GRACE: Duration = Duration::from_millis(500);
const MARGIN: Duration = Duration::from_millis(200);

/// What is to be run.
#[derive(Debug)]
pub struct Errand {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// Where; here if none.
    pub folder: Option<PathBuf>,
    /// What it finds in its environment, in place of every variable of ours.
    pub environment: Vec<(&'static str, String)>,
    /// What it finds on its standard input.
    pub input: Vec<u8>,
}

impl Errand {
    /// Runs it; none if it had not ended in time.
    pub async fn run(self, limit: Duration) -> Result<Option<Ended>> {
        let until = SystemClock.now() + limit;
        let cannot = |error: std::io::Error| Error::unavailable("cannot start it", error);
        let (ours, theirs) = StdUnixStream::pair().map_err(cannot)?;
        let input = self.input.clone();
        let mut child = self.start(theirs).map_err(cannot)?;
        ours.set_nonblocking(true).map_err(cannot)?;
        let (reports, orders) = UnixStream::from_std(ours).map_err(cannot)?.into_split();
        let (mut reports, mut orders) = (BufReader::new(reports).lines(), Outbox::new(orders));
        let (grace, margin) = (GRACE.min(limit / 8), MARGIN.min(limit / 8));
        orders.send(&Order::Begin(until, Deadlines { grace, margin }));
        let stdin = child.stdin.take();
        let mut feeding = std::pin::pin!(async move {
            if let Some(mut stdin) = stdin {
                // A command that does not read it has it in the environment.
                let _ = stdin.write_all(&input).await;
            }
        });
        let (mut is_fed, mut is_late) = (false, false);
        loop {
            let line = tokio::select! {
                line = reports.next_line() => line,
                () = &mut feeding, if !is_fed => {
                    is_fed = true;
                    continue;
                }
                () = orders.retry_time() => {
                    orders.push();
                    continue;
                }
                // The dead-man was stopped, or killed.
                () = SystemClock.sleep_until(until) => return Ok(None),
            };
            let Ok(Some(line)) = line else { break };
            let ended = match wire::parse(&line) {
                Some(Report::OutOfTrust) => {
                    is_late = true;
                    continue;
                }
                Some(Report::NotStarted(errno)) => Ended::NotStarted(Trouble(errno)),
                Some(Report::Exited(code)) => Ended::Exited(code),
                Some(Report::Killed(signal)) => Ended::Killed(signal),
                _ => continue,
            };
            let _ = child.wait().await;
            return Ok(Some(ended).filter(|_| !is_late));
        }
        Err(Error::unavailable("cannot start it", std::io::Error::other("what watches over it has ended")))
    }

    /// Starts the dead-man with its end of the channel.
    fn start(self, channel: StdUnixStream) -> std::io::Result<Child> {
        rustix::io::fcntl_setfd(&channel, rustix::io::FdFlags::empty())?;
        let cgroup_key = wants_cgroup().unwrap_or(true).then(|| Nonce::random().to_string());
        let arguments = Arguments { channel: channel.as_raw_fd(), cgroup_key, command: self.words };
        let mut command = Command::new(own_program()?);
        command.arg0("leasehold").args(arguments.to_args()).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LEASEHOLD_")) {
            command.env_remove(name);
        }
        command.envs(self.environment);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.spawn()
    }
}
