//! Connections of HTTP/2, with frames made by hand: a client that does only what keeps a connection open.

use super::listener::Connection;
use super::newcomers::Newcomers;
use super::settings::Limits;
use super::tests::{Bench, PATIENCE};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn connection(bench: &Bench) -> Connection {
    let (site, router) = (bench.site.clone(), bench.router.clone());
    Connection { site, router, newcomer: Newcomers::default().join().0, is_full: false }
}

/// A client that answers pings.
struct Client(DuplexStream);

impl Client {
    /// Connects, and sends what every client begins with.
    async fn connect(bench: &Bench) -> Self {
        Client::connect_with(bench, &[]).await
    }

    /// The same with settings of its own.
    async fn connect_with(bench: &Bench, settings: &[u8]) -> Self {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let connection = connection(bench);
        tokio::spawn(connection.http2(theirs));
        let mut client = Client(ours);
        client.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        client.send(SETTINGS, 0, 0, settings).await;
        client
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        // The server may be gone: the next read says so.
        let _ = self.0.write_all(&frame).await;
    }

    /// The next frame that is no ping; none at the end of the connection.
    async fn next(&mut self) -> Option<(u8, u8, Vec<u8>)> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.ok()?;
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.0.read_exact(&mut payload).await.ok()?;
            match (head[3], head[4]) {
                (PING, 0) => self.send(PING, ACK, 0, &payload).await,
                (SETTINGS, 0) => self.send(SETTINGS, ACK, 0, &[]).await,
                (kind, flags) => return Some((kind, flags, payload)),
            }
        }
    }

    async fn post(&mut self, path: &str, key: &str, more: &[(String, String)]) {
        // POST and https of the static table, then fields whose names are there or spelled out.
        let mut fields = vec![0x83, 0x87, 0x04, path.len() as u8];
        fields.extend(path.as_bytes());
        let bearer = format!("Bearer {key}");
        fields.extend([0x0f, 0x08, bearer.len() as u8]);
        fields.extend(bearer.as_bytes());
        for (name, value) in more {
            fields.extend([0, name.len() as u8]);
            fields.extend(name.as_bytes());
            fields.push(value.len() as u8);
            fields.extend(value.as_bytes());
        }
        self.send(HEADERS, END | END_HEADERS, 1, &fields).await;
    }
}

#[tokio::test]
async fn a_connection_of_http2_without_requests_is_closed_though_it_answers_pings() {
    let bench = Bench::new(Limits { idle: Duration::from_millis(300), ..Limits::default() }).await;
    let mut client = Client::connect(&bench).await;
    let ended = async {
        let mut was_told = false;
        while let Some((kind, ..)) = client.next().await {
            was_told |= kind == GOAWAY;
        }
        was_told
    };
    assert!(tokio::time::timeout(PATIENCE, ended).await.expect("it is closed"), "in order");
}

#[tokio::test]
async fn a_client_of_http2_that_takes_no_answers_is_disconnected_though_it_answers_pings() {
    let bench = Bench::new(Limits { reader: Duration::from_millis(300), ..Limits::default() }).await;
    // No stream of it may be sent anything but heads.
    let mut client = Client::connect_with(&bench, &[0, 4, 0, 0, 0, 0]).await;
    bench.slow.add_permits(1);
    client.post("/x/acquire", bench.secret.reveal(), &[]).await;
    let ended = async {
        let mut was_answered = false;
        while let Some((kind, _, _)) = client.next().await {
            assert_ne!(kind, DATA, "it may not be sent");
            was_answered |= kind == HEADERS;
        }
        was_answered
    };
    assert!(tokio::time::timeout(PATIENCE, ended).await.expect("it is closed"), "it had the head of an answer");
}

#[tokio::test]
async fn a_connection_of_http2_may_send_little_before_it_is_read() {
    const WINDOW_UPDATE: u8 = 8;
    const INITIAL_WINDOW: u16 = 4;
    let bench = Bench::new(Limits { idle: Duration::from_millis(300), ..Limits::default() }).await;
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let connection = connection(&bench);
    tokio::spawn(connection.http2(theirs));
    let mut client = Client(ours);
    client.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    client.send(SETTINGS, 0, 0, &[]).await;
    // What a connection and a stream may send, unless the server says more.
    let (mut connection, mut stream) = (65_535_u32, 65_535_u32);
    let read = async {
        loop {
            let mut head = [0; 9];
            if client.0.read_exact(&mut head).await.is_err() {
                return;
            }
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            client.0.read_exact(&mut payload).await.unwrap();
            match (head[3], head[4]) {
                (WINDOW_UPDATE, _) => connection += u32::from_be_bytes(*payload.first_chunk().unwrap()),
                (SETTINGS, 0) => {
                    for setting in payload.chunks(6) {
                        if u16::from_be_bytes([setting[0], setting[1]]) == INITIAL_WINDOW {
                            stream = u32::from_be_bytes(*setting[2..].first_chunk().unwrap());
                        }
                    }
                    client.send(SETTINGS, ACK, 0, &[]).await;
                }
                (PING, 0) => client.send(PING, ACK, 0, &payload).await,
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("it is closed when it is idle");
    assert_eq!((connection, stream), (65_535, 65_535));
}

#[tokio::test]
async fn a_connection_of_http2_is_not_idle_while_a_request_is_under_way() {
    let idle = Duration::from_millis(50);
    let bench = Bench::new(Limits { idle, ..Limits::default() }).await;
    let mut client = Client::connect(&bench).await;
    client.post("/x/acquire", bench.secret.reveal(), &[]).await;
    let slow = bench.slow.clone();
    tokio::spawn(async move {
        tokio::time::sleep(idle * 10).await;
        slow.add_permits(1);
    });
    let answered = async {
        loop {
            match client.next().await.expect("it is open until the answer") {
                (DATA, _, payload) if !payload.is_empty() => return payload,
                _ => {}
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, answered).await.unwrap(), b"acquired");
}

#[tokio::test]
async fn too_many_headers_are_refused_over_http2_too() {
    let bench = Bench::new(Limits::default()).await;
    for (count, status) in [(63, &b"200"[..]), (64, b"431")] {
        let mut client = Client::connect(&bench).await;
        let more: Vec<_> = (0..count).map(|number| (format!("x{number}"), "y".to_owned())).collect();
        client.post("/x/renew", bench.secret.reveal(), &more).await;
        let answered = async {
            loop {
                if let (HEADERS, _, fields) = client.next().await.expect("it answers") {
                    return fields;
                }
            }
        };
        let fields = tokio::time::timeout(PATIENCE, answered).await.unwrap();
        // The status comes first: 200 is in the static table, others are spelled out, perhaps in Huffman's code.
        assert_eq!(fields[0] == 0x88, status == b"200", "{count}: {fields:?}");
    }
}
