//! A store, proxies as real processes that stop where they are told, and zombies.

use crate::peer::{Answer, Peer, once, post};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::lease::protocol::Order;
use leasehold_core::observe::Observed;
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, LeaseName, Outcome, Token};
use leasehold_server::proxy::{Limits, Proxy, ProxyStep, Settings};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::Process;
use rustix::process::{Signal, getpid, kill_process};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

pub const PATIENCE: Duration = Duration::from_secs(30);
pub const DRAIN: Duration = Duration::from_millis(20);

pub struct Store {
    url: String,
    /// Where its proxies, which are all on this machine, keep what they remember.
    state: PathBuf,
    runtime: tokio::runtime::Runtime,
    pub leases: Coordinator,
}

/// The server of all tests of this run, if they are to have one: its URL, with a key for every namespace, and that of its store.
static SERVER: OnceLock<(String, String)> = OnceLock::new();

/// A server, for as long as this is held, if `LEASEHOLD_TEST_ON=served`: then each store is a namespace of it.
pub fn serve_if_asked() -> Option<(Process, TempDir)> {
    match std::env::var("LEASEHOLD_TEST_ON") {
        Err(_) => return None,
        Ok(word) => assert_eq!(word, "served", "LEASEHOLD_TEST_ON={word}: use served"),
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = format!("sqlite:{}/leases.db", folder.path().display());
    let leasehold = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args(args).env_clear().env("HOME", folder.path()).env("LEASEHOLD_STORE", &store).stderr(Stdio::null());
        command
    };
    let create = ["key", "create", "--label", "test", "--allow", "read,hold,work,operate", "--namespace", "*"];
    let key = leasehold(&create).output().unwrap();
    assert!(key.status.success());
    let key = String::from_utf8(key.stdout).unwrap();
    // The tests ask more than one key may: their rate is not what they are about.
    let server = Process::start(&mut leasehold(&["serve", "--listen", "127.0.0.1:0", "--max-rate", "100000"]));
    let said = server.line();
    let address = said.trim().rsplit("//").next().unwrap().split('/').next().unwrap().to_owned();
    SERVER.set((format!("leasehold+http://:{}@{address}", key.trim()), store.clone())).unwrap();
    Some((server, folder))
}

/// The namespace of a test's folder.
fn namespace(folder: &Path) -> String {
    let name = folder.file_name().unwrap().to_str().unwrap();
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

impl Store {
    /// A store in this folder, or in a namespace of the server that has the folder's name.
    pub fn open_in(folder: &Path) -> Self {
        match SERVER.get() {
            None => Self::open(format!("sqlite:{}/leases.db", folder.display()), folder),
            Some((server, _)) => Self::open(format!("{server}/{}", namespace(folder)), folder),
        }
    }

    /// The same without the server, for what can only be done where the store is.
    pub fn open_itself_in(folder: &Path) -> Self {
        match SERVER.get() {
            None => Self::open_in(folder),
            Some((_, store)) => Self::open(format!("{store}?namespace={}", namespace(folder)), folder),
        }
    }

    fn open(url: String, folder: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let leases =
            runtime.block_on(async { Coordinator::new(open(&StoreUrl::parse_in(None, &url).unwrap()).await.unwrap()) });
        Store { url, state: folder.join("state"), runtime, leases }
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// The next holder, whoever has it now.
    pub fn transfer(&self, lease: &LeaseName) -> Token {
        self.run(async {
            if self.leases.inspect(lease).await.unwrap().record.tenure.is_some() {
                let (by, why) = ("test".parse().unwrap(), "test".parse().unwrap());
                self.leases.operate(lease, by, why, Order::Revoke).await.unwrap();
            }
            self.grant(lease).await
        })
    }

    async fn grant(&self, lease: &LeaseName) -> Token {
        let ask = Ask::new(HolderId::new(None), "10m".parse().unwrap());
        match self.leases.acquire(lease, &ask).await.unwrap() {
            Acquired::Granted(grant) => grant.token().clone(),
            Acquired::Refused { refusal, .. } => panic!("refused: {refusal:?}"),
        }
    }

    pub fn release(&self, token: &Token) {
        self.run(self.leases.release_by_token(token, Outcome::Succeeded)).unwrap();
    }
}

/// A proxy as a process of its own.
pub struct Proxied {
    process: Process,
    pub address: SocketAddr,
}

impl Deref for Proxied {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl Proxied {
    pub fn start(store: &Store, upstream: &str, resource: &str) -> Self {
        Self::start_as("proxy", store, upstream, resource)
    }

    pub fn start_as(kind: &str, store: &Store, upstream: &str, resource: &str) -> Self {
        let state = store.state.to_str().unwrap();
        let process = Process::start(&mut Process::of_this_test([kind, &store.url, upstream, resource, state]));
        let address = process.line().parse().unwrap();
        Proxied { process, address }
    }

    /// At the next request's step, the process stops itself or dies.
    pub fn arm(&mut self, step: ProxyStep, kill: bool) {
        let number = ProxyStep::ALL.iter().position(|known| *known == step).unwrap() + 1;
        self.process.tell(&format!("{}", if kill { number + 10 } else { number }));
        assert_eq!(self.line(), "armed");
    }

    pub fn wait_at(&self) {
        assert_eq!(self.line(), "at");
    }

    /// Waits until this proxy answers for its resource.
    pub fn wait_active(&self) {
        eventually("a proxy is active", || self.get("/.well-known/leasehold/health").is_some_and(|a| a.status == 200));
    }

    pub fn get(&self, target: &str) -> Option<Answer> {
        once(self.address, format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
    }

    pub fn write(&self, token: &Token, target: &str) -> Option<Answer> {
        once(self.address, &post(target, &token.wire(), &payload(token)))
    }

    /// Writes, asking again while the proxy stands by or drains.
    pub fn write_until(&self, token: &Token) -> (Answer, Duration) {
        let begun = SystemClock.now();
        loop {
            let answer = self.write(token, "/write");
            let took = SystemClock.now().saturating_since(begun);
            match answer {
                Some(answer) if answer.status != 503 => return (answer, took),
                _ => assert!(took < PATIENCE, "a new holder was blocked: {answer:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What a writer writes: who it is, and enough that it does not go in one piece.
pub fn payload(token: &Token) -> Vec<u8> {
    let author = format!("{}-{}", token.epoch, token.nonce);
    format!("{author}|{}", "x".repeat(3000)).into_bytes()
}

pub fn author(token: &Token) -> String {
    format!("{}-{}", token.epoch, token.nonce)
}

#[track_caller]
pub fn eventually(what: &str, so: impl Fn() -> bool) {
    let end = SystemClock.now() + PATIENCE;
    while !so() {
        assert!(SystemClock.now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn settings(upstream: &str, resource: &str, state: &str) -> Settings {
    Settings {
        resource: resource.parse().unwrap(),
        upstream: upstream.parse().unwrap(),
        lease: None,
        policy: leasehold_core::guard::Policy::Reentrant,
        allow_safe: false,
        replay: None,
        limits: Limits {
            drain: DRAIN,
            upstream_timeout: Duration::from_millis(300),
            client_timeout: Duration::from_secs(2),
            ..Limits::default()
        },
        ttl: "1s".parse().unwrap(),
        label: None,
        state: Some(state.into()),
    }
}

/// The proxy process: the library's proxy, with a step at which it stops.
pub fn proxy_main(args: &[String]) {
    let [store, upstream, resource, state] = args else { panic!("four arguments") };
    let armed = Arc::new(AtomicUsize::new(0));
    let orders = armed.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            orders.store(line.parse().unwrap(), Ordering::SeqCst);
            println!("armed");
        }
        std::process::exit(0);
    });
    let observer = Arc::new(move |step: ProxyStep| -> std::io::Result<()> {
        let number = ProxyStep::ALL.iter().position(|known| *known == step).unwrap() + 1;
        for (order, signal) in [(number, Signal::STOP), (number + 10, Signal::KILL)] {
            if armed.compare_exchange(order, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                println!("at");
                kill_process(getpid(), signal).unwrap();
            }
        }
        Ok(())
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let leases = Coordinator::new(open(&StoreUrl::parse_in(None, store).unwrap()).await.unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        let say = Arc::new(|text: &str| eprintln!("proxy: {text}"));
        let tokens = Arc::new(leases.clone());
        let proxy =
            Proxy::new(settings(upstream, resource, state), leases, tokens, Observed::by(observer), say).unwrap();
        let (_stop, stopped) = tokio::sync::watch::channel(false);
        proxy.serve(listener, stopped).await.unwrap();
    });
}

/// A client process: for each order it sends one request piece by piece, and says what came of it.
pub fn client_main(args: &[String]) {
    let address: SocketAddr = args[0].parse().unwrap();
    println!("{address}");
    let mut peer = Peer::connect(address);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let token: Token = line.parse().unwrap();
        let request = post("/write", &token.wire(), &payload(&token));
        let mut whole = true;
        for piece in request.chunks(400) {
            whole = whole && peer.send(piece);
            for _ in 0..4000 {
                std::hint::spin_loop();
            }
        }
        let answer = peer.answer();
        println!("{}", answer.as_ref().map_or(0, |answer| answer.status));
        // A refused request may leave its body unread: then the connection is of no more use.
        if answer.is_none_or(|answer| answer.status != 200) {
            peer = Peer::connect(address);
        }
    }
}

pub struct Zombie(Process);

impl Deref for Zombie {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl Zombie {
    pub fn start(address: SocketAddr) -> Self {
        let process = Process::start(&mut Process::of_this_test(["client", &address.to_string()]));
        assert_eq!(process.line(), address.to_string());
        Zombie(process)
    }

    pub fn order(&mut self, token: &Token) {
        self.0.tell(&token.wire());
    }

    /// The status that it got; 0 if it was cut off.
    pub fn status(&self) -> u16 {
        self.line().parse().unwrap()
    }
}
