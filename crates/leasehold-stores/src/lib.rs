//! Stores for Leasehold: one folder and one feature each, and [`open()`], which opens the store of a URL.
//!
//! | store | URL | who can share it | feature |
//! |---|---|---|---|
//! | SQLite | `sqlite:/path/file.db` | all processes of one machine | `sqlite` |
//! | directory | `dir:/path` | anyone who can write to the folder, also over NFS | `dir` |
//! | PostgreSQL | `postgres://host/db` | a fleet | `postgres` |
//! | MariaDB, MySQL | `mysql://user@host/database` | a fleet | `mysql` |
//! | Redis, Valkey | `redis://host` | anyone who can reach the server | `redis` |
//! | etcd | `etcd://host:2379,host2:2379`, `etcds://...` with TLS | a fleet | `etcd` |
//! | NATS JetStream | `nats://host:4222` | anyone who can reach the server | `nats` |
//! | object stores | `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` | a fleet | `object` |
//! | DynamoDB | `dynamodb://region/table` | anyone who may use the table | `dynamodb` |
//! | Firestore | `firestore://project/collection` | anyone who may use the database | `firestore` |
//! | Durable Objects | `do+https://host/path` | anyone who has the token | `durable` |
//! | a Leasehold server | `leasehold://host/namespace` | anyone who has a key | `remote` |

#[cfg(any(feature = "dynamodb", feature = "firestore", feature = "object"))]
mod credentials;
#[cfg(feature = "dir")]
pub mod dir;
#[cfg(feature = "durable")]
pub mod durable;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "firestore")]
pub mod firestore;
#[cfg(any(feature = "durable", feature = "dynamodb", feature = "etcd", feature = "firestore", feature = "remote"))]
mod http;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "object")]
pub mod object;
mod open;
#[allow(dead_code, reason = "a store alone may not need every phase")]
mod phase;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "rustls")]
#[allow(dead_code, reason = "a store alone may not need all that they share")]
mod tls;
mod url;
#[cfg(any(
    feature = "durable",
    feature = "dynamodb",
    feature = "etcd",
    feature = "firestore",
    feature = "nats",
    feature = "object",
    feature = "remote"
))]
mod utc;

#[cfg(feature = "sqlite")]
pub use open::blocker;
pub use open::{StoreUrl, open};
pub use url::{Address, Host, Namespace, Secret};

/// How many calls a handle with connections of its own (PostgreSQL, MySQL) has under way at once; more wait for one of these to
/// end. It is enough for the server to commit several swaps with one flush.
pub const CALLS_AT_ONCE: usize = 16;
