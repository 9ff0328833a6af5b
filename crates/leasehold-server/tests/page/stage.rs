//! A server on a free port over stores in memory, whose clock can be moved on, and a small client.

use async_trait::async_trait;
use leasehold_conformance::counting::{CountingStore, Counts};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Survey, Swap, Watch};
use leasehold_core::{Coordinator, Key, Label, MemoryStore, Result, Retention, Shelf, Store, Who};
use leasehold_server::access::{KeyRing, Keys, NewKey, Scope, VerbSet};
use leasehold_server::serve::{Exposure, Limits, Opener, Server, Settings, Site};
use leasehold_stores::Namespace;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::{Metadata, Subscriber, span};

/// The system's clock, moved on as a test likes.
#[derive(Debug, Default)]
pub struct Shifted(Mutex<Duration>);

impl Shifted {
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

#[async_trait]
impl Clock for Shifted {
    fn now(&self) -> Moment {
        SystemClock.now() + *self.0.lock().unwrap()
    }

    async fn sleep_until(&self, until: Moment) {
        while self.now() < until {
            tokio::time::sleep(until.saturating_since(self.now())).await;
        }
    }
}

/// Where the server's writes wait while it is shut. Those of the test itself do not.
#[derive(Debug)]
pub struct Gate {
    is_shut: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { is_shut: watch::Sender::new(false), waiting: watch::Sender::new(0) }
    }
}

impl Gate {
    pub fn shut(&self, is_shut: bool) {
        self.is_shut.send_replace(is_shut);
    }

    /// Returns once a write waits.
    pub async fn until_waiting(&self) {
        self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await.unwrap();
    }
}

/// A store behind the gate.
#[derive(Debug)]
struct Gated {
    inner: Arc<dyn Store>,
    gate: Arc<Gate>,
}

#[async_trait]
impl Store for Gated {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.inner.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        self.gate.waiting.send_modify(|waiting| *waiting += usize::from(*self.gate.is_shut.borrow()));
        self.gate.is_shut.subscribe().wait_for(|is_shut| !is_shut).await.unwrap();
        self.inner.write(change).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.inner.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}

/// What the server logs.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// The first line with this in it.
    pub fn line(&self, says: &str) -> Option<String> {
        self.0.lock().unwrap().iter().find(|line| line.contains(says)).cloned()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Words::default();
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

/// One store in memory for each namespace, counted.
#[derive(Debug)]
struct Memories {
    clock: Arc<Shifted>,
    open: Mutex<HashMap<Namespace, Arc<dyn Store>>>,
    counts: Counts,
    gate: Arc<Gate>,
}

impl Memories {
    fn store(&self, namespace: &Namespace) -> Arc<dyn Store> {
        let mut open = self.open.lock().unwrap();
        let fresh = || -> Arc<dyn Store> { Arc::new(MemoryStore::with_clock(self.clock.clone())) };
        let store = open.entry(namespace.clone()).or_insert_with(fresh).clone();
        Arc::new(CountingStore::new(store, &self.counts))
    }
}

#[async_trait]
impl Opener for Memories {
    async fn open(&self, namespace: &Namespace) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Gated { inner: self.store(namespace), gate: self.gate.clone() }))
    }
}

/// A server that runs until it is dropped.
pub struct Stage {
    pub address: SocketAddr,
    pub clock: Arc<Shifted>,
    pub keys: Keys,
    /// Calls to the stores of namespaces.
    pub counts: Counts,
    /// What the server serves.
    pub site: Site,
    /// Where its writes can be made to wait.
    pub gate: Arc<Gate>,
    pub log: Log,
    memories: Arc<Memories>,
    stop: watch::Sender<bool>,
}

impl Stage {
    pub async fn start() -> Self {
        Stage::with_prefix(None).await
    }

    pub async fn with_prefix(prefix: Option<&str>) -> Self {
        let (clock, counts) = (Arc::new(Shifted::default()), Counts::default());
        // So that dates look like today's.
        clock.advance(Duration::from_secs(1_098 * 86_400));
        let gate = Arc::default();
        let memories =
            Arc::new(Memories { clock: clock.clone(), open: Mutex::default(), counts: counts.clone(), gate });
        let keys = Keys::new(Arc::new(MemoryStore::with_clock(clock.clone()))).with_clock(clock.clone());
        Stage::listen(clock, keys, counts, memories, prefix).await
    }

    /// Another server of the same stores.
    pub async fn another(&self) -> Self {
        let Stage { clock, keys, counts, memories, .. } = self;
        Stage::listen(clock.clone(), keys.clone(), counts.clone(), memories.clone(), None).await
    }

    async fn listen(
        clock: Arc<Shifted>,
        keys: Keys,
        counts: Counts,
        memories: Arc<Memories>,
        prefix: Option<&str>,
    ) -> Self {
        let limits = Limits::default();
        let site = Site::new(memories.clone(), Retention::default(), KeyRing::new(keys.clone()), limits.clone());
        let settings = Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            tls: None,
            exposure: Exposure::Secure,
            prefix: prefix.map(|prefix| prefix.parse().unwrap()),
            limits,
        };
        let served = site.clone();
        let (stop, stopped) = watch::channel(false);
        let (bound, address) = tokio::sync::oneshot::channel();
        let (log, gate) = (Log::default(), memories.gate.clone());
        let logged = log.clone();
        // On a thread of its own: a test that waits for a browser does not hold it up.
        std::thread::spawn(move || {
            let _log = tracing::subscriber::set_default(logged);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = Server::bind(&settings, served).await.unwrap();
                bound.send(server.address()).unwrap();
                server.serve(stopped).await;
            });
        });
        let address = address.await.unwrap();
        Stage { address, clock, keys, counts, site, gate, log, memories, stop }
    }

    /// The leases of the namespace `default`, by a clock that can be moved on.
    pub fn leases(&self) -> Coordinator {
        Coordinator::with_clock(self.memories.store(&Namespace::default()), self.clock.clone())
    }

    /// A key of these verbs on these names of `default`.
    pub async fn key(&self, label: &str, verbs: &str, names: &[&str], lasts: Option<Duration>) -> String {
        self.key_in("default", label, verbs, names, lasts).await
    }

    /// A key of these verbs on everything, in whatever namespace.
    pub async fn key_for_all_namespaces(&self, label: &str, verbs: &str) -> String {
        self.key_in("*", label, verbs, &["*"], None).await
    }

    async fn key_in(
        &self,
        namespaces: &str,
        label: &str,
        verbs: &str,
        names: &[&str],
        lasts: Option<Duration>,
    ) -> String {
        let verbs: VerbSet = verbs.parse().unwrap();
        let names = names.iter().map(|name| name.parse().unwrap()).collect();
        let scope = Scope::new(namespaces.parse().unwrap(), names, verbs).unwrap();
        let (label, by) = (Label::new(label).unwrap(), Who::new("test").unwrap());
        let (secret, _) = self.keys.create(NewKey { label, scope, lasts, not_after: None, by }).await.unwrap();
        secret.reveal().to_owned()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header<'a>(&'a self, name: &str) -> Option<&'a str> {
        self.all(name).next()
    }

    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let (head, name) = (self.head.as_str(), name.to_ascii_lowercase());
        let pairs = head.lines().filter_map(|line| line.split_once(": "));
        pairs.filter(move |(found, _)| found.eq_ignore_ascii_case(&name)).map(|(_, value)| value)
    }
}

/// A browser without a screen: it keeps cookies, and sends forms with what is in them.
#[derive(Debug, Clone)]
pub struct Client {
    address: SocketAddr,
    cookies: HashMap<String, String>,
}

impl Client {
    pub fn new(stage: &Stage) -> Self {
        Client { address: stage.address, cookies: HashMap::new() }
    }

    /// Signed in with this key.
    pub async fn signed_in(stage: &Stage, key: &str) -> Self {
        let mut client = Client::new(stage);
        let answer = client.sign_in(key).await;
        assert_eq!(answer.status, 303, "{}", answer.body);
        client
    }

    pub async fn sign_in(&mut self, key: &str) -> Answer {
        let token = field(&self.get("/").await.body, "token");
        self.post("/sign-in", &[("token", &token), ("key", key), ("next", "/")]).await
    }

    pub fn cookie(&self, name: &str) -> Option<&str> {
        self.cookies.get(name).map(String::as_str)
    }

    pub fn set_cookie(&mut self, name: &str, value: &str) {
        self.cookies.insert(name.to_owned(), value.to_owned());
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    pub async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let origin = format!("http://{}", self.address);
        self.post_from(&origin, path, fields).await
    }

    /// Sends a form and does not wait for the answer.
    pub async fn post_and_leave(&self, path: &str, fields: &[(&str, &str)]) -> TcpStream {
        let body = form(fields);
        let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let (address, cookies) = (self.address, cookies.join("; "));
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nCookie: {cookies}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    pub async fn post_from(&mut self, origin: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
        let body = form(fields);
        let headers = [("Origin", origin), ("Content-Type", "application/x-www-form-urlencoded")];
        self.send("POST", path, &headers, &body).await
    }

    /// Asks for a stream of events, and leaves it open.
    pub async fn open(&self, path: &str) -> TcpStream {
        let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let (address, cookies) = (self.address, cookies.join("; "));
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nCookie: {cookies}\r\n\r\n");
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    pub async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if !cookies.is_empty() {
            request.push_str(&format!("Cookie: {}\r\n", cookies.join("; ")));
        }
        request.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let answer = Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        };
        for cookie in answer.all("set-cookie") {
            let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        answer
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect::<Vec<_>>().join("&")
}

fn escaped(text: &str) -> String {
    text.bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// The first hidden field of this name in a page.
pub fn field(page: &str, name: &str) -> String {
    let after = page.split(&format!("name=\"{name}\" value=\"")).nth(1);
    after.and_then(|rest| rest.split('"').next()).unwrap_or_else(|| panic!("no field {name} in {page}")).to_owned()
}
