//! Queues: items claimed and completed per second, beside the least that one would write by hand on the same engine.
//!
//! Promise: both sides find the same number of waiting items, and every completion is durable. Non-promise: the peers
//! keep no epoch, no attempts, no history and no deadline that a dead worker's item comes back by.

use crate::beanstalk;
use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::store::Store;
use leasehold_testbed::Postgres;
use leasehold_work::queue::{Claimed, Claimer, NewItem, Payload, Queue};
use leasehold_work::spool::{Spool, SpoolClaimer};
use rusqlite::{Connection, params};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

const DEMAND: Demand = Demand::AtLeastTheSpeed(0.5);
/// How often both sides take turns.
const TURNS: usize = 5;
const PAYLOAD: &[u8] = b"an item of work, as long as most are: a path, an address or a few numbers";
/// How many workers, and how many items they share in one turn.
const CREWS: [(usize, usize); 3] = [(1, 200), (8, 400), (64, 1_920)];
/// What the peer on sqlite does to claim an item, and to complete it.
pub(crate) const RAW_CLAIM: &str = "UPDATE job SET state = 'claimed', until = 90
    WHERE id = (SELECT min(id) FROM job WHERE state = 'ready') RETURNING id";
pub(crate) const RAW_DONE: &str = "UPDATE job SET state = 'done' WHERE id = ?1 AND state = 'claimed'";

/// Times a queue on every engine, ours and a peer's in turns.
pub fn compare(scratch: &Scratch) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    // 64 workers, and as many of the peer's.
    let server = Postgres::with(&["max_connections=400"]);
    for (workers, items) in CREWS {
        rows.push(on_postgres(&runtime, &server, workers, items)?);
    }
    let reference = beanstalk::start(&scratch.folder("beanstalkd")?)?;
    for (workers, items) in CREWS {
        let folder = scratch.folder(&format!("queue-{workers}"))?;
        let (ours, row) = on_sqlite(&runtime, &folder, workers, items)?;
        rows.push(row);
        let mut theirs = Duration::MAX;
        for _ in 0..TURNS {
            theirs = theirs.min(beanstalk::measure(&reference, workers, items, PAYLOAD)?);
        }
        let what = format!("the same, {workers} workers");
        rows.push(Row::new(what, "beanstalkd", Unit::PerSecond, ours, Some(theirs), Demand::None));
    }
    for (workers, items) in CREWS {
        rows.push(on_spool(&scratch.folder(&format!("spool-{workers}"))?, workers, items)?);
    }
    Ok(rows)
}

pub(crate) fn row(engine: &str, peer: &str, workers: usize, [ours, theirs]: [Duration; 2]) -> Row {
    let crew = if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") };
    Row::new(format!("claim + complete, {crew} ({engine})"), peer, Unit::PerSecond, ours, Some(theirs), DEMAND)
}

/// The best of a few turns each, for one item.
pub(crate) fn turns(items: usize, mut turn: impl FnMut(Side) -> Result<Duration>) -> Result<[Duration; 2]> {
    let mut best = [Duration::MAX; 2];
    for _ in 0..TURNS {
        for (at, side) in [Side::Ours, Side::Peers].into_iter().enumerate() {
            best[at] = best[at].min(turn(side)? / u32::try_from(items)?);
        }
    }
    Ok(best)
}

#[derive(Clone, Copy)]
pub(crate) enum Side {
    Ours,
    Peers,
}

/// Fills a queue of ours, and lets the workers empty it.
async fn emptied(stores: &[Arc<dyn Store>], name: &str, items: usize) -> Result<Duration> {
    let queue = Queue::new(stores[0].clone(), name.parse()?);
    fill(&queue, items).await?;
    let mut crew = Vec::new();
    for store in stores {
        crew.push(Claimer::new(Queue::new(store.clone(), name.parse()?), None, "90s".parse()?)?);
    }
    let started = SystemClock.now();
    let done = try_join_all(crew.iter_mut().map(|claimer| async {
        let mut done = 0;
        while let Claimed::Item(grant) = claimer.claim().await? {
            claimer.queue().complete(&grant, None, Vec::new()).await?;
            done += 1;
        }
        Ok::<usize, leasehold_core::Error>(done)
    }))
    .await?;
    let took = SystemClock.now().saturating_since(started);
    ensure!(done.iter().sum::<usize>() == items, "{done:?} of {items} items were completed");
    Ok(took)
}

pub(crate) async fn fill(queue: &Queue, items: usize) -> Result<()> {
    for chunk in (0..items).collect::<Vec<_>>().chunks(500) {
        let new = NewItem { payload: Payload::new(PAYLOAD)?, ..NewItem::default() };
        queue.add_all(vec![new; chunk.len()]).await?;
    }
    Ok(())
}

fn on_postgres(runtime: &Runtime, server: &Postgres, workers: usize, items: usize) -> Result<Row> {
    let url = Postgres::url(server.port());
    let mut stores = Vec::new();
    let mut clients = Vec::new();
    runtime.block_on(async {
        for _ in 0..workers {
            stores.push(leasehold_stores::open(&url.parse()?).await?);
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            tokio::spawn(connection);
            clients.push(client);
        }
        let table = "CREATE TABLE IF NOT EXISTS job (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'ready', \
                     payload bytea NOT NULL, until timestamptz); \
                     CREATE INDEX IF NOT EXISTS job_ready ON job (id) WHERE state = 'ready'";
        Ok::<(), anyhow::Error>(clients[0].batch_execute(table).await?)
    })?;
    let mut turn = 0;
    let both = turns(items, |side| {
        turn += 1;
        runtime.block_on(async {
            match side {
                Side::Ours => emptied(&stores, &format!("bench-{workers}-{turn}"), items).await,
                Side::Peers => skip_locked(&clients, items).await,
            }
        })
    })?;
    Ok(row("postgres", "SKIP LOCKED", workers, both))
}

async fn skip_locked(clients: &[tokio_postgres::Client], items: usize) -> Result<Duration> {
    let add = "INSERT INTO job (payload) SELECT $1 FROM generate_series(1, $2::int8)";
    clients[0].execute(add, &[&PAYLOAD, &i64::try_from(items)?]).await?;
    let mut crew = Vec::new();
    for client in clients {
        let claim = "UPDATE job SET state = 'claimed', until = now() + interval '90 s' WHERE id = (SELECT id FROM job \
                     WHERE state = 'ready' ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING id, payload";
        let done = "UPDATE job SET state = 'done' WHERE id = $1 AND state = 'claimed'";
        crew.push((client, client.prepare(claim).await?, client.prepare(done).await?));
    }
    let started = SystemClock.now();
    try_join_all(crew.iter().map(|(client, claim, done)| async move {
        while let Some(row) = client.query_opt(claim, &[]).await? {
            let id: i64 = row.get(0);
            client.execute(done, &[&id]).await?;
        }
        Ok::<(), tokio_postgres::Error>(())
    }))
    .await?;
    Ok(SystemClock.now().saturating_since(started))
}

fn on_sqlite(runtime: &Runtime, folder: &Path, workers: usize, items: usize) -> Result<(Duration, Row)> {
    let url = format!("sqlite:{}", folder.join("ours.db").display()).parse()?;
    let mut stores = Vec::new();
    for _ in 0..workers {
        stores.push(runtime.block_on(leasehold_stores::open(&url))?);
    }
    let raw = raw_file(&folder.join("raw.db"))?;
    let mut turn = 0;
    let both = turns(items, |side| {
        turn += 1;
        match side {
            Side::Ours => runtime.block_on(emptied(&stores, &format!("bench-{turn}"), items)),
            Side::Peers => raw_transactions(&raw, items),
        }
    })?;
    Ok((both[0], row("sqlite", "raw transactions", workers, both)))
}

/// A new file of the peer's.
pub(crate) fn raw_file(path: &Path) -> Result<Connection> {
    let raw = Connection::open(path)?;
    raw.execute_batch(
        "PRAGMA journal_mode = wal; PRAGMA synchronous = full;
         CREATE TABLE job (id INTEGER PRIMARY KEY, state TEXT NOT NULL, payload BLOB NOT NULL, until INTEGER);
         CREATE INDEX job_ready ON job (id) WHERE state = 'ready'",
    )?;
    Ok(raw)
}

pub(crate) fn fill_raw(raw: &Connection, items: usize) -> Result<()> {
    raw.execute_batch("BEGIN")?;
    for _ in 0..items {
        raw.execute("INSERT INTO job (state, payload) VALUES ('ready', ?1)", params![PAYLOAD])?;
    }
    raw.execute_batch("COMMIT")?;
    Ok(())
}

/// One connection: more of them only wait for each other.
fn raw_transactions(raw: &Connection, items: usize) -> Result<Duration> {
    fill_raw(raw, items)?;
    let (mut claim, mut done) = (raw.prepare(RAW_CLAIM)?, raw.prepare(RAW_DONE)?);
    let started = SystemClock.now();
    for _ in 0..items {
        let id: i64 = claim.query_row([], |row| row.get(0))?;
        ensure!(done.execute([id])? == 1, "a raw item was lost");
    }
    Ok(SystemClock.now().saturating_since(started))
}

fn on_spool(folder: &Path, workers: usize, items: usize) -> Result<Row> {
    let mut turn = 0;
    let both = turns(items, |side| {
        turn += 1;
        let root = folder.join(turn.to_string());
        std::fs::create_dir(&root)?;
        match side {
            Side::Ours => spooled(&root, workers, items),
            Side::Peers => renamed(&root, workers, items),
        }
    })?;
    Ok(row("spool", "raw rename loop", workers, both))
}

fn spooled(root: &Path, workers: usize, items: usize) -> Result<Duration> {
    let spool = Spool::open(root)?;
    for _ in 0..items {
        spool.add_bytes(&NewItem::default(), PAYLOAD)?;
    }
    let mut crew = Vec::new();
    for number in 0..workers {
        crew.push(SpoolClaimer::new(spool.clone(), &format!("worker-{number}").parse()?, "90s".parse()?)?);
    }
    shared(crew, |claimer| match claimer.claim()? {
        None => Ok(false),
        Some(grant) => claimer.spool().complete(&grant, None, &[]).map(|_| true).map_err(Into::into),
    })
}

/// As many renames and as many syncs of folders: a claim takes a name from one folder to another, and so does its end.
fn renamed(root: &Path, workers: usize, items: usize) -> Result<Duration> {
    for folder in ["ready", "claimed", "done"] {
        std::fs::create_dir(root.join(folder))?;
    }
    for number in 0..items {
        std::fs::write(root.join(format!("ready/{number:08}")), PAYLOAD)?;
    }
    let sync = |folder: &str| File::open(root.join(folder)).and_then(|folder| folder.sync_all());
    shared((0..workers).collect(), |_| {
        loop {
            let Some(entry) = std::fs::read_dir(root.join("ready"))?.next() else { return Ok(false) };
            let name = entry?.file_name();
            let path = |folder: &str| -> PathBuf { root.join(folder).join(&name) };
            if std::fs::rename(path("ready"), path("claimed")).is_err() {
                continue;
            }
            sync("claimed")?;
            sync("ready")?;
            std::fs::rename(path("claimed"), path("done"))?;
            sync("done")?;
            sync("claimed")?;
            return Ok(true);
        }
    })
}

/// Lets each of a crew work on a thread of its own until there is nothing left.
pub(crate) fn shared<W: Send>(crew: Vec<W>, work: impl Fn(&mut W) -> Result<bool> + Sync) -> Result<Duration> {
    let started = SystemClock.now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = crew
            .into_iter()
            .map(|mut worker| {
                let work = &work;
                scope.spawn(move || {
                    while work(&mut worker)? {}
                    Ok::<(), anyhow::Error>(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().ok().context("a worker ended early")?)
    })?;
    Ok(SystemClock.now().saturating_since(started))
}
