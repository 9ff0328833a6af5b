//! The drivers, and how a store is opened. This is the one place that knows every store.
//!
//! Promise: a networked store is created by its first write, never by opening it. Non-promise: a URL that parses may
//! still not open.

mod redacted;
mod store_url;

use crate::url::{Address, Namespace};
use leasehold_core::store::Store;
use leasehold_core::{Error, Kind, Result};
#[cfg(feature = "etcd")]
pub(crate) use redacted::redacted_text;
use std::path::Path;
use std::sync::Arc;
use store_url::Location;
pub use store_url::StoreUrl;

/// One line per store.
const DRIVERS: &[Driver] = &[
    Driver { feature: "sqlite", schemes: &["sqlite"], form: "sqlite:/path/file.db", is_path: true },
    Driver { feature: "dir", schemes: &["dir"], form: "dir:/shared/folder", is_path: true },
    Driver { feature: "mysql", schemes: &["mysql", "mariadb"], form: "mysql://user@host/database", is_path: false },
    Driver { feature: "etcd", schemes: &["etcd", "etcds"], form: "etcd://host:2379", is_path: false },
    Driver {
        feature: "redis",
        schemes: &["redis", "rediss", "valkey", "valkeys"],
        form: "redis://host",
        is_path: false,
    },
    Driver { feature: "postgres", schemes: &["postgres", "postgresql"], form: "postgres://host/db", is_path: false },
    Driver { feature: "nats", schemes: &["nats", "tls", "nats+tls"], form: "nats://host:4222", is_path: false },
    Driver {
        feature: "object",
        schemes: &["s3", "gs", "az"],
        form: "s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix",
        is_path: false,
    },
    Driver { feature: "dynamodb", schemes: &["dynamodb"], form: "dynamodb://region/table", is_path: false },
    Driver { feature: "firestore", schemes: &["firestore"], form: "firestore://project/collection", is_path: false },
    Driver { feature: "durable", schemes: &["do+https", "do+http"], form: "do+https://host/path", is_path: false },
    Driver {
        feature: "remote",
        schemes: &["leasehold", "leasehold+http"],
        form: "leasehold://host/namespace",
        is_path: false,
    },
];

/// The store behind a URL's scheme.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Driver {
    /// The cargo feature, which is also the store's name.
    feature: &'static str,
    schemes: &'static [&'static str],
    /// An example for messages, or several, with backquotes between them.
    form: &'static str,
    /// Whether a path follows the scheme, instead of a network address.
    is_path: bool,
}

/// Opens the store. A networked store is created by its first write, not here.
pub async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    let opened = match &url.location {
        Location::Path(path) => open_path(url.driver, Path::new(path), &url.namespace).await?,
        Location::Network(address, _) => open_networked(url.driver, address, &url.namespace).await?,
    };
    opened.ok_or_else(|| {
        let feature = url.driver.feature;
        let message =
            format!("no driver for `{url}`: rebuild with the cargo feature `full` (of the library: `{feature}`)");
        Error::new(Kind::Unsupported, message)
    })
}

#[allow(unused_variables, clippy::unused_async, reason = "a build without any such driver is allowed")]
async fn open_path(driver: &Driver, path: &Path, namespace: &Namespace) -> Result<Option<Arc<dyn Store>>> {
    Ok(match driver.feature {
        #[cfg(feature = "sqlite")]
        "sqlite" => Some(Arc::new(crate::sqlite::SqliteStore::open(path, namespace).await?)),
        #[cfg(feature = "dir")]
        "dir" => Some(Arc::new(crate::dir::DirStore::open(path, namespace).await?)),
        _ => None,
    })
}

/// Every networked store has `check` and `open` in its module.
macro_rules! networked {
    ($($feature:tt => $store:ident,)*) => {
        /// Refuses an address that the store could not use, before anything is
        /// opened. If its driver is missing, opening reports that.
        #[allow(unused_variables, clippy::match_single_binding, reason = "a build without any such driver is allowed")]
        fn check(driver: &Driver, address: &Address) -> Result<()> {
            match driver.feature {
                $(#[cfg(feature = $feature)] $feature => crate::$store::check(address),)*
                _ => Ok(()),
            }
        }

        #[allow(unused_variables, clippy::unused_async, reason = "a build without any such driver is allowed")]
        async fn open_networked(
            driver: &Driver,
            address: &Address,
            namespace: &Namespace,
        ) -> Result<Option<Arc<dyn Store>>> {
            Ok(match driver.feature {
                $(#[cfg(feature = $feature)] $feature => Some(Arc::new(crate::$store::open(address, namespace).await?)),)*
                _ => None,
            })
        }
    };
}

networked! {
    "mysql" => mysql,
    "etcd" => etcd,
    "redis" => redis,
    "postgres" => postgres,
    "nats" => nats,
    "object" => object,
    "dynamodb" => dynamodb,
    "firestore" => firestore,
    "durable" => durable,
    "remote" => remote,
}

/// The process that keeps others from writing to the store. Only SQLite has one: it allows one writer at a time, and a
/// writer that is stopped during its write blocks all others.
#[cfg(feature = "sqlite")]
pub fn blocker(url: &StoreUrl) -> Option<crate::sqlite::Blocker> {
    let path = url.path().filter(|_| url.driver.feature == "sqlite")?;
    crate::sqlite::blocker(path)
}

/// All forms of a URL, for messages.
fn forms() -> String {
    let mut forms = String::from("`sqlite:` (this user's own store)");
    for (index, driver) in DRIVERS.iter().enumerate() {
        let comma = if index + 1 == DRIVERS.len() { " or" } else { "," };
        forms.push_str(&format!("{comma} `{}`", driver.form));
    }
    forms
}

// Not in a build with every driver: `cargo xtask test --quick` runs it.
#[cfg(all(test, not(feature = "redis")))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lean_build_says_which_feature_is_missing() {
        let url = "redis://u:hunter2@h/0".parse::<StoreUrl>().unwrap();
        let error = open(&url).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert_eq!(
            error.to_string(),
            "no driver for `redis://u:***@h/0`: rebuild with the cargo feature `full` (of the library: `redis`)"
        );
    }
}
