//! Telling that the queue's store is away, and that it is back: once for a worker, however many lanes it has.
//!
//! A lane tells its manager, over the socket that is its standard input, and the manager logs what it did not know yet. The end
//! of the socket is how a lane learns that its manager is gone. Non-promise: a lane that works on an item notices nothing.

use leasehold_core::{Error, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

/// How a message begins, each in one line.
const AWAY: &str = "away ";
const BACK: &str = "back";
/// A longer one might not fit into a socket that is not read at once.
const MAX_ERROR: usize = 2_000;

/// The manager's end of a lane's line. When it is dropped, the lane ends.
pub type Manager = OwnedWriteHalf;

/// What the manager knows.
#[derive(Debug, Clone)]
pub struct News {
    queue: Arc<str>,
    is_away: Arc<AtomicBool>,
}

impl News {
    pub fn of_queue(queue: String) -> Self {
        News { queue: queue.into(), is_away: Arc::default() }
    }

    /// A line for another lane: our end, and the lane's standard input.
    pub fn line(&self) -> std::io::Result<(Manager, OwnedFd)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(ours)?.into_split();
        tokio::spawn(self.clone().listen(read));
        Ok((write, theirs.into()))
    }

    async fn listen(self, line: OwnedReadHalf) {
        let mut lines = BufReader::new(line).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            match line.strip_prefix(AWAY) {
                Some(error) => self.away(error),
                None => self.back(),
            }
        }
    }

    fn away(&self, error: &str) {
        let queue = &*self.queue;
        if !self.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!(queue, error, "cannot claim from `{queue}`; retrying until it works: {error}");
        }
    }

    fn back(&self) {
        let queue = &*self.queue;
        if self.is_away.swap(false, Ordering::Relaxed) {
            tracing::info!(queue, "claiming from `{queue}` works again");
        }
    }
}

/// How a lane tells.
#[derive(Debug)]
pub struct Teller {
    news: News,
    /// None for a worker that is its own only lane.
    manager: Option<OwnedWriteHalf>,
}

impl Teller {
    pub fn alone(queue: String) -> Self {
        Teller { news: News::of_queue(queue), manager: None }
    }

    /// Of a lane. When its manager is gone, however it went, it is asked to finish what it is at.
    pub fn of_lane(queue: String, asked: watch::Sender<u32>) -> Result<Self> {
        let cannot = |e: std::io::Error| Error::unavailable("cannot listen to the manager of the lanes", e);
        let line = std::io::stdin().as_fd().try_clone_to_owned().map_err(cannot)?;
        let line = StdUnixStream::from(line);
        line.set_nonblocking(true).map_err(cannot)?;
        let (mut read, write) = UnixStream::from_std(line).map_err(cannot)?.into_split();
        tokio::spawn(async move {
            let mut buffer = [0; 64];
            while !matches!(read.read(&mut buffer).await, Ok(0) | Err(_)) {}
            asked.send_modify(|count| *count = (*count).max(1));
        });
        Ok(Teller { news: News::of_queue(queue), manager: Some(write) })
    }

    pub fn away(&self, error: &str) {
        if !self.tells_manager(&format!("{AWAY}{}\n", one_line(error))) {
            self.news.away(error);
        }
    }

    pub fn back(&self) {
        if !self.tells_manager(&format!("{BACK}\n")) {
            self.news.back();
        }
    }

    /// Whether the manager hears of it. It reads at once, so that a short line always fits.
    fn tells_manager(&self, line: &str) -> bool {
        self.manager.as_ref().is_some_and(|manager| manager.try_write(line.as_bytes()).is_ok())
    }
}

fn one_line(error: &str) -> String {
    error.chars().take(MAX_ERROR).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_to_the_manager_is_one_short_line() {
        assert_eq!(one_line("a\nb\tc"), "a b c");
        assert_eq!(one_line(&"é".repeat(2 * MAX_ERROR)).chars().count(), MAX_ERROR);
    }

    #[tokio::test]
    async fn what_several_lanes_say_is_news_once() {
        let news = News::of_queue("mail".into());
        let known = |expected: bool| {
            let news = news.clone();
            async move {
                while news.is_away.load(Ordering::Relaxed) != expected {
                    tokio::task::yield_now().await;
                }
            }
        };
        let lanes: Vec<_> = (0..2).map(|_| news.line().unwrap()).collect();
        let streams: Vec<_> = lanes.into_iter().map(|(ours, lane)| (ours, StdUnixStream::from(lane))).collect();
        use std::io::Write;
        (&streams[0].1).write_all(b"away it is gone\n").unwrap();
        known(true).await;
        (&streams[1].1).write_all(b"back\n").unwrap();
        known(false).await;
    }
}
