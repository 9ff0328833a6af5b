//! A child that is waited for, with the signals that were meant for it passed on.
//!
//! Promise: signals are listened to before the child is started, so none is lost. Non-promise: what the child started
//! itself is the child's.

use crate::exit::Exit;
use leasehold::{Error, Kind, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::sync::oneshot;

/// Listens to the signals that end a command.
pub struct Relay(Listener, Listener, Listener);

impl Relay {
    pub fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|e| Error::unavailable("cannot listen to signals", e));
        Ok(Relay(listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?, listen(SignalKind::hangup())?))
    }

    /// Waits for the child, and then for what `after` does, which is called when it has ended.
    pub async fn wait(mut self, mut child: Child, after: impl FnOnce() + Send + 'static) -> Result<ExitStatus> {
        let pid = Pid::from_raw(child.id().cast_signed());
        let (ended, mut end) = oneshot::channel();
        std::thread::spawn(move || {
            let status = child.wait();
            after();
            let _ = ended.send(status);
        });
        let status = loop {
            let passed = tokio::select! {
                biased;
                status = &mut end => break status,
                _ = self.0.recv() => Signal::TERM,
                _ = self.1.recv() => Signal::INT,
                _ = self.2.recv() => Signal::HUP,
            };
            if let Some(pid) = pid {
                let _ = kill_process(pid, passed);
            }
        };
        let broken = || Error::new(Kind::Unavailable, "the end of the command could not be waited for");
        status.map_err(|_| broken())?.map_err(|e| broken().with_source(e))
    }
}

/// As a shell would show it.
pub fn exit_of(status: ExitStatus) -> Exit {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Exit::Code(u8::try_from(code & 0xff).unwrap_or(1))
}
