//! A command's output that passes through us, to our own output and to other consumers.
//!
//! Promise: without a name before each line it is passed on as it came. With one, it is passed on line by line, each in one
//! write, so that several runs on one terminal or in one file never mix within a line. What is gathered besides never keeps
//! the command waiting. Non-promise: between standard output and standard error the order is the one in which they were read.

use super::evidence::Evidence;
use super::lines::{End, Lines};
use super::tail::{Tail, TailBuffer};
use leasehold_system::sync::Mutex;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long a pipe may be silent before it counts as ended, once everything that could write is dead.
const SILENCE: Duration = Duration::from_secs(1);
/// What a pipe takes in one step, on Linux.
const ONE_WRITE: usize = 4_096;

/// What becomes of a command's output.
#[derive(Debug, Clone, Default)]
pub struct Capture {
    /// Notes when there was any.
    pub evidence: Option<Evidence>,
    /// Put before each line that is passed on.
    pub prefix: Option<String>,
    /// Where the last lines are collected; none if nobody needs them.
    pub gathered: Option<Gathered>,
}

impl Capture {
    /// Copies the command's output, which was piped, to ours.
    pub fn copy_output(self, child: &mut Child) -> Copying {
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        let (ended, has_ended) = watch::channel(false);
        let task = tokio::spawn(async move {
            tokio::join!(
                self.copy(stdout, Stream::Output, tokio::io::stdout(), has_ended.clone()),
                self.copy(stderr, Stream::Error, tokio::io::stderr(), has_ended.clone())
            );
        });
        Copying { task, ended }
    }

    async fn copy(
        &self,
        from: Option<OwnedFd>,
        stream: Stream,
        mut to: impl AsyncWrite + Unpin,
        mut ended: watch::Receiver<bool>,
    ) {
        let Some(Ok(mut from)) = from.map(tokio::net::unix::pipe::Receiver::from_owned_fd) else { return };
        let mut buffer = vec![0; 16 * 1024];
        let (mut lines, mut is_read) = (Lines::default(), true);
        loop {
            // Only the reading is bounded: a write that its reader keeps waiting is not cut off.
            let read = tokio::select! {
                biased;
                read = from.read(&mut buffer) => read.unwrap_or(0),
                () = silence(&mut ended) => 0,
            };
            if let Some(evidence) = self.evidence.as_ref().filter(|_| read > 0) {
                evidence.note_output();
            }
            let mut passed = Batches::new(self.prefix.as_deref());
            let give = |piece: &[u8], end: End| {
                passed.add(piece);
                if let Some(gathered) = &self.gathered {
                    gathered.add(stream, piece, end);
                }
            };
            match read {
                0 => lines.finish(give),
                read => lines.take(&buffer[..read], give),
            }
            if is_read {
                let whole = if self.prefix.is_none() { Some(&buffer[..read]) } else { None };
                is_read = pass_on(&mut to, whole.into_iter().chain(passed.batches.iter().map(Vec::as_slice))).await;
            }
            // Without a reader and without anybody who gathers, the command is to find that out.
            if read == 0 || (!is_read && self.gathered.is_none()) {
                return;
            }
        }
    }
}

/// Writes each part by itself; false if nobody reads any more.
async fn pass_on<'a>(to: &mut (impl AsyncWrite + Unpin), parts: impl Iterator<Item = &'a [u8]>) -> bool {
    for part in parts.filter(|part| !part.is_empty()) {
        if to.write_all(part).await.is_err() || to.flush().await.is_err() {
            return false;
        }
    }
    true
}

/// Whole lines with their prefix, as many to a batch as go into one write.
struct Batches<'a> {
    prefix: Option<&'a str>,
    batches: Vec<Vec<u8>>,
}

impl<'a> Batches<'a> {
    fn new(prefix: Option<&'a str>) -> Self {
        Batches { prefix, batches: Vec::new() }
    }

    fn add(&mut self, piece: &[u8]) {
        let Some(prefix) = self.prefix else { return };
        let length = prefix.len() + piece.len() + 1;
        match self.batches.last() {
            Some(last) if last.len() + length <= ONE_WRITE => {}
            _ => self.batches.push(Vec::with_capacity(ONE_WRITE)),
        }
        if let Some(last) = self.batches.last_mut() {
            last.extend_from_slice(prefix.as_bytes());
            last.extend_from_slice(piece);
            last.push(b'\n');
        }
    }
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Output,
    Error,
}

/// Where lines go that are gathered. It must not block.
pub trait Sink: std::fmt::Debug + Send {
    /// The next bytes: whole lines, or pieces of a long one.
    fn write(&mut self, bytes: &[u8]);
}

/// The lines of a run, of all its tries one after the other.
#[derive(Debug, Clone)]
pub struct Gathered(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    tail: TailBuffer,
    /// Whose line is not ended.
    open: Option<Stream>,
    bytes: u64,
    sink: Option<Box<dyn Sink>>,
}

impl Gathered {
    /// Keeps the end in memory, and passes everything to the sink.
    pub fn new(sink: Option<Box<dyn Sink>>) -> Self {
        Gathered(Arc::new(Mutex::new(Inner { tail: TailBuffer::default(), open: None, bytes: 0, sink })))
    }

    fn add(&self, stream: Stream, piece: &[u8], end: End) {
        let mut inner = self.0.lock();
        let mut bytes = Vec::with_capacity(piece.len() + 2);
        if inner.open.is_some_and(|open| open != stream) {
            bytes.push(b'\n');
        }
        bytes.extend_from_slice(piece);
        if end == End::Line {
            bytes.push(b'\n');
        }
        inner.open = (end == End::Open).then_some(stream);
        inner.tail.push(&bytes);
        inner.bytes += bytes.len() as u64;
        if let Some(sink) = &mut inner.sink {
            sink.write(&bytes);
        }
    }

    /// A line of our own.
    pub fn note(&self, text: &str) {
        self.add(Stream::Error, format!("[leasehold: {text}]").as_bytes(), End::Line);
    }

    /// The last lines so far.
    pub fn tail(&self) -> Tail {
        self.0.lock().tail.tail()
    }

    /// How many bytes there were.
    pub fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }

    /// Nothing more will come.
    pub fn close(&self) {
        self.0.lock().sink = None;
    }
}

/// Output on its way to our own. Dropped, what has not arrived is lost.
#[derive(Debug)]
pub struct Copying {
    task: JoinHandle<()>,
    ended: watch::Sender<bool>,
}

impl Copying {
    /// Waits until everything has arrived, however slow its reader is. To be called once all that could write is dead:
    /// a process that is not below us may keep the other end open, so a pipe that then stays silent counts as ended.
    pub async fn arrive(&mut self) {
        self.ended.send_replace(true);
        let _ = (&mut self.task).await;
    }

    /// Whether everything has arrived.
    pub fn has_arrived(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns when nothing more is to be expected.
async fn silence(ended: &mut watch::Receiver<bool>) {
    if ended.wait_for(|ended| *ended).await.is_ok() {
        tokio::time::sleep(SILENCE).await;
    }
}
