//! File descriptors and signal actions that safe code cannot name: the only file with `unsafe`.
//!
//! Three things need it. A process that was started with a descriptor number on its command line must take ownership of
//! that number; the runtime can wait on a descriptor only if told that nobody else will close it; and a process that has
//! handled a stop signal can be stopped by it only if the system's own action is put in the handler's place. All are
//! sound by construction here, and nowhere else may anybody claim so.

#![allow(unsafe_code)]

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use tokio::io::unix::AsyncFd;

/// Lets the runtime wait on a descriptor.
pub(crate) fn watched(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` always gives the same open descriptor and closes it only when dropped, and the `AsyncFd`
    // takes it whole, so it stays open for as long as it is registered.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}

/// Takes ownership of a descriptor that our parent left open for us, and keeps it from our own children.
///
/// Call it once per number, first thing in `main`, before anything else is opened.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "descriptors 0 to 2 belong to the standard streams"));
    }
    // SAFETY: the number is only borrowed for the two calls below, which fail with EBADF if it is not open.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(borrowed)?;
    rustix::io::fcntl_setfd(borrowed, flags | rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open (checked above), it came from our parent, and by this function's contract nobody else in this
    // process has taken it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Does something while a signal has the system's own action, whatever handler this process has for it. If the signal is
/// raised on this thread meanwhile, it has acted before this returns: after a stop signal, once the process is continued.
///
/// # Errors
/// If it is not a signal, or one whose action cannot be changed.
pub fn with_default_action<T>(signal: i32, act: impl FnOnce() -> T) -> io::Result<T> {
    // Two at once would each put back what they found, the later one the system's own.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let signal = Signal::try_from(signal)?;
    let own = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the system's own action runs no code of ours.
    let handler = unsafe { sigaction(signal, &own) }?;
    let done = act();
    // SAFETY: it was this signal's action until now, and a handler once installed stays valid.
    unsafe { sigaction(signal, &handler) }?;
    Ok(done)
}
