//! Writing beside a swap. If that is broken, an item is in line that nobody may have, or in no line at all.

use crate::bench::{done, ensure, fresh_key, fresh_name};
use crate::{Bench, Verdict};
use leasehold::store::{Beside, Store, Swap};
use leasehold::{Key, Kind, Shelf};

pub(crate) async fn what_lies_beside_goes_with_the_swap(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let (key, old, new) = (fresh_key("beside")?, fresh_key("beside")?, fresh_key("beside")?);
    let put = Beside { put: Some((&old, b"old")), erased: None };
    if !store.writes_beside() {
        match store.swap_beside(&key, None, b"1", put).await {
            Err(e) => ensure!(e.kind() == Kind::Unsupported, "a store that cannot write beside a swap says: {e}"),
            Ok(swap) => ensure!(false, "a store that cannot write beside a swap gave {swap:?}"),
        }
        ensure!(store.read(&key).await?.value.is_none(), "a refused swap was done");
        return Ok(());
    }
    let (first, _) = done(store.swap_beside(&key, None, b"1", put).await?, "the first swap")?;
    let found = bench.open().await?.read(&old).await?.value;
    let found = found.filter(|value| value.bytes == b"old");
    ensure!(found.is_some_and(|v| v.revision == first), "what was put beside a swap is not there, with its revision");
    let both = Beside { put: Some((&new, b"new")), erased: Some(&old) };
    ensure!(store.swap_beside(&key, None, b"x", both).await? == Swap::Mismatch, "a swap of what is there was done");
    ensure!(is_there(&*store, &old).await? && !is_there(&*store, &new).await?, "a swap that was refused wrote beside");
    let (second, _) = done(store.swap_beside(&key, Some(&first), b"2", both).await?, "the second swap")?;
    ensure!(!is_there(&*store, &old).await?, "what was to be erased beside a swap is there");
    let found = store.read(&new).await?.value;
    ensure!(found.is_some_and(|v| v.revision == second), "what was put beside a swap is not there, with its revision");
    ensure!(
        store.swap_beside(&key, Some(&first), b"x", both).await? == Swap::Mismatch,
        "a swap was done with an old revision"
    );
    // What is there stays as it is, and what is not there need not be.
    let again = Beside { put: Some((&new, b"again")), erased: Some(&old) };
    let (third, _) = done(store.swap_beside(&key, Some(&second), b"3", again).await?, "the third swap")?;
    let found = store.read(&new).await?.value;
    ensure!(found.is_some_and(|v| v.bytes == b"new"), "what was there was overwritten by what was put beside a swap");
    for shelf in Shelf::ALL.into_iter().filter(|shelf| shelf.is_permanent()) {
        let lease = Key::new(shelf, &fresh_name("beside")?);
        done(store.swap(&lease, None, b"x").await?, "the first swap")?;
        let erasing = Beside { put: None, erased: Some(&lease) };
        let refused = store.swap_beside(&key, Some(&third), b"x", erasing).await;
        ensure!(refused.is_err_and(|e| e.kind() == Kind::Invalid), "`{lease}` may be erased beside a swap");
        ensure!(is_there(&*store, &lease).await?, "`{lease}` was erased beside a swap");
    }
    let found = store.read(&key).await?.value;
    ensure!(found.is_some_and(|v| v.bytes == b"3" && v.revision == third), "a refused swap changed the value");
    Ok(())
}

async fn is_there(store: &dyn Store, key: &Key) -> leasehold::Result<bool> {
    Ok(store.read(key).await?.value.is_some())
}
