//! Everything that differs between Linux and macOS, and nothing else.
//!
//! Promise: every call below means the same on both systems, so no other crate names an operating system. Non-promise:
//! it knows nothing of leases, and decides nothing.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as native;

#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
use macos as native;

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!("leasehold runs on Linux and macOS; other systems are not promised");

pub mod accounts;
pub mod clock;
pub mod critical;
pub mod descriptor;
pub mod host;
pub mod locks;
pub mod paths;
pub mod process;
pub mod rename;
pub mod scratch;
pub mod sync;
pub mod terminal;
pub mod undo;
pub mod volume;
pub mod watch;
mod words;

pub use native::NAME;
