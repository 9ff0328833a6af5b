//! A thread beside the runtime, for calls that block.
//!
//! Promise: the runtime is not blocked. Non-promise: a call that has started cannot be cancelled.

use leasehold_core::{Error, Kind, Result};

/// Runs a call that may block on a thread where it may.
pub async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(act).await {
        Ok(answer) => answer,
        Err(e) => Err(Error::new(Kind::Indeterminate, "the guard's thread ended before it answered").with_source(e)),
    }
}
