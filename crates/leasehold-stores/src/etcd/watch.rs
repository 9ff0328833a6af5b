//! The streaming watch: one line of JSON for every change of a key, passed on as a hint.
//!
//! Promise: a change after [`watch`] returned gives a hint while the member is
//! reachable. After a break the watch is opened again and hints once, for what it
//! may have missed. The task ends with its receiver. Non-promise: hints may be lost.

use super::connection::Connections;
use super::error::CallError;
use super::wire::{Notice, Watched, base64};
use crate::http::Answer;
use crate::phase::Phase;
use leasehold_core::store::Watch;
use leasehold_core::{Error, Kind, Result, Timestamp};
use reqwest::Response;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

/// How long a member may take to confirm a watch.
const OPENING: Duration = Duration::from_secs(5);
/// The pause before a broken watch is opened again. It doubles while that fails.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(16);
/// The longest line that is read, in bytes: a record is far smaller.
const MAX_LINE: usize = 16 << 20;

/// Watches one key. Returns when the server has confirmed it, or when the first attempt failed.
pub(super) async fn watch(connections: &Arc<Connections>, key: &str) -> Watch {
    let body = json!({ "create_request": { "key": base64(key) } }).to_string();
    let (sender, watch) = Watch::channel();
    let index = connections.good();
    let first = Stream::open(connections, index, &body).await.ok();
    let connections = connections.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            () = follow(&connections, index, &body, &sender, first) => {}
        }
    });
    watch
}

/// Passes hints on until the receiver is gone.
async fn follow(connections: &Connections, index: usize, body: &str, sender: &Sender<()>, first: Option<Stream>) {
    let (mut index, mut stream, mut pause) = (index, first, PAUSE);
    loop {
        if let Some(mut open) = stream.take() {
            while let Ok(watched) = open.next().await {
                if !watched.events.is_empty() {
                    let _ = sender.try_send(());
                }
                if watched.canceled {
                    break;
                }
            }
            pause = PAUSE;
        }
        sleep(pause).await;
        index = (index + 1) % connections.endpoints().len();
        stream = Stream::open(connections, index, body).await.ok();
        if stream.is_some() {
            let _ = sender.try_send(());
        } else {
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// A watch that the server has confirmed.
struct Stream {
    response: Response,
    /// Bytes of a line that is not complete yet.
    rest: Vec<u8>,
    endpoint: String,
}

impl Stream {
    async fn open(connections: &Connections, index: usize, body: &str) -> Result<Self> {
        let opening = async {
            let token = connections.token().await?;
            match Stream::open_with(connections, index, body, token.as_deref()).await? {
                Ok(stream) => Ok(stream),
                Err(error) if !connections.may_log_in_again(&error) => Err(error.to_error(Phase::Reading)),
                Err(_) => {
                    let token = connections.log_in_again(token.as_deref()).await?;
                    let opened = Stream::open_with(connections, index, body, token.as_deref()).await?;
                    opened.map_err(|error| error.to_error(Phase::Reading))
                }
            }
        };
        timeout(OPENING, opening).await.unwrap_or_else(|_| Err(broken(&connections.endpoints()[index].display_name)))
    }

    async fn open_with(
        connections: &Connections,
        index: usize,
        body: &str,
        token: Option<&str>,
    ) -> Result<Result<Self, CallError>> {
        let endpoint = connections.endpoints()[index].display_name.clone();
        // Makes a member without a leader end the watch, instead of staying silent.
        let request = connections.request(index, "watch", token).header("Grpc-Metadata-Hasleader", "true");
        let response = request.body(body.to_owned()).send().await.map_err(|e| broken(&endpoint).with_source(e))?;
        let status = response.status().as_u16();
        if status != 200 {
            let body = response.bytes().await.map_err(|e| broken(&endpoint).with_source(e))?.to_vec();
            let answer = Answer { status, now: Timestamp::from_millis(0), body };
            return Ok(Err(CallError::of(&answer, &endpoint)));
        }
        let mut stream = Stream { response, rest: Vec::new(), endpoint };
        loop {
            let watched = stream.next().await?;
            if watched.canceled {
                return Ok(Err(CallError::saying(&watched.cancel_reason, &stream.endpoint)));
            }
            if watched.created {
                return Ok(Ok(stream));
            }
        }
    }

    async fn next(&mut self) -> Result<Watched> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.rest[looked..].iter().position(|byte| *byte == b'\n').map(|at| at + looked) {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let notice: Notice =
                    serde_json::from_slice(&line).map_err(|e| broken(&self.endpoint).with_source(e))?;
                return match (notice.result, notice.error) {
                    (Some(watched), None) => Ok(watched),
                    (_, Some(error)) => Err(CallError::saying(&error.message, &self.endpoint).to_error(Phase::Reading)),
                    (None, None) => Ok(Watched::default()),
                };
            }
            looked = self.rest.len();
            let more = self.response.chunk().await.map_err(|e| broken(&self.endpoint).with_source(e))?;
            match more {
                Some(more) if looked + more.len() <= MAX_LINE => self.rest.extend_from_slice(&more),
                _ => return Err(broken(&self.endpoint)),
            }
        }
    }
}

/// The one place where the driver's error becomes ours: a watch is broken, for whatever reason.
fn broken(endpoint: &str) -> Error {
    Error::new(Kind::Unavailable, format!("the watch at {endpoint} broke off"))
}
