//! What the supervisor and the dead-man say to each other: one line each, over a socket pair.

use super::windows::Windows;
use leasehold_core::clock::Moment;
use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::net::unix::OwnedWriteHalf;

/// How soon it is tried again to say what could not be said.
const AGAIN: Duration = Duration::from_millis(10);

/// From the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// The command is to find this in its environment. Before [`Order::Begin`]; no line breaks.
    Set(String, String),
    /// The lease is acquired and trusted until then: run the command, with these grace periods.
    Begin(Moment, Windows),
    /// The lease is trusted until then.
    Trust(Moment),
    /// Pass this signal on to the command's group.
    Signal(i32),
    /// End the command within this long.
    Stop(Duration),
}

/// From the dead-man.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The command runs, in a group of its own with this number.
    Started(i32),
    /// It could not be started; the system's error number.
    NotStarted(i32),
    /// It was stopped by this signal.
    Suspended(i32),
    /// The trust window is ending: it is being ended.
    OutOfTrust,
    /// So many processes were still there when the command had ended; they are being ended.
    LeftBehind(usize),
    /// It ended by itself with this code.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
}

/// What is said to the other side, in order and without a gap: a socket may take half a line, or nothing for want of memory.
/// Whoever has one waits for [`Outbox::retry_time`] beside its other work, and never for the other side.
#[derive(Debug)]
pub struct Outbox {
    socket: OwnedWriteHalf,
    unsent: Vec<u8>,
}

impl Outbox {
    pub const fn new(socket: OwnedWriteHalf) -> Self {
        Outbox { socket, unsent: Vec::new() }
    }

    /// Says it at once if that can be done, and later otherwise.
    pub fn send(&mut self, line: &impl fmt::Display) {
        self.unsent.extend_from_slice(line.to_string().as_bytes());
        self.push();
    }

    /// Says what is left to say, as far as the socket takes it.
    pub fn push(&mut self) {
        while !self.unsent.is_empty() {
            match self.socket.try_write(&self.unsent) {
                Ok(0) => return,
                Ok(taken) => drop(self.unsent.drain(..taken)),
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    // Nobody is left to hear it.
                    self.unsent.clear();
                }
                Err(_) => return,
            }
        }
    }

    /// Returns when it is time to [push](Outbox::push) again; not at all when everything is said.
    pub async fn retry_time(&self) {
        if self.unsent.is_empty() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(AGAIN).await;
    }

    /// Returns when everything is said, or nobody is left to hear it.
    pub async fn send_all(&mut self) {
        while !self.unsent.is_empty() {
            self.retry_time().await;
            self.push();
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Set(name, value) => writeln!(f, "set {name}={value}"),
            Order::Begin(until, windows) => {
                let (grace, margin) = (windows.grace.as_millis(), windows.margin.as_millis());
                writeln!(f, "begin {},{grace},{margin}", until.as_nanos())
            }
            Order::Trust(until) => writeln!(f, "trust {}", until.as_nanos()),
            Order::Signal(number) => writeln!(f, "signal {number}"),
            Order::Stop(within) => writeln!(f, "stop {}", within.as_millis()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Started(group) => writeln!(f, "started {group}"),
            Report::NotStarted(errno) => writeln!(f, "not-started {errno}"),
            Report::Suspended(signal) => writeln!(f, "suspended {signal}"),
            Report::OutOfTrust => writeln!(f, "out-of-trust 0"),
            Report::LeftBehind(count) => writeln!(f, "left-behind {count}"),
            Report::Exited(code) => writeln!(f, "exited {code}"),
            Report::Killed(signal) => writeln!(f, "killed {signal}"),
        }
    }
}

impl Order {
    /// Reads a line; none if it is not one of ours.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.trim_end().split_once(' ')?;
        Some(match word {
            "set" => {
                let (name, value) = rest.split_once('=')?;
                Order::Set(name.into(), value.into())
            }
            "begin" => {
                let mut numbers = rest.split(',').map(|number| number.parse::<u64>().ok());
                let mut next = || numbers.next().flatten();
                let until = Moment::from_nanos(next()?);
                let (grace, margin) = (Duration::from_millis(next()?), Duration::from_millis(next()?));
                Order::Begin(until, Windows { grace, margin })
            }
            "trust" => Order::Trust(Moment::from_nanos(rest.parse().ok()?)),
            "signal" => Order::Signal(rest.parse().ok()?),
            "stop" => Order::Stop(Duration::from_millis(rest.parse().ok()?)),
            _ => return None,
        })
    }
}

impl Report {
    /// Reads a line; none if it is not one of ours.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, number) = line.trim_end().split_once(' ')?;
        let number: i32 = number.parse().ok()?;
        Some(match word {
            "started" => Report::Started(number),
            "not-started" => Report::NotStarted(number),
            "suspended" => Report::Suspended(number),
            "out-of-trust" => Report::OutOfTrust,
            "left-behind" => Report::LeftBehind(usize::try_from(number).ok()?),
            "exited" => Report::Exited(number),
            "killed" => Report::Killed(number),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_the_wire() {
        for order in [
            Order::Set("LEASEHOLD_NAME".into(), "a=b c".into()),
            Order::Begin(
                Moment::from_nanos(7),
                Windows { grace: Duration::from_secs(1), margin: Duration::from_millis(50) },
            ),
            Order::Trust(Moment::from_nanos(u64::MAX)),
            Order::Signal(15),
            Order::Stop(Duration::from_millis(250)),
        ] {
            assert_eq!(Order::parse(&order.to_string()), Some(order));
        }
        for report in [
            Report::Started(7),
            Report::NotStarted(2),
            Report::Suspended(20),
            Report::OutOfTrust,
            Report::LeftBehind(2),
            Report::Exited(3),
            Report::Killed(9),
        ] {
            assert_eq!(Report::parse(&report.to_string()), Some(report));
        }
        assert_eq!(Order::parse("trust x"), None);
        assert_eq!(Report::parse("nonsense"), None);
    }
}
