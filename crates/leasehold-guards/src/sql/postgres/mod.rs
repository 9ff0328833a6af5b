//! The guard of a PostgreSQL database: the fence row is locked, checked and moved by one function call.
//!
//! Promise: no window, at any isolation level. The admit is one exchange, sent together with `BEGIN`. If an older
//! holder's session has stopped inside its transaction, the server ends it when a newer holder comes. A commit without
//! an answer is found by the number that it left in the row, once a new write there was answered. Non-promise: a
//! session of another role, which this one may not end, can delay a newer holder for as long as it lasts. That is
//! reported, and docs/guards/sql.md says which grant is missing.

mod fenced;

pub use fenced::{Fenced, begin};

use crate::observe::write::WriteStep;
use crate::sql::server::{ASK, Lost, ServerGuard};
use crate::sql::{
    Dialect, Name, Outcome, Resource, Rows, Script, Setup, SqlGuard, escaped, failed_statement, high_water, judge,
    mode, no_room, not_removed, not_set_up, one_line, sequence, undone,
};
use crate::succession::{self, Former, MAX_FORMER_BYTES};
use async_trait::async_trait;
use leasehold_core::guard::{Adopt, Guard, HighWater, Policy, Strength};
use leasehold_core::{Error, Kind, Nonce, Remedy, Result, Token, Who, Why};
use tokio::time::timeout;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::{Client, GenericClient, SimpleQueryMessage, SimpleQueryRow};

/// The fence table and its functions.
const FENCE: &str = include_str!("fence.sql");
/// How our own transactions begin: strings are parsed as the script was, and a session that lost its client ends soon.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL standard_conforming_strings = on; \
                     SET LOCAL idle_in_transaction_session_timeout = '30s'; ";
/// How often the server is asked what became of a transaction.
const LOOKS: u32 = 20;

/// Guards a PostgreSQL database, or a part of it.
pub type PostgresGuard = ServerGuard<Client>;

/// Admits a token inside the caller's own transaction: one exchange. Commit, and the writes and the fence count together;
/// roll back, and neither does.
///
/// # Errors
/// [`Kind::Fenced`] and the other refusals of [`leasehold_core::guard::admit`]: roll back. [`Kind::Contended`] when the
/// database undid the transaction because of others: begin again.
pub async fn admit(
    transaction: &impl GenericClient,
    resource: &Resource,
    token: &impl AsRef<Token>,
    policy: Policy,
) -> Result<HighWater> {
    let token = token.as_ref();
    let asked = transaction.simple_query(&call(resource, token, mode(Some(policy)), Nonce::random())?).await;
    let messages = asked.map_err(|e| refused(&e, resource.as_str(), "this database"))?;
    let judge = |high: Option<&HighWater>, _: &str| judge(resource.as_str(), high, token, Some(policy));
    Ok(decide(resource.as_str(), &messages, judge)?.high)
}

/// The call of the function. An adoption adds arguments before the last bracket.
fn call(resource: &Resource, token: &Token, mode: &str, write: Nonce) -> Result<String> {
    Ok(format!(
        "SELECT * FROM leasehold_admit({}, {}, '{}', {}, '{}', {}, '{mode}', '{write}')",
        literal(resource.as_str()),
        literal(token.lease.as_str()),
        token.lineage,
        token.epoch,
        token.nonce,
        sequence(token)?,
    ))
}

/// A text as SQL. What is not plain is sent in hexadecimal, so nothing has to be escaped, whatever the settings.
fn literal(text: &str) -> String {
    // Most are plain, and cost the server less.
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte)) {
        return format!("'{text}'");
    }
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("convert_from(decode('{digits}', 'hex'), 'UTF8')")
}

/// An admit that went well.
struct Admitted {
    high: HighWater,
    /// The id of the transaction.
    transaction: i64,
    /// The numbers of the writes before.
    trail: String,
}

/// What the function found, judged by the one predicate.
fn decide(
    resource: &str,
    messages: &[SimpleQueryMessage],
    judge: impl FnOnce(Option<&HighWater>, &str) -> Result<HighWater>,
) -> Result<Admitted> {
    let unexpected_answer = || {
        let message =
            format!("resource=`{resource}`: leasehold_admit is not the function that we install; set it up again");
        Error::new(Kind::Unsupported, message).with_remedy(Remedy::SetUpSql)
    };
    let row = last_row(messages).ok_or_else(unexpected_answer)?;
    let text = |name: &str| row.try_get(name).ok().flatten().map(ToOwned::to_owned);
    let verdict = text("verdict").ok_or_else(unexpected_answer)?;
    let transaction = text("in_transaction").and_then(|text| text.parse().ok()).ok_or_else(unexpected_answer)?;
    let trail = text("seen_trail").ok_or_else(unexpected_answer)?;
    let seen = fence_of(resource, row, ["seen_lease", "seen_lineage", "seen_epoch", "seen_nonce", "seen_seq"])?;
    // Only an adoption needs it, and the function's fast path leaves it out.
    let high = judge(seen.as_ref(), &text("seen_former").unwrap_or_default())?;
    if verdict != "admitted" {
        return Err(unexpected_answer());
    }
    Ok(Admitted { high, transaction, trail })
}

fn last_row(messages: &[SimpleQueryMessage]) -> Option<&SimpleQueryRow> {
    messages.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })
}

fn fence_of(resource: &str, row: &SimpleQueryRow, names: [&str; 5]) -> Result<Option<HighWater>> {
    let text = |name: &str| row.try_get(name).ok().flatten().map(ToOwned::to_owned);
    let number = |name: &str| text(name).and_then(|text| text.parse::<i64>().ok());
    let [lease, lineage, epoch, nonce, seq] = names;
    high_water(resource, (|| Some((text(lease)?, text(lineage)?, number(epoch)?, text(nonce)?, number(seq)?)))())
}

/// The server's refusal of an admit or of a query, as an error: nothing was applied.
fn refused(error: &tokio_postgres::Error, resource: &str, endpoint: &str) -> Error {
    let Some(told) = error.as_db_error() else {
        return Error::new(Kind::Unavailable, format!("no answer from {endpoint}: resource=`{resource}`"))
            .with_source(cause(error));
    };
    let says = format!("{} ({})", one_line(told.message()), told.code().code());
    let fail = |kind, what: &str| Error::new(kind, format!("{what}: resource=`{resource}`: {says}"));
    match told.code().code() {
        "42P01" | "42883" | "3F000" => not_set_up(resource, endpoint),
        "40001" | "40P01" => fail(Kind::Contended, "gave way to other writers; try again"),
        "55P03" => fail(Kind::Contended, "another session has the fence, and may not be ended by this role; try again"),
        "42501" => fail(Kind::Unsupported, "this role may not do it; grant it leasehold_fence and its functions"),
        "25006" => fail(Kind::Unavailable, "the server takes no writes now; name the primary"),
        _ => fail(Kind::Unavailable, &format!("{endpoint} refused it")),
    }
}

fn cause(error: &tokio_postgres::Error) -> String {
    one_line(&std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string))
}

/// Releases the row at once. A client that is only dropped is closed some time later.
async fn undo(client: &Client) {
    let _ = timeout(ASK, client.batch_execute("ROLLBACK")).await;
}

/// Whether the server answered a statement with an error and kept the connection: then the transaction is rolled back.
fn is_plain(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|told| {
        matches!(told.parsed_severity(), Some(Severity::Error) | None) && !told.code().code().starts_with("08")
    })
}

impl ServerGuard<Client> {
    async fn begin(
        &self,
        token: &Token,
        call: &str,
        judge: impl FnOnce(Option<&HighWater>, &str) -> Result<HighWater>,
    ) -> Result<(Client, Admitted)> {
        let resource = self.resource();
        self.reach(WriteStep::Connect)?;
        let client = (self.connect)().await?;
        self.reach(WriteStep::Admit)?;
        let messages = match client.simple_query(&format!("{BEGIN}{call}")).await {
            Ok(messages) => messages,
            Err(e) if is_plain(&e) => return Err(refused(&e, &resource, &self.endpoint)),
            Err(e) => return Err(self.overtaken(token, refused(&e, &resource, &self.endpoint)).await),
        };
        match decide(&resource, &messages, judge) {
            Ok(admitted) => Ok((client, admitted)),
            Err(refused) => {
                undo(&client).await;
                Err(refused)
            }
        }
    }

    /// Moves the fence alone, until that was answered.
    async fn move_fence(
        &self,
        token: &Token,
        call: &str,
        judge: impl Fn(Option<&HighWater>, &str) -> Result<HighWater>,
    ) -> Result<HighWater> {
        let judge = &judge;
        self.settle(|| async move {
            let (client, admitted) = self.begin(token, call, judge).await?;
            Ok((admitted.high, self.commit(&client, admitted.transaction).await?))
        })
        .await
    }

    /// The transaction is still the one that was admitted, and commits; one exchange. If no answer came, why.
    async fn commit(&self, client: &Client, transaction: i64) -> Result<Option<String>> {
        self.reach(WriteStep::Commit)?;
        let same = "CASE WHEN pg_catalog.txid_current() OPERATOR(pg_catalog.=)";
        let sql = format!("SELECT 1 OPERATOR(pg_catalog./) ({same} {transaction} THEN 1 ELSE 0 END); COMMIT");
        let answer = client.simple_query(&sql).await;
        if let Err(lost) = self.reach(WriteStep::Reply) {
            return Ok(Some(lost.to_string()));
        }
        match answer {
            Ok(_) => Ok(None),
            Err(e) if is_plain(&e) => Err(match e.as_db_error().map(|told| told.code().code()) {
                Some("22012" | "25P02") => escaped(&self.resource()),
                _ => refused(&e, &self.resource(), &self.endpoint),
            }),
            Err(e) => Ok(Some(cause(&e))),
        }
    }

    /// Writes the row as it is, and gives its trail.
    async fn confirm(&self) -> Result<Option<String>> {
        let client = (self.connect)().await?;
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '500ms'; SET LOCAL synchronous_commit = \
             on; INSERT INTO leasehold_fence AS f (resource, lease, lineage, epoch, nonce, seq) VALUES ({}, '', '', 0, '', 0) \
             ON CONFLICT (resource) DO UPDATE SET trail = f.trail RETURNING trail; COMMIT",
            literal(self.resource.as_str())
        );
        let messages = client.simple_query(&sql).await.map_err(|e| refused(&e, &self.resource(), &self.endpoint))?;
        Ok(last_row(&messages).and_then(|row| row.try_get("trail").ok().flatten().map(ToOwned::to_owned)))
    }

    async fn apply(&self, client: &Client, token: &Token, script: &Script) -> Result<(Vec<u64>, Rows)> {
        let (mut counts, mut rows) = (Vec::new(), Rows::default());
        for statement in script.statements() {
            self.reach(WriteStep::Apply)?;
            let messages = match client.simple_query(&statement.text).await {
                Ok(messages) => messages,
                Err(e) => {
                    let resource = self.resource();
                    if !is_plain(&e) {
                        // The commit was not sent yet, so nothing was committed.
                        return Err(self.overtaken(token, undone(&resource, cause(&e))).await);
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
impl Guard for ServerGuard<Client> {
    fn resource(&self) -> String {
        format!("{}#{}", self.endpoint, self.resource)
    }

    fn strength(&self) -> Strength {
        Strength::Atomic
    }

    async fn seal(&self, token: &Token) -> Result<HighWater> {
        let sql = call(&self.resource, token, mode(None), Nonce::random())?;
        self.move_fence(token, &sql, |high, _| judge(&self.resource(), high, token, None)).await
    }

    async fn high_water(&self) -> Result<Option<HighWater>> {
        let client = (self.connect)().await?;
        let sql = format!(
            "SELECT lease, lineage, epoch, nonce, seq FROM leasehold_fence WHERE resource = {}",
            literal(self.resource.as_str())
        );
        let messages = client.simple_query(&sql).await.map_err(|e| refused(&e, &self.resource(), &self.endpoint))?;
        last_row(&messages)
            .map_or(Ok(None), |row| fence_of(&self.resource(), row, ["lease", "lineage", "epoch", "nonce", "seq"]))
    }
}

#[async_trait]
impl Adopt for ServerGuard<Client> {
    async fn adopt(&self, from: &HighWater, token: &Token, by: &Who, why: &Why) -> Result<HighWater> {
        let token = &Token { seq: 0, ..token.clone() };
        succession::adopt(&self.resource(), Some(from), from, token)?;
        let sql = call(&self.resource, token, "adopt", Nonce::random())?;
        let (seen, note) = (literal(&from.token().wire()), literal(&succession::note(from, by, why)));
        let sql = format!("{}, {seen}, {note})", sql.trim_end_matches(')'));
        let judge = |high: Option<&HighWater>, former: &str| {
            let next = succession::adopt(&self.resource(), high, from, token)?;
            Former::read(&self.resource(), former)?.given(&self.resource(), from, token, MAX_FORMER_BYTES)?;
            Ok(next)
        };
        self.move_fence(token, &sql, judge).await
    }
}

#[async_trait]
impl SqlGuard for ServerGuard<Client> {
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
        let write = Nonce::random();
        let sql = call(&self.resource, token, mode(Some(self.policy)), write)?;
        let judge = |high: Option<&HighWater>, _: &str| judge(&self.resource(), high, token, Some(self.policy));
        let (client, admitted) = self.begin(token, &sql, judge).await?;
        let (counts, rows) = match self.apply(&client, token, script).await {
            Ok(done) => done,
            Err(error) => {
                undo(&client).await;
                return Err(error);
            }
        };
        if let Some(cause) = self.commit(&client, admitted.transaction).await? {
            drop(client);
            let lost = Lost { write, before: &admitted.trail, cause: &cause, looks: LOOKS };
            self.resolve(token, lost, || self.confirm()).await?;
        }
        Ok(Outcome { high: admitted.high, counts, rows })
    }
}

/// Removes the fence table and its functions, if the table is empty and no trigger uses them.
const REMOVE: &str = "BEGIN; LOCK TABLE leasehold_fence IN ACCESS EXCLUSIVE MODE; \
     DO $leasehold$ BEGIN IF NOT EXISTS (SELECT 1 FROM leasehold_fence) AND NOT EXISTS (SELECT 1 FROM pg_trigger t JOIN pg_proc \
     p ON p.oid = t.tgfoid WHERE p.proname = 'leasehold_protect') THEN DROP FUNCTION leasehold_protect; DROP FUNCTION \
     leasehold_require; DROP FUNCTION leasehold_admit; DROP TABLE leasehold_fence; END IF; END $leasehold$; COMMIT";
