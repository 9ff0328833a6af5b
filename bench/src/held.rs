//! Many leases held through one server on PostgreSQL, and many requests that wait there.
//!
//! Promise: the leases are kept by the library's own keepers, over `leasehold://`, and server, database and clients share this
//! machine. Non-promise: there is no peer; what is shown are demands.

use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use crate::server::Server;
use anyhow::{Result, ensure};
use futures_util::StreamExt;
use futures_util::stream::{FuturesUnordered, iter};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::distribution::{Distribution, REQUESTS};
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Keeper, Ttl};
use leasehold_testbed::Postgres;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LEASES: u32 = 20_000;
const TTL: &str = "30s";
const HELD_FOR: Duration = Duration::from_secs(300);
const HELD_FOR_QUICK: Duration = Duration::from_secs(60);
/// How many are acquired at once.
const AT_ONCE: usize = 64;
const RENEWED_WITHIN: Demand = Demand::AtMost(Duration::from_secs(1));
const KB_EACH: u64 = 2;
const WAITERS: u32 = 10_000;
const WAITERS_MB: u64 = 200;

/// Holds them for five minutes, or for one.
pub fn compare(scratch: &Scratch, leasehold: &Path, is_quick: bool) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let span = if is_quick { HELD_FOR_QUICK } else { HELD_FOR };
    let mut rows = runtime.block_on(leases(scratch, leasehold, span))?;
    rows.push(runtime.block_on(waiters(scratch, leasehold))?);
    Ok(rows)
}

async fn leases(scratch: &Scratch, leasehold: &Path, span: Duration) -> Result<Vec<Row>> {
    let database = Postgres::with(&[]);
    let folder = scratch.folder("held")?;
    let server = Server::start(leasehold, &folder, &Postgres::url(database.port()))?;
    let store = leasehold_stores::open(&server.store().parse()?).await?;
    let coordinator = Coordinator::new(store);
    let ttl: Ttl = TTL.parse()?;
    // What the first requests need is not the leases'.
    for number in 0..AT_ONCE {
        coordinator.inspect(&format!("warm-{number}").parse()?).await?;
    }
    let before = server.memory_kb()?;
    let taking = iter(0..LEASES).map(|number| {
        let coordinator = coordinator.clone();
        async move {
            let ask = Ask::new(HolderId::new(None), ttl);
            let Acquired::Granted(grant) = coordinator.acquire(&format!("held-{number}").parse()?, &ask).await? else {
                anyhow::bail!("a free lease was refused")
            };
            Ok(Keeper::start(coordinator, *grant))
        }
    });
    let mut taking = taking.buffer_unordered(AT_ONCE);
    let mut keepers = Vec::with_capacity(LEASES as usize);
    while let Some(keeper) = taking.next().await {
        keepers.push(keeper?);
    }
    drop(taking);
    let mut lost = 0_u32;
    {
        let mut losses: FuturesUnordered<_> = keepers.iter().map(Keeper::lost).collect();
        let end = SystemClock.now() + span;
        while let Ok(Some(loss)) = tokio::time::timeout(end.saturating_since(SystemClock.now()), losses.next()).await {
            eprintln!("leasehold-bench: lost one: {loss}");
            lost += 1;
        }
    }
    let after = server.memory_kb()?;
    let mut renewals = Distribution::default();
    keepers.iter().for_each(|keeper| renewals.merge(&keeper.renewals()));
    let (within, slow) = (renewals.up_to(REQUESTS), renewals.count() / 100);
    let p99 = within.filter(|(_, count)| renewals.count() - count <= slow).map(|(bound, _)| bound).next();
    let p99 = p99.unwrap_or_else(|| renewals.worst());
    let per_lease = Duration::from_millis(after.saturating_sub(before)).mul_f64(1.0 / f64::from(LEASES));
    let each = span / u32::try_from(renewals.count().max(1)).unwrap_or(u32::MAX);
    let what = |text: &str| format!("{text}, {LEASES} leases held (server on postgres)");
    // Leases that were lost, and kilobytes, are given as milliseconds.
    let lost = Duration::from_millis(u64::from(lost));
    Ok(vec![
        Row::new(what("lost"), "-", Unit::Count, lost, None, Demand::AtMost(Duration::ZERO)),
        Row::new(what("renewals"), "-", Unit::PerSecond, each, None, Demand::None),
        Row::new(what("renew, slowest hundredth"), "-", Unit::Milliseconds, p99, None, RENEWED_WITHIN),
        Row::new(
            what("memory for each"),
            "-",
            Unit::Kilobytes,
            per_lease,
            None,
            Demand::AtMost(Duration::from_millis(KB_EACH)),
        ),
    ])
}

/// Requests that wait for one lease, each on a connection of its own.
async fn waiters(scratch: &Scratch, leasehold: &Path) -> Result<Row> {
    let folder = scratch.folder("waiters")?;
    let server = Server::start(leasehold, &folder, &format!("sqlite:{}", folder.join("leases.db").display()))?;
    let coordinator = Coordinator::new(leasehold_stores::open(&server.store().parse()?).await?);
    let ask = Ask::new(HolderId::new(None), "10m".parse()?);
    let held = coordinator.acquire(&"busy".parse()?, &ask).await?;
    ensure!(matches!(held, Acquired::Granted(_)), "a free lease was refused");
    let body = r#"{"ttl":"60s","wait":"5m"}"#;
    let request = format!(
        "POST /v1/ns/default/leases/busy/acquire HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        server.key(),
        body.len()
    );
    let mut open = Vec::with_capacity(WAITERS as usize);
    for _ in 0..WAITERS {
        let mut stream = TcpStream::connect(server.address()).await?;
        stream.write_all(request.as_bytes()).await?;
        open.push(stream);
    }
    // All of them wait when the last has settled.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let memory_mb = server.memory_kb()? / 1024;
    for stream in &mut open {
        let mut byte = [0_u8; 1];
        let answered = tokio::time::timeout(Duration::ZERO, stream.read(&mut byte)).await;
        ensure!(answered.is_err(), "a request was answered instead of waiting");
    }
    Ok(Row::new(
        format!("memory, {WAITERS} open waiters (server on sqlite)"),
        "-",
        Unit::Megabytes,
        Duration::from_millis(memory_mb),
        None,
        Demand::AtMost(Duration::from_millis(WAITERS_MB)),
    ))
}
