//! Connections with time limits.
//!
//! Promise: a client that takes too long to send a head of HTTP/1, or to read a piece of an answer, is disconnected. Non-promise:
//! hyper closes idle connections of HTTP/1; for HTTP/2 there are [`Pulse::idle_for`] and [`Pulse::unread_for`].

use leasehold_core::clock::{Clock, Moment, SystemClock};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How many requests of a connection are being answered, and since when there are none.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<Requests>);

#[derive(Debug)]
struct Requests {
    count: AtomicUsize,
    last: Mutex<Moment>,
    /// The answers that wait for their client to read on, by number, and since when.
    unread: Mutex<BTreeMap<usize, Moment>>,
    next: AtomicUsize,
}

impl Default for Requests {
    fn default() -> Self {
        Requests {
            count: AtomicUsize::new(0),
            last: Mutex::new(SystemClock.now()),
            unread: Mutex::default(),
            next: AtomicUsize::new(0),
        }
    }
}

impl Pulse {
    /// Notes that a request begins; it ends when the answer is dropped.
    pub fn beat(&self) -> Beat {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        Beat { pulse: self.clone(), number }
    }

    fn is_idle(&self) -> bool {
        self.0.count.load(Ordering::Acquire) == 0
    }

    fn unread(&self) -> MutexGuard<'_, BTreeMap<usize, Moment>> {
        self.0.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an answer has waited this long for its client to read on. In HTTP/2 the client says how much it takes, so a
    /// connection on which everything else moves may keep answers for ever.
    pub async fn unread_for(&self, limit: Duration) {
        loop {
            let waited = self.unread().values().map(|since| SystemClock.now().saturating_since(*since)).max();
            let rest = limit.saturating_sub(waited.unwrap_or_default());
            if rest.is_zero() {
                return;
            }
            tokio::time::sleep(rest).await;
        }
    }

    /// Waits until there has been no request for this long.
    pub async fn idle_for(&self, limit: Duration) {
        loop {
            // First: a request that ends in between is younger than the time that is read then.
            let is_idle = self.is_idle();
            let last = *self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
            let rest = limit.saturating_sub(SystemClock.now().saturating_since(last));
            match (is_idle, rest.is_zero()) {
                (true, true) => return,
                (true, false) => tokio::time::sleep(rest).await,
                (false, _) => tokio::time::sleep(limit).await,
            }
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct Beat {
    pulse: Pulse,
    number: usize,
}

impl Beat {
    /// Notes that the client has to read on before the rest of the answer is asked for.
    pub fn is_unread(&self) {
        self.pulse.unread().insert(self.number, SystemClock.now());
    }

    /// Notes that the client has read everything that there is.
    pub fn is_read(&self) {
        self.pulse.unread().remove(&self.number);
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.is_read();
        *self.pulse.0.last.lock().unwrap_or_else(PoisonError::into_inner) = SystemClock.now();
        self.pulse.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection with time limits.
#[derive(Debug)]
pub struct Impatient<S> {
    inner: S,
    pulse: Pulse,
    /// How long a head may take; none where heads come in frames.
    head_limit: Option<Duration>,
    reader_limit: Duration,
    head: Option<Pin<Box<Sleep>>>,
    reader: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    /// A connection on which the first head is awaited from now on.
    pub fn new(inner: S, pulse: Pulse, head_limit: Option<Duration>, reader_limit: Duration) -> Self {
        let head = head_limit.map(|limit| Box::pin(tokio::time::sleep(limit)));
        Impatient { inner, pulse, head_limit, reader_limit, head, reader: None }
    }

    /// What became of a write: progress, or nothing for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.reader = None;
            return written;
        }
        let limit = self.reader_limit;
        let reader = self.reader.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(reader.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if !self.pulse.is_idle() {
            self.head = None;
            return read;
        }
        if read.is_ready() {
            if buf.filled().len() > before && self.head.is_none() {
                self.head = self.head_limit.map(|limit| Box::pin(tokio::time::sleep(limit)));
            }
            return read;
        }
        match &mut self.head {
            None => Poll::Pending,
            Some(head) => {
                ready!(head.as_mut().poll(cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not finish its request")))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, pieces);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.judge(cx, ended)
    }
}
