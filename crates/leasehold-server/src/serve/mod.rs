//! The server: a listener, what it lets in, and the router.
//!
//! Promise: stateless. What it knows is in the store, so any number of servers can answer for one store, and any of them can
//! be killed. Non-promise: those who use the store directly neither need it nor are kept out by it.

mod admission;
mod bodies;
mod body_budget;
mod detached;
mod extract;
pub mod gate;
mod health;
mod json;
mod listener;
mod namespaces;
mod newcomers;
mod next_step;
mod problem;
mod router;
mod settings;
mod site;
mod slow_clients;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_bodies;
#[cfg(test)]
mod tests_floods;
#[cfg(test)]
mod tests_http2;
#[cfg(test)]
mod tests_routes;
mod tls;
mod traffic;

pub use admission::Claimed;
pub use detached::{ClientLeft, Ongoing, Undo};
pub use extract::{In, bearer};
pub use gate::{Over, Waiter, Waiting};
pub use json::Json;
pub use listener::Server;
pub use namespaces::OpenLimits;
pub(crate) use next_step::all as next_steps;
pub use problem::Problem;
pub use settings::{Exposure, Limits, PathPrefix, Settings, TlsFiles};
pub use site::{Opener, Site};
pub use traffic::Answered;
