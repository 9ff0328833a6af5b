//! A thread beside the runtime, for what may block.
//!
//! Promise: the runtime goes on meanwhile. Non-promise: what has begun there cannot be called off.

use leasehold_core::{Error, Kind, Result};

/// Runs what may block where it may.
pub async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(act).await {
        Ok(answer) => answer,
        Err(e) => Err(Error::new(Kind::Indeterminate, "the guard's thread ended early").with_source(e)),
    }
}
