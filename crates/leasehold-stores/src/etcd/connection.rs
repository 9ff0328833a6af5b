//! The members of a cluster, and the login: which member is asked, what happens
//! when it is unreachable, and with which token.
//!
//! Promise: a read tries the next member when one is unreachable or in trouble. A write does so only when it certainly
//! was not sent, or was refused because of its token. Every call ends within [`CALL`]. Non-promise: nothing here
//! balances load; the member that answered last is asked again, so that usually all clients share one member's clock.

use super::config::{Config, Credentials, Endpoint};
use super::error::{CallError, Cause};
use super::wire::Authenticated;
use crate::http::{self, Answer};
use crate::phase::Phase;
use leasehold_core::{Error, Kind, Result};
use reqwest::header::AUTHORIZATION;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long a call may take in total.
const CALL: Duration = Duration::from_secs(10);
/// How long to wait for one of several members. An election takes about two seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The connections to the members of one cluster.
pub(super) struct Connections {
    client: Client,
    endpoints: Vec<Endpoint>,
    /// The index of the member that answered last.
    good: AtomicUsize,
    credentials: Option<Credentials>,
    login: Mutex<LoginState>,
}

/// What is known about the login.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LoginState {
    Untried,
    Token(Arc<str>),
    /// Authentication was off at the last attempt.
    NotNeeded,
}

/// A member's reply.
#[derive(Debug)]
pub(super) enum Reply<'a> {
    /// The answer, and the member's name in messages.
    Answer(Answer, &'a str),
    Refused(CallError),
}

/// The endpoints, without secrets.
impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bases: Vec<&str> = self.endpoints.iter().map(|endpoint| endpoint.base.as_str()).collect();
        f.write_str(&bases.join(","))
    }
}

impl Connections {
    pub(super) fn new(config: Config) -> Result<Self> {
        let client = config.client()?;
        let Config { endpoints, credentials, .. } = config;
        Ok(Connections {
            client,
            endpoints,
            good: AtomicUsize::new(0),
            credentials,
            login: Mutex::new(LoginState::Untried),
        })
    }

    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The index of the member that answered last.
    pub(super) fn good(&self) -> usize {
        self.good.load(Ordering::Relaxed) % self.endpoints.len()
    }

    /// Turns away from a member that did not answer: the next call asks another.
    pub(super) fn leave(&self, index: usize) {
        let next = (index + 1) % self.endpoints.len();
        let _ = self.good.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// One exchange, with a login where one is needed. A stale token is replaced once.
    pub(super) async fn call(&self, path: &str, body: &Value, phase: Phase) -> Result<Reply<'_>> {
        self.bounded(phase, async {
            let body = body.to_string();
            let token = self.token().await?;
            let reply = self.send(path, &body, token.as_deref(), phase).await?;
            match reply {
                // Certainly not applied, so it can be sent again.
                Reply::Refused(error) if error.cause != Cause::NotPermitted && self.may_log_in_again(&error) => {
                    let token = self.log_in_again(token.as_deref()).await?;
                    self.send(path, &body, token.as_deref(), phase).await
                }
                reply => Ok(reply),
            }
        })
        .await
    }

    async fn bounded<T>(&self, phase: Phase, call: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(CALL, call).await.unwrap_or_else(|_| {
            let good = self.good();
            self.leave(good);
            Err(silent(&self.endpoints[good].display_name, phase, CALL))
        })
    }

    /// Asks the member that answered last, and the others in turn where that is safe.
    async fn send(&self, path: &str, body: &str, token: Option<&str>, phase: Phase) -> Result<Reply<'_>> {
        let (first, count) = (self.good(), self.endpoints.len());
        let mut failed = None;
        for turn in 0..count {
            let index = (first + turn) % count;
            let is_last = turn + 1 == count;
            match self.ask(index, path, body, token, phase).await {
                Ok(Reply::Refused(error)) if error.is_trouble() => {
                    self.leave(index);
                    if is_last || phase == Phase::Writing {
                        return Ok(Reply::Refused(error));
                    }
                }
                Ok(reply) => {
                    self.good.store(index, Ordering::Relaxed);
                    return Ok(reply);
                }
                Err(error) => {
                    self.leave(index);
                    // `Unavailable`: not sent, or only a read.
                    if error.kind() != Kind::Unavailable {
                        return Err(error);
                    }
                    failed.get_or_insert(error);
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(Kind::Unavailable, "no member of etcd answers; try again")))
    }

    /// Asks one member.
    pub(super) async fn ask(
        &self,
        index: usize,
        path: &str,
        body: &str,
        token: Option<&str>,
        phase: Phase,
    ) -> Result<Reply<'_>> {
        let endpoint = self.endpoints[index].display_name.as_str();
        let request = self.request(index, path, token).body(body.to_owned());
        let exchange = http::exchange(request, phase, endpoint);
        let answer = match self.endpoints.len() {
            1 => exchange.await?,
            _ => timeout(PATIENCE, exchange).await.unwrap_or_else(|_| Err(silent(endpoint, phase, PATIENCE)))?,
        };
        Ok(match answer.status {
            200 => Reply::Answer(answer, endpoint),
            _ => Reply::Refused(CallError::of(&answer, endpoint)),
        })
    }

    pub(super) fn request(&self, index: usize, path: &str, token: Option<&str>) -> RequestBuilder {
        let request = self.client.post(format!("{}/v3/{path}", self.endpoints[index].base));
        match token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        }
    }

    /// The token to send, if any.
    pub(super) async fn token(&self) -> Result<Option<Arc<str>>> {
        let Some(credentials) = &self.credentials else { return Ok(None) };
        let mut login = self.login.lock().await;
        if *login == LoginState::Untried {
            *login = self.log_in(credentials).await?;
        }
        Ok(login.token())
    }

    /// A watch with a stale token is refused as if it were not permitted.
    pub(super) fn may_log_in_again(&self, error: &CallError) -> bool {
        let causes = [Cause::StaleToken, Cause::NoUser, Cause::NotPermitted];
        self.credentials.is_some() && causes.contains(&error.cause)
    }

    /// Replaces a stale token. Concurrent callers share one login.
    pub(super) async fn log_in_again(&self, stale: Option<&str>) -> Result<Option<Arc<str>>> {
        let Some(credentials) = &self.credentials else { return Ok(None) };
        let mut login = self.login.lock().await;
        if login.token().as_deref() == stale {
            *login = LoginState::Untried;
            *login = self.log_in(credentials).await?;
        }
        Ok(login.token())
    }

    async fn log_in(&self, credentials: &Credentials) -> Result<LoginState> {
        let body = json!({ "name": credentials.user, "password": credentials.password.reveal() }).to_string();
        match self.send("auth/authenticate", &body, None, Phase::Reading).await? {
            Reply::Answer(answer, endpoint) => {
                let Authenticated { token } = super::parsed(&answer, Phase::Reading, endpoint)?;
                Ok(LoginState::Token(token.into()))
            }
            Reply::Refused(error) if error.cause == Cause::AuthIsOff => Ok(LoginState::NotNeeded),
            Reply::Refused(error) => Err(error.to_error(Phase::Reading)),
        }
    }
}

impl LoginState {
    fn token(&self) -> Option<Arc<str>> {
        match self {
            LoginState::Token(token) => Some(token.clone()),
            LoginState::Untried | LoginState::NotNeeded => None,
        }
    }
}

fn silent(endpoint: &str, phase: Phase, waited: Duration) -> Error {
    Error::new(phase.unanswered(), format!("{endpoint} did not answer within {} s", waited.as_secs()))
}
