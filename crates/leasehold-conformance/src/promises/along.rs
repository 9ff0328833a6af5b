//! Changes along with a swap. If these are broken, an item that nobody may claim is in line, or one is in no line at all.

use crate::bench::{done, ensure, fresh_key, fresh_name};
use crate::{Bench, Broken, Verdict};
use leasehold_core::store::{Along, Change, Store, Swap};
use leasehold_core::{Key, Kind, LeaseName, Shelf};

/// How many clients write along with their swaps of one key, and how often each.
const CLIENTS: usize = 3;
const TURNS: usize = 12;

pub(crate) async fn what_is_written_along_goes_with_the_swap(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let (key, old, new) = (fresh_key("along")?, fresh_key("along")?, fresh_key("along")?);
    let put = Along { put: Some((&old, b"old")), erase: None };
    if !store.capabilities().writes_along {
        match store.write(&Change { along: put, ..Change::put(&key, None, b"1") }).await {
            Err(e) => ensure!(e.kind() == Kind::Unsupported, "a store that cannot write along with a swap says: {e}"),
            Ok(swap) => ensure!(false, "a store that cannot write along with a swap gave {swap:?}"),
        }
        ensure!(store.read(&key).await?.value.is_none(), "a refused swap was done");
        return Ok(());
    }
    let (first, _) =
        done(store.write(&Change { along: put, ..Change::put(&key, None, b"1") }).await?, "the first swap")?;
    let found = bench.open().await?.read(&old).await?.value;
    let found = found.filter(|value| value.bytes == b"old");
    ensure!(
        found.is_some_and(|v| v.revision == first),
        "what was put along with a swap is not there, with its revision"
    );
    let both = Along { put: Some((&new, b"new")), erase: Some(&old) };
    ensure!(
        store.write(&Change { along: both, ..Change::put(&key, None, b"x") }).await? == Swap::Mismatch,
        "a swap of what is there was done"
    );
    ensure!(
        is_there(&*store, &old).await? && !is_there(&*store, &new).await?,
        "a swap that was refused wrote others along with it"
    );
    let (second, _) =
        done(store.write(&Change { along: both, ..Change::put(&key, Some(&first), b"2") }).await?, "the second swap")?;
    ensure!(!is_there(&*store, &old).await?, "what was to be erased along with a swap is there");
    let found = store.read(&new).await?.value;
    ensure!(
        found.is_some_and(|v| v.revision == second),
        "what was put along with a swap is not there, with its revision"
    );
    ensure!(
        store.write(&Change { along: both, ..Change::put(&key, Some(&first), b"x") }).await? == Swap::Mismatch,
        "a swap was done with an old revision"
    );
    // What is there stays as it is, and what is not there need not be.
    let again = Along { put: Some((&new, b"again")), erase: Some(&old) };
    let (third, _) =
        done(store.write(&Change { along: again, ..Change::put(&key, Some(&second), b"3") }).await?, "the third swap")?;
    let found = store.read(&new).await?.value;
    ensure!(
        found.is_some_and(|v| v.bytes == b"new"),
        "what was there was overwritten by what was put along with a swap"
    );
    for shelf in Shelf::ALL.into_iter().filter(|shelf| shelf.is_permanent()) {
        let lease = Key::new(shelf, &fresh_name("along")?);
        done(store.swap(&lease, None, b"x").await?, "the first swap")?;
        let erasing = Along { put: None, erase: Some(&lease) };
        let refused = store.write(&Change { along: erasing, ..Change::put(&key, Some(&third), b"x") }).await;
        ensure!(refused.is_err_and(|e| e.kind() == Kind::Invalid), "`{lease}` may be erased along with a swap");
        ensure!(is_there(&*store, &lease).await?, "`{lease}` was erased along with a swap");
    }
    let found = store.read(&key).await?.value;
    ensure!(found.is_some_and(|v| v.bytes == b"3" && v.revision == third), "a refused swap changed the value");
    Ok(())
}

pub(crate) async fn a_swap_and_what_is_written_along_are_one_step(bench: Bench) -> Verdict {
    if !bench.open().await?.capabilities().writes_along {
        return Ok(());
    }
    let key = fresh_key("one-step")?;
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let (bench, key) = (bench.clone(), key.clone());
        clients.push(tokio::spawn(async move { take_turns(bench, key, client).await }));
    }
    let store = bench.open().await?;
    while clients.iter().any(|client| !client.is_finished()) {
        look(&*store, &key).await?;
        // A store in memory never waits, and the clients need their turn.
        tokio::task::yield_now().await;
    }
    for client in clients {
        client.await.map_err(|e| Broken(format!("a client panicked: {e}")))??;
    }
    look(&*store, &key).await
}

/// The key that a client puts along with its swap. The value of the swapped key names it.
fn put_by(key: &Key, client: usize, turn: usize) -> leasehold_core::Result<Key> {
    Ok(Key::new(Shelf::Probe, &LeaseName::new(format!("{}/{client}-{turn}", key.name))?))
}

async fn take_turns(bench: Bench, key: Key, client: usize) -> Verdict {
    let store = bench.open().await?;
    for turn in 0..TURNS {
        let put = put_by(&key, client, turn)?;
        let value = store.read(&key).await?.value;
        let last = value.as_ref().and_then(|value| String::from_utf8(value.bytes.clone()).ok());
        let last = last.map(|last| LeaseName::new(last).map(|name| Key::new(Shelf::Probe, &name))).transpose()?;
        let along = Along { put: Some((&put, b"x")), erase: last.as_ref() };
        let next = put.name.as_str().as_bytes();
        let expected = value.as_ref().map(|value| &value.revision);
        let swap = store.write(&Change { along, ..Change::put(&key, expected, next) }).await;
        match swap {
            Ok(Swap::Done { .. }) => {}
            Ok(Swap::Mismatch) => {
                ensure!(!is_there(&*store, &put).await?, "a swap that was refused wrote `{put}` along with it");
            }
            Err(e) if matches!(e.kind(), Kind::Unavailable | Kind::Contended | Kind::Indeterminate) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Checks that what was put along with the last swap is there, unless another swap came in between.
async fn look(store: &dyn Store, key: &Key) -> Verdict {
    let Some(value) = store.read(key).await?.value else { return Ok(()) };
    let name = LeaseName::new(String::from_utf8_lossy(&value.bytes))?;
    if !is_there(store, &Key::new(Shelf::Probe, &name)).await? {
        let again = store.read(key).await?.value.map(|value| value.revision);
        ensure!(again != Some(value.revision), "a swap was seen without `{name}`, which was put along with it");
    }
    Ok(())
}

async fn is_there(store: &dyn Store, key: &Key) -> leasehold_core::Result<bool> {
    Ok(store.read(key).await?.value.is_some())
}
