//! A loopback proxy in front of servers of HTTP/1.1 that treats requests as a bad network does, at random: it cuts connections
//! in the middle of a request or an answer, delays, and delivers requests late or twice, the second time to any of the servers.
//!
//! Promise: a request is delivered whole or cut short, never changed, and each fault is counted. Non-promise: what a client
//! sends before it has its answer waits, and a seed gives runs that are alike, not equal.

use crate::loopback::Loopback;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// How long a request is held back at most, and how late it is delivered at most.
const LONGEST_DELAY: Duration = Duration::from_millis(300);
const LATEST: Duration = Duration::from_millis(1500);
/// How long somebody listens to the answer of what was delivered again.
const LISTENED: Duration = Duration::from_secs(2);

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Fate {
    /// Half of it reaches the server, and the connection is cut.
    CutRequest,
    /// The server gets it, and the connection is cut before the answer.
    CutBeforeAnswer,
    /// Half of the answer reaches the client, and the connection is cut.
    CutAnswer,
    /// It is held back for a while.
    Delay,
    /// The connection is cut, and the server gets it later all the same.
    Late,
    /// It is delivered, and delivered again, to any of the servers.
    Double,
    /// It never reaches a server: the client gets the answer to an earlier request to the same address. No network does that;
    /// it is for tests that must fail.
    OldAnswer,
}

/// How many fates there are.
const FATES: usize = 7;

/// How often each fate befalls a request, of a thousand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odds([u16; FATES]);

impl Odds {
    /// Every request is delivered.
    pub const CALM: Odds = Odds([0; FATES]);
    /// Every fate that a network has for requests.
    pub const BAD: Odds = Odds([10, 15, 15, 60, 15, 60, 0]);

    /// The same with this fate so often.
    #[must_use]
    pub const fn with(mut self, fate: Fate, of_a_thousand: u16) -> Self {
        self.0[fate as usize] = of_a_thousand;
        self
    }
}

/// Such a proxy on a port of its own.
#[derive(Debug)]
pub struct UnreliableProxy {
    control: Arc<Control>,
    serving: Loopback,
}

#[derive(Debug)]
struct Control {
    targets: Vec<u16>,
    odds: Mutex<Odds>,
    random: AtomicU64,
    counts: [AtomicU64; FATES],
    /// What was asked for, and how it was answered.
    old: Mutex<Option<(Vec<u8>, Vec<u8>)>>,
}

impl UnreliableProxy {
    /// A proxy in front of the first of these loopback ports. The others are where it may deliver a second time.
    pub fn start(targets: Vec<u16>, odds: Odds, seed: u64) -> Self {
        let control = Control {
            targets,
            odds: Mutex::new(odds),
            random: AtomicU64::new(seed),
            counts: Default::default(),
            old: Mutex::default(),
        };
        let control = Arc::new(control);
        let shared = control.clone();
        UnreliableProxy { control, serving: Loopback::start(move |listener| serve(listener, shared)) }
    }

    /// The port to connect to.
    pub const fn port(&self) -> u16 {
        self.serving.port()
    }

    /// Treats requests so from now on.
    pub fn set(&self, odds: Odds) {
        *self.control.odds.lock().unwrap() = odds;
    }

    /// How many requests had this fate.
    pub fn count(&self, fate: Fate) -> u64 {
        self.control.counts[fate as usize].load(Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, control: Arc<Control>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        tokio::spawn(carry(client, control.clone()));
    }
}

async fn carry(client: TcpStream, control: Arc<Control>) {
    let Ok(server) = connect(control.targets[0]).await else { return drop(client.set_zero_linger()) };
    let _ = client.set_nodelay(true);
    let mut pair = Pair { client, server, request: Vec::new(), fate: None };
    pair.pump(&control).await;
    let _ = pair.client.set_zero_linger();
    // An orderly end where the server is to read what was sent.
    if pair.fate != Some(Fate::CutBeforeAnswer) {
        let _ = pair.server.set_zero_linger();
    }
}

async fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

struct Pair {
    client: TcpStream,
    server: TcpStream,
    /// The last whole request.
    request: Vec<u8>,
    fate: Option<Fate>,
}

impl Pair {
    /// Until one end closes or a fault cuts.
    async fn pump(&mut self, control: &Arc<Control>) {
        let (mut sent, mut answer) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            tokio::select! {
                read = self.client.read_buf(&mut sent) => {
                    if read.unwrap_or(0) == 0 {
                        return;
                    }
                    let Some(length) = whole_request(&sent) else { continue };
                    self.request = sent.drain(..length).collect();
                    self.fate = control.fate(&self.request);
                    if self.deliver(control).await.is_none() {
                        return;
                    }
                }
                read = self.server.read(&mut answer) => {
                    let count = read.unwrap_or(0);
                    let told = if self.fate == Some(Fate::CutAnswer) { count / 2 } else { count };
                    control.remember(&self.request, &answer[..count]);
                    if count == 0 || self.client.write_all(&answer[..told]).await.is_err() || told < count {
                        return;
                    }
                }
            }
        }
    }

    /// None when the connection is to be cut.
    async fn deliver(&mut self, control: &Arc<Control>) -> Option<()> {
        let whole = &self.request;
        match self.fate {
            Some(Fate::CutRequest) => {
                self.server.write_all(&whole[..whole.len() / 2]).await.ok()?;
                return None;
            }
            Some(Fate::Late) => {
                control.deliver_again(whole.clone());
                return None;
            }
            Some(Fate::OldAnswer) => {
                let answer = control.old.lock().unwrap().as_ref().map(|(_, answer)| answer.clone())?;
                return self.client.write_all(&answer).await.ok();
            }
            Some(Fate::Double) => control.deliver_again(whole.clone()),
            Some(Fate::Delay) => sleep(control.up_to(LONGEST_DELAY)).await,
            None | Some(Fate::CutBeforeAnswer | Fate::CutAnswer) => {}
        }
        self.server.write_all(whole).await.ok()?;
        (self.fate != Some(Fate::CutBeforeAnswer)).then_some(())
    }
}

/// The length of the request that these bytes begin with, if all of it is there.
fn whole_request(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|part| part == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")).map_or("0", str::trim);
    let whole = head + length.parse::<usize>().ok()?;
    (bytes.len() >= whole).then_some(whole)
}

/// The method and address of a request.
fn asked(request: &[u8]) -> &[u8] {
    request.split(|byte| *byte == b'\r').next().unwrap_or_default()
}

impl Control {
    /// A number that looks random (splitmix64).
    fn random(&self) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15_u64;
        let mut z = self.random.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn up_to(&self, limit: Duration) -> Duration {
        limit.mul_f64((self.random() % 1000) as f64 / 1000.0)
    }

    fn fate(&self, request: &[u8]) -> Option<Fate> {
        let odds = self.odds.lock().unwrap().0;
        let mut drawn = self.random() % 1000;
        let fates = [
            Fate::CutRequest,
            Fate::CutBeforeAnswer,
            Fate::CutAnswer,
            Fate::Delay,
            Fate::Late,
            Fate::Double,
            Fate::OldAnswer,
        ];
        let fate = fates.into_iter().find(|fate| {
            let share = u64::from(odds[*fate as usize]);
            let is_it = drawn < share;
            drawn = drawn.saturating_sub(share);
            is_it
        })?;
        let is_known = |(old, _): &(Vec<u8>, Vec<u8>)| asked(old) == asked(request);
        if fate == Fate::OldAnswer && !self.old.lock().unwrap().as_ref().is_some_and(is_known) {
            return None;
        }
        self.counts[fate as usize].fetch_add(1, Ordering::SeqCst);
        Some(fate)
    }

    /// Keeps the answer to a change, for those who are to get it again.
    fn remember(&self, request: &[u8], answer: &[u8]) {
        let is_change = asked(request).windows(16).any(|part| part == b"/records/change ");
        let is_done = answer.starts_with(b"HTTP/1.1 200") && answer.windows(10).any(|part| part == b"\"revision\"");
        if is_change && is_done {
            *self.old.lock().unwrap() = Some((request.to_vec(), answer.to_vec()));
        }
    }

    /// Delivers a request on a connection of its own, at once or later, to any of the servers.
    fn deliver_again(self: &Arc<Self>, request: Vec<u8>) {
        let draw = self.random();
        let wait = if draw.is_multiple_of(2) { Duration::ZERO } else { self.up_to(LATEST) };
        let port = self.targets[(draw >> 8) as usize % self.targets.len()];
        tokio::spawn(async move {
            sleep(wait).await;
            let Ok(mut server) = connect(port).await else { return };
            if server.write_all(&request).await.is_ok() {
                // As long as somebody listens, the server works on it.
                let mut answer = vec![0; 64 * 1024];
                let _ = timeout(LISTENED, server.read(&mut answer)).await;
            }
        });
    }
}
