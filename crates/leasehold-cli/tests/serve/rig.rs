//! A server of its own for each test, and a client that can misbehave.

use crate::common::{Home, PATIENCE, Running, eventually};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;

/// A server that runs.
pub struct Served {
    pub running: Running,
    pub address: SocketAddr,
    /// The name of the file that its standard error goes to.
    pub log: String,
}

/// Starts `leasehold serve` on a free port of this machine.
pub fn serve(home: &Home, args: &[&str]) -> Served {
    start(home, &[&["--listen", "127.0.0.1:0"], args].concat(), "a")
}

/// The same, with other files for what it prints.
pub fn start(home: &Home, args: &[&str], name: &str) -> Served {
    let (out, log) = (format!("{name}.out"), format!("{name}.log"));
    let mut command = home.leasehold(&[&["serve"], args].concat());
    command.stdout(File::create(home.path(&out)).unwrap()).stderr(File::create(home.path(&log)).unwrap());
    let mut running = Running::from(command.stdin(Stdio::null()).spawn().unwrap());
    eventually("it listens", || {
        assert!(!running.is_over(), "{}", home.read(&log));
        home.read(&out).ends_with('\n')
    });
    let said = home.read(&out);
    let address = said.trim().rsplit("//").next().unwrap().split('/').next().unwrap().parse().unwrap();
    Served { running, address, log }
}

/// The key that a server printed at its first start.
pub fn printed_key(text: &str) -> Option<String> {
    let from = text.find("lh_a_")?;
    Some(text[from..].split_whitespace().next()?.to_owned())
}

/// A new key.
pub fn key(home: &Home, args: &[&str]) -> String {
    home.done(&[&["key", "create", "--label", "test"], args].concat()).expect(0).stdout.trim().to_owned()
}

/// The public part of a key.
pub fn id(key: &str) -> &str {
    &key[5..13]
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// What is wrong, as programs read it.
    pub fn kind(&self) -> String {
        self.json()["kind"].as_str().unwrap_or_default().to_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// Sends these bytes and reads until the end. None if nothing came back.
pub fn raw(address: SocketAddr, request: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).ok()?;
    read(&mut stream)
}

/// Reads an answer until the end of the connection.
pub fn read(stream: &mut TcpStream) -> Option<Answer> {
    let mut bytes = Vec::new();
    // A server that closes on unread bytes may reset the connection after its answer.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

/// A plain GET with these headers.
pub fn get(address: SocketAddr, path: &str, headers: &[&str]) -> Answer {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\r\n");
    raw(address, request.as_bytes()).expect("it answers")
}

/// A GET with a key.
pub fn get_as(address: SocketAddr, path: &str, key: &str) -> Answer {
    get(address, path, &[&format!("authorization: Bearer {key}")])
}
