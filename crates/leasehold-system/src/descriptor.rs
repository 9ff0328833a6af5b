//! What safe code cannot do: the only file with `unsafe`.
//!
//! Four things need it. A process that gets a descriptor number on its command line must take ownership
//! of that number. The runtime can wait on a descriptor only if nobody else closes it. The kernel
//! starts a process inside a control group only by a system call that the standard library does not
//! make. A process that handles a stop signal can be stopped by it only if the default action replaces
//! its handler for a moment. All are sound by construction here, and no other file may use `unsafe`.

#![allow(unsafe_code)]

use crate::sync::Mutex;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use tokio::io::unix::AsyncFd;

/// Lets the runtime wait on a descriptor.
pub(crate) fn watched(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` always gives the same open descriptor and closes it only when dropped, and the `AsyncFd`
    // takes it whole, so it stays open for as long as it is registered.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}

/// Takes ownership of a descriptor that our parent left open for us, and keeps our children from inheriting it.
///
/// Call it once per number, at the start of `main`, before anything else is opened.
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

/// The kernel's `struct clone_args`, up to the field that we need.
#[cfg(target_os = "linux")]
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Starts a command like `Command::spawn`, but inside the control group of this folder from its first instruction on.
/// Moving a running process there by a write to `cgroup.procs` takes the kernel about 10 ms.
///
/// The outer error says that no process could be started there. The inner error
/// is the command's own, such as a program that does not exist.
#[cfg(target_os = "linux")]
pub(crate) fn spawn_into(
    cgroup: BorrowedFd<'_>,
    command: &mut std::process::Command,
) -> io::Result<io::Result<rustix::process::Pid>> {
    use nix::libc;
    use std::os::unix::process::CommandExt;
    const CLONE_INTO_CGROUP: u64 = 1 << 33;

    if std::fs::read_dir("/proc/self/task")?.take(2).count() != 1 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a process with several threads cannot fork safely"));
    }
    let (from_child, to_parent) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let args = CloneArgs {
        flags: CLONE_INTO_CGROUP,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: cgroup.as_raw_fd() as u64,
        ..CloneArgs::default()
    };
    // SAFETY: `args` has the layout that the kernel expects, for the size that we give. Without CLONE_VM and without a
    // stack of its own the child runs on a copy of our memory, as after `fork`. This process has one thread (checked
    // above), so no lock in that copy is held by a thread that does not exist in the child.
    let number = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    if number == 0 {
        // The child becomes the command, or reports why it cannot. It must not unwind into the parent's code.
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| command.exec()));
        let errno = failed.ok().and_then(|error| error.raw_os_error()).unwrap_or(libc::EINVAL);
        let _ = rustix::io::write(&to_parent, &errno.to_ne_bytes());
        // SAFETY: it only ends this process, without running what the parent registered for its own end.
        unsafe { libc::_exit(127) }
    }
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = i32::try_from(number).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("the kernel gave no process number"))?;
    drop(to_parent);
    // Closed by the child's `exec`, or by its end.
    let mut errno = [0; 4];
    let told = rustix::io::retry_on_intr(|| rustix::io::read(&from_child, &mut errno[..]));
    if told == Ok(errno.len()) {
        let _ =
            rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()));
        return Ok(Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))));
    }
    Ok(Ok(pid))
}

/// Runs `act` while a signal has its default action, whatever handler this process
/// has for it. If the signal is raised on this thread meanwhile, it has taken
/// effect before this returns: after a stop signal, once the process is continued.
///
/// # Errors
/// If the number is not a signal, or the signal's action cannot be changed.
pub fn with_default_action<T>(signal: i32, act: impl FnOnce() -> T) -> io::Result<T> {
    // Two at once would restore what they found, and the later one would leave the default action.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let signal = Signal::try_from(signal)?;
    let own = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of ours.
    let handler = unsafe { sigaction(signal, &own) }?;
    let done = act();
    // SAFETY: it was this signal's action until now, and a handler once installed stays valid.
    unsafe { sigaction(signal, &handler) }?;
    Ok(done)
}
