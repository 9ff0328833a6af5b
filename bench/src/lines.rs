//! Long lines: what one claim costs where many items wait, beside one where few do.
//!
//! Promise: both lines are measured in a store of their own size: the short one before the long one is there. Non-promise:
//! the items of a line are copies of a thousand, which differ in their names alone; adding a million would take hours.

use crate::queue::fill;
use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use anyhow::{Context, Result, ensure};
use leasehold::clock::{Clock, SystemClock};
use leasehold_testbed::Postgres;
use leasehold_work::queue::{Claimed, Claimer, Queue};
use rusqlite::{Connection, params};
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;
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
    let server = Postgres::with(&[]);
    let (mut on_postgres, mut on_sqlite) = (Vec::new(), Vec::new());
    for (waiting, name) in [(LINES[0], "short"), (long, "long")] {
        let url = Postgres::url(server.port());
        on_postgres.push(runtime.block_on(claims(&url, &format!("line-{name}"), async |queue| {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            tokio::spawn(connection);
            multiply(&client, queue, waiting / LINES[0]).await
        }))?);
        on_sqlite.push(in_a_file(&runtime, &scratch.folder(name)?, waiting)?);
    }
    let row = |engine: &str, times: &[Duration]| {
        let what = format!("one claim of {long} waiting ({engine})");
        Row::new(what, format!("of {}", LINES[0]), Unit::Milliseconds, times[1], Some(times[0]), GROWTH)
    };
    Ok(vec![row("postgres", &on_postgres), row("sqlite", &on_sqlite)])
}

/// The median time of a claim from a line that is made longer before.
async fn claims(url: &str, name: &str, lengthen: impl AsyncFnOnce(&str) -> Result<()>) -> Result<Duration> {
    let store = leasehold_stores::open(&url.parse()?).await?;
    let queue = Queue::new(store, name.parse()?);
    fill(&queue, LINES[0]).await?;
    lengthen(name).await?;
    let mut claimer = Claimer::new(queue, None, "90s".parse()?)?;
    let mut turns = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let started = SystemClock.now();
        for _ in 0..CLAIMS {
            ensure!(matches!(claimer.claim().await?, Claimed::Item(_)), "nothing was claimed of `{name}`");
        }
        turns.push(SystemClock.now().saturating_since(started) / CLAIMS);
    }
    turns.sort_unstable();
    Ok(turns[TURNS / 2])
}

async fn multiply(client: &tokio_postgres::Client, queue: &str, times: usize) -> Result<()> {
    let sql = r"INSERT INTO leasehold_record SELECT namespace, shelf,
        regexp_replace(name, '[0-9a-f]{8}(/[0-9]+)?$', lpad(to_hex(g), 8, '0') || '\1'), revision, value, tail
        FROM leasehold_record, generate_series(2, $2::int8) g WHERE shelf IN ('item', 'line') AND name LIKE $1 || '%'";
    client.execute(sql, &[&format!("{queue}/"), &i64::try_from(times)?]).await?;
    client.batch_execute("ANALYZE leasehold_record").await?;
    // What filling has left to be written would be written while claims are timed.
    client.batch_execute("CHECKPOINT").await?;
    Ok(())
}

fn in_a_file(runtime: &Runtime, folder: &Path, waiting: usize) -> Result<Duration> {
    let file = folder.join("line.db");
    let url = format!("sqlite:{}", file.display());
    runtime.block_on(claims(&url, "line", async |_| multiply_rows(&file, waiting / LINES[0])))
}

fn multiply_rows(file: &Path, times: usize) -> Result<()> {
    let mut connection = Connection::open(file)?;
    // A log of several times what is kept, if it were not copied on the way.
    connection.execute_batch("PRAGMA synchronous = off; PRAGMA cache_size = -65536")?;
    let rows: Vec<(String, String, i64, Vec<u8>)> = connection
        .prepare("SELECT shelf, name, revision, value FROM record WHERE shelf IN ('item', 'line')")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<rusqlite::Result<_>>()?;
    ensure!(rows.len() == 2 * LINES[0], "{} rows for {} items", rows.len(), LINES[0]);
    for (shelf, name, revision, value) in &rows {
        let (until, turn) = match shelf.as_str() {
            "line" => name.rsplit_once('/').map(|(until, turn)| (until, format!("/{turn}"))),
            _ => Some((name.as_str(), String::new())),
        }
        .context("a place without a turn")?;
        let stem = until.get(..until.len().saturating_sub(8)).context("an id of another form")?;
        let together = connection.transaction()?;
        {
            let mut add =
                together.prepare_cached("INSERT INTO record (shelf, name, revision, value) VALUES (?1, ?2, ?3, ?4)")?;
            for number in 2..=times {
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
