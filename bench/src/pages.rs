//! The page of `leasehold serve` where there are a million leases and a million items: how long each page takes.
//!
//! Beside one long queue, the same number of items is measured in ten queues, and once more after each entry of their lines was
//! updated and the database had no time to clean up.
//!
//! Promise: the records are valid, in every state that a lease or an item has, with jobs, fences and processes in hundreds or
//! thousands beside them, and the pages are read over HTTP with a session, as
//! a browser reads them. Non-promise: there is no peer; the records are copies of a thousand leases and a thousand items, and of
//! a few of everything else, which differ in their names alone.

use crate::lines::{multiply, multiply_rows};
use crate::page_scene::{self, JOB, LEASE};
use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use crate::server::Server;
use anyhow::{Context, Result, bail, ensure};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, LeaseName, Outcome};
use leasehold_testbed::Postgres;
use leasehold_work::queue::{Claimed, Claimer, NewItem, Payload, Queue, Reason};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::NoTls;

const WITHIN: Demand = Demand::AtMost(Duration::from_millis(200));
/// How many of each are made by the rules, and how often each is copied.
const MADE: usize = 1_000;
const COPIES: usize = 1_000;
/// Where there are several queues: how many.
const QUEUES: usize = 10;
/// How often each page is read before it is timed, and timed.
const WARM: usize = 3;
const TIMES: usize = 100;

/// Measures each page on SQLite and on PostgreSQL.
pub fn compare(scratch: &Scratch, leasehold: &Path, is_quick: bool) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let copies = if is_quick { COPIES / 10 } else { COPIES };
    let folder = scratch.folder("pages")?;
    let file = folder.join("leases.db");
    let mut rows = runtime.block_on(async {
        let url = format!("sqlite:{}", file.display());
        let dead = fill(&url).await?;
        multiply_rows(&file, copies)?;
        pages("sqlite", leasehold, &folder, &url, &dead).await
    })?;
    let (folder, file) = (scratch.folder("pages-queues")?, folder.join("queues.db"));
    rows.extend(runtime.block_on(async {
        let url = format!("sqlite:{}", file.display());
        fill_queues(&url).await?;
        multiply_rows(&file, copies)?;
        let server = Server::start(leasehold, &folder, &url)?;
        let mut rows = queues("sqlite", "", &server).await?;
        rusqlite::Connection::open(&file)?.execute_batch(UPDATED)?;
        rows.extend(queues("sqlite", ", updated", &server).await?);
        anyhow::Ok(rows)
    })?);
    let (database, folder) = (Postgres::with(&[]), scratch.folder("pages-postgres")?);
    rows.extend(runtime.block_on(async {
        let url = Postgres::url(database.port());
        let dead = fill(&url).await?;
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        multiply(&client, copies).await?;
        // As a database that has been there for longer than a minute has done by itself.
        client.batch_execute("VACUUM ANALYZE leasehold_record").await?;
        pages("postgres", leasehold, &folder, &url, &dead).await
    })?);
    drop(database);
    let (database, folder) = (Postgres::with(&["autovacuum=off"]), scratch.folder("pages-queues-postgres")?);
    rows.extend(runtime.block_on(async {
        let url = Postgres::url(database.port());
        fill_queues(&url).await?;
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        multiply(&client, copies).await?;
        client.batch_execute("VACUUM ANALYZE leasehold_record").await?;
        let server = Server::start(leasehold, &folder, &url)?;
        let mut rows = queues("postgres", "", &server).await?;
        client.batch_execute(&UPDATED.replace("record", "leasehold_record")).await?;
        rows.extend(queues("postgres", ", updated", &server).await?);
        anyhow::Ok(rows)
    })?);
    Ok(rows)
}

/// Every entry of a line, as if its item had been retried. In PostgreSQL the old rows are left to be vacuumed.
const UPDATED: &str = "UPDATE record SET revision = revision + 1 WHERE shelf = 'line'";

/// Leases and items in every state; gives the id of a dead letter.
async fn fill(url: &str) -> Result<String> {
    let store = leasehold_stores::open(&url.parse()?).await?;
    let leases = Coordinator::new(store.clone());
    for number in 0..MADE {
        let ask = Ask::new(HolderId::new(None), "24h".parse()?);
        // The last eight digits are those that differ between copies.
        let name: LeaseName = format!("team-{:02}/job-{number:04}/{:08x}", number % 50, 1).parse()?;
        let Acquired::Granted(grant) = leases.acquire(&name, &ask).await? else { bail!("a free lease was refused") };
        match number % 4 {
            0 => leases.release(&grant, Outcome::Succeeded).await.map(drop)?,
            1 => leases.release(&grant, Outcome::Failed).await.map(drop)?,
            _ => {}
        }
    }
    page_scene::fill(&leases).await?;
    let queue = Queue::new(store, "mail".parse()?);
    let item = |number: usize| -> Result<NewItem> {
        Ok(NewItem {
            payload: Payload::new(format!("{{\"to\": \"user{number}@example.org\"}}"))?,
            ..NewItem::default()
        })
    };
    queue.add_all((0..MADE).map(item).collect::<Result<_>>()?).await?;
    let mut claimer = Claimer::new(queue.clone(), None, "24h".parse()?)?;
    let mut dead = None;
    // A third is done or given up, a few are claimed, and the rest waits: more than half a million.
    for number in 0..MADE / 3 {
        let Claimed::Item(grant) = claimer.claim().await? else { bail!("nothing was claimed") };
        match number % 10 {
            0 => {
                queue.fail(&grant, Reason::new("550 mailbox unavailable")?, None, true).await?;
                dead.get_or_insert_with(|| grant.name().id.to_string());
            }
            1 => {}
            _ => drop(queue.complete(&grant, None, Vec::new()).await?),
        }
    }
    dead.context("no dead letter")
}

/// Items that wait, in several queues.
async fn fill_queues(url: &str) -> Result<()> {
    let store = leasehold_stores::open(&url.parse()?).await?;
    for number in 0..QUEUES {
        let queue = Queue::new(store.clone(), format!("mail-{number}").parse()?);
        queue.add_all(vec![NewItem::default(); MADE / QUEUES]).await?;
    }
    Ok(())
}

async fn queues(engine: &str, how: &str, server: &Server) -> Result<Vec<Row>> {
    let (all, one) = (format!("Queues, {QUEUES} long ones{how}"), format!("Queue, of {QUEUES} long ones{how}"));
    timed(engine, server, &[(&all, "queues"), (&one, "queue/mail-3")]).await
}

async fn pages(engine: &str, leasehold: &Path, folder: &Path, store: &str, dead: &str) -> Result<Vec<Row>> {
    let server = Server::start(leasehold, folder, store)?;
    let (item, lease, runs) = (format!("item/mail/{dead}"), format!("lease/{LEASE}"), format!("job/{JOB}"));
    let pages = [
        ("Leases", "leases"),
        ("Leases, searched for what is nowhere", "leases?q=nothing-like-this"),
        ("Leases, stalled ones", "leases?state=stalled"),
        ("Lease, with fences and refused writes", lease.as_str()),
        ("Queues", "queues"),
        ("Queue", "queue/mail"),
        ("Queue, counted for a bulk order", "queue/mail/dead-letters?order=retry&reason=550%20mailbox%20unavailable"),
        ("Item", item.as_str()),
        ("Jobs", "jobs"),
        ("Runs", runs.as_str()),
        ("Health", "health"),
    ];
    timed(engine, &server, &pages).await
}

async fn timed(engine: &str, server: &Server, pages: &[(&str, &str)]) -> Result<Vec<Row>> {
    let cookies = sign_in(server).await?;
    let mut rows = Vec::new();
    for (what, path) in pages {
        let mut took = Vec::new();
        for number in 0..WARM + TIMES {
            let started = SystemClock.now();
            let (status, _) = ask(server, "GET", &format!("/ns/default/{path}"), &cookies, "").await?;
            ensure!(status == 200, "{path}: status {status}");
            if number >= WARM {
                took.push(SystemClock.now().saturating_since(started));
            }
        }
        took.sort_unstable();
        let (p50, p99) = (took[TIMES / 2], took[TIMES * 99 / 100]);
        eprintln!("{engine}: {what}: p50 {:.1} ms, p99 {:.1} ms", p50.as_secs_f64() * 1e3, p99.as_secs_f64() * 1e3);
        let row = |name: &str, took, demand| {
            Row::new(format!("{what}, {name} ({engine})"), "-", Unit::Milliseconds, took, None, demand)
        };
        rows.push(row("p50", p50, Demand::None));
        rows.push(row("p99", p99, WITHIN));
    }
    Ok(rows)
}

/// The cookies of a session.
async fn sign_in(server: &Server) -> Result<String> {
    let (_, page) = ask(server, "GET", "/", "", "").await?;
    let visitor = cookie(&page, "leasehold_visitor").context("no cookie of a visitor")?;
    let token =
        page.split("name=\"token\" value=\"").nth(1).and_then(|rest| rest.split('"').next()).context("no token")?;
    let form = format!("token={token}&key={}&next=/", server.key());
    let (status, answer) = ask(server, "POST", "/sign-in", &visitor, &form).await?;
    ensure!(status == 303, "signing in gave status {status}");
    cookie(&answer, "leasehold_session").context("no session")
}

fn cookie(answer: &str, name: &str) -> Option<String> {
    let found = answer.split(&format!("set-cookie: {name}=")).nth(1)?.split([';', '\r']).next()?;
    Some(format!("{name}={found}"))
}

async fn ask(server: &Server, method: &str, path: &str, cookies: &str, form: &str) -> Result<(u16, String)> {
    let address = server.address();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nCookie: {cookies}\r\nConnection: close\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    let text = String::from_utf8(bytes)?;
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
    Ok((status, text))
}
