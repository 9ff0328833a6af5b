//! Stores for Leasehold: one file and one feature each, and [`open()`], which turns a URL into one.
//!
//! | store | URL | who can share it | feature |
//! |---|---|---|---|
//! | SQLite | `sqlite:/path/file.db` | all processes of one machine | `sqlite` |
//! | directory | `dir:/path` | whoever can write to the folder, over NFS too | `dir` |
//! | NATS JetStream | `nats://host:4222` | whoever reaches the server | `nats` |

mod address;
#[cfg(feature = "dir")]
pub mod dir;
mod namespace;
#[cfg(feature = "nats")]
pub mod nats;
mod open;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use address::{Address, Host, Secret};
pub use namespace::Namespace;
pub use open::{StoreUrl, open};
