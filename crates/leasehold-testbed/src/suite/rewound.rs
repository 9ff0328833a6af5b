//! What happens to a swap that a failover or a restored backup undid.

use leasehold_core::store::{Revision, Store, Swap};
use leasehold_core::{Key, LeaseName, Shelf};

/// A swap that the server forgot has a revision of its own: whoever was told of it cannot win over what came instead.
/// The records are kept by `save` and brought back by `rewind`.
pub async fn a_forgotten_swap_does_not_come_again(store: &dyn Store, save: impl FnOnce(), rewind: impl FnOnce()) {
    let Ok(name) = LeaseName::new("rewound") else { panic!("it is a name") };
    let key = Key::new(Shelf::Probe, &name);
    let first = swapped(store, &key, None, b"first").await;
    save();
    let forgotten = swapped(store, &key, Some(&first), b"forgotten").await;
    rewind();
    let instead = swapped(store, &key, Some(&first), b"instead").await;
    assert_ne!(forgotten, instead, "two values have one revision");
    match store.swap(&key, Some(&forgotten), b"stale").await {
        Ok(Swap::Mismatch) => {}
        other => panic!("a forgotten revision was swapped against: {other:?}"),
    }
}

async fn swapped(store: &dyn Store, key: &Key, expected: Option<&Revision>, value: &[u8]) -> Revision {
    match store.swap(key, expected, value).await {
        Ok(Swap::Done { revision, .. }) => revision,
        other => panic!("nobody else writes {key}: {other:?}"),
    }
}
