//! The leases of one store, and the way in.

use crate::lease::Lease;
use leasehold_core::{Coordinator, Result, Store};
use leasehold_stores::StoreUrl;
use std::sync::Arc;

/// Opens a store by its URL.
///
/// `sqlite:` alone is this user's own store, the default of the command. A networked store is connected to when it is first used.
/// Add `?namespace=NAME` to keep the leases of one team apart.
///
/// # Errors
/// [`Kind::Invalid`](crate::Kind::Invalid) if it is not a URL of a store; [`Kind::Unsupported`](crate::Kind::Unsupported) if its
/// driver is a feature that is not compiled in; otherwise the error of opening the file or folder.
pub async fn connect(url: &str) -> Result<Leases> {
    Leases::open(&url.parse()?).await
}

/// The leases of one store. Clones share the store.
#[derive(Debug, Clone)]
pub struct Leases {
    coordinator: Coordinator,
}

impl Leases {
    /// The same as [`connect`], for a URL that is already parsed.
    ///
    /// # Errors
    /// Those of [`connect`].
    pub async fn open(url: &StoreUrl) -> Result<Self> {
        Ok(Leases::on(leasehold_stores::open(url).await?))
    }

    /// The leases of this store: for stores that [`connect`] does not know.
    pub fn on(store: Arc<dyn Store>) -> Self {
        Leases { coordinator: Coordinator::new(store) }
    }

    /// A lease of this name. Nothing happens before [`Lease::run`] or [`Lease::acquire`], which also refuse an invalid name.
    pub fn lease<'a>(&self, name: &str) -> Lease<'a> {
        Lease::new(self.coordinator.clone(), name)
    }

    /// A queue of this name. It need not be created: a queue exists as soon as it has an item.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) if it is not a valid name of a queue.
    #[cfg(feature = "work")]
    pub fn queue(&self, name: &str) -> Result<crate::queue::Queue> {
        crate::queue::Queue::new(&self.coordinator, name)
    }

    /// A job of this name that is due by a cron line, or at a regular interval such as `@every 45m`. Nothing happens before
    /// [`Schedule::each`](crate::schedule::Schedule::each), which also refuses a wrong line.
    #[cfg(feature = "work")]
    pub fn schedule<'a>(&self, name: &str, line: &str) -> crate::schedule::Schedule<'a> {
        crate::schedule::Schedule::new(self.coordinator.clone(), name, line)
    }

    /// The store that was connected to, for the traits that take one.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.coordinator.store()
    }

    /// The coordinator behind it, for crates of this workspace.
    #[doc(hidden)]
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }
}

#[doc(hidden)]
impl From<Coordinator> for Leases {
    fn from(coordinator: Coordinator) -> Self {
        Leases { coordinator }
    }
}
