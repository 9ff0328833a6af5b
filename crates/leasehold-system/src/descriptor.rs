//! File descriptors that safe code cannot name: the only file with `unsafe`.
//!
//! Two things need it. A process that was started with a descriptor number on its command line must take ownership of
//! that number; and the runtime can wait on a descriptor only if told that nobody else will close it. Both are true
//! by construction here, and nowhere else may anybody claim so.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
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
