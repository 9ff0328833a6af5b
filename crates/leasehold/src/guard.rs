//! Guards: places that are written to, and that refuse stale writers.
//!
//! A guard is sealed when the lease is acquired ([`Lease::guard`](crate::Lease::guard)). From then on an earlier holder can no
//! longer write there, however late it wakes up.
//!
//! | guard | feature | writes with |
//! |---|---|---|
//! | [`file`](file()) | `file` | `write(&held, bytes)` |
//! | [`folder`](folder()) | `folder` | `publish(&held, path)` |
//! | [`git`](git()) | `git` | `push(&held, refspecs, ...)` |
//! | `sql` | `sqlite`, `postgres`, `mysql` | a transaction of your own, with `admit` in it |
//! | `object` | `object` | `put(&held, bytes, content_type)` |
//!
//! # Writing a guard
//! Implement [`Guard`]. Decide by [`seal`] and [`admit`] alone: they are the one predicate by which a resource refuses a token.
//! Apply the write and store what they return in one atomic step; if the resource cannot do that, say so in its [`Strength`].

pub use leasehold_core::guard::*;

#[cfg(feature = "file")]
pub use leasehold_guards::FileGuard;
#[cfg(feature = "folder")]
pub use leasehold_guards::FolderGuard;
#[cfg(feature = "git")]
pub use leasehold_guards::GitGuard;
#[cfg(feature = "mysql")]
pub use leasehold_guards::MysqlGuard;
#[cfg(feature = "object")]
pub use leasehold_guards::ObjectGuard;
#[cfg(feature = "postgres")]
pub use leasehold_guards::PostgresGuard;
#[cfg(feature = "sqlite")]
pub use leasehold_guards::SqliteGuard;
#[cfg(feature = "mcp")]
pub use leasehold_guards::mcp;
#[cfg(feature = "object")]
pub use leasehold_guards::object;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use leasehold_guards::sql;

/// A guard for one file, which need not exist; the folder around it must. Each write replaces the whole file.
///
/// # Errors
/// None today; a path that cannot be guarded is refused when it is sealed.
#[cfg(feature = "file")]
pub fn file(path: impl Into<std::path::PathBuf>) -> crate::Result<FileGuard> {
    FileGuard::new(path, Policy::Reentrant)
}

/// A guard for a folder, which need not exist; the folder around it must. Each publish replaces the whole folder in one step.
///
/// # Errors
/// None today; a path that cannot be guarded is refused when it is sealed.
#[cfg(feature = "folder")]
pub fn folder(path: impl Into<std::path::PathBuf>) -> crate::Result<FolderGuard> {
    FolderGuard::new(path, Policy::Reentrant)
}

/// A guard for what this lease pushes to a remote: a remote's name in the current repository, a URL or a path.
///
/// # Errors
/// [`Kind::Invalid`](crate::Kind::Invalid) if it is not a remote.
#[cfg(feature = "git")]
pub fn git(remote: &str) -> crate::Result<GitGuard> {
    GitGuard::new(remote, Policy::Reentrant)
}

/// A guard for the SQLite database in this file as a whole.
#[cfg(feature = "sqlite")]
pub fn sqlite(path: impl Into<std::path::PathBuf>) -> SqliteGuard {
    SqliteGuard::new(path, sql::Resource::default(), Policy::Reentrant)
}
