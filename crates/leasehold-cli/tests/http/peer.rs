//! A client by hand: it can send what no library would, and stop anywhere.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<String> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .find_map(|(known, value)| known.eq_ignore_ascii_case(name).then(|| value.trim().to_owned()))
    }
}

pub struct Peer {
    reader: BufReader<TcpStream>,
}

impl Peer {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Peer { reader: BufReader::new(stream) }
    }

    /// False if the other side has hung up.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.reader.get_mut().write_all(bytes).is_ok()
    }

    /// The next answer; none if the connection was closed without one.
    pub fn answer(&mut self) -> Option<Answer> {
        let mut head = String::new();
        loop {
            let mut line = String::new();
            match self.reader.read_line(&mut line) {
                Ok(0) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}; so far {head:?}"),
                Ok(_) => {}
            }
            if line.trim_end().is_empty() {
                if head.starts_with("HTTP/1.1 100") {
                    head.clear();
                    continue;
                }
                break;
            }
            head.push_str(&line);
        }
        let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap();
        let mut answer = Answer { status, head, body: String::new() };
        if let Some(length) = answer.header("content-length").and_then(|length| length.parse::<usize>().ok()) {
            let mut body = vec![0; length];
            if self.reader.read_exact(&mut body).is_err() {
                return None;
            }
            answer.body = String::from_utf8_lossy(&body).into_owned();
        }
        Some(answer)
    }
}

pub fn post(target: &str, token: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: x\r\nLeasehold-Token: {token}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// One request on a connection of its own.
pub fn once(address: SocketAddr, request: &[u8]) -> Option<Answer> {
    let mut peer = Peer::connect(address);
    peer.send(request);
    peer.answer()
}
