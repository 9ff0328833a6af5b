//! Leases on the servers that fleets run, beside the smallest lease that one would write by hand on the same driver.
//!
//! Promise: both sides use the same server, as durable as it can be set, take turns, and have as many connections.
//! Non-promise: the peers keep no epoch, no history and no reason, and fence nothing; that is what ours adds.

mod engines;
mod etcd;
mod mysql;
mod nats;
mod ours;
mod postgres;
mod redis;
mod served;

use crate::report::{Demand, Row, Unit};
use anyhow::{Result, ensure};
use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use std::path::Path;
use std::time::Duration;

/// How many clients a busy fleet is.
const MANY: usize = 64;
/// How long a turn is. The disk's pace changes from second to second, and the servers do their housekeeping every few tenths
/// of one, so that turns are short; those of many clients less so, because at the end of one each client finishes what it
/// is at.
const TURN: Duration = Duration::from_millis(10);
const TURN_OF_MANY: Duration = Duration::from_millis(200);
/// So many tenures fill a record's history, after which its size stays.
const TENURES: usize = 34;
/// How often a wait is measured.
const WAITS: usize = 40;
const RENEWING: Demand = Demand::AtLeastTheSpeed(0.9);
const TENURE: Demand = Demand::AtLeastTheSpeed(0.5);
const NO_COLLAPSE: Demand = Demand::AtLeastTheSpeed(0.5);
/// Within which another client has a released lease.
const WOKEN: Demand = Demand::AtMost(Duration::from_millis(20));

/// One who takes leases: ours, or written by hand.
#[async_trait]
pub trait Client: Send {
    /// Tries once; whether it was granted.
    async fn acquire(&mut self, lease: &str) -> Result<bool>;
    /// Tries until it is granted, as one would.
    async fn acquire_waiting(&mut self, lease: &str) -> Result<()>;
    /// Keeps what was acquired.
    async fn renew(&mut self) -> Result<()>;
    /// Releases the lease.
    async fn release(&mut self) -> Result<()>;
}

/// A server, and both ways to take leases on it.
#[async_trait]
pub trait Engine {
    /// As the report names the server.
    fn name(&self) -> &'static str;
    /// What the peer is.
    fn peer_is(&self) -> &'static str;
    /// What is demanded of renewals.
    fn renewing(&self) -> Demand {
        RENEWING
    }
    /// Whether the store pushes.
    fn wakes(&self) -> bool;
    /// One more client of ours, with connections of its own.
    async fn ours(&self) -> Result<Box<dyn Client>>;
    /// One more client of the peer's.
    async fn peer(&self) -> Result<Box<dyn Client>>;
}

/// What many operations took.
#[derive(Default)]
struct Tally {
    times: Vec<Duration>,
    span: Duration,
}

impl Tally {
    /// The time for one, over all clients together.
    fn each(&self) -> Duration {
        self.span / u32::try_from(self.times.len().max(1)).unwrap_or(u32::MAX)
    }

    fn percentile(&mut self, percent: usize) -> Duration {
        self.times.sort_unstable();
        self.times.get(self.times.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
    }
}

/// Measures every engine; each contest takes as long as the limit says.
pub fn compare(limit: Duration, only: Option<&str>, leasehold: &Path) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for (name, start) in engines::ALL {
        // That one needs a binary that is built with everything.
        if only.map_or(*name == engines::SERVER, |only| only != *name) {
            continue;
        }
        eprintln!("leasehold-bench: {name}");
        let engine = start(leasehold)?;
        rows.extend(runtime.block_on(measure(&*engine, limit))?);
    }
    ensure!(!rows.is_empty(), "no such engine");
    Ok(rows)
}

async fn measure(engine: &dyn Engine, limit: Duration) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let name = engine.name();
    for count in [1, MANY] {
        let clients = if count == 1 { "1 client".to_owned() } else { format!("{count} clients") };
        let (mut ours, mut peers) = (crew(engine, count, true).await?, crew(engine, count, false).await?);
        for _ in 0..TENURES {
            try_join_all(ours.iter_mut().enumerate().map(|(at, client)| tenure(&mut **client, format!("own-{at}"))))
                .await?;
        }
        let [mut own, mut peer] = contest(&mut ours, &mut peers, limit, Doing::Tenures).await?;
        let row = |what: &str, unit, own, peer, demand| {
            Row::new(format!("{what}, {clients} ({name})"), engine.peer_is(), unit, own, Some(peer), demand)
        };
        rows.push(row("acquire + release", Unit::PerSecond, own.each(), peer.each(), TENURE));
        for percent in [50, 99] {
            let (own, peer) = (own.percentile(percent), peer.percentile(percent));
            rows.push(row(&format!("  p{percent}"), Unit::Milliseconds, own, peer, Demand::None));
        }
        let [own, peer] = contest(&mut ours, &mut peers, limit, Doing::Renewals).await?;
        rows.push(row("renew", Unit::PerSecond, own.each(), peer.each(), engine.renewing()));
    }
    rows.extend(contention(engine, limit).await?);
    if engine.wakes() {
        let p50 = waiting(engine).await?.percentile(50);
        let what = format!("release until acquired elsewhere ({name})");
        rows.push(Row::new(what, "-", Unit::Milliseconds, p50, None, WOKEN));
    }
    Ok(rows)
}

async fn crew(engine: &dyn Engine, count: usize, ours: bool) -> Result<Vec<Box<dyn Client>>> {
    let mut crew = Vec::with_capacity(count);
    for _ in 0..count {
        crew.push(if ours { engine.ours().await? } else { engine.peer().await? });
    }
    Ok(crew)
}

async fn tenure(client: &mut dyn Client, lease: String) -> Result<()> {
    ensure!(client.acquire(&lease).await?, "a lease that nobody else wants was refused");
    client.release().await
}

#[derive(Clone, Copy)]
enum Doing {
    Tenures,
    Renewals,
}

/// Both crews take turns, each client on a lease of its own.
async fn contest(
    ours: &mut [Box<dyn Client>],
    peers: &mut [Box<dyn Client>],
    limit: Duration,
    doing: Doing,
) -> Result<[Tally; 2]> {
    let mut tallies = [Tally::default(), Tally::default()];
    if let Doing::Renewals = doing {
        for crew in [&mut *ours, &mut *peers] {
            let taken = join_all(crew.iter_mut().enumerate().map(|(at, client)| async move {
                ensure!(client.acquire(&format!("own-{at}")).await?, "a free lease was refused");
                Ok(())
            }));
            taken.await.into_iter().collect::<Result<()>>()?;
        }
    }
    let length = if ours.len() == 1 { TURN } else { TURN_OF_MANY };
    let pairs = (limit.as_micros() / (2 * length).as_micros()).max(2);
    for turn in 0..2 * pairs {
        let at = ((turn + turn / 2) % 2) as usize;
        let crew = if at == 0 { &mut *ours } else { &mut *peers };
        let started = SystemClock.now();
        let end = started + length;
        let times = try_join_all(crew.iter_mut().enumerate().map(|(at, client)| async move {
            let (mut times, mut now) = (Vec::new(), SystemClock.now());
            while now < end {
                match doing {
                    Doing::Tenures => tenure(&mut **client, format!("own-{at}")).await?,
                    Doing::Renewals => client.renew().await?,
                }
                let done = SystemClock.now();
                times.push(done.saturating_since(now));
                now = done;
            }
            Ok::<_, anyhow::Error>(times)
        }))
        .await?;
        tallies[at].times.extend(times.into_iter().flatten());
        tallies[at].span += SystemClock.now().saturating_since(started);
    }
    if let Doing::Renewals = doing {
        for client in ours.iter_mut().chain(peers) {
            client.release().await?;
        }
    }
    Ok(tallies)
}

/// Handovers of one lease that all of them want.
async fn contention(engine: &dyn Engine, limit: Duration) -> Result<Vec<Row>> {
    let mut each = Vec::new();
    for (ours, count) in [(true, 2), (true, MANY), (false, MANY)] {
        let lease = format!("contended-{count}");
        let mut crew = crew(engine, count, ours).await?;
        // Everybody has had it once, and has connected.
        round(&mut crew, &lease, SystemClock.now()).await?;
        let handovers = round(&mut crew, &lease, SystemClock.now() + limit).await?;
        each.push(limit / handovers.max(1));
    }
    let name = engine.name();
    let what = format!("handovers of one lease, {MANY} clients ({name})");
    Ok(vec![
        Row::new(what.clone(), "ours with 2", Unit::PerSecond, each[1], Some(each[0]), NO_COLLAPSE),
        Row::new(what, engine.peer_is(), Unit::PerSecond, each[1], Some(each[2]), Demand::None),
    ])
}

/// Everybody takes the lease and gives it back, at least once and until the end; how often until then.
async fn round(crew: &mut [Box<dyn Client>], lease: &str, end: Moment) -> Result<u32> {
    let handovers = try_join_all(crew.iter_mut().map(|client| async move {
        let mut handovers = 0;
        loop {
            client.acquire_waiting(lease).await?;
            client.release().await?;
            if SystemClock.now() >= end {
                return Ok::<u32, anyhow::Error>(handovers);
            }
            handovers += 1;
        }
    }))
    .await?;
    Ok(handovers.iter().sum())
}

/// From the call of a release until another client has the lease.
async fn waiting(engine: &dyn Engine) -> Result<Tally> {
    let (mut one, mut other) = (engine.ours().await?, engine.ours().await?);
    let mut tally = Tally::default();
    for turn in 0..WAITS {
        let lease = format!("waited-for-{turn}");
        ensure!(one.acquire(&lease).await?, "a free lease was refused");
        let wait = async {
            other.acquire_waiting(&lease).await?;
            Ok::<_, anyhow::Error>(SystemClock.now())
        };
        let release = async {
            // Long enough for the other one to have looked and settled down.
            tokio::time::sleep(Duration::from_millis(150)).await;
            let released = SystemClock.now();
            one.release().await?;
            Ok(released)
        };
        let (had, released) = tokio::try_join!(wait, release)?;
        tally.times.push(had.saturating_since(released));
        other.release().await?;
    }
    Ok(tally)
}
