//! Bodies as they pass through: a request's, which can be cut, and a response's.
//!
//! Promise: they are streamed piece by piece, with limits on length and idle time. A request that was cut is never
//! complete at the upstream. Non-promise: trailers of requests are not passed on.

use super::fence::Ticket;
use super::flight::Fault;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use ring::digest::{Context as Digest, SHA256};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Sleep;

/// Where a request's hash is left once the whole body has passed.
pub(crate) type HashSlot = Arc<Mutex<Option<[u8; 32]>>>;

/// A request's body on its way to the upstream.
pub(crate) struct Outgoing {
    inner: Incoming,
    ticket: Option<Arc<Ticket>>,
    seen: u64,
    max: u64,
    idle_limit: Duration,
    idle: Option<Pin<Box<Sleep>>>,
    hash: Option<(Digest, HashSlot)>,
    /// The last piece, while the horizon has to be moved for it.
    held: Option<Held>,
    done: bool,
}

/// The last piece, or the end after the last piece.
type Held = Option<Bytes>;

impl Outgoing {
    pub(crate) fn new(inner: Incoming, ticket: Option<Arc<Ticket>>, max: u64, idle_limit: Duration) -> Self {
        Outgoing { inner, ticket, seen: 0, max, idle_limit, idle: None, hash: None, held: None, done: false }
    }

    /// Hashes what passes, beginning with `head`, and leaves the hash there.
    pub(crate) fn hashed(mut self, head: &[u8], slot: HashSlot) -> Self {
        let mut digest = Digest::new(&SHA256);
        digest.update(head);
        self.hash = Some((digest, slot));
        self
    }

    /// Called before the head is sent: a request without a body is complete with its head. False if the horizon has to
    /// be moved first.
    pub(crate) fn begin(&mut self) -> Result<bool, Fault> {
        let whole = self.inner.is_end_stream();
        match self.may_pass(whole) {
            Err(fault) => {
                let _ = self.fail(fault);
                return Err(fault);
            }
            Ok(false) => return Ok(false),
            Ok(true) => {}
        }
        if whole {
            self.finish();
        }
        Ok(true)
    }

    /// Sends the last piece, or keeps it until the horizon has moved.
    fn hand_last(&mut self, held: Held) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        match self.may_pass(true) {
            Err(fault) => self.fail(fault),
            Ok(false) => {
                self.held = Some(held);
                Poll::Pending
            }
            Ok(true) => {
                self.finish();
                Poll::Ready(held.map(|data| Ok(Frame::data(data))))
            }
        }
    }

    fn fail(&mut self, fault: Fault) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        self.done = true;
        if let Some(ticket) = &self.ticket {
            ticket.flight().cut(fault);
        }
        Poll::Ready(Some(Err(fault)))
    }

    /// Whether a piece may be sent. The last one has to wait until the horizon covers it.
    fn may_pass(&self, last: bool) -> Result<bool, Fault> {
        let Some(ticket) = &self.ticket else { return Ok(true) };
        let flight = ticket.flight();
        if flight.is_cut() {
            return Err(flight.fault().unwrap_or(Fault::Deposed));
        }
        // Checked at each piece: a proxy that was paused past its deadline must not continue.
        let now = ticket.still_trusted().ok_or(Fault::Deposed)?;
        if last && !ticket.is_covered(now) {
            return Ok(false);
        }
        if last && !flight.send_last(now) {
            return Err(flight.fault().unwrap_or(Fault::Deposed));
        }
        Ok(true)
    }

    fn finish(&mut self) {
        self.done = true;
        if let Some((digest, slot)) = self.hash.take() {
            let mut hash = [0; 32];
            hash.copy_from_slice(digest.finish().as_ref());
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(hash);
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let this = self.get_mut();
        if this.done {
            return Poll::Ready(None);
        }
        if let Some(ticket) = &this.ticket {
            ticket.flight().wake_on_change(context);
            if ticket.flight().is_cut() {
                let fault = ticket.flight().fault().unwrap_or(Fault::Deposed);
                return this.fail(fault);
            }
        }
        if let Some(held) = this.held.take() {
            return this.hand_last(held);
        }
        loop {
            match Pin::new(&mut this.inner).poll_frame(context) {
                Poll::Pending => {
                    let limit = this.idle_limit;
                    let idle = this.idle.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
                    if idle.as_mut().poll(context).is_ready() {
                        return this.fail(Fault::Idle);
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Some(Err(_))) => return this.fail(Fault::Client),
                Poll::Ready(Some(Ok(frame))) => {
                    this.idle = None;
                    let Ok(data) = frame.into_data() else { continue };
                    if let Some(ticket) = &this.ticket {
                        ticket.at(super::ProxyStep::Body);
                    }
                    this.seen = this.seen.saturating_add(data.len() as u64);
                    if this.seen > this.max {
                        return this.fail(Fault::TooLarge);
                    }
                    if let Some((digest, _)) = &mut this.hash {
                        digest.update(&data);
                    }
                    // With a stated length the body is complete with its last piece.
                    if this.inner.is_end_stream() {
                        return this.hand_last(Some(data));
                    }
                    if let Err(fault) = this.may_pass(false) {
                        return this.fail(fault);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Poll::Ready(None) => return this.hand_last(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A response's body.
pub(crate) type Reply = UnsyncBoxBody<Bytes, hyper::Error>;

/// A response's body that is all here.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Reply {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A response's body of which a part was read already.
pub(crate) fn rest(read: Bytes, rest: Incoming) -> Reply {
    let read = stream::iter([Ok(Frame::data(read))]);
    StreamBody::new(read.chain(BodyStream::new(rest))).boxed_unsync()
}
