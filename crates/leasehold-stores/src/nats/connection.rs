//! One connection to NATS.
//!
//! Promise: a request is sent at most once, on the connection it was made for, and every wait is bounded. The driver
//! would queue requests while it is disconnected and send them after it reconnects, long after the caller was told that
//! no answer came. So each connection has a client of its own. Once it is connected, its server address is replaced by
//! a port where nobody can listen. When the connection breaks, the client ends, with everything that it had not sent.
//! Non-promise: a request on a connection that broke may have been carried out.

use super::clock::Pulse;
use super::config::Config;
use super::error::{CallError, failed, unreachable};
use super::wire::Answer;
use async_nats::connection::State;
use async_nats::{Client, Event, HeaderMap, Message, Request, Subscriber};
use leasehold_core::{Error, Kind, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);
/// An address where nobody can listen.
const UNREACHABLE_ADDRESS: &str = "nats://127.0.0.1:0";

/// One connection to a server.
pub(super) struct Connection {
    client: Client,
    /// The last error that the server sent unasked, such as a missing permission.
    complaints: watch::Receiver<String>,
    is_given_up: AtomicBool,
    /// Whether the bucket's settings were checked on this connection and fit leases.
    pub(super) is_bucket_fit: AtomicBool,
    pub(super) pulse: Pulse,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

/// At most one connection at a time, replaced when it is gone.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) config: Config,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Connections {
    pub(super) fn new(config: Config) -> Self {
        Connections { config, connection: Mutex::new(None) }
    }

    /// The connection; a new one if the last is gone.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>> {
        // Includes the wait for other callers that are connecting, or each would wait in turn.
        let connection = timeout(CONNECT, async {
            let mut slot = self.connection.lock().await;
            if let Some(connection) = slot.as_ref().filter(|connection| connection.is_alive()) {
                return Ok(connection.clone());
            }
            *slot = None;
            let connection = Arc::new(Connection::connect(&self.config).await?);
            *slot = Some(connection.clone());
            Ok(connection)
        });
        connection.await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {} s", self.config.endpoint, CONNECT.as_secs());
            Err(Error::new(Kind::Unavailable, message))
        })
    }
}

impl Connection {
    async fn connect(config: &Config) -> Result<Self> {
        // One of several servers may be frozen. Each gets a share of the time, so that the others are tried too.
        let turn = CONNECT / u32::try_from(config.servers.len()).unwrap_or(u32::MAX);
        let (complain, complaints) = watch::channel(String::new());
        let options = config
            .options()
            .await?
            .connection_timeout(turn)
            .request_timeout(None)
            .max_reconnects(config.servers.len())
            .reconnect_delay_callback(|_| Duration::ZERO)
            .ignore_discovered_servers()
            .event_callback(move |event| {
                if let Event::ServerError(error) = event {
                    complain.send_replace(error.to_string());
                }
                std::future::ready(())
            });
        let client = options.connect(config.servers.as_slice()).await.map_err(|error| unreachable(config, error))?;
        client.set_server_pool(UNREACHABLE_ADDRESS).await.map_err(|error| {
            let message = format!("the connection to {} broke at once", config.endpoint);
            Error::new(Kind::Unavailable, message).with_source(error)
        })?;
        Ok(Connection {
            client,
            complaints,
            is_given_up: AtomicBool::new(false),
            is_bucket_fit: AtomicBool::new(false),
            pulse: Pulse::default(),
        })
    }

    fn is_alive(&self) -> bool {
        self.client.connection_state() == State::Connected && !self.is_given_up.load(Ordering::Relaxed)
    }

    /// The server's description of itself.
    pub(super) fn server(&self) -> async_nats::ServerInfo {
        self.client.server_info()
    }

    /// Asks, and waits for the answer.
    pub(super) async fn ask(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Vec<u8>,
    ) -> Result<Message, CallError> {
        let mut request = Request::new().payload(payload.into());
        if let Some(headers) = headers {
            request = request.headers(headers);
        }
        let mut complaints = self.complaints.clone();
        complaints.mark_unchanged();
        let denied = async {
            loop {
                if complaints.changed().await.is_err() {
                    return std::future::pending().await;
                }
                let complaint = complaints.borrow_and_update().clone();
                // The inbox is subscribed to with the first request, so a complaint about it concerns every request.
                if complaint.contains(&format!("\"{subject}\"")) || complaint.contains("Subscription to \"_INBOX") {
                    return complaint;
                }
            }
        };
        tokio::select! {
            answer = self.client.send_request(subject.to_owned(), request) => {
                answer.map_err(|error| match failed(error.kind()) {
                    CallError::Nobody if !self.server().jetstream => CallError::Off,
                    error => error,
                })
            }
            complaint = denied => Err(CallError::Denied(complaint)),
            () = tokio::time::sleep(ANSWER) => {
                // The next call gets a new connection.
                self.is_given_up.store(true, Ordering::Relaxed);
                Err(CallError::Silent)
            }
        }
    }

    /// Sends a request to JetStream's own interface.
    pub(super) async fn api<T: Answer>(&self, what: &str, payload: Vec<u8>) -> Result<T, CallError> {
        let message = self.ask(&format!("$JS.API.{what}"), None, payload).await?;
        read::<T>(&message)
    }

    /// Sends without waiting for an answer, for messages that may be lost.
    pub(super) async fn tell(&self, subject: String, payload: Vec<u8>) {
        let _ = timeout(ANSWER, self.client.publish(subject, payload.into())).await;
    }

    /// Subscribes to a subject.
    pub(super) async fn listen(&self, subject: String) -> Result<Subscriber, CallError> {
        self.client.subscribe(subject).await.map_err(|_| CallError::Broken)
    }

    pub(super) fn new_inbox(&self) -> String {
        self.client.new_inbox()
    }
}

/// An answer's content, unless it is a refusal.
pub(super) fn read<T: Answer>(message: &Message) -> Result<T, CallError> {
    let mut answer: T =
        serde_json::from_slice(&message.payload).map_err(|error| CallError::Garbled(error.to_string()))?;
    match answer.refusal() {
        Some(api_error) => Err(CallError::Refused(api_error)),
        None => Ok(answer),
    }
}
