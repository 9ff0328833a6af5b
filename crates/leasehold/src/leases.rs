//! The leases of one store, and the way in.

use crate::lease::Lease;
use leasehold_core::{Coordinator, Result, Store};
use leasehold_stores::StoreUrl;
use std::sync::Arc;

/// Opens a store by its URL.
///
/// `sqlite:` alone is this user's own store, the one that the command uses if none is named. A networked store is connected
/// to when it is first used. Add `?namespace=NAME` to keep the leases of one team apart.
///
/// # Errors
/// [`Kind::Invalid`](crate::Kind::Invalid) if that is no URL of a store; [`Kind::Unsupported`](crate::Kind::Unsupported) if
/// its driver is a feature that is not compiled in; otherwise what opening a file or folder gave.
pub async fn connect(url: &str) -> Result<Leases> {
    Leases::open(&url.parse()?).await
}

/// The leases of one store. Clones share it.
#[derive(Debug, Clone)]
pub struct Leases {
    coordinator: Coordinator,
}

impl Leases {
    /// [`connect`] for a URL that was parsed before.
    ///
    /// # Errors
    /// Those of [`connect`].
    pub async fn open(url: &StoreUrl) -> Result<Self> {
        Ok(Leases::on(leasehold_stores::open(url).await?))
    }

    /// The leases of this store, for one that [`connect`] does not know.
    pub fn on(store: Arc<dyn Store>) -> Self {
        Leases { coordinator: Coordinator::new(store) }
    }

    /// Asks for a lease of this name. Nothing happens before [`Lease::run`] or [`Lease::acquire`], and a name that is none
    /// is refused there.
    pub fn lease<'a>(&self, name: &str) -> Lease<'a> {
        Lease::new(self.coordinator.clone(), name)
    }

    /// A queue of this name. It need not have been made: a queue is there when an item is.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) if that is no name of a queue.
    #[cfg(feature = "work")]
    pub fn queue(&self, name: &str) -> Result<crate::queue::Queue> {
        crate::queue::Queue::new(&self.coordinator, name)
    }

    /// A job of this name, which is due by a cron line, or every so often: `@every 45m`. Nothing happens before
    /// [`Schedule::each`](crate::schedule::Schedule::each), and a wrong line is refused there.
    #[cfg(feature = "work")]
    pub fn schedule<'a>(&self, name: &str, line: &str) -> crate::schedule::Schedule<'a> {
        crate::schedule::Schedule::new(self.coordinator.clone(), name, line)
    }

    /// The store that was connected to, for the traits that take one.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.coordinator.store()
    }

    /// What the door is built on, for crates of this workspace.
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
