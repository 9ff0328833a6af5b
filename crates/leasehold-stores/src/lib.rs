//! Stores for Leasehold: one file and one feature each, and [`open()`], which turns a URL into one.
//!
//! | store | URL | who can share it | feature |
//! |---|---|---|---|
//! | SQLite | `sqlite:/path/file.db` | all processes of one machine | `sqlite` |
//! | Durable Objects | `do+https://host/path` | whoever has the token | `durable` |
//! | DynamoDB | `dynamodb://region/table` | whoever may use the table | `dynamodb` |
//! | Firestore | `firestore://project/collection` | whoever may use the database | `firestore` |
//! | directory | `dir:/path` | whoever can write to the folder, over NFS too | `dir` |

mod address;
#[cfg(feature = "dir")]
pub mod dir;
#[cfg(feature = "durable")]
pub mod durable;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "firestore")]
pub mod firestore;
#[cfg(any(feature = "dynamodb", feature = "firestore", feature = "durable"))]
mod http;
#[cfg(any(feature = "dynamodb", feature = "firestore", feature = "durable"))]
mod https;
mod namespace;
mod open;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use address::{Address, Host, Secret};
pub use namespace::Namespace;
pub use open::{StoreUrl, open};
