//! Listing and reading. If these are broken, people and janitors miss leases, or change them by reading.

use crate::bench::{done, ensure};
use crate::{Bench, Broken, Verdict};
use leasehold_core::store::{Range, Store, Versioned};
use leasehold_core::{Key, LeaseName, Nonce, Shelf};

/// A bound on pages, so that a store whose pages never end is caught too.
const MAX_PAGES: usize = 10_000;

pub(crate) async fn a_listing_is_ordered_paged_and_complete(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let id = Nonce::random();
    let mut names = Vec::new();
    for ending in ["a", "B", "b", "a/b", "a.b", "a-b", "a0", "Z", "_", "0", "zz/z", "Aa", &"L".repeat(150)] {
        names.push(LeaseName::new(format!("{id}/{ending}"))?);
    }
    for name in &names {
        let (key, value) = (Key::new(Shelf::Probe, name), name.as_str().as_bytes());
        done(store.swap(&key, None, value).await?, "a first swap")?;
    }
    // An erased name must not show, nor break the paging.
    let gone = LeaseName::new(format!("{id}/a5"))?;
    let (revision, _) = done(store.swap(&Key::new(Shelf::Probe, &gone), None, b"x").await?, "a first swap")?;
    done(store.erase(&Key::new(Shelf::Probe, &gone), &revision).await?, "an erase")?;
    names.sort();
    for limit in [1, 4, names.len(), 1_000] {
        let listed = list_all(&*store, Some(&LeaseName::new(id.to_string())?), limit).await?;
        let ours: Vec<_> =
            listed.into_iter().take_while(|(name, _)| name.as_str().starts_with(&id.to_string())).collect();
        let found: Vec<_> = ours.iter().map(|(name, _)| name.clone()).collect();
        ensure!(found == names, "in pages of {limit}, {found:?} was listed instead of {names:?}");
        let wrong = ours.iter().find(|(name, value)| value.bytes != name.as_str().as_bytes());
        ensure!(wrong.is_none(), "a listing has another record's value: {wrong:?}");
    }
    let elsewhere = list_all(&*store, None, 1_000).await?.len();
    ensure!(elsewhere >= names.len(), "a listing from the beginning has fewer entries than one from the middle");
    Ok(())
}

pub(crate) async fn skipping_leaves_out_the_first(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let id = Nonce::random();
    for ending in 0..6 {
        let key = Key::new(Shelf::Probe, &LeaseName::new(format!("{id}/{ending}"))?);
        done(store.swap(&key, None, b"x").await?, "a first swap")?;
    }
    let start = LeaseName::new(id.to_string())?;
    let all = list_all(&*store, Some(&start), 1_000).await?;
    for (skip, limit) in [(0, 2), (1, 1), (2, 3), (5, 1_000), (all.len(), 4), (all.len() + 9, 1)] {
        let page = store.list(Shelf::Probe, Range { skip, ..Range::new(Some(&start), limit) }).await?;
        let (found, rest) = (page.entries, &all[skip.min(all.len())..]);
        let expected = &rest[..limit.min(rest.len())];
        // A page may be short, but then it says that there is more, and has an entry to continue from.
        ensure!(expected.starts_with(&found), "after {skip} of {}, at most {limit}: {found:?} was listed", all.len());
        ensure!(
            page.more || found.len() == rest.len(),
            "after {skip}, {} of {} are said to be all",
            found.len(),
            rest.len()
        );
        ensure!(!page.more || !found.is_empty(), "after {skip} there is said to be more, and nothing to continue from");
    }
    Ok(())
}

pub(crate) async fn a_listing_ends_before_until(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let id = Nonce::random();
    let names: Vec<_> = (0..6).map(|ending| LeaseName::new(format!("{id}/{ending}"))).collect::<Result<_, _>>()?;
    for name in &names {
        done(store.swap(&Key::new(Shelf::Probe, name), None, b"x").await?, "a first swap")?;
    }
    let (start, between) = (LeaseName::new(id.to_string())?, LeaseName::new(format!("{id}/2x"))?);
    for (until, within) in [(&names[4], 4), (&between, 3), (&names[0], 0), (&start, 0)] {
        let (mut after, mut found) = (start.clone(), Vec::new());
        for _ in 0..MAX_PAGES {
            let range = Range { until: Some(until), ..Range::new(Some(&after), 2) };
            let page = store.list(Shelf::Probe, range).await?;
            found.extend(page.entries.into_iter().map(|(name, _)| name));
            match found.last().filter(|_| page.more) {
                Some(last) => after = last.clone(),
                None => break,
            }
        }
        ensure!(found == names[..within], "{found:?} was listed before `{until}`");
        for (skip, left) in [(1, within.saturating_sub(1)), (within, 0), (within + 1, 0)] {
            let range = Range { until: Some(until), skip, ..Range::new(Some(&start), 1) };
            let page = store.list(Shelf::Probe, range).await?;
            let (found, more) = (page.entries.len(), page.more);
            ensure!(found == left.min(1), "after {skip} of {within} before `{until}`, {found} were listed");
            ensure!(!more || left > 1, "after {skip} of {within} before `{until}` there is said to be more");
        }
    }
    Ok(())
}

pub(crate) async fn looking_changes_nothing(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let before = list_all(&*store, None, 100).await?;
    for (name, value) in before.iter().take(20) {
        let read = store.read(&Key::new(Shelf::Probe, name)).await?.value;
        ensure!(read.as_ref() == Some(value), "`{name}` is listed as {value:?} and read as {read:?}");
    }
    let key = Key::new(Shelf::Probe, &LeaseName::new(Nonce::random().to_string())?);
    ensure!(store.read(&key).await?.value.is_none(), "a key that nobody wrote has a value");
    ensure!(list_all(&*bench.open().await?, None, 100).await? == before, "reading and listing changed the store");
    Ok(())
}

async fn list_all(
    store: &dyn Store,
    after: Option<&LeaseName>,
    limit: usize,
) -> Result<Vec<(LeaseName, Versioned)>, Broken> {
    let mut after = after.cloned();
    let mut all = Vec::new();
    for _ in 0..MAX_PAGES {
        let page = store.list(Shelf::Probe, Range::new(after.as_ref(), limit)).await?;
        ensure!(page.entries.len() <= limit, "a page of at most {limit} has {} entries", page.entries.len());
        for (name, value) in page.entries {
            ensure!(after.as_ref().is_none_or(|after| name > *after), "`{name}` is listed after {after:?}");
            after = Some(name.clone());
            all.push((name, value));
        }
        if !page.more {
            return Ok(all);
        }
    }
    Err(Broken(format!("a listing did not end within {MAX_PAGES} pages")))
}
