//! Writer processes for databases and buckets: the test binary starts itself again and gives orders over pipes.

use crate::common::token;
use crate::{control, databases, dice::Dice};
use leasehold_core::guard::{Guard, Policy};
use leasehold_core::observe::Observer;
use leasehold_core::{Error, Kind, Result, Token};
use leasehold_guards::object::{Salt, Tags, key};
use leasehold_guards::sql::{Resource, Script};
use leasehold_guards::sql::{mysql, postgres};
use leasehold_guards::{ObjectGuard, WriteStep};
use leasehold_stores::{Address, StoreUrl};
use leasehold_testbed::Process;
use mysql_async::prelude::Queryable;
use object_store::ObjectStore;
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The longest pause at one stage.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a transaction of the user's own waits for the row before it looks who has it.
const WAIT: Duration = Duration::from_millis(100);

/// One write to be tried.
#[derive(Debug, Clone)]
pub struct Order {
    /// `guard`, `begin` (a transaction of the user's own), `seal` or `naive`.
    pub how: &'static str,
    pub url: String,
    pub resource: String,
    pub epoch: u64,
    pub rival: u64,
    /// `none`, `dawdle`, `stop`, `kill` or `eio`.
    pub fault: &'static str,
    /// The stage at which it strikes; for dawdling, the dice.
    pub at: u64,
}

impl Order {
    pub fn new(how: &'static str, url: &str, resource: &str, epoch: u64) -> Self {
        Order { how, url: url.into(), resource: resource.into(), epoch, rival: 0, fault: "none", at: 0 }
    }

    pub fn with(mut self, fault: &'static str, at: u64) -> Self {
        (self.fault, self.at) = (fault, at);
        self
    }
}

/// A writer process.
pub struct Worker(Process);

impl Deref for Worker {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl DerefMut for Worker {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.0
    }
}

impl Worker {
    pub fn start() -> Self {
        Worker(Process::start(&mut Process::of_this_test(["worker"])))
    }

    pub fn send(&mut self, order: &Order) {
        let Order { how, url, resource, epoch, rival, fault, at } = order;
        self.tell(&format!("{how} {url} {resource} {epoch} {rival} {fault} {at}"));
    }

    /// `at`, `written`, or the kind and the message of a refusal.
    pub fn reply(&mut self) -> String {
        self.line()
    }

    pub fn run(&mut self, order: &Order) -> String {
        self.send(order);
        self.reply()
    }
}

/// Obeys orders until there are no more.
pub fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut line = String::new();
    loop {
        line.clear();
        if io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        say(&runtime.block_on(obey(line.trim_end())));
    }
}

fn say(what: &str) {
    let mut out = io::stdout().lock();
    out.write_all(format!("{what}\n").as_bytes()).and_then(|()| out.flush()).expect("the test listens");
}

async fn obey(order: &str) -> String {
    let words: Vec<&str> = order.split(' ').collect();
    let [how, url, resource, epoch, rival, fault, at] = words[..] else { return format!("bad order {order}") };
    let (epoch, rival, at): (u64, u64, u64) = (epoch.parse().unwrap(), rival.parse().unwrap(), at.parse().unwrap());
    let saboteur = Arc::new(Saboteur {
        at,
        fault: fault.into(),
        struck: AtomicBool::new(fault == "none"),
        dice: Mutex::new(Dice::new(at | 1)),
    });
    let answer = if url.starts_with("s3:") || url.starts_with("az:") {
        write_object(how, url, resource, epoch, rival, &saboteur).await
    } else {
        write_row(how, url, resource, epoch, rival, &saboteur).await
    };
    match answer {
        Ok(()) => "written".into(),
        Err(e) => format!("{} {e}", e.kind().as_str()),
    }
}

async fn write_row(
    how: &str,
    url: &str,
    resource: &str,
    epoch: u64,
    rival: u64,
    saboteur: &Arc<Saboteur>,
) -> Result<()> {
    let guard = databases::guard_waiting(url, resource, Policy::Reentrant, Some(saboteur.clone()));
    let sql = format!("UPDATE applied SET epoch = {epoch}, rival = {rival} WHERE id = '{resource}'");
    match how {
        "seal" => guard.seal(&token(epoch, rival)).await.map(drop),
        "begin" => {
            // As `run --guard` does it: sealed, and then a transaction of the user's own.
            guard.seal(&token(epoch, rival)).await?;
            begin_row(url, &resource.parse()?, &token(epoch, rival), &sql, saboteur).await
        }
        "naive" => control::write_row(url, resource, epoch, &sql, || saboteur.pause()).await,
        _ => {
            let script = Script::parse(guard.dialect(), &sql)?;
            guard.run(&token(epoch, rival), &script).await.map(drop)
        }
    }
}

/// A transaction that begins with its admit. A statement that fails was in a session that a newer holder has ended.
async fn begin_row(url: &str, resource: &Resource, token: &Token, sql: &str, saboteur: &Saboteur) -> Result<()> {
    let ended = |e: &dyn std::fmt::Display| Error::new(Kind::Unavailable, e.to_string());
    let db = databases::Database::at(url);
    saboteur.pause();
    if db.engine == databases::Engine::Postgres {
        let mut client = db.postgres().await;
        let fenced = postgres::begin(&mut client, resource, token, Policy::Reentrant).await?;
        saboteur.pause();
        fenced.batch_execute(sql).await.map_err(|e| ended(&e))?;
        saboteur.pause();
        return fenced.commit().await.map(drop);
    }
    // Who waits ends the session of an older holder that has the row and is stopped, or was when its admit came, late.
    let mut begun = std::pin::pin!(mysql::begin(db.mysql().await, resource, token, Policy::Reentrant));
    let mut fenced = loop {
        match tokio::time::timeout(WAIT, &mut begun).await {
            Ok(begun) => break begun?,
            Err(_) => mysql::evict(&mut db.mysql().await, resource, token).await?,
        }
    };
    saboteur.pause();
    fenced.query_drop(sql).await.map_err(|e| ended(&e))?;
    saboteur.pause();
    fenced.commit().await.map(drop)
}

/// One client per place: making one costs more than a put. The whole address says which: printed, it leaves out the endpoint.
fn client(url: &str, address: &Address) -> Result<Arc<dyn ObjectStore>> {
    static CLIENTS: Mutex<BTreeMap<String, Arc<dyn ObjectStore>>> = Mutex::new(BTreeMap::new());
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(client) = clients.get(url) {
        return Ok(client.clone());
    }
    let client: Arc<dyn ObjectStore> = leasehold_stores::object::client(address)?;
    clients.insert(url.to_owned(), client.clone());
    Ok(client)
}

/// The guard of an object.
pub fn object_at(url: &str, name: &str, stages: Option<Arc<dyn Observer<WriteStep>>>) -> Result<ObjectGuard> {
    object_by(|address| client(url, address), url, name, stages)
}

/// The same, with connections of its own.
pub fn object_apart(url: &str, name: &str) -> Result<ObjectGuard> {
    object_by(leasehold_stores::object::client, url, name, None)
}

fn object_by(
    client: impl Fn(&Address) -> Result<Arc<dyn ObjectStore>>,
    url: &str,
    name: &str,
    stages: Option<Arc<dyn Observer<WriteStep>>>,
) -> Result<ObjectGuard> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let full: StoreUrl = format!("{base}/{name}?{query}").parse()?;
    let address = full.address().ok_or_else(|| Error::invalid("url", url, "a bucket"))?;
    let tags = if address.scheme == "s3" { Tags::OfTheContent } else { Tags::OfTheWrite };
    let guard = ObjectGuard::new(client(address)?, key(&address.path)?, address.to_string(), tags, Policy::Reentrant)?;
    let guard = guard.salted(Salt::Blank);
    Ok(match stages {
        Some(stages) => guard.with_observer(stages),
        None => guard,
    })
}

async fn write_object(
    how: &str,
    url: &str,
    name: &str,
    epoch: u64,
    rival: u64,
    saboteur: &Arc<Saboteur>,
) -> Result<()> {
    let guard = object_at(url, name, Some(saboteur.clone()))?;
    let token = token(epoch, rival);
    // The same few bytes for every epoch, so that a tag of the content would come back; who wrote is in the fence.
    match how {
        "seal" => guard.seal(&token).await.map(drop),
        "naive" => control::write_object(url, name, epoch, || saboteur.pause()).await,
        _ => guard.put(&token, "{}".into(), "application/json").await.map(drop),
    }
}

/// Strikes once, at one stage.
#[derive(Debug)]
pub struct Saboteur {
    at: u64,
    fault: String,
    struck: AtomicBool,
    dice: Mutex<Dice>,
}

impl Saboteur {
    fn pause(&self) {
        if self.fault == "dawdle" {
            self.dice.lock().unwrap().rest(PAUSE);
        }
    }
}

impl Observer<WriteStep> for Saboteur {
    fn reach(&self, stage: WriteStep) -> io::Result<()> {
        self.pause();
        let here = WriteStep::SQL.iter().chain(&WriteStep::OBJECT).position(|known| *known == stage);
        if self.fault == "dawdle" || here != usize::try_from(self.at).ok() || self.struck.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        say("at");
        if self.fault == "stop" {
            // To this very thread: another would take its time to stop this one, which would go on meanwhile.
            return Ok(nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP)?);
        }
        if self.fault == "eio" {
            let mut go = String::new();
            io::stdin().read_line(&mut go)?;
            return Err(Errno::IO.into());
        }
        Ok(kill_process(getpid(), Signal::KILL)?)
    }
}
