//! The service manager that started us, if one did: systemd's notification protocol, a datagram of `KEY=value` lines.
//!
//! Promise: what cannot be sent stops nothing. Non-promise: nobody needs to listen; without `NOTIFY_SOCKET` nothing is sent.

use leasehold_core::clock::{Clock, Moment, SystemClock};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHED: &str = "WATCHDOG_PID";
/// What is meant for this process only, and not for what it starts.
pub const VARIABLES: [&str; 3] = [SOCKET, WATCHDOG, WATCHED];

/// Where to tell how we are.
#[derive(Debug)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// How long it waits for a sign of life before it restarts us.
    watchdog: Option<Duration>,
    next: Moment,
}

impl ServiceManager {
    /// The one that the environment names.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        let is_ours = variable(WATCHED).is_none_or(|pid| pid == std::process::id().to_string());
        let micros = variable(WATCHDOG).and_then(|text| text.parse().ok()).filter(|_| is_ours);
        ServiceManager {
            socket: variable(SOCKET).and_then(|path| connect(&path)),
            watchdog: micros.map(Duration::from_micros).filter(|limit| !limit.is_zero()),
            next: SystemClock.now(),
        }
    }

    /// How often to call [`Self::tick`], if somebody wants signs of life.
    pub fn interval(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.socket.is_some()).map(|limit| limit / 3)
    }

    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    pub fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// Gives a sign of life if one is due and the work is still running.
    pub fn tick(&mut self, is_healthy: impl FnOnce() -> bool) {
        let Some(interval) = self.interval() else { return };
        let now = SystemClock.now();
        if now >= self.next && is_healthy() {
            self.send("WATCHDOG=1");
            self.next = now + interval;
        }
    }

    fn send(&self, text: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(text.as_bytes());
        }
    }
}

/// A path, or a name in the abstract namespace of Linux.
fn connect(path: &str) -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    // A manager that does not read must not stop us.
    socket.set_nonblocking(true).ok()?;
    match path.strip_prefix('@') {
        None => socket.connect(path).ok()?,
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name).ok()?;
            socket.connect_addr(&address).ok()?;
        }
        #[cfg(not(target_os = "linux"))]
        Some(_) => return None,
    }
    Some(socket)
}
