//! A child that is waited for, with the signals that were meant for it passed on.
//!
//! Promise: signals are listened to before the child is started, so none is lost. Non-promise: what the child started
//! itself is the child's.

use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{Child, ExitStatus};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

/// Listens to the signals that end a command, and to those that tell that it has ended.
pub struct Relay {
    terminate: Listener,
    interrupt: Listener,
    hangup: Listener,
    child: Listener,
    was_told: bool,
}

impl Relay {
    pub fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|e| Error::unavailable("cannot listen to signals", e));
        Ok(Relay {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
            child: listen(SignalKind::child())?,
            was_told: false,
        })
    }

    /// Whether the child was asked to end.
    pub fn was_told(&self) -> bool {
        self.was_told
    }

    /// Waits for the child, and then for what comes `after` it.
    pub async fn wait(&mut self, mut child: Child, after: impl Future<Output = ()>) -> Result<ExitStatus> {
        let broken = |e| Error::unavailable("the end of the command could not be waited for", e);
        let (pid, mut after) = (Pid::from_raw(child.id().cast_signed()), pin!(after));
        loop {
            let status = child.try_wait().map_err(broken)?;
            let passed = tokio::select! {
                biased;
                () = &mut after, if status.is_some() => Err(status),
                _ = self.child.recv(), if status.is_none() => continue,
                _ = self.terminate.recv() => Ok(Signal::TERM),
                _ = self.interrupt.recv() => Ok(Signal::INT),
                _ = self.hangup.recv() => Ok(Signal::HUP),
            };
            self.was_told |= passed.is_ok();
            match (passed, pid) {
                (Err(Some(status)), _) => return Ok(status),
                // Not when it has ended: its number may be somebody else's by then.
                (Ok(signal), Some(pid)) if status.is_none() => drop(kill_process(pid, signal)),
                _ => {}
            }
        }
    }
}

/// Says that a program could not be started, and ends as a shell does then.
pub fn cannot_run(program: &OsStr, error: &std::io::Error) -> Exit {
    output::complain(&format!("cannot run `{}`: {error}", program.to_string_lossy()));
    Exit::Code(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// As a shell would show it.
pub fn exit_of(status: ExitStatus) -> Exit {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Exit::Code(u8::try_from(code & 0xff).unwrap_or(1))
}
