//! Guards: the places that are written to, and that refuse stale writers.
//!
//! Promise: a token that a guard has seen outrun is refused, with no window where the guard's strength says *atomic*.
//! Non-promise: a writer that goes past the guard is not stopped, and there is no order between different guards.
//!
//! ```
//! use leasehold::{Epoch, Lineage, Nonce, Token, guard::Policy};
//! use leasehold_guards::FileGuard;
//!
//! # fn main() -> leasehold::Result<()> {
//! # let folder = tempfile::tempdir().map_err(|e| leasehold::Error::unavailable("no folder", e))?;
//! # let path = folder.path().join("out.json");
//! let guard = FileGuard::new(&path, Policy::Reentrant)?;
//! let grant = |epoch| Token { lease: "daily".parse().unwrap(), lineage: Lineage::from_u128(1), epoch, nonce: Nonce::random(), seq: 0 };
//! let (old, new) = (grant(Epoch::new(41)?), grant(Epoch::new(42)?));
//! guard.write_from(&old, &b"by 41"[..])?;
//! guard.seal_now(&new)?;
//! assert!(guard.write_from(&old, &b"too late"[..]).is_err());
//! # Ok(()) }
//! ```

#[cfg(feature = "file")]
mod adopt;
#[cfg(any(feature = "file", feature = "sqlite", feature = "http", feature = "mcp"))]
mod blocking;
#[cfg(feature = "file")]
mod displaced;
#[cfg(feature = "file")]
mod failure;
#[cfg(feature = "file")]
mod fence;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "folder")]
mod folder;
#[cfg(feature = "folder")]
mod generations;
#[cfg(feature = "git")]
pub mod git;
#[cfg(feature = "http")]
pub mod http;
#[cfg(any(feature = "http", feature = "mcp"))]
mod kept;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "file")]
mod nesting;
#[cfg(feature = "object")]
pub mod object;
#[cfg(feature = "file")]
mod permit;
#[cfg(feature = "file")]
mod place;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "file")]
mod remains;
#[cfg(feature = "sql")]
pub mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "sql", feature = "object"))]
mod stages;
#[cfg(any(feature = "http", feature = "mcp"))]
mod state_folder;
#[cfg(feature = "file")]
mod steps;
#[cfg(any(feature = "file", feature = "git", feature = "http", feature = "mcp", feature = "object", feature = "sql"))]
#[cfg_attr(not(all(feature = "file", feature = "git")), allow(dead_code))]
mod succession;
#[cfg(feature = "folder")]
mod tree;

#[cfg(feature = "file")]
pub use file::FileGuard;
#[cfg(feature = "folder")]
pub use folder::FolderGuard;
#[cfg(feature = "git")]
pub use git::GitGuard;
#[cfg(feature = "http")]
pub use http::HttpGuard;
#[cfg(any(feature = "http", feature = "mcp"))]
pub use kept::{StoreFence, is_older_copy};
#[cfg(feature = "mysql")]
pub use mysql::MysqlGuard;
#[cfg(feature = "object")]
pub use object::ObjectGuard;
#[cfg(feature = "postgres")]
pub use postgres::PostgresGuard;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteGuard;
#[cfg(any(feature = "sql", feature = "object"))]
pub use stages::{Stage, Stages};
#[cfg(feature = "file")]
pub use steps::{Step, Steps};
