//! Services that hold leases of their own: the reverse proxy, which refuses requests of stale holders.
//!
//! Promise: once a newer epoch was admitted, no request of an older one reaches the upstream whole. Non-promise: what
//! bypasses the proxy is not refused.

pub mod proxy;

pub use proxy::HttpGuard;
