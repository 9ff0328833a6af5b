//! beanstalkd, for reference: a queue server that keeps items in memory and a log of what was added and deleted.
//!
//! Promise: its log is synced with every change (`-b`, `-f0`), on the same file system as ours. Non-promise: reserving
//! an item is not written there at all, so half of what it does costs no disk.

use crate::queue::shared;
use anyhow::{Context, Result, bail, ensure};
use leasehold_testbed::{Server, Spec, free_port, program};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// A connection, on which one request at a time is answered.
struct Client {
    out: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Client {
    fn connect(port: u16) -> Result<Self> {
        let out = TcpStream::connect(("127.0.0.1", port))?;
        out.set_nodelay(true)?;
        Ok(Client { answers: BufReader::new(out.try_clone()?), out })
    }

    /// Sends a command, and gives the first line of the answer.
    fn ask(&mut self, command: &[u8]) -> Result<String> {
        self.out.write_all(command)?;
        self.line()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "beanstalkd hung up");
        Ok(line.trim_end().to_owned())
    }

    /// Reserves an item and deletes it; gives whether there was one.
    fn work(&mut self) -> Result<bool> {
        let reserved = self.ask(b"reserve-with-timeout 0\r\n")?;
        let words: Vec<&str> = reserved.split(' ').collect();
        let ["RESERVED", id, _] = words[..] else {
            ensure!(reserved == "TIMED_OUT", "beanstalkd said `{reserved}`");
            return Ok(false);
        };
        let command = format!("delete {id}\r\n");
        self.line()?;
        match self.ask(command.as_bytes())?.as_str() {
            "DELETED" => Ok(true),
            other => bail!("beanstalkd said `{other}`"),
        }
    }
}

/// A server of our own, whose log is in this folder.
pub fn start(folder: &Path) -> Result<Server> {
    let port = free_port();
    let log = folder.to_str().context("the folder's name is not text")?;
    let spec = Spec::new(program("beanstalkd"), port)
        .args(["-l", "127.0.0.1", "-p", &port.to_string(), "-b", log, "-f0"].map(str::to_owned));
    Ok(Server::start(spec, tempfile::tempdir()?))
}

/// The time that so many workers take for one item.
pub fn measure(server: &Server, workers: usize, items: usize, payload: &[u8]) -> Result<Duration> {
    let mut producer = Client::connect(server.port())?;
    for _ in 0..items {
        let put = [format!("put 0 0 90 {}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat();
        let answer = producer.ask(&put)?;
        ensure!(answer.starts_with("INSERTED "), "beanstalkd said `{answer}`");
    }
    let crew = (0..workers).map(|_| Client::connect(server.port())).collect::<Result<Vec<_>>>()?;
    Ok(shared(crew, Client::work)? / u32::try_from(items)?)
}
