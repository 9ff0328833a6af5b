//! Lines for standard error, which nobody waits for.
//!
//! Promise: logging does not block on a reader that has stopped: a terminal after Ctrl-S, a pager, a log driver that hangs.
//! Lines keep their order; those that were dropped are counted, and a line says so when there is a reader again. Non-promise:
//! what the reader does not take within [`PATIENCE`] of the end of the process is lost.

use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// What a pipe takes at once when it takes anything.
const PIECE: usize = 4096;
/// How much waits for the reader.
const MAX_WAITING: usize = 1 << 20;
/// How long the end of the process waits for the reader.
const PATIENCE: Duration = Duration::from_secs(2);

static WAITING: Mutex<Waiting> =
    Mutex::new(Waiting { lines: VecDeque::new(), bytes: 0, dropped: 0, has_thread: false });
static CHANGED: Condvar = Condvar::new();

struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    /// A thread waits for the reader. There is one only while the reader does not take what it is given.
    has_thread: bool,
}

impl Waiting {
    fn push(&mut self, line: &[u8]) {
        if self.bytes + line.len() > MAX_WAITING {
            self.dropped += 1;
            return;
        }
        self.bytes += line.len();
        self.lines.push_back(line.to_vec());
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.len();
            return Some(line);
        }
        let dropped = std::mem::take(&mut self.dropped);
        (dropped > 0).then(|| super::dropped(dropped).into_bytes())
    }

    fn put_back(&mut self, rest: &[u8]) {
        self.bytes += rest.len();
        self.lines.push_front(rest.to_vec());
    }
}

/// Writes a line, now or as soon as somebody reads.
pub fn write(line: &[u8]) {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.push(line);
    if waiting.has_thread {
        return;
    }
    // Where no thread could be made, what waited then comes first.
    while let Some(line) = waiting.next() {
        let rest = write_now(&line);
        if !rest.is_empty() {
            waiting.put_back(rest);
            waiting.has_thread = std::thread::Builder::new().name("log".into()).spawn(write_waiting).is_ok();
            return;
        }
    }
}

/// Waits until what was logged is written, for a while.
pub fn finish() {
    let waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = CHANGED.wait_timeout_while(waiting, PATIENCE, |waiting| waiting.has_thread);
}

/// Writes what can be written without waiting; gives the rest.
fn write_now(mut line: &[u8]) -> &[u8] {
    let stderr = rustix::stdio::stderr();
    while !line.is_empty() {
        let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut polled, Some(&now)) {
            Ok(0) => return line,
            Err(rustix::io::Errno::INTR) => continue,
            // Closed, or of a kind that cannot be asked: the write tells.
            Ok(_) | Err(_) => {}
        }
        match rustix::io::write(stderr, &line[..line.len().min(PIECE)]) {
            Ok(count) => line = &line[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return line,
            // Nobody is there to be told.
            Err(_) => return &[],
        }
    }
    line
}

fn write_waiting() {
    loop {
        let next = {
            let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
            let next = waiting.next();
            waiting.has_thread = next.is_some();
            next
        };
        let Some(line) = next else { return CHANGED.notify_all() };
        let (stderr, mut rest) = (rustix::stdio::stderr(), &line[..]);
        while !rest.is_empty() {
            // Waits for as long as it takes, also where others have made it return at once.
            let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
            let _ = rustix::event::poll(&mut polled, None);
            match rustix::io::write(stderr, &rest[..rest.len().min(PIECE)]) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(_) => break,
            }
        }
    }
}
