//! A claimed item, and how long the claim may be trusted.
//!
//! Promise: the trust window of a lease applies to an item too: see
//! `leasehold_core::Grant`. Non-promise: a grant that is not renewed expires.

use leasehold_core::hints::{self, Opening};
use leasehold_core::item::name::ItemName;
use leasehold_core::item::record::Item;
use leasehold_core::{Grant, Revision, Store};
use std::ops::Deref;
use std::sync::Arc;

/// An item as last seen.
pub(super) type ItemSnapshot = leasehold_core::cell::Snapshot<Item>;

/// A claimed item, and its entry in the line.
#[derive(Debug, Clone)]
pub struct ItemGrant {
    pub(super) name: ItemName,
    pub(super) grant: Grant<Item>,
    /// The revision of its entry in the line, if it was found there.
    pub(super) entry: Option<Revision>,
}

impl ItemGrant {
    /// The name of the item.
    pub fn name(&self) -> &ItemName {
        &self.name
    }

    /// The record as last written.
    pub fn item(&self) -> &Item {
        self.grant.record()
    }
}

impl Deref for ItemGrant {
    type Target = Grant<Item>;

    fn deref(&self) -> &Grant<Item> {
        &self.grant
    }
}

/// Hints that an item may have changed.
pub(crate) fn watch_item(store: &Arc<dyn Store>, name: &ItemName) -> Opening {
    match name.key() {
        Ok(key) => hints::watch(store.clone(), key),
        Err(_) => Box::pin(std::future::ready(None)),
    }
}
