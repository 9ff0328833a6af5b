//! Bodies that report whether they were read or sent.

use super::slow_clients::Beat;
use axum::Error;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// Whether the body of a request was read to its end.
#[derive(Debug, Clone)]
pub struct Ended(Arc<AtomicBool>);

impl Ended {
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The body of a request, and whether it was read.
pub fn followed(body: Body) -> (Body, Ended) {
    let ended = Ended(Arc::new(AtomicBool::new(body.is_end_stream())));
    (Body::new(Followed { body, ended: ended.clone() }), ended)
}

struct Followed {
    body: Body,
    ended: Ended,
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.ended.0.store(true, Ordering::Release);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. Its request ends when the body has been sent. hyper asks for a piece when the client takes one.
pub fn during(body: Body, beat: Beat) -> Body {
    beat.is_unread();
    Body::new(During { body, beat })
}

struct During {
    body: Body,
    beat: Beat,
}

impl HttpBody for During {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending() {
            self.beat.is_read()
        } else {
            self.beat.is_unread()
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
