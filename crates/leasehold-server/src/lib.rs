//! What speaks HTTP: the server for those who must not hold the store's password, the reverse proxy, which holds leases of its
//! own and refuses requests of stale holders, the listener by which machines ask a running process for its numbers, and requests
//! of our own to other services.
//!
//! Promise: once a newer epoch was admitted, no request of an older one reaches the upstream whole. Non-promise: what
//! bypasses the proxy is not refused.

#[cfg(feature = "server")]
pub mod access;
#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
mod discreet;
#[cfg(feature = "server")]
mod early;
#[cfg(feature = "server")]
mod lanes;
#[cfg(feature = "server")]
pub mod oidc;
#[cfg(feature = "server")]
mod outage;
pub mod outbound;
#[cfg(feature = "server")]
mod pace;
#[cfg(feature = "server")]
pub mod page;
#[cfg(feature = "proxy")]
pub mod proxy;
#[cfg(feature = "server")]
mod remote;
#[cfg(feature = "server")]
pub mod serve;
pub mod status;

#[cfg(feature = "proxy")]
pub use proxy::HttpGuard;
