//! Compare and swap. If any of these is broken, two holders may get one epoch.

use crate::bench::{done, ensure, fresh_key};
use crate::{Bench, Broken, Verdict};
use leasehold_core::codec::MAX_RECORD_BYTES;
use leasehold_core::store::{Change, Store, Swap};
use leasehold_core::{Key, Kind, LeaseName, MAX_NAME_BYTES, Nonce, Revision, Shelf};
use std::sync::Arc;

/// How often two handles take turns.
const TURNS: usize = 20;

pub(crate) async fn absent_means_never_written(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let key = fresh_key("absent")?;
    ensure!(store.read(&key).await?.value.is_none(), "a key that nobody wrote has a value");
    for made_up in ["", "0", "1", "no such revision", &Nonce::random().to_string()] {
        let swap = store.swap(&key, Some(&Revision(made_up.into())), b"x").await?;
        ensure!(swap == Swap::Mismatch, "a swap that expected revision `{made_up}` of an absent key was done");
    }
    ensure!(store.read(&key).await?.value.is_none(), "a refused swap wrote something");
    done(store.swap(&key, None, b"first").await?, "the first swap of a key")?;
    ensure!(store.swap(&key, None, b"second").await? == Swap::Mismatch, "a second first swap was done");
    let value = store.read(&key).await?.value.map(|value| value.bytes);
    ensure!(value.as_deref() == Some(b"first"), "after a refused swap the value is {value:?}");
    Ok(())
}

pub(crate) async fn a_swap_needs_the_expected_revision(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let key = fresh_key("expected")?;
    let (old, _) = done(store.swap(&key, None, b"1").await?, "the first swap")?;
    let (new, _) = done(store.swap(&key, Some(&old), b"2").await?, "a swap that expects the revision")?;
    ensure!(
        store.swap(&key, Some(&old), b"3").await? == Swap::Mismatch,
        "a swap that expects an old revision was done"
    );
    let value = store.read(&key).await?.value;
    let held = value.as_ref().map(|value| (value.bytes.as_slice(), &value.revision));
    ensure!(held == Some((b"2".as_slice(), &new)), "after a refused swap the key has {value:?}");
    Ok(())
}

pub(crate) async fn a_done_swap_is_there(bench: Bench) -> Verdict {
    for turn in 0..TURNS {
        let key = fresh_key("done")?;
        let bytes = format!("value {turn}");
        let (revision, _) = done(bench.open().await?.swap(&key, None, bytes.as_bytes()).await?, "a first swap")?;
        let value = bench.open().await?.read(&key).await?.value;
        ensure!(
            value.as_ref().is_some_and(|value| value.bytes == bytes.as_bytes() && value.revision == revision),
            "a new handle found {value:?} after `{bytes}` was stored as {revision:?}"
        );
    }
    Ok(())
}

/// After a lost answer the same record is written again, and that answer must mean that it is durable now. A store that finds
/// nothing to change and answers *done* would confirm what it never made durable.
pub(crate) async fn a_swap_of_equal_bytes_is_a_write(bench: Bench) -> Verdict {
    let (store, other) = (bench.open().await?, bench.open().await?);
    let key = fresh_key("equal")?;
    let mut last: Option<Revision> = None;
    for notify in [true, false, true, false, false] {
        let change = Change { notify, ..Change::put(&key, last.as_ref(), b"same") };
        let (revision, _) = done(store.write(&change).await?, "a swap of equal bytes")?;
        ensure!(last.as_ref() != Some(&revision), "a swap of equal bytes gave the revision that was there: no write");
        if let Some(old) = &last {
            let swap = other.swap(&key, Some(old), b"same").await?;
            ensure!(swap == Swap::Mismatch, "the revision before a swap of equal bytes won");
        }
        let found = other.read(&key).await?.value.map(|value| value.bytes);
        ensure!(found.as_deref() == Some(b"same"), "after a swap of equal bytes {found:?} was read");
        last = Some(revision);
    }
    Ok(())
}

pub(crate) async fn a_read_sees_every_answered_swap(bench: Bench) -> Verdict {
    let (one, other) = (bench.open().await?, bench.open().await?);
    let key = fresh_key("fresh")?;
    let mut revision: Option<Revision> = None;
    for turn in 0..TURNS {
        let (writer, reader) = if turn % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let bytes = turn.to_string();
        let swap = writer.swap(&key, revision.as_ref(), bytes.as_bytes()).await?;
        revision = Some(done(swap, "a swap that expects what the other handle stored")?.0);
        for (who, store) in [("the writer", writer), ("another handle", reader)] {
            let value = store.read(&key).await?.value.map(|value| value.bytes);
            ensure!(value.as_deref() == Some(bytes.as_bytes()), "{who} read {value:?} after `{bytes}` was stored");
        }
    }
    Ok(())
}

pub(crate) async fn values_come_back_byte_for_byte(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    for len in [0, 1, 255, 4_096, MAX_RECORD_BYTES] {
        let key = fresh_key("bytes")?;
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).rev().collect();
        done(store.swap(&key, None, &bytes).await?, "a first swap")?;
        let value = store.read(&key).await?.value;
        ensure!(value.is_some_and(|value| value.bytes == bytes), "{len} bytes did not come back as they were");
    }
    Ok(())
}

pub(crate) async fn names_never_collide(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let id = Nonce::random().to_string();
    let pad = |begin: &str, fill: &str| {
        let mut name = format!("{begin}{id}/");
        while name.len() < MAX_NAME_BYTES {
            name.push_str(fill);
        }
        name.truncate(MAX_NAME_BYTES);
        name
    };
    let names = [
        format!("{id}/a"),
        format!("{id}/A"),
        format!("{id}/a/b"),
        format!("{id}/a.b"),
        format!("{id}/a_b"),
        format!("{id}/a-b"),
        format!(".{id}"),
        format!("{id}."),
        pad("", "x"),
        pad("", "X"),
        pad("", "xX"),
        pad("Q", "."),
        pad("", "a."),
    ];
    let mut keys = Vec::new();
    for name in &names {
        let name = LeaseName::new(name.as_str())?;
        // Records on permanent shelves would stay in the user's store.
        let erasable = Shelf::ALL.iter().filter(|shelf| !shelf.is_permanent());
        keys.extend(erasable.map(|shelf| Key::new(*shelf, &name)));
    }
    for key in &keys {
        let swap = store.swap(key, None, key.to_string().as_bytes()).await?;
        done(swap, &format!("the first swap of `{key}`, next to others with similar names,"))?;
    }
    for key in &keys {
        let value = store.read(key).await?.value.map(|value| value.bytes);
        ensure!(value.as_deref() == Some(key.to_string().as_bytes()), "`{key}` has another key's value");
    }
    Ok(())
}

/// What one contender did.
#[derive(Default)]
struct Tally {
    wins: u64,
    unknown: u64,
}

pub(crate) async fn contended_swaps_have_one_winner_each(bench: Bench) -> Verdict {
    let key = fresh_key("contended")?;
    // Ends with this future: a caller that gives up clears the store afterwards.
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..bench.effort.clients {
        clients.spawn(contend(bench.open().await?, key.clone(), bench.effort.swaps_each));
    }
    let mut total = Tally::default();
    while let Some(client) = clients.join_next().await {
        let tally = client.map_err(|e| Broken(format!("a client panicked: {e}")))??;
        total.wins += tally.wins;
        total.unknown += tally.unknown;
    }
    let last = count(&*bench.open().await?, &key).await?.0;
    let allowed = total.wins..=total.wins + total.unknown;
    ensure!(
        allowed.contains(&last),
        "{} swaps were answered as done and {} as unknown, but the count is {last}",
        total.wins,
        total.unknown
    );
    let least = bench.effort.swaps_each as u64;
    ensure!(last >= least, "only {last} swaps were done by all clients together; one alone does {least}");
    Ok(())
}

async fn contend(store: Arc<dyn Store>, key: Key, swaps: usize) -> Result<Tally, Broken> {
    let mut tally = Tally::default();
    for _ in 0..swaps {
        let (seen, revision) = count(&*store, &key).await?;
        match store.swap(&key, revision.as_ref(), (seen + 1).to_string().as_bytes()).await {
            Ok(Swap::Done { .. }) => tally.wins += 1,
            Ok(Swap::Mismatch) => {}
            Err(e) if matches!(e.kind(), Kind::Unavailable | Kind::Contended) => {}
            Err(e) if e.kind() == Kind::Indeterminate => tally.unknown += 1,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(tally)
}

async fn count(store: &dyn Store, key: &Key) -> Result<(u64, Option<Revision>), Broken> {
    let Some(value) = store.read(key).await?.value else { return Ok((0, None)) };
    let number = std::str::from_utf8(&value.bytes).ok().and_then(|text| text.parse().ok());
    let number = number.ok_or_else(|| Broken(format!("a value that nobody wrote was read: {:?}", value.bytes)))?;
    Ok((number, Some(value.revision)))
}
