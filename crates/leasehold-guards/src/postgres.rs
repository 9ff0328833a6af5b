//! The guard of a PostgreSQL database: the fence row is locked, checked and moved by one function call.
//!
//! Promise: no window, at any isolation level; the admit is one exchange, sent together with `BEGIN`; an older holder's
//! session that has stopped inside its transaction is ended by the server when a newer holder comes; a commit without an
//! answer is looked up by its transaction id. Non-promise: a session of another role, which this one may not end, can
//! hold a newer holder up for as long as it lasts; that is reported, and docs/guards/sql.md says which grant is missing.

mod fenced;

pub use fenced::{Fenced, begin};

use crate::sql::{
    Connect, Dialect, Name, Outcome, Resource, Rows, Script, Setup, SqlGuard, escaped, failed_statement, high_water,
    judge, mode, no_room, not_removed, not_set_up, one_line, sequence,
};
use crate::stages::{Stage, Stages, Watched};
use async_trait::async_trait;
use leasehold::guard::{Guard, HighWater, Policy, Strength};
use leasehold::{Error, Kind, Result, Token};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::{Client, GenericClient, SimpleQueryMessage, SimpleQueryRow};

/// The fence table and its functions.
const FENCE: &str = include_str!("postgres/fence.sql");
/// How our own transactions begin. Strings are read as the script was; a session that is cut off does not linger.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL standard_conforming_strings = on; \
                     SET LOCAL idle_in_transaction_session_timeout = '30s'; ";
/// How often, and how far apart, it is looked whether a newer holder has come.
const GLANCES: u32 = 4;
const GLANCE: Duration = Duration::from_millis(50);
/// How long a question about the past may take.
const ASK: Duration = Duration::from_secs(5);
/// How often, and how far apart, it is asked what became of a transaction that is still open.
const LOOKS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(100);

/// Guards a database, or a part of it.
#[derive(Clone)]
pub struct PostgresGuard {
    connect: Connect<Client>,
    place: String,
    resource: Resource,
    policy: Policy,
    stages: Watched,
}

impl fmt::Debug for PostgresGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresGuard({})", self.resource())
    }
}

/// Admits a token inside the caller's own transaction: one exchange. Commit, and the writes and the fence count together;
/// roll back, and neither does.
///
/// # Errors
/// [`Kind::Fenced`] and the other refusals of [`leasehold::guard::admit`]: roll back. [`Kind::Contended`] when the
/// database undid the transaction because of others: begin again.
pub async fn admit(
    transaction: &impl GenericClient,
    resource: &Resource,
    token: &Token,
    policy: Policy,
) -> Result<HighWater> {
    let asked = transaction.simple_query(&call(resource, token, Some(policy))?).await;
    let messages = asked.map_err(|e| refused(&e, resource.as_str(), "this database"))?;
    Ok(decide(resource.as_str(), &messages, token, Some(policy))?.0)
}

fn call(resource: &Resource, token: &Token, policy: Option<Policy>) -> Result<String> {
    Ok(format!(
        "SELECT * FROM leasehold_admit({}, {}, '{}', {}, '{}', {}, '{}')",
        literal(resource.as_str()),
        literal(token.lease.as_str()),
        token.lineage,
        token.epoch,
        token.nonce,
        sequence(token)?,
        mode(policy)
    ))
}

/// A text as SQL: what is not plain is sent as digits, so there is nothing to escape, whatever the settings.
fn literal(text: &str) -> String {
    // Plain ones are most, and cost the server less.
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte)) {
        return format!("'{text}'");
    }
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("convert_from(decode('{digits}', 'hex'), 'UTF8')")
}

/// What the function found, judged by the one predicate; and the id of the transaction.
fn decide(
    resource: &str,
    messages: &[SimpleQueryMessage],
    token: &Token,
    policy: Option<Policy>,
) -> Result<(HighWater, i64)> {
    let row = messages.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let strange = || {
        let message = format!("resource=`{resource}`: leasehold_admit is not the function that `--init` installs");
        Error::new(Kind::Unsupported, format!("{message}; run: leasehold sql URL --init"))
    };
    let row = row.ok_or_else(strange)?;
    let number = |name: &str| row.try_get(name).ok().flatten().and_then(|text| text.parse::<i64>().ok());
    let verdict = row.try_get("verdict").ok().flatten().ok_or_else(strange)?;
    let transaction = number("in_transaction").ok_or_else(strange)?;
    let high = fence_of(resource, row, ["seen_lease", "seen_lineage", "seen_epoch", "seen_nonce", "seen_seq"])?;
    let next = judge(resource, high.as_ref(), token, policy)?;
    if verdict != "admitted" {
        return Err(strange());
    }
    Ok((next, transaction))
}

fn fence_of(resource: &str, row: &SimpleQueryRow, names: [&str; 5]) -> Result<Option<HighWater>> {
    let text = |name: &str| row.try_get(name).ok().flatten().map(ToOwned::to_owned);
    let number = |name: &str| text(name).and_then(|text| text.parse::<i64>().ok());
    let [lease, lineage, epoch, nonce, seq] = names;
    high_water(resource, (|| Some((text(lease)?, text(lineage)?, number(epoch)?, text(nonce)?, number(seq)?)))())
}

/// What the server's refusal of an admit, or of a question, means: nothing was applied.
fn refused(error: &tokio_postgres::Error, resource: &str, place: &str) -> Error {
    let Some(told) = error.as_db_error() else {
        return Error::new(Kind::Unavailable, format!("no answer from {place}: resource=`{resource}`"))
            .with_source(cause(error));
    };
    let says = format!("{} ({})", one_line(told.message()), told.code().code());
    let fail = |kind, what: &str| Error::new(kind, format!("{what}: resource=`{resource}`: {says}"));
    match told.code().code() {
        "42P01" | "42883" | "3F000" => not_set_up(resource, place),
        "40001" | "40P01" => fail(Kind::Contended, "gave way to other writers; try again"),
        "55P03" => fail(Kind::Contended, "another session has the fence, and may not be ended by this role; try again"),
        "42501" => fail(Kind::Unsupported, "this role may not do it; grant it leasehold_fence and its functions"),
        "25006" => fail(Kind::Unavailable, "the server takes no writes now; name the primary"),
        _ => fail(Kind::Unavailable, &format!("{place} refused it")),
    }
}

fn cause(error: &tokio_postgres::Error) -> String {
    one_line(&std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string))
}

/// Gives the row back at once. A client that is only dropped is closed when the program has nothing better to do.
async fn undo(client: &Client) {
    let _ = timeout(ASK, client.batch_execute("ROLLBACK")).await;
}

/// Whether the server answered a statement with an error and stayed with us, so that the transaction is surely undone.
fn is_plain(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|told| {
        matches!(told.parsed_severity(), Some(Severity::Error) | None) && !told.code().code().starts_with("08")
    })
}

impl PostgresGuard {
    /// A guard for a resource of the database that `connect` leads to; `place` is its name for messages.
    pub fn new(connect: Connect<Client>, place: impl Into<String>, resource: Resource, policy: Policy) -> Self {
        PostgresGuard { connect, place: place.into(), resource, policy, stages: Watched::default() }
    }

    /// The same guard, watched at every stage.
    #[must_use]
    pub fn with_stages(mut self, stages: Arc<dyn Stages>) -> Self {
        self.stages = Watched::by(stages);
        self
    }

    async fn begin(&self, token: &Token, policy: Option<Policy>) -> Result<(Client, HighWater, i64)> {
        let resource = self.resource();
        self.stages.reach(Stage::Connect, &resource)?;
        let client = (self.connect)().await?;
        self.stages.reach(Stage::Admit, &resource)?;
        let sql = format!("{BEGIN}{}", call(&self.resource, token, policy)?);
        let messages = match client.simple_query(&sql).await {
            Ok(messages) => messages,
            Err(e) if is_plain(&e) => return Err(refused(&e, &resource, &self.place)),
            Err(e) => return Err(self.overtaken(token, refused(&e, &resource, &self.place)).await),
        };
        match decide(&resource, &messages, token, policy) {
            Ok((high, transaction)) => Ok((client, high, transaction)),
            Err(refused) => {
                undo(&client).await;
                Err(refused)
            }
        }
    }

    /// A session that was ended in the middle was most likely ended by a newer holder, who may still be at it: then that is
    /// what is said.
    async fn overtaken(&self, token: &Token, error: Error) -> Error {
        for _ in 0..GLANCES {
            if let Ok(Ok(Some(high))) = timeout(ASK, self.high_water()).await
                && let Err(rejection) = leasehold::guard::seal(Some(&high), token)
            {
                return rejection.into_error(&self.resource());
            }
            sleep(GLANCE).await;
        }
        error
    }

    /// The transaction is still the one that was admitted, and commits; one exchange.
    async fn commit(&self, client: &Client, token: &Token, transaction: i64) -> Result<()> {
        self.stages.reach(Stage::Commit, &self.resource())?;
        let same = "CASE WHEN pg_catalog.txid_current() OPERATOR(pg_catalog.=)";
        let sql = format!("SELECT 1 OPERATOR(pg_catalog./) ({same} {transaction} THEN 1 ELSE 0 END); COMMIT");
        let error = match client.simple_query(&sql).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if is_plain(&error) {
            return Err(match error.as_db_error().map(|told| told.code().code()) {
                Some("22012" | "25P02") => escaped(&self.resource()),
                _ => refused(&error, &self.resource(), &self.place),
            });
        }
        self.resolve(token, transaction, &error).await
    }

    /// No answer means unknown: the server is asked what became of the transaction.
    async fn resolve(&self, token: &Token, transaction: i64, error: &tokio_postgres::Error) -> Result<()> {
        self.stages.reach(Stage::ReadBack, &self.resource())?;
        for _ in 0..LOOKS {
            match timeout(ASK, self.status(transaction)).await {
                Ok(Ok(status)) if status == "committed" => return Ok(()),
                Ok(Ok(status)) if status == "aborted" => {
                    let message = format!(
                        "the connection broke and all was rolled back: resource=`{}`; try again",
                        self.resource()
                    );
                    let error = Error::new(Kind::Unavailable, message).with_source(cause(error));
                    return Err(self.overtaken(token, error).await);
                }
                _ => sleep(PAUSE).await,
            }
        }
        let message = format!(
            "no answer to the commit: resource=`{}`: whether transaction {transaction} was applied is not known; ask the \
             server with: SELECT txid_status({transaction})",
            self.resource()
        );
        Err(Error::new(Kind::Indeterminate, message).with_source(cause(error)))
    }

    async fn status(&self, transaction: i64) -> Result<String> {
        let client = (self.connect)().await?;
        let asked = client.simple_query(&format!("SELECT txid_status({transaction})")).await;
        let messages = asked.map_err(|e| refused(&e, &self.resource(), &self.place))?;
        let found = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(ToOwned::to_owned),
            _ => None,
        });
        found.ok_or_else(|| Error::new(Kind::Indeterminate, "the transaction is too long ago"))
    }

    async fn apply(&self, client: &Client, token: &Token, script: &Script) -> Result<(Vec<u64>, Rows)> {
        let (mut counts, mut rows) = (Vec::new(), Rows::default());
        for statement in script.statements() {
            self.stages.reach(Stage::Apply, &self.resource())?;
            let messages = match client.simple_query(&statement.text).await {
                Ok(messages) => messages,
                Err(e) => {
                    let resource = self.resource();
                    if !is_plain(&e) {
                        // Nothing was committed, for nobody asked for it yet.
                        let message = format!("the connection broke and all was rolled back: resource=`{resource}`");
                        let error = Error::new(Kind::Unavailable, message).with_source(cause(&e));
                        return Err(self.overtaken(token, error).await);
                    }
                    let why = e.as_db_error().map_or_else(String::new, ToString::to_string);
                    if e.code() == Some(&SqlState::DISK_FULL) {
                        return Err(no_room(&resource, statement, why));
                    }
                    return Err(failed_statement(&resource, statement, why));
                }
            };
            take(&messages, &mut counts, &mut rows);
        }
        Ok((counts, rows))
    }
}

fn take(messages: &[SimpleQueryMessage], counts: &mut Vec<u64>, rows: &mut Rows) {
    let mut count = 0;
    let mut given = Rows::default();
    for message in messages {
        match message {
            SimpleQueryMessage::CommandComplete(changed) => count = *changed,
            SimpleQueryMessage::RowDescription(columns) => {
                given.columns = columns.iter().map(|column| column.name().to_owned()).collect();
            }
            SimpleQueryMessage::Row(row) => {
                given.values.push((0..row.len()).map(|at| row.get(at).map(ToOwned::to_owned)).collect());
            }
            _ => {}
        }
    }
    counts.push(count);
    if !given.columns.is_empty() {
        *rows = given;
    }
}

#[async_trait]
impl Guard for PostgresGuard {
    fn resource(&self) -> String {
        format!("{}#{}", self.place, self.resource)
    }

    fn strength(&self) -> Strength {
        Strength::Atomic
    }

    async fn seal(&self, token: &Token) -> Result<HighWater> {
        let (client, high, transaction) = self.begin(token, None).await?;
        self.commit(&client, token, transaction).await?;
        Ok(high)
    }

    async fn high_water(&self) -> Result<Option<HighWater>> {
        let client = (self.connect)().await?;
        let sql = format!(
            "SELECT lease, lineage, epoch, nonce, seq FROM leasehold_fence WHERE resource = {}",
            literal(self.resource.as_str())
        );
        let messages = client.simple_query(&sql).await.map_err(|e| refused(&e, &self.resource(), &self.place))?;
        let row = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        row.map_or(Ok(None), |row| fence_of(&self.resource(), row, ["lease", "lineage", "epoch", "nonce", "seq"]))
    }
}

#[async_trait]
impl SqlGuard for PostgresGuard {
    async fn remove(&self, whole: bool) -> Result<()> {
        let client = (self.connect)().await?;
        let row = format!("DELETE FROM leasehold_fence WHERE resource = {}", literal(self.resource.as_str()));
        for sql in std::iter::once(&*row).chain(whole.then_some(REMOVE)) {
            client.batch_execute(sql).await.map_err(|e| {
                not_removed(&self.resource(), e.as_db_error().map_or_else(|| cause(&e), ToString::to_string))
            })?;
        }
        Ok(())
    }

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn statements(&self, setup: &Setup) -> String {
        let mut text = String::from(FENCE);
        let resource = self.resource.as_str().replace('\'', "''");
        let drop = |table: &Name| {
            format!("DROP TRIGGER IF EXISTS leasehold_protect ON {};\n", table.quoted(Dialect::Postgres))
        };
        for table in &setup.protect {
            text.push_str(&drop(table));
            text.push_str(&format!(
                "CREATE TRIGGER leasehold_protect BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {}\n    FOR EACH \
                 STATEMENT EXECUTE PROCEDURE leasehold_protect('{resource}');\n",
                table.quoted(Dialect::Postgres)
            ));
        }
        setup.unprotect.iter().for_each(|table| text.push_str(&drop(table)));
        text
    }

    async fn init(&self, setup: &Setup) -> Result<()> {
        let client = (self.connect)().await?;
        let sql = format!("BEGIN; SET LOCAL standard_conforming_strings = on; {}; COMMIT", self.statements(setup));
        client.batch_execute(&sql).await.map_err(|e| {
            let says = e.as_db_error().map_or_else(|| cause(&e), |told| one_line(told.message()));
            let kind = if is_plain(&e) { Kind::Unsupported } else { Kind::Unavailable };
            let message =
                format!("cannot set up the guard, nothing was changed: resource=`{}`: {says}", self.resource());
            Error::new(kind, message)
        })
    }

    async fn run(&self, token: &Token, script: &Script) -> Result<Outcome> {
        let (client, high, transaction) = self.begin(token, Some(self.policy)).await?;
        let (counts, rows) = match self.apply(&client, token, script).await {
            Ok(done) => done,
            Err(error) => {
                undo(&client).await;
                return Err(error);
            }
        };
        self.commit(&client, token, transaction).await?;
        Ok(Outcome { high, counts, rows })
    }
}

/// What takes the fence table and its functions away, if it is empty and no trigger uses them.
const REMOVE: &str = "BEGIN; LOCK TABLE leasehold_fence IN ACCESS EXCLUSIVE MODE; \
     DO $leasehold$ BEGIN IF NOT EXISTS (SELECT 1 FROM leasehold_fence) AND NOT EXISTS (SELECT 1 FROM pg_trigger t JOIN pg_proc \
     p ON p.oid = t.tgfoid WHERE p.proname = 'leasehold_protect') THEN DROP FUNCTION leasehold_protect(); DROP FUNCTION \
     leasehold_require(text, text, text); DROP FUNCTION leasehold_admit(text, text, text, bigint, text, bigint, text); DROP TABLE \
     leasehold_fence; END IF; END $leasehold$; COMMIT";

/// The fence's statements without any table, for tests and documents.
pub const fn fence_statements() -> &'static str {
    FENCE
}
