//! Long lines: what one claim costs where many items wait, beside one where few do.
//!
//! Promise: each line is in a store of its own, and both are claimed from in turns, so that what filling the long one does
//! to the disk slows both. Non-promise: the items of a line are copies of a thousand, which differ in their names alone;
//! adding a million would take hours.

use crate::queue::fill;
use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use anyhow::{Context, Result, ensure};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_testbed::Postgres;
use leasehold_work::queue::{Claimed, Claimer, Queue};
use rusqlite::{Connection, params};
use std::path::Path;
use std::time::Duration;
use tokio_postgres::NoTls;

const GROWTH: Demand = Demand::AtMostTheTime(2.0);
/// The short and the long line, of which the same number of items is claimed.
const LINES: [usize; 2] = [1_000, 1_000_000];
/// How many claims are timed at once, and how often.
const CLAIMS: u32 = 50;
const TURNS: usize = 9;

/// Measures both lines on each engine.
pub fn compare(scratch: &Scratch, is_quick: bool) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let long = if is_quick { LINES[1] / 10 } else { LINES[1] };
    let row = |engine: &str, [short, all]: [Duration; 2]| {
        let what = format!("one claim of {long} waiting ({engine})");
        Row::new(what, format!("of {}", LINES[0]), Unit::Milliseconds, all, Some(short), GROWTH)
    };
    // What filling leaves to be vacuumed would be vacuumed while claims are timed.
    let server = || Postgres::with(&["autovacuum=off"]);
    let servers = [server(), server()];
    let on_postgres = runtime.block_on(async {
        let mut lines = Vec::new();
        for (server, waiting) in servers.iter().zip([LINES[0], long]) {
            let url = Postgres::url(server.port());
            let claimer = line(&url).await?;
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            tokio::spawn(connection);
            multiply(&client, waiting / LINES[0]).await?;
            lines.push(claimer);
        }
        claims(lines).await
    })?;
    drop(servers);
    let folder = scratch.folder("lines")?;
    let on_sqlite = runtime.block_on(async {
        let mut lines = Vec::new();
        for waiting in [LINES[0], long] {
            let file = folder.join(format!("{waiting}.db"));
            lines.push(line(&format!("sqlite:{}", file.display())).await?);
            multiply_rows(&file, waiting / LINES[0])?;
        }
        claims(lines).await
    })?;
    Ok(vec![row("postgres", on_postgres), row("sqlite", on_sqlite)])
}

/// A line of a thousand.
async fn line(url: &str) -> Result<Claimer> {
    let store = leasehold_stores::open(&url.parse()?).await?;
    let queue = Queue::new(store, "line".parse()?);
    fill(&queue, LINES[0]).await?;
    Ok(Claimer::new(queue, None, "90s".parse()?)?)
}

/// The median time of a claim from each line.
async fn claims(mut lines: Vec<Claimer>) -> Result<[Duration; 2]> {
    let mut turns = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (claimer, turns) in lines.iter_mut().zip(&mut turns) {
            let started = SystemClock.now();
            for _ in 0..CLAIMS {
                ensure!(matches!(claimer.claim().await?, Claimed::Item(_)), "nothing was claimed");
            }
            turns.push(SystemClock.now().saturating_since(started) / CLAIMS);
        }
    }
    Ok(turns.map(|mut turns| {
        turns.sort_unstable();
        turns[TURNS / 2]
    }))
}

/// How many copies are made at most of what there are not so many of: a journal is large, and a page looks at hundreds of them.
const FEW: usize = 300;

/// Copies every lease and item of the store so many times, under names of their own; and jobs, fences and processes [`FEW`] times.
pub async fn multiply(client: &tokio_postgres::Client, times: usize) -> Result<()> {
    let sql = r"INSERT INTO leasehold_record (namespace, shelf, name, revision, value) SELECT namespace, shelf,
        regexp_replace(name, '[0-9a-f]{8}(/[0-9]+)?$', lpad(to_hex(g), 8, '0') || '\1'), revision, value
        FROM leasehold_record, generate_series(2, CASE WHEN shelf IN ('lease', 'item', 'line') THEN $1::int8 ELSE $2::int8 END) g
        WHERE shelf IN ('lease', 'item', 'line', 'job', 'runs', 'fence', 'presence')";
    client.execute(sql, &[&i64::try_from(times)?, &i64::try_from(times.min(FEW))?]).await?;
    client.batch_execute("ANALYZE leasehold_record").await?;
    // What filling has left to be written would be written while claims are timed.
    client.batch_execute("CHECKPOINT").await?;
    Ok(())
}

/// The same in a file.
pub fn multiply_rows(file: &Path, times: usize) -> Result<()> {
    let mut connection = Connection::open(file)?;
    // A log of several times what is kept, if it were not copied on the way.
    connection.execute_batch("PRAGMA synchronous = off; PRAGMA cache_size = -65536")?;
    let rows: Vec<(String, String, i64, Vec<u8>)> = connection
        .prepare(
            "SELECT shelf, name, revision, value FROM record
            WHERE shelf IN ('lease', 'item', 'line', 'job', 'runs', 'fence', 'presence')",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<rusqlite::Result<_>>()?;
    ensure!(rows.len() >= LINES[0], "{} rows for {} items", rows.len(), LINES[0]);
    for (shelf, name, revision, value) in &rows {
        let (until, turn) = match shelf.as_str() {
            "line" | "presence" => name.rsplit_once('/').map(|(until, turn)| (until, format!("/{turn}"))),
            _ => Some((name.as_str(), String::new())),
        }
        .context("a place without a turn")?;
        let stem = until.get(..until.len().saturating_sub(8)).context("an id of another form")?;
        let together = connection.transaction()?;
        {
            let mut add =
                together.prepare_cached("INSERT INTO record (shelf, name, revision, value) VALUES (?1, ?2, ?3, ?4)")?;
            let is_one_of_many = matches!(shelf.as_str(), "lease" | "item" | "line");
            for number in 2..=if is_one_of_many { times } else { times.min(FEW) } {
                add.execute(params![shelf, format!("{stem}{number:08x}{turn}"), revision, value])?;
            }
        }
        together.commit()?;
    }
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    // On disk before claims are timed.
    std::fs::File::open(file)?.sync_all()?;
    Ok(())
}
