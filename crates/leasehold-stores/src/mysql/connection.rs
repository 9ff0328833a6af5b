//! Connections to the server: a few at once, each for one exchange at a time, replaced when they break.
//!
//! Promise: an exchange ends in bounded time; a connection that was abandoned in an exchange is never reused.
//! Non-promise: only a read whose connection broke is sent again.

use super::config::Config;
use super::error::{CallError, Stop, failed};
use crate::phase::Phase;
use futures_util::FutureExt;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{Error, Kind, Result};
use leasehold_system::sync::Mutex;
use mysql_async::consts::StatusFlags;
use mysql_async::prelude::{Protocol, Queryable};
use mysql_async::{Conn, Pool, QueryResult, Row, Value};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// How many exchanges run at once; others wait. Servers allow about 150 connections in total by default.
const AT_ONCE: usize = crate::CALLS_AT_ONCE;
/// A connection that was used this recently is reused without a check.
const WARM: Duration = Duration::from_millis(500);
/// How often a login is tried: the driver sometimes fails a correct one.
const LOGINS: u32 = 3;
/// How long connecting may take, including the wait for a free connection.
const CONNECT: Duration = Duration::from_secs(4);
/// How long an answer may take: longer than the server's wait for another transaction.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a call may take in total.
const CALL: Duration = Duration::from_secs(9);

/// The server's answer to one exchange.
#[derive(Debug)]
pub(super) struct Answer {
    /// How many rows the first statement changed.
    pub(super) affected: u64,
    /// The value of its `LAST_INSERT_ID(…)`, for a statement that writes.
    pub(super) inserted: Option<u64>,
    /// The rows of each statement that succeeded.
    pub(super) sets: Vec<Vec<Row>>,
    /// Why the next statement failed.
    pub(super) stopped: Option<Stop>,
}

/// A slot for one connection to the server: a pool of size one.
struct Line {
    pool: Pool,
    /// The connection, if it was used just now.
    warm: Option<(Conn, Moment)>,
}

impl Line {
    fn new(pool: Pool) -> Self {
        Line { pool, warm: None }
    }

    /// The connection. After some time without use, the pool checks it first, because it may be closed.
    async fn conn(&mut self) -> mysql_async::Result<Conn> {
        match self.warm.take() {
            Some((conn, used)) if SystemClock.now().saturating_since(used) < WARM => Ok(conn),
            cold => {
                drop(cold);
                self.pool.get_conn().await
            }
        }
    }
}

/// The connections of one store. No `Debug`: the driver's pools know the password.
pub(super) struct Connections {
    config: Config,
    // Pools of one connection each. A pool detects that an idle connection was closed, which a bare connection does
    // not; and from a larger pool a connection that was just returned is not available at once.
    idle: Mutex<Vec<Line>>,
    turns: Semaphore,
    /// Whether the server has no TLS and the settings accept that.
    is_plain: AtomicBool,
}

impl Connections {
    pub(super) fn new(config: Config) -> Self {
        Connections {
            config,
            idle: Mutex::new(Vec::new()),
            turns: Semaphore::new(AT_ONCE),
            is_plain: AtomicBool::new(false),
        }
    }

    /// The server's name in messages.
    pub(super) fn endpoint(&self) -> &str {
        &self.config.endpoint
    }

    /// A connection that the caller owns.
    pub(super) async fn single(&self) -> Result<Conn> {
        let (mut is_plain, mut logins) = (false, 1);
        loop {
            let connecting = Conn::new(self.config.options(is_plain));
            let connected = timeout(CONNECT, connecting).await;
            let connected = connected.map_err(|_| self.late(Phase::Connecting, CONNECT))?;
            match connected.map_err(|e| failed(e, Phase::Connecting, self.endpoint())) {
                Ok(conn) => return Ok(conn),
                Err(CallError::NoTls(_)) if self.config.may_be_plain() && !is_plain => is_plain = true,
                Err(CallError::NoLogin(_)) if logins < LOGINS => logins += 1,
                Err(error) => return Err(self.error(error)),
            }
        }
    }

    /// Runs one statement with its parameter values, or, without values, any number of statements in one exchange.
    pub(super) async fn exchange(&self, phase: Phase, sql: &str, values: Vec<Value>) -> Result<Answer> {
        if phase == Phase::Writing {
            return self.attempt(phase, sql, values).await.map_err(|error| self.error(error));
        }
        let attempts = async {
            match self.attempt(phase, sql, values.clone()).await {
                // Most likely the connection had been closed. Asking again is safe.
                Err(CallError::Broken(_)) if phase == Phase::Reading => self.attempt(phase, sql, values).await,
                attempted => attempted,
            }
        };
        let attempted = timeout(CALL, attempts).await;
        attempted.unwrap_or_else(|_| Err(CallError::Final(self.late(phase, CALL)))).map_err(|error| self.error(error))
    }

    async fn attempt(&self, phase: Phase, sql: &str, values: Vec<Value>) -> Result<Answer, CallError> {
        let mut held = self.hold().await?;
        let asked = timeout(ANSWER, held.ask(phase, sql, values, self.endpoint())).await;
        let answer = asked.map_err(|_| CallError::Final(self.late(phase, ANSWER)))?;
        self.judge(held, answer)
    }

    async fn hold(&self) -> Result<Held<'_>, CallError> {
        let connected = timeout(CONNECT, self.connect()).await;
        connected.map_err(|_| CallError::Final(self.late(Phase::Connecting, CONNECT)))?
    }

    /// Decides whether an answer counts and whether its connection is kept.
    fn judge(&self, held: Held<'_>, answer: Result<Answer, CallError>) -> Result<Answer, CallError> {
        if let Err(CallError::Broken(_)) = &answer {
            return answer;
        }
        // After a failover the host name leads to another server, but an old connection would stay with this one.
        if let Ok(Answer { stopped: Some(Stop::ReadOnly(_)), .. }) = &answer {
            self.idle.lock().clear();
            return answer;
        }
        // An answer counts only if each statement was its own transaction. Otherwise a write is not committed, and a
        // read may be stale. Dropping the connection rolls back.
        if !held.is_autocommit() {
            let message = format!("{} runs with autocommit off; turn it on, there or in the proxy", self.endpoint());
            return Err(CallError::Final(Error::new(Kind::Unsupported, message)));
        }
        held.give_back();
        answer
    }

    /// Takes a connection that was used before, if there is one.
    async fn connect(&self) -> Result<Held<'_>, CallError> {
        let closed = |_| CallError::Final(Error::new(Kind::Unavailable, format!("{} was closed", self.endpoint())));
        let turn = self.turns.acquire().await.map_err(closed)?;
        let mut logins = 1;
        loop {
            let idle = self.idle.lock().pop();
            let is_plain = self.is_plain.load(Ordering::Relaxed);
            let mut line = idle.unwrap_or_else(|| Line::new(Pool::new(self.config.options(is_plain))));
            match line.conn().await.map_err(|e| failed(e, Phase::Connecting, self.endpoint())) {
                Ok(conn) => return Ok(Held { conn: Some(conn), line: Some(line), home: self, _turn: turn }),
                Err(CallError::NoPool) => {}
                Err(CallError::NoLogin(_)) if logins < LOGINS => logins += 1,
                Err(CallError::NoTls(_)) if self.config.may_be_plain() && !is_plain => {
                    self.is_plain.store(true, Ordering::Relaxed);
                }
                Err(CallError::Refused(stop)) => return Err(CallError::Final(stop.into_error(self.endpoint()))),
                // Nothing was requested yet, so trying another connection would only double the wait.
                Err(
                    CallError::Broken(error)
                    | CallError::NoTls(error)
                    | CallError::NoLogin(error)
                    | CallError::Final(error),
                ) => {
                    return Err(CallError::Final(error));
                }
            }
        }
    }

    fn late(&self, phase: Phase, limit: Duration) -> Error {
        let kind = phase.unanswered();
        Error::new(kind, format!("{} gave no answer within {} s", self.endpoint(), limit.as_secs()))
    }

    fn error(&self, error: CallError) -> Error {
        match error {
            CallError::Broken(error)
            | CallError::NoTls(error)
            | CallError::NoLogin(error)
            | CallError::Final(error) => error,
            CallError::Refused(stop) => stop.into_error(self.endpoint()),
            CallError::NoPool => Error::new(Kind::Unavailable, format!("{} was closed", self.endpoint())),
        }
    }
}

/// A connection in use. Unless it is given back, it is closed, whatever its state.
struct Held<'a> {
    conn: Option<Conn>,
    line: Option<Line>,
    home: &'a Connections,
    _turn: SemaphorePermit<'a>,
}

impl Held<'_> {
    async fn ask(&mut self, phase: Phase, sql: &str, values: Vec<Value>, endpoint: &str) -> Result<Answer, CallError> {
        let Some(conn) = &mut self.conn else { return Err(CallError::NoPool) };
        let asked = if values.is_empty() {
            match conn.query_iter(sql).await {
                Ok(result) => take(result, phase, endpoint).await,
                Err(e) => Err(failed(e, phase, endpoint)),
            }
        } else {
            // If this fails, the statement was not run.
            match conn.prep(sql).await.map_err(|e| failed(e, Phase::Preparing, endpoint)) {
                Ok(statement) => match conn.exec_iter(statement, values).await {
                    Ok(result) => take(result, phase, endpoint).await,
                    Err(e) => Err(failed(e, phase, endpoint)),
                },
                Err(error) => Err(error),
            }
        };
        match asked {
            Err(CallError::Refused(stop)) => {
                Ok(Answer { affected: 0, inserted: None, sets: Vec::new(), stopped: Some(stop) })
            }
            asked => asked,
        }
    }

    /// According to the last successful answer; an error answer has no status flags.
    fn is_autocommit(&self) -> bool {
        let flags = self.conn.as_ref().and_then(Conn::last_ok_packet).map(|ok| ok.status_flags());
        flags.is_none_or(|flags| {
            flags.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT)
                && !flags.contains(StatusFlags::SERVER_STATUS_IN_TRANS)
        })
    }

    fn give_back(mut self) {
        if let (Some(conn), Some(mut line)) = (self.conn.take(), self.line.take()) {
            line.warm = Some((conn, SystemClock.now()));
            self.home.idle.lock().push(line);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // One poll marks it as closed, so that the driver does not wait for the rest of the answer.
        if let Some(conn) = self.conn.take() {
            let _ = conn.disconnect().now_or_never();
        }
    }
}

/// Reads the answers to all statements, up to the first failure.
async fn take<P: Protocol>(
    mut result: QueryResult<'_, '_, P>,
    phase: Phase,
    endpoint: &str,
) -> Result<Answer, CallError> {
    let (affected, inserted) = (result.affected_rows(), result.last_insert_id());
    let mut answer = Answer { affected, inserted, sets: Vec::new(), stopped: None };
    let mut rows = Vec::new();
    loop {
        match result.next().await.map_err(|e| failed(e, phase, endpoint)) {
            Ok(Some(row)) => rows.push(row),
            Ok(None) => {
                answer.sets.push(std::mem::take(&mut rows));
                if !result.is_empty() {
                    continue;
                }
                // The driver reports the failure of a later statement with the next call.
                match result.next().await.map_err(|e| failed(e, phase, endpoint)) {
                    Ok(_) => return Ok(answer),
                    Err(CallError::Refused(stop)) => return Ok(Answer { stopped: Some(stop), ..answer }),
                    Err(error) => return Err(error),
                }
            }
            Err(CallError::Refused(stop)) => return Ok(Answer { stopped: Some(stop), ..answer }),
            Err(error) => return Err(error),
        }
    }
}
