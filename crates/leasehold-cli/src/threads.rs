//! The runtime's threads, on a machine that may have none to give for a while.
//!
//! Where blocking work is to be done (SQLite, folders, the names of hosts), tokio panics if it has no thread and can make
//! none; if it has one, the work waits for it. So the first is made at the start, and none that was made is given up.
//!
//! Promise: a moment without threads delays what is under way, and ends nothing. Non-promise: work that keeps the last
//! thread busy keeps the rest waiting.

use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Runtime};

const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// The runtime of a command, with its first thread.
pub fn runtime() -> io::Result<Runtime> {
    let runtime = Builder::new_current_thread().enable_all().thread_keep_alive(FOR_EVER).build()?;
    // Writes nothing. Of all that makes a thread, only writing gives an error where none can be made.
    let written = runtime.block_on(async { tokio::io::stderr().write(&[]).await });
    written.map_err(|_| io::Error::new(io::ErrorKind::WouldBlock, "the system has no thread for it now"))?;
    Ok(runtime)
}
