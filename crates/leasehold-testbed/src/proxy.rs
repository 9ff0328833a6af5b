//! A loopback proxy in front of a server: it counts exchanges and cuts, holds back or freezes connections.
//!
//! An exchange is a request and its answer: the client speaks after the server did, or first on a connection. What a
//! client sends in one go counts once, however many packets it is.

use crate::loopback::Loopback;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// What happens to one exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is cut when the request comes; the server never sees it.
    CutRequest,
    /// The server gets the request, and the connection is cut at once: whether it is done is open.
    CutAfterRequest,
    /// The server gets the request and answers; the connection is cut instead of passing the answer on.
    CutReply,
}

/// A proxy on a port of its own.
#[derive(Debug)]
pub struct Proxy {
    control: Arc<Control>,
    serving: Loopback,
}

#[derive(Debug, Default)]
struct Control {
    target: Mutex<u16>,
    exchanges: AtomicU64,
    connections: AtomicU64,
    frozen: AtomicBool,
    refusing: AtomicBool,
    refused: AtomicU64,
    thawed: Notify,
    cut_all: watch::Sender<u64>,
    armed: Mutex<Option<Armed>>,
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// How many exchanges are let through before.
    spared: u64,
    /// Only exchanges whose request holds these bytes count.
    needle: Vec<u8>,
}

impl Proxy {
    /// A proxy in front of this loopback port.
    pub fn start(target: u16) -> Self {
        let control = Arc::new(Control { target: Mutex::new(target), ..Control::default() });
        let shared = control.clone();
        let serving = Loopback::start(move |listener| serve(listener, shared));
        Proxy { control, serving }
    }

    /// The port to connect to.
    pub const fn port(&self) -> u16 {
        self.serving.port()
    }

    /// Leads new connections to another port.
    pub fn retarget(&self, port: u16) {
        *self.control.target.lock().unwrap() = port;
    }

    /// How many exchanges there were.
    pub fn exchanges(&self) -> u64 {
        self.control.exchanges.load(Ordering::SeqCst)
    }

    /// How many connections were made.
    pub fn connections(&self) -> u64 {
        self.control.connections.load(Ordering::SeqCst)
    }

    /// How many connections were cut as soon as they were made.
    pub fn refused(&self) -> u64 {
        self.control.refused.load(Ordering::SeqCst)
    }

    /// One exchange fails so: the one after the next `spared` ones, on any connection.
    pub fn arm(&self, fault: Fault, spared: u64) {
        self.arm_on(fault, spared, b"");
    }

    /// The same, counting only exchanges whose request holds these bytes.
    pub fn arm_on(&self, fault: Fault, spared: u64, needle: &[u8]) {
        *self.control.armed.lock().unwrap() = Some(Armed { fault, spared, needle: needle.to_vec() });
    }

    /// Whether the fault has not happened yet. Takes it back.
    pub fn disarm(&self) -> bool {
        self.control.armed.lock().unwrap().take().is_some()
    }

    /// Holds everything back, both ways; connections stay open and new ones are accepted.
    pub fn freeze(&self) {
        self.control.frozen.store(true, Ordering::SeqCst);
    }

    /// Lets everything pass again.
    pub fn thaw(&self) {
        self.control.frozen.store(false, Ordering::SeqCst);
        self.control.thawed.notify_waiters();
    }

    /// Cuts every connection, and new ones as soon as they are made, until [`Proxy::heal`].
    pub fn sever(&self) {
        self.control.refusing.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Lets connections be made again.
    pub fn heal(&self) {
        self.control.refusing.store(false, Ordering::SeqCst);
    }

    /// Cuts every connection once.
    pub fn cut(&self) {
        self.control.cut_all.send_modify(|count| *count += 1);
    }
}

async fn serve(listener: TcpListener, control: Arc<Control>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        if control.refusing.load(Ordering::SeqCst) {
            control.refused.fetch_add(1, Ordering::SeqCst);
            reset(client);
            continue;
        }
        control.connections.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(carry(client, control.clone()));
    }
}

/// Closes so that the other end sees a reset, not an orderly end.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn carry(client: TcpStream, control: Arc<Control>) {
    let mut cut = control.cut_all.subscribe();
    let target = SocketAddr::from(([127, 0, 0, 1], *control.target.lock().unwrap()));
    let Ok(server) = TcpStream::connect(target).await else { return reset(client) };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let mut pair = Pair { client, server, server_spoke_last: true, fault: None };
    tokio::select! {
        _ = cut.changed() => {}
        () = pair.pump(&control) => {}
    }
    reset(pair.client);
    // An orderly end where the server is to read what was sent.
    if pair.fault != Some(Fault::CutAfterRequest) {
        reset(pair.server);
    }
}

struct Pair {
    client: TcpStream,
    server: TcpStream,
    server_spoke_last: bool,
    fault: Option<Fault>,
}

impl Pair {
    /// Until one end closes or a fault cuts.
    async fn pump(&mut self, control: &Control) {
        let (mut request, mut answer) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
        loop {
            tokio::select! {
                read = self.client.read(&mut request) => {
                    let Some(count) = read.ok().filter(|count| *count > 0) else { return };
                    control.wait_while_frozen().await;
                    let begins = std::mem::take(&mut self.server_spoke_last);
                    if begins {
                        control.exchanges.fetch_add(1, Ordering::SeqCst);
                    }
                    if self.fault.is_none() {
                        self.fault = control.strike(&request[..count], begins);
                    }
                    if self.fault == Some(Fault::CutRequest) {
                        return;
                    }
                    if self.server.write_all(&request[..count]).await.is_err() {
                        return;
                    }
                    if self.fault == Some(Fault::CutAfterRequest) {
                        return;
                    }
                }
                read = self.server.read(&mut answer) => {
                    let Some(count) = read.ok().filter(|count| *count > 0) else { return };
                    control.wait_while_frozen().await;
                    if self.fault == Some(Fault::CutReply) {
                        return;
                    }
                    self.server_spoke_last = true;
                    if self.client.write_all(&answer[..count]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

impl Control {
    async fn wait_while_frozen(&self) {
        while self.frozen.load(Ordering::SeqCst) {
            let thawed = self.thawed.notified();
            if self.frozen.load(Ordering::SeqCst) {
                thawed.await;
            }
        }
    }

    /// The fault that this part of a request meets. Without a needle only an exchange's first part counts.
    fn strike(&self, request: &[u8], begins: bool) -> Option<Fault> {
        let mut armed = self.armed.lock().unwrap();
        let found = armed.as_mut()?;
        let is_meant = match found.needle.as_slice() {
            [] => begins,
            needle => request.windows(needle.len()).any(|part| part == needle),
        };
        if !is_meant {
            return None;
        }
        if found.spared > 0 {
            found.spared -= 1;
            return None;
        }
        armed.take().map(|armed| armed.fault)
    }
}
