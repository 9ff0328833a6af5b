//! A few connections, opened when they are needed and reused.
//!
//! Promise: every call ends in bounded time. A connection whose last call was dropped, or not answered completely, is
//! closed and never reused, so an answer never goes to the wrong call. Non-promise: only reads are repeated.

use super::config::{Config, Server};
use super::direct::is_direct;
use super::error::{CallError, failed, silent, standby};
use crate::phase::Phase;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{Error, Kind};
use leasehold_system::sync::Mutex;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex as Shared, MutexGuard as SharedGuard, Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Row, Statement};

/// The most connections of one handle.
const MOST: usize = crate::CALLS_AT_ONCE;
/// How long it may take to get a connection, over all servers given.
const CONNECT: Duration = Duration::from_secs(4);
/// How long a statement may take.
const ANSWER: Duration = Duration::from_secs(6);
/// A connection that was unused for this long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// Statements are prepared on a connection after it has run this many. A
/// command that acquires and releases one lease ends before.
const PREPARE_AFTER: u32 = 32;

/// The parameters of a statement.
pub(super) type Params<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// An open connection. Dropping it closes it, whatever the server does.
pub(super) struct Connection {
    pub(super) client: Client,
    driver: Driver,
    /// The server's name in messages.
    endpoint: Arc<str>,
    used: Moment,
    habits: Habits,
    /// Its notifications, unless a listener has taken them.
    pub(super) notices: Option<mpsc::UnboundedReceiver<String>>,
}

/// Whether statements are prepared on a connection.
enum Habits {
    /// Not yet: it has run this many statements.
    New(u32),
    /// It leads to one session, in which these are prepared.
    Direct(HashMap<String, Statement>),
    /// It may lead to another session each time, so they are not.
    Unknown,
}

/// The task that moves the connection's bytes.
struct Driver(Option<JoinHandle<()>>);

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Connection {
    /// The driver's own client, for the caller to use. Dropping it ends the connection.
    pub(super) fn into_client(self) -> Client {
        let Connection { client, mut driver, .. } = self;
        // The task ends with the client. Aborting it would break the connection.
        driver.0 = None;
        client
    }

    /// Runs a statement in one round trip. It is unnamed, so that a pooler may send
    /// it to any session. But if this connection is used a lot and leads to one
    /// session, it is prepared, because planning each time would be most of the work.
    pub(super) async fn run(
        &mut self,
        phase: Phase,
        sql: &str,
        params: &Params<'_>,
        config: &Config,
    ) -> Result<Vec<Row>, CallError> {
        let run = async {
            if let Some(statement) = self.prepared(phase, sql, params).await {
                let values: Vec<_> = params.iter().map(|(value, _)| *value).collect();
                match self.client.query(&statement, &values).await {
                    // Refused before it ran: the session was reset, or the table has changed.
                    Err(e) if e.code().is_some_and(is_forgotten) => self.habits = Habits::Unknown,
                    answer => return answer,
                }
            }
            self.client.query_typed(sql, params).await
        };
        match timeout(ANSWER, run).await {
            Ok(answer) => answer.map_err(|e| failed(e, phase, &self.endpoint, config)),
            Err(_) => Err(silent(phase, &self.endpoint)),
        }
    }

    async fn prepared(&mut self, phase: Phase, sql: &str, params: &Params<'_>) -> Option<Statement> {
        if let Habits::New(used) = &mut self.habits {
            *used += 1;
            if *used > PREPARE_AFTER && matches!(phase, Phase::Reading | Phase::Writing) {
                let is_direct = is_direct(&self.client).await;
                self.habits = if is_direct == Some(true) { Habits::Direct(HashMap::new()) } else { Habits::Unknown };
            }
        }
        let Habits::Direct(statements) = &mut self.habits else { return None };
        if let Some(statement) = statements.get(sql) {
            return Some(statement.clone());
        }
        let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
        // If it cannot be prepared, running it reports why.
        let statement = self.client.prepare_typed(sql, &types).await.ok()?;
        statements.insert(sql.to_owned(), statement.clone());
        Some(statement)
    }
}

/// Whether the session no longer knows the statement, or its columns have changed.
fn is_forgotten(state: &SqlState) -> bool {
    *state == SqlState::INVALID_SQL_STATEMENT_NAME || *state == SqlState::FEATURE_NOT_SUPPORTED
}

/// The connections of one handle.
pub(super) struct Connections {
    pub(super) config: Arc<Config>,
    // The last is the most recently used.
    idle: Mutex<Vec<Connection>>,
    /// The listener's connection. Calls use it too, so that a waiter needs one connection, not two. Locked while it is
    /// in use, and empty if a use of it was interrupted.
    pub(super) session: Shared<Option<Connection>>,
    permits: Semaphore,
    /// The index of the last known primary.
    primary: AtomicUsize,
}

struct Lent<'a> {
    connection: Connection,
    is_new: bool,
    /// Where to return it, if it is the listener's.
    session: Option<SharedGuard<'a, Option<Connection>>>,
    _permit: SemaphorePermit<'a>,
}

impl Connections {
    pub(super) fn new(config: Arc<Config>) -> Self {
        let (idle, session, permits) = (Mutex::new(Vec::new()), Shared::new(None), Semaphore::new(MOST));
        Connections { config, idle, session, permits, primary: AtomicUsize::new(0) }
    }

    /// Runs a statement whose second column says whether the server is a standby.
    /// Repeated once if the connection was lost while idle, or leads to a standby.
    pub(super) async fn read(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, CallError> {
        let mut is_last = false;
        loop {
            let lent = self.lend().await?;
            let is_new = lent.is_new;
            let endpoint = lent.connection.endpoint.clone();
            let mut answer = self.run(lent, Phase::Reading, sql, params).await;
            if let Ok(rows) = &answer
                && rows.first().is_some_and(|row| row.try_get(1).unwrap_or(true))
            {
                self.forget_all();
                answer = Err(CallError::Standby(standby(&endpoint)));
            }
            match answer {
                Err(CallError::Cut(_) | CallError::Standby(_)) if !is_last && !is_new => is_last = true,
                answer => return answer,
            }
        }
    }

    /// Runs a statement once, on any idle or new connection.
    pub(super) async fn ask(&self, phase: Phase, sql: &str, params: &Params<'_>) -> Result<Vec<Row>, CallError> {
        let lent = self.lend().await?;
        self.run(lent, phase, sql, params).await
    }

    async fn run(
        &self,
        mut lent: Lent<'_>,
        phase: Phase,
        sql: &str,
        params: &Params<'_>,
    ) -> Result<Vec<Row>, CallError> {
        // If this is dropped or gets no answer, the connection is dropped with it.
        let answer = lent.connection.run(phase, sql, params, &self.config).await;
        match &answer {
            Err(CallError::Standby(_)) => self.forget_all(),
            Err(CallError::Cut(_)) => {}
            _ => self.give_back(lent),
        }
        answer
    }

    async fn lend(&self) -> Result<Lent<'_>, CallError> {
        let lend = async {
            let permit = self.permits.acquire().await.map_err(|_| silent(Phase::Connecting, &self.config.shown))?;
            if let Ok(mut session) = self.session.try_lock()
                && let Some(connection) = session.take_if(|connection| !connection.client.is_closed())
            {
                return Ok(Lent { connection, is_new: false, session: Some(session), _permit: permit });
            }
            if let Some(connection) = self.take_idle() {
                return Ok(Lent { connection, is_new: false, session: None, _permit: permit });
            }
            let connection = self.connect().await?;
            Ok(Lent { connection, is_new: true, session: None, _permit: permit })
        };
        timeout(CONNECT, lend).await.unwrap_or_else(|_| Err(silent(Phase::Connecting, &self.config.shown)))
    }

    fn give_back(&self, lent: Lent<'_>) {
        let Lent { connection, session, .. } = lent;
        match session {
            Some(mut session) if !connection.client.is_closed() => *session = Some(connection),
            Some(_) => {}
            None => self.keep(connection),
        }
    }

    /// An idle connection, if there is one.
    pub(super) fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|connection| !connection.client.is_closed());
        idle.pop()
    }

    /// Adds an idle connection.
    pub(super) fn keep(&self, mut connection: Connection) {
        if connection.client.is_closed() {
            return;
        }
        connection.used = SystemClock.now();
        let mut idle = self.idle.lock();
        let oldest = idle.first().map(|oldest| connection.used.saturating_since(oldest.used));
        if oldest.is_some_and(|unused| unused > IDLE) {
            idle.remove(0);
        }
        idle.push(connection);
    }

    fn forget_all(&self) {
        self.idle.lock().clear();
        if let Ok(mut session) = self.session.try_lock() {
            *session = None;
        }
    }

    /// Connects to the primary among the servers, beginning with the last known one.
    pub(super) async fn connect(&self) -> Result<Connection, CallError> {
        let servers = &self.config.servers;
        let first = self.primary.load(Ordering::Relaxed);
        let mut errors: Vec<Error> = Vec::new();
        for turn in 0..servers.len() {
            let at = (first + turn) % servers.len();
            // A server that does not answer must leave time for the others.
            let share = CONNECT / u32::try_from(servers.len()).unwrap_or(u32::MAX);
            let connected = timeout(share, self.connect_to(&servers[at])).await;
            match connected.unwrap_or_else(|_| Err(silent(Phase::Connecting, &servers[at].shown))) {
                Ok(connection) => {
                    self.primary.store(at, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) => errors.push(error.into_error()),
            }
        }
        Err(CallError::Final(all_failed(errors)))
    }

    async fn connect_to(&self, server: &Server) -> Result<Connection, CallError> {
        let config = &self.config;
        let (client, mut connection) = server
            .config
            .connect(config.tls.clone())
            .await
            .map_err(|e| failed(e, Phase::Connecting, &server.shown, config))?;
        // Reported since version 14, and not by every pooler.
        let in_hot_standby = connection.parameter("in_hot_standby").map(|value| value == "on");
        // Notifications end with the driver.
        let (sender, notices) = mpsc::unbounded_channel();
        let driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(notification) = message {
                    let _ = sender.send(notification.payload().to_owned());
                }
            }
        });
        let (shown, used) = (server.shown.clone(), SystemClock.now());
        let driver = Driver(Some(driver));
        let (habits, notices) = (Habits::New(0), Some(notices));
        let mut connection = Connection { client, driver, endpoint: shown, used, habits, notices };
        let is_standby = match in_hot_standby {
            Some(is_standby) => is_standby,
            // With one server, the statements themselves report it.
            None if config.servers.len() == 1 => false,
            None => {
                let rows = connection.run(Phase::Reading, super::statements::NOW, &[], config).await?;
                rows.first().is_none_or(|row| row.try_get(1).unwrap_or(true))
            }
        };
        if is_standby { Err(CallError::Standby(standby(&server.shown))) } else { Ok(connection) }
    }
}

/// One error for all servers. It calls for a person only if every server's error does.
fn all_failed(mut errors: Vec<Error>) -> Error {
    if errors.len() == 1
        && let Some(error) = errors.pop()
    {
        return error;
    }
    let kind = if errors.iter().all(|e| e.kind() == Kind::Unsupported) { Kind::Unsupported } else { Kind::Unavailable };
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Error::new(kind, format!("no primary among the postgres servers: {}", texts.join("; ")))
}
