//! Writer processes for databases and buckets: the test binary starts itself again and gives orders over pipes.

use crate::common::token;
use crate::{control, databases, dice::Dice};
use leasehold::guard::{Guard, Policy};
use leasehold::{Error, Result};
use leasehold_guards::object::{Salt, Tags, key};
use leasehold_guards::sql::Script;
use leasehold_guards::{ObjectGuard, Stage, Stages};
use leasehold_stores::StoreUrl;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A writer that takes longer is blocked.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest pause at one stage, in turns of a loop.
const PAUSE: u64 = 150_000;

/// One write to be tried.
#[derive(Debug, Clone)]
pub struct Order {
    /// `guard`, `seal` or `naive`.
    pub how: &'static str,
    pub url: String,
    pub resource: String,
    pub epoch: u64,
    pub rival: u64,
    /// `none`, `dawdle`, `stop` or `kill`.
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

pub struct Worker {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    pub fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Worker { orders: child.stdin.take().unwrap(), child, lines }
    }

    pub fn send(&mut self, order: &Order) {
        let Order { how, url, resource, epoch, rival, fault, at } = order;
        writeln!(self.orders, "{how} {url} {resource} {epoch} {rival} {fault} {at}").unwrap();
    }

    /// `at`, `written`, or the kind and the message of a refusal.
    pub fn reply(&mut self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("a writer was blocked or died: {e}"))
    }

    pub fn run(&mut self, order: &Order) -> String {
        self.send(order);
        self.reply()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed()).unwrap()
    }

    pub fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        self.wait_stopped();
    }

    pub fn wait_stopped(&self) {
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "the writer ended: {status:?}");
    }

    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    pub fn wait_killed(&mut self) {
        assert!(!self.child.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
        "naive" => control::write_row(url, resource, epoch, &sql, || saboteur.pause()).await,
        _ => {
            let script = Script::parse(guard.dialect(), &sql)?;
            guard.run(&token(epoch, rival), &script).await.map(drop)
        }
    }
}

/// The guard of an object.
pub fn object_at(url: &str, name: &str, stages: Option<Arc<dyn Stages>>) -> Result<ObjectGuard> {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let full: StoreUrl = format!("{place}/{name}?{query}").parse()?;
    let address = full.address().ok_or_else(|| Error::invalid("url", url, "a bucket"))?;
    let tags = if address.scheme == "s3" { Tags::OfTheContent } else { Tags::OfTheWrite };
    let store = leasehold_stores::object::client(address)?;
    let guard = ObjectGuard::new(store, key(&address.path)?, address.to_string(), tags, Policy::Reentrant)?;
    let guard = guard.salted(Salt::Blank);
    Ok(match stages {
        Some(stages) => guard.with_stages(stages),
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
            self.dice.lock().unwrap().dawdle(PAUSE);
        }
    }
}

impl Stages for Saboteur {
    fn reach(&self, stage: Stage) -> io::Result<()> {
        self.pause();
        let here = Stage::SQL.iter().chain(&Stage::OBJECT).position(|known| *known == stage);
        if self.fault == "dawdle" || here != usize::try_from(self.at).ok() || self.struck.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        say("at");
        if self.fault == "stop" {
            // To this very thread: another would take its time to stop this one, which would go on meanwhile.
            return Ok(nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP)?);
        }
        Ok(kill_process(getpid(), Signal::KILL)?)
    }
}
