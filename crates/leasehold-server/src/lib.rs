//! What speaks HTTP: the reverse proxy, which holds leases of its own and refuses requests of stale holders, the listener by
//! which machines ask a running process for its numbers, and requests of our own to other services.
//!
//! Promise: once a newer epoch was admitted, no request of an older one reaches the upstream whole. Non-promise: what
//! bypasses the proxy is not refused.

#[cfg(feature = "proxy")]
pub mod outbound;
#[cfg(feature = "proxy")]
pub mod proxy;
pub mod status;

#[cfg(feature = "proxy")]
pub use proxy::HttpGuard;
