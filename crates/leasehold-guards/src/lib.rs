//! Guards: they stand at the place that is written to, and refuse stale writers.
//!
//! Promise: once a guard has seen a newer token, it refuses the older one. There is no window where its strength says
//! *atomic*.
//! Non-promise: a writer that bypasses the guard is not stopped, and there is no order between different guards.
//!
//! ```
//! use leasehold_core::{Epoch, Lineage, Nonce, Token, guard::Policy};
//! use leasehold_guards::FileGuard;
//!
//! # fn main() -> leasehold_core::Result<()> {
//! # let folder = tempfile::tempdir().map_err(|e| leasehold_core::Error::unavailable("no folder", e))?;
//! # let path = folder.path().join("out.json");
//! let guard = FileGuard::new(&path, Policy::Reentrant)?;
//! let grant = |epoch| Token { lease: "daily".parse().unwrap(), lineage: Lineage::from_u128(1), epoch, nonce: Nonce::random(), seq: 0 };
//! let (old, new) = (grant(Epoch::new(41)?), grant(Epoch::new(42)?));
//! guard.write_from(&old, &b"by 41"[..])?;
//! guard.seal_now(&new)?;
//! assert!(guard.write_from(&old, &b"too late"[..]).is_err());
//! # Ok(()) }
//! ```

#[cfg(any(feature = "file", feature = "sqlite", feature = "mcp"))]
#[doc(hidden)]
pub mod blocking;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "folder")]
mod folder;
#[cfg(feature = "git")]
pub mod git;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(feature = "object")]
pub mod object;
#[cfg(any(feature = "file", feature = "git", feature = "sql", feature = "object"))]
mod observe;
#[cfg(feature = "file")]
#[cfg_attr(not(feature = "folder"), allow(dead_code, reason = "a file alone needs less of it"))]
mod permit;
#[cfg(feature = "sql")]
#[cfg_attr(
    not(all(feature = "mysql", feature = "postgres", feature = "sqlite")),
    allow(dead_code, reason = "a database alone may not need all that they share")
)]
pub mod sql;
#[cfg(feature = "mcp")]
#[doc(hidden)]
pub mod stored;
#[cfg(any(feature = "file", feature = "git", feature = "mcp", feature = "object", feature = "sql"))]
#[cfg_attr(not(all(feature = "file", feature = "git")), allow(dead_code))]
mod succession;

#[cfg(feature = "file")]
pub use file::FileGuard;
#[cfg(feature = "folder")]
pub use folder::FolderGuard;
#[cfg(feature = "git")]
pub use git::GitGuard;
#[cfg(feature = "object")]
pub use object::ObjectGuard;
#[cfg(feature = "file")]
pub use observe::file::FileStep;
#[cfg(feature = "git")]
pub use observe::git::GitStep;
#[cfg(any(feature = "sql", feature = "object"))]
pub use observe::write::WriteStep;
#[cfg(feature = "mysql")]
pub use sql::mysql::MysqlGuard;
#[cfg(feature = "postgres")]
pub use sql::postgres::PostgresGuard;
#[cfg(feature = "sqlite")]
pub use sql::sqlite::SqliteGuard;
#[cfg(feature = "mcp")]
pub use stored::{Behind, StoreFence, is_older_copy};
