//! Stores for Leasehold: one file and one feature each, and [`open()`], which turns a URL into one.
//!
//! | store | URL | who can share it | feature |
//! |---|---|---|---|
//! | SQLite | `sqlite:/path/file.db` | all processes of one machine | `sqlite` |
//! | directory | `dir:/path` | whoever can write to the folder, over NFS too | `dir` |
//! | object stores | `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` | a fleet | `object` |

mod address;
#[cfg(feature = "dir")]
pub mod dir;
mod namespace;
#[cfg(feature = "object")]
pub mod object;
mod open;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use address::{Address, Host, Secret};
pub use namespace::Namespace;
pub use open::{StoreUrl, open};
