//! An upstream that applies a write when the whole of it has come, and remembers the order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What was applied, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Applied {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The epoch and the nonce's last digits that the writer put into the body.
    pub fn author(&self) -> String {
        String::from_utf8_lossy(&self.body).split('|').next().unwrap_or_default().to_owned()
    }
}

/// The server; it lives as long as the test.
#[derive(Clone)]
pub struct Upstream {
    pub address: SocketAddr,
    pub log: Arc<Mutex<Vec<Applied>>>,
    /// How many whole requests have come, applied or not.
    pub received: Arc<AtomicUsize>,
}

impl Upstream {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream =
            Upstream { address: listener.local_addr().unwrap(), log: Arc::default(), received: Arc::default() };
        let (log, received) = (upstream.log.clone(), upstream.received.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (log, received) = (log.clone(), received.clone());
                std::thread::spawn(move || converse(&stream, &log, &received));
            }
        });
        upstream
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn applied(&self) -> Vec<Applied> {
        self.log.lock().unwrap().clone()
    }

    /// Waits until so many whole requests have come.
    pub fn wait_received(&self, count: usize) {
        for _ in 0..3000 {
            if self.received.load(Ordering::SeqCst) >= count {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{count} requests did not come");
    }

    /// The bodies of what was applied, in order.
    pub fn bodies(&self) -> Vec<String> {
        self.applied().into_iter().map(|applied| String::from_utf8_lossy(&applied.body).into_owned()).collect()
    }

    pub fn count(&self) -> usize {
        self.log.lock().unwrap().len()
    }
}

fn converse(stream: &TcpStream, log: &Mutex<Vec<Applied>>, received: &AtomicUsize) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        let path = request.target.clone();
        received.fetch_add(1, Ordering::SeqCst);
        // `/late/MS` is applied after a while and then answered; `/cut/MS` too, but its connection is cut at once.
        if let Some(wait) = path.strip_prefix("/cut/").or_else(|| path.strip_prefix("/late/")) {
            if path.starts_with("/cut/") {
                let _ = stream.shutdown(Shutdown::Both);
            }
            std::thread::sleep(Duration::from_millis(wait.parse().unwrap()));
        }
        if path.starts_with("/fail") {
            return;
        }
        let body = request.body.clone();
        log.lock().unwrap().push(request);
        if path.starts_with("/mute") {
            return;
        }
        if path.starts_with("/slow") {
            std::thread::sleep(std::time::Duration::from_millis(400));
        }
        let (status, extra) = match path.as_str() {
            "/redirect" => ("302 Found", "Location: http://169.254.169.254/secret\r\n"),
            _ => ("200 OK", "Leasehold-Epoch: 999\r\nConnection: X-Drop\r\nX-Drop: 1\r\n"),
        };
        let head = format!("HTTP/1.1 {status}\r\n{extra}Content-Length: {}\r\n\r\n", body.len());
        let mut out = stream;
        if out.write_all(head.as_bytes()).and_then(|()| out.write_all(&body)).is_err() {
            return;
        }
    }
}

/// A whole request, or nothing: what breaks off was not asked for.
fn read(reader: &mut BufReader<&TcpStream>) -> Option<Applied> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let find = |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let mut body = Vec::new();
    if find("transfer-encoding").is_some() {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).ok().filter(|read| *read > 0)?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            if size == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    } else if let Some(length) = find("content-length") {
        body = vec![0; length.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
    }
    Some(Applied { method, target, headers, body })
}
