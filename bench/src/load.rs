//! Load on an HTTP server: so many connections, each asking again as soon as it was answered.

use anyhow::{Context, Result, bail};
use leasehold_core::clock::{Clock, SystemClock};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long each request took.
#[derive(Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Adds the times of another turn.
    pub fn extend(&mut self, other: Times) {
        self.0.extend(other.0);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time below which this share of the requests stayed.
    pub fn quantile(&mut self, share: f64) -> Duration {
        self.0.sort_unstable();
        let at = ((self.0.len() as f64 * share) as usize).min(self.0.len().saturating_sub(1));
        self.0.get(at).copied().unwrap_or_default()
    }
}

/// Asks on so many connections for this long.
pub fn turn(address: SocketAddr, request: &[u8], connections: usize, limit: Duration) -> Result<Times> {
    let end = SystemClock.now() + limit;
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..connections)
            .map(|_| {
                scope.spawn(move || -> Result<Times> {
                    let mut peer = Connection::open(address)?;
                    let mut times = Times::default();
                    while SystemClock.now() < end {
                        let asked = SystemClock.now();
                        peer.ask(request)?;
                        times.0.push(SystemClock.now().saturating_since(asked));
                    }
                    Ok(times)
                })
            })
            .collect();
        let mut all = Times::default();
        for asked in asking {
            match asked.join() {
                Ok(times) => all.extend(times?),
                Err(_) => bail!("a connection's thread panicked"),
            }
        }
        Ok(all)
    })
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Connection(BufReader::new(stream)))
    }

    fn ask(&mut self, request: &[u8]) -> Result<()> {
        self.0.get_mut().write_all(request)?;
        let (mut line, mut length, mut first) = (String::new(), 0, true);
        loop {
            line.clear();
            if self.0.read_line(&mut line)? == 0 {
                bail!("the server hung up");
            }
            if std::mem::take(&mut first) && !line.starts_with("HTTP/1.1 200") {
                bail!("the server said {line:?}");
            }
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok(())
    }
}
