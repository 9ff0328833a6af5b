//! Erasing, and revisions that never come back. If one does, a process that slept through it all wins with it.

use crate::bench::{done, ensure, fresh_key, fresh_name};
use crate::{Bench, Verdict};
use leasehold_core::store::Swap;
use leasehold_core::{Key, Kind, Revision, Shelf};
use std::collections::HashSet;

/// How often a key is written, erased and written again.
const LIVES: usize = 8;
/// More swaps than a store is likely to remember versions of.
const MANY: usize = 60;

pub(crate) async fn an_erase_needs_the_expected_revision(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let key = fresh_key("erase")?;
    let (old, _) = done(store.swap(&key, None, b"1").await?, "the first swap")?;
    let (new, _) = done(store.swap(&key, Some(&old), b"2").await?, "the second swap")?;
    ensure!(store.erase(&key, &old).await? == Swap::Mismatch, "an erase that expects an old revision was done");
    ensure!(store.read(&key).await?.value.is_some(), "a refused erase erased");
    done(store.erase(&key, &new).await?, "an erase that expects the revision")?;
    ensure!(bench.open().await?.read(&key).await?.value.is_none(), "an erased key still has a value");
    ensure!(store.erase(&key, &new).await? == Swap::Mismatch, "a second erase was done");
    Ok(())
}

pub(crate) async fn a_revision_is_never_reused(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let key = fresh_key("reuse")?;
    let mut seen: HashSet<Revision> = HashSet::new();
    for _ in 0..LIVES {
        // The same bytes every time: a tag made of the content would come back.
        let mut current: Option<Revision> = None;
        for _ in 0..3 {
            let (revision, _) = done(store.swap(&key, current.as_ref(), b"same").await?, "a swap")?;
            ensure!(seen.insert(revision.clone()), "revision {revision:?} was given twice");
            current = Some(revision);
        }
        if let Some(current) = current {
            done(store.erase(&key, &current).await?, "an erase")?;
        }
    }
    for old in &seen {
        let swap = store.swap(&key, Some(old), b"zombie").await?;
        ensure!(swap == Swap::Mismatch, "a swap of an erased key was done with its old revision {old:?}");
    }
    Ok(())
}

pub(crate) async fn an_old_revision_never_wins_again(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let key = fresh_key("old")?;
    let mut old = Vec::new();
    let mut current = done(store.swap(&key, None, b"same").await?, "the first swap")?.0;
    for _ in 0..MANY {
        let next = done(store.swap(&key, Some(&current), b"same").await?, "a swap")?.0;
        old.push(std::mem::replace(&mut current, next));
    }
    let zombie = bench.open().await?;
    for revision in &old {
        let swap = zombie.swap(&key, Some(revision), b"zombie").await?;
        ensure!(swap == Swap::Mismatch, "{revision:?}, which {MANY} swaps have left behind, won");
    }
    let value = store.read(&key).await?.value;
    ensure!(value.is_some_and(|v| v.revision == current && v.bytes == b"same"), "refused swaps changed the value");
    Ok(())
}

pub(crate) async fn a_lease_is_never_erased(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    // Nor is a fence: the epochs that it shut out would be let in again. Nor is the mark that everything moved away.
    for shelf in Shelf::ALL.into_iter().filter(|shelf| shelf.is_permanent()) {
        let key = Key::new(shelf, &fresh_name("never-erased")?);
        let (revision, _) = done(store.swap(&key, None, b"x").await?, "the first swap")?;
        match store.erase(&key, &revision).await {
            Err(e) => ensure!(e.kind() == Kind::Invalid, "erasing `{key}` gave another error: {e}"),
            Ok(swap) => ensure!(false, "erasing `{key}` gave {swap:?}"),
        }
        ensure!(store.read(&key).await?.value.is_some(), "record `{key}` was erased");
    }
    Ok(())
}
