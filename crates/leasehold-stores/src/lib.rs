//! Stores for Leasehold: one file and one feature each, and [`open()`], which turns a URL into one.
//!
//! | store | URL | who can share it | feature |
//! |---|---|---|---|
//! | SQLite | `sqlite:/path/file.db` | all processes of one machine | `sqlite` |
//! | Durable Objects | `do+https://host/path` | whoever has the token | `durable` |
//! | DynamoDB | `dynamodb://region/table` | whoever may use the table | `dynamodb` |
//! | Firestore | `firestore://project/collection` | whoever may use the database | `firestore` |
//! | directory | `dir:/path` | whoever can write to the folder, over NFS too | `dir` |
//! | MariaDB, MySQL | `mysql://user@host/database` | a fleet | `mysql` |
//! | etcd | `etcd://host:2379,host2:2379`, `etcds://...` with TLS | a fleet | `etcd` |
//! | Redis, Valkey | `redis://host` | whoever can reach the server | `redis` |
//! | PostgreSQL | `postgres://host/db` | a fleet | `postgres` |
//! | NATS JetStream | `nats://host:4222` | whoever reaches the server | `nats` |
//! | object stores | `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` | a fleet | `object` |

mod address;
#[cfg(feature = "dir")]
pub mod dir;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "etcd")]
mod http;
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
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "object")]
pub mod object;
mod open;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use address::{Address, Host, Secret};
pub use namespace::Namespace;
pub use open::{StoreUrl, open};
