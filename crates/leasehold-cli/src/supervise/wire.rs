//! What the supervisor and the dead-man say to each other: the arguments at its start, then one line each over a socket pair.

use super::deadlines::Deadlines;
use leasehold_core::clock::Moment;
use leasehold_work::output::Usage;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::net::unix::OwnedWriteHalf;

/// The first argument that makes this binary a dead-man. Not for people.
pub const ARGUMENT: &str = "__dead-man";
/// In place of the control group's key.
const NO_CGROUP: &str = "-";
/// How soon it is tried again to say what could not be said.
const AGAIN: Duration = Duration::from_millis(10);

/// The dead-man's arguments.
#[derive(Debug)]
pub struct Arguments {
    /// The descriptor of the socket to the supervisor.
    pub channel: i32,
    /// What tells the command's control group from all others; none if it is to have none.
    pub cgroup_key: Option<String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

impl Arguments {
    /// As arguments for the new process.
    pub fn to_args(&self) -> Vec<OsString> {
        let key = self.cgroup_key.as_deref().unwrap_or(NO_CGROUP);
        let mut args: Vec<OsString> = vec![ARGUMENT.into(), self.channel.to_string().into(), key.into()];
        args.extend(self.command.iter().cloned());
        args
    }

    /// As the new process finds them, after [`ARGUMENT`].
    pub fn parse(args: &[OsString]) -> Option<Self> {
        Some(Arguments {
            channel: args.first()?.to_str()?.parse().ok()?,
            cgroup_key: Some(args.get(1)?.to_str()?.to_owned()).filter(|key| key != NO_CGROUP),
            command: args.get(2..).filter(|c| !c.is_empty())?.to_vec(),
        })
    }
}

/// What the supervisor says to the dead-man.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The command is to find this in its environment. Before [`Order::Begin`].
    Set(String, String),
    /// The lease is acquired and trusted until then: run the command, with these grace periods.
    Begin(#[serde(with = "moment")] Moment, Deadlines),
    /// The lease is trusted until then.
    Trust(#[serde(with = "moment")] Moment),
    /// Pass this signal on to the command's group.
    Signal(i32),
    /// End the command within this long.
    Stop(Duration),
}

/// What the dead-man says to the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// What it has used. Just before how it ended.
    Used(Usage),
    /// It ended by itself with this code.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
}

/// What is said to the other side, in order and without a gap: a socket may take half a line, or nothing for want of memory.
/// Its owner waits for [`Outbox::retry_time`] along with its other work, and never blocks on the other side.
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
    pub fn send(&mut self, message: &impl Serialize) {
        self.unsent.extend_from_slice(line(message).as_bytes());
        self.push();
    }

    /// Sends the rest, as far as the socket accepts it.
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

/// A message as a line.
fn line<T: Serialize>(message: &T) -> String {
    // None of them has anything that JSON cannot say.
    serde_json::to_string(message).map(|text| text + "\n").unwrap_or_default()
}

/// Reads a line; none if it is not one of ours.
pub fn parse<T: DeserializeOwned>(line: &str) -> Option<T> {
    serde_json::from_str(line).ok()
}

/// A moment is shared by the processes of a machine, until it is restarted.
mod moment {
    use leasehold_core::clock::Moment;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(moment: &Moment, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(moment.as_nanos())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        u64::deserialize(deserializer).map(Moment::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_the_wire() {
        for order in [
            Order::Set("LEASEHOLD_NAME".into(), "a=b\nc".into()),
            Order::Begin(
                Moment::from_nanos(7),
                Deadlines { grace: Duration::from_secs(1), margin: Duration::from_millis(50) },
            ),
            Order::Trust(Moment::from_nanos(u64::MAX)),
            Order::Signal(15),
            Order::Stop(Duration::from_millis(250)),
        ] {
            assert_eq!(parse(&line(&order)), Some(order));
        }
        for report in [
            Report::Started(7),
            Report::NotStarted(2),
            Report::Suspended(20),
            Report::OutOfTrust,
            Report::LeftBehind(2),
            Report::Used(Usage { cpu_ms: 7, peak_memory_bytes: u64::MAX }),
            Report::Exited(3),
            Report::Killed(9),
        ] {
            assert_eq!(parse(&line(&report)), Some(report));
        }
        assert_eq!(parse::<Order>("{\"Trust\":\"x\"}"), None);
        assert_eq!(parse::<Report>("nonsense"), None);
    }
}
