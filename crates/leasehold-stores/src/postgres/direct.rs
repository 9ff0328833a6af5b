//! Whether a connection leads to one session of the server, or to a pooler that assigns a session to each transaction.
//!
//! Promise: it counts as direct only if the session has the process number that the server gave this connection. A
//! pooler invents such numbers. Non-promise: a mismatch proves nothing.
//!
//! A statement that was prepared in one session must not be named in another: a
//! different statement of that name could run.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The length of a cancel request, the only message in which the driver reveals the number: length, code, number, key.
const MESSAGE_BYTES: usize = 16;
/// More than is ever written, so that writing never blocks.
const BUFFER_BYTES: usize = 256;
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the server once; none if it does not answer.
pub(super) async fn is_direct(client: &Client) -> Option<bool> {
    let number = timeout(PATIENCE, number(client)).await.ok()??;
    let rows = timeout(PATIENCE, client.query_typed("SELECT pg_backend_pid()", &[])).await.ok()?.ok()?;
    Some(rows.first()?.try_get::<_, i32>(0).ok()? == number)
}

/// The process number that the server gave this connection. Nothing is sent.
async fn number(client: &Client) -> Option<i32> {
    let (near, mut far) = duplex(BUFFER_BYTES);
    // The answer to a request for encryption, if the driver sends one.
    far.write_all(b"S").await.ok()?;
    client.cancel_token().cancel_query_raw(near, Unencrypted).await.ok()?;
    let mut written = Vec::new();
    far.read_to_end(&mut written).await.ok()?;
    let message = written.last_chunk::<MESSAGE_BYTES>()?;
    Some(i32::from_be_bytes([message[8], message[9], message[10], message[11]]))
}

/// A stand-in for TLS, for a message that is not sent anywhere.
struct Unencrypted;

impl TlsConnect<DuplexStream> for Unencrypted {
    type Stream = Plain;
    type Error = io::Error;
    type Future = Ready<io::Result<Plain>>;

    fn connect(self, stream: DuplexStream) -> Self::Future {
        ready(Ok(Plain(stream)))
    }
}

struct Plain(DuplexStream);

impl TlsStream for Plain {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Plain {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Plain {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
