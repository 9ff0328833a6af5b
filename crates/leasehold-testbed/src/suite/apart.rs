//! Namespaces of one store.

use leasehold_core::store::{Range, Store, Swap};
use leasehold_core::{Key, LeaseName, Shelf};
use std::sync::Arc;

/// Two namespaces of one store share no record, on any shelf, and neither lists what is in the other.
///
/// # Panics
/// If they do.
pub async fn namespaces_are_apart(one: Arc<dyn Store>, other: Arc<dyn Store>) {
    let name = LeaseName::new(format!("namespaces/{}", leasehold_core::Nonce::random())).unwrap();
    for shelf in Shelf::ALL {
        let key = Key::new(shelf, &name);
        assert!(matches!(one.swap(&key, None, b"one").await.unwrap(), Swap::Done { .. }), "{key}");
        assert_eq!(other.read(&key).await.unwrap().value, None, "{key}");
        assert!(matches!(other.swap(&key, None, b"other").await.unwrap(), Swap::Done { .. }), "{key}");
        assert_eq!(one.read(&key).await.unwrap().value.unwrap().bytes, b"one", "{key}");
        for (store, expected) in [(&one, b"one".as_slice()), (&other, b"other".as_slice())] {
            let found: Vec<Vec<u8>> = everything(&**store, shelf)
                .await
                .into_iter()
                .filter(|(listed, _)| *listed == name)
                .map(|(_, bytes)| bytes)
                .collect();
            assert_eq!(found, [expected], "{key}");
        }
    }
}

async fn everything(store: &dyn Store, shelf: Shelf) -> Vec<(LeaseName, Vec<u8>)> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(shelf, Range::new(after.as_ref(), 100)).await.unwrap();
        after = page.entries.last().map(|(name, _)| name.clone());
        all.extend(page.entries.into_iter().map(|(name, value)| (name, value.bytes)));
        if !page.more {
            return all;
        }
    }
}
