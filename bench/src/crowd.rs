//! Workers in processes of their own on one sqlite file, beside as many that make raw transactions.
//!
//! Promise: both sides have opened the file before the time runs, and every completion is durable. Non-promise: the peer
//! keeps no epoch, no history and no deadline, and waits for the file as SQLite's own time-out does.

use crate::queue::{RAW_CLAIM, RAW_DONE, Side, fill, fill_raw, raw_file, row, turns};
use crate::report::Row;
use crate::scratch::Scratch;
use anyhow::{Context, Result, bail, ensure};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_work::queue::{Claimed, Claimer, Queue};
use rusqlite::{Connection, OptionalExtension};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

/// The first argument that makes this program a worker: the side, the file and the queue follow.
pub const ARGUMENT: &str = "__queue-worker";

/// How many processes, and how many items they share in one turn.
const CREWS: [(usize, usize); 2] = [(8, 400), (64, 960)];
const PATIENCE: Duration = Duration::from_secs(60);

/// Times crews of both sizes, ours and raw transactions in turns.
pub fn compare(scratch: &Scratch) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for (processes, items) in CREWS {
        let folder = scratch.folder(&format!("crowd-{processes}"))?;
        let (ours, raw) = (folder.join("ours.db"), folder.join("raw.db"));
        let peer = raw_file(&raw)?;
        let mut turn = 0;
        let both = turns(items, |side| {
            turn += 1;
            let queue = format!("bench-{turn}");
            match side {
                Side::Ours => runtime.block_on(async {
                    let store = leasehold_stores::open(&format!("sqlite:{}", ours.display()).parse()?).await?;
                    fill(&Queue::new(store, queue.parse()?), items).await
                })?,
                Side::Peers => fill_raw(&peer, items)?,
            }
            let (side, file) = match side {
                Side::Ours => ("ours", &ours),
                Side::Peers => ("raw", &raw),
            };
            emptied(processes, items, side, file, &queue)
        })?;
        rows.push(row("sqlite, a process each", "as many raw processes", processes, both));
    }
    Ok(rows)
}

/// A worker that has opened the file and waits for the word.
struct Worker {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(side: &str, file: &Path, queue: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([ARGUMENT, side])
            .arg(file)
            .arg(queue)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = BufReader::new(child.stdout.take().context("a worker without output")?);
        Ok(Worker { child, answers })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "a worker ended early");
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn emptied(processes: usize, items: usize, side: &str, file: &Path, queue: &str) -> Result<Duration> {
    let mut crew = (0..processes).map(|_| Worker::start(side, file, queue)).collect::<Result<Vec<_>>>()?;
    for worker in &mut crew {
        ensure!(worker.line()? == "ready", "a worker is not ready");
    }
    let started = SystemClock.now();
    for worker in &mut crew {
        worker.child.stdin.take().context("a worker without input")?.write_all(b"go\n")?;
    }
    let mut done = 0;
    for worker in &mut crew {
        done += worker.line()?.parse::<usize>()?;
    }
    ensure!(done == items, "{done} of {items} items were completed");
    Ok(SystemClock.now().saturating_since(started))
}

/// One worker, in a process of its own: the words are a side, a file and a queue.
pub fn main(words: &[OsString]) -> ExitCode {
    let work = || -> Result<usize> {
        let [side, file, queue] = words else { bail!("give a side, a file and a queue") };
        let (file, queue) = (Path::new(file), queue.to_str().context("the queue is not text")?);
        match side.to_str() {
            Some("ours") => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(ours(file, queue))
            }
            _ => raw(file),
        }
    };
    match work() {
        Ok(done) => {
            println!("{done}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("queue worker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn wait_for_the_word() -> Result<()> {
    println!("ready");
    let mut word = String::new();
    std::io::stdin().read_line(&mut word)?;
    Ok(())
}

async fn ours(file: &Path, queue: &str) -> Result<usize> {
    let store = leasehold_stores::open(&format!("sqlite:{}", file.display()).parse()?).await?;
    let mut claimer = Claimer::new(Queue::new(store, queue.parse()?), None, "90s".parse()?)?;
    wait_for_the_word()?;
    let mut done = 0;
    while let Claimed::Item(grant) = claimer.claim().await? {
        claimer.queue().complete(&grant, None, Vec::new()).await?;
        done += 1;
    }
    Ok(done)
}

fn raw(file: &Path) -> Result<usize> {
    let raw = Connection::open(file)?;
    raw.busy_timeout(PATIENCE)?;
    raw.execute_batch("PRAGMA synchronous = full")?;
    let (mut claim, mut complete) = (raw.prepare(RAW_CLAIM)?, raw.prepare(RAW_DONE)?);
    wait_for_the_word()?;
    let mut done = 0;
    while let Some(id) = claim.query_row([], |row| row.get::<_, i64>(0)).optional()? {
        ensure!(complete.execute([id])? == 1, "a raw item was lost");
        done += 1;
    }
    Ok(done)
}
