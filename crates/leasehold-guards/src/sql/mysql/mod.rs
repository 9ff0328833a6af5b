//! The guard of a MariaDB or MySQL database: the fence row is locked, checked and moved in one exchange.
//!
//! Promise: no window, at any isolation level. If an older holder's session has stopped inside its transaction, the
//! server ends it when a newer holder comes. A commit without an answer is found by the number that it left in the
//! row, once a new write there was answered. Non-promise: the tables must be InnoDB, because others have no
//! transactions. `TRUNCATE` bypasses triggers. A session of another user, which this one may not end, can delay a
//! newer holder; that is reported.

mod fenced;
mod statements;
mod unanswered;

pub use fenced::{Fenced, begin};

use crate::observe::write::WriteStep;
use crate::sql::server::{ASK, ServerGuard};
use crate::sql::{
    Dialect, Outcome, Resource, Rows, Script, Setup, SqlGuard, escaped, failed_statement, hex, high_water, judge,
    no_room, not_removed, not_set_up, one_line, shown, undone,
};
use crate::succession;
use async_trait::async_trait;
use leasehold_core::guard::{Adopt, Guard, HighWater, Policy, Strength};
use leasehold_core::{Error, Kind, Nonce, Result, Token, Who, Why};
use mysql_async::prelude::Queryable;
use mysql_async::{Column, Conn, Row, Value};
use statements::literal;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a newer holder waits before it looks for the session that blocks it.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often an admit is tried that the server rolled back because of others.
const TRIES: u32 = 3;

/// Guards a MariaDB or MySQL database, or a part of it.
pub type MysqlGuard = ServerGuard<Conn>;

/// Admits a token inside the caller's own transaction: one exchange. Call [`close`] before the commit; then the writes
/// and the fence count together. Roll back, and neither does.
///
/// # Errors
/// [`Kind::Fenced`] and the other refusals of [`leasehold_core::guard::admit`]: roll back. [`Kind::Contended`] when the
/// database undid the transaction because of others: begin again.
pub async fn admit(
    transaction: &mut impl Queryable,
    resource: &Resource,
    token: &impl AsRef<Token>,
    policy: Policy,
) -> Result<HighWater> {
    let token = token.as_ref();
    let sql = statements::admit(resource, token, Some(policy), Nonce::random())?;
    let sets = exchange(transaction, &sql).await.map_err(|e| refused(&e, resource.as_str(), "this database"))?;
    Ok(decide(resource.as_str(), &sets, token, Some(policy))?.high)
}

/// Ends what [`admit`] began: without it, protected tables stay open to this very connection.
pub async fn close(transaction: &mut impl Queryable, resource: &Resource) -> Result<()> {
    let closed = exchange(transaction, &statements::close(resource)).await;
    closed.map(drop).map_err(|e| refused(&e, resource.as_str(), "this database"))
}

/// Ends the session that has the fence row locked, if it must give way: for those who wait in [`admit`]. It must if it
/// is an older holder's, or another lease's where the fence belongs to this one.
pub async fn evict(connection: &mut Conn, resource: &Resource, token: &Token) -> Result<()> {
    evict_if(connection, resource, |inside| inside.gives_way_to(token)).await
}

/// A session that is in the middle of a write to the fence row.
struct Inside {
    lineage: String,
    epoch: u64,
    session: i64,
    /// The lineage of the fence, as it is committed.
    fence: Option<String>,
}

impl Inside {
    fn gives_way_to(&self, token: &Token) -> bool {
        let own = token.lineage.to_string();
        if self.lineage == own { self.epoch < token.epoch.get() } else { self.fence == Some(own) }
    }
}

async fn evict_if(connection: &mut Conn, resource: &Resource, gives_way: impl Fn(&Inside) -> bool) -> Result<()> {
    let fail = |e| refused(&e, resource.as_str(), "this database");
    let sets = exchange(connection, &statements::in_the_way(resource)).await.map_err(fail)?;
    let rows: Vec<Option<&Row>> = sets.iter().skip(1).step_by(2).map(|rows| rows.first()).collect();
    let [Some(now), committed, Some(still)] = rows[..] else { return Ok(()) };
    let mark = |row: &Row| [0, 1, 2, 3].map(|at| text(row, at));
    if mark(now) != mark(still) || committed.map(mark) == Some(mark(now)) {
        return Ok(());
    }
    let inside = || {
        let claim = text(now, 0)?;
        let (lineage, epoch) = claim.split_once(':')?;
        let fence = committed.filter(|row| number(row, 5) != Some(0)).and_then(|row| text(row, 4));
        Some(Inside { lineage: lineage.to_owned(), epoch: epoch.parse().ok()?, session: number(now, 1)?, fence })
    };
    if let Some(inside) = inside().filter(gives_way) {
        // It may have ended by itself by now.
        let _ = exchange(connection, &format!("KILL {}", inside.session)).await;
    }
    Ok(())
}

/// Sends statements in one go and takes all their rows; the first refusal ends it.
async fn exchange(connection: &mut impl Queryable, sql: &str) -> mysql_async::Result<Vec<Vec<Row>>> {
    let mut result = connection.query_iter(sql).await?;
    let (mut sets, mut rows) = (Vec::new(), Vec::new());
    loop {
        match result.next().await? {
            Some(row) => rows.push(row),
            None => {
                sets.push(std::mem::take(&mut rows));
                if result.is_empty() {
                    // The driver reports the error of a later statement with the next call.
                    result.next().await?;
                    return Ok(sets);
                }
            }
        }
    }
}

/// Releases the row at once. A connection that is only dropped is closed some time later.
async fn undo(mut conn: Conn) {
    let _ = timeout(ASK, exchange(&mut conn, "ROLLBACK")).await;
    let _ = timeout(ASK, conn.disconnect()).await;
}

fn text(row: &Row, at: usize) -> Option<String> {
    match row.as_ref(at)? {
        Value::Bytes(bytes) => Some(shown(bytes)),
        Value::NULL => None,
        other => Some(other.as_sql(true).trim_matches('\'').to_owned()),
    }
}

fn number(row: &Row, at: usize) -> Option<i64> {
    text(row, at)?.parse().ok()
}

fn fence_of(resource: &str, row: Option<&Row>) -> Result<Option<HighWater>> {
    let read = |row| Some((text(row, 0)?, text(row, 1)?, number(row, 2)?, text(row, 3)?, number(row, 4)?));
    high_water(resource, row.and_then(read))
}

/// An admit that went well.
struct Admitted {
    high: HighWater,
    session: i64,
    /// The numbers of the writes before.
    trail: String,
}

/// What the statements found and did, judged by the one predicate. The last four sets are those of the admit.
fn decide(resource: &str, sets: &[Vec<Row>], token: &Token, policy: Option<Policy>) -> Result<Admitted> {
    let unexpected_answer = || {
        let message = format!("resource=`{resource}`: leasehold_fence does not have the columns of a fence");
        Error::new(Kind::Unsupported, message)
    };
    let [.., _, seen, _, now] = sets else { return Err(unexpected_answer()) };
    let seen = seen.first().ok_or_else(unexpected_answer)?;
    let next = judge(resource, fence_of(resource, Some(seen))?.as_ref(), token, policy)?;
    let modes = text(seen, 5).unwrap_or_default();
    if let Some(mode) = ["ANSI_QUOTES", "NO_BACKSLASH_ESCAPES"].iter().find(|mode| modes.contains(*mode)) {
        let message = format!(
            "resource=`{resource}`: the session's sql_mode has {mode}, with which a script may be read otherwise than it was \
             checked; connect as a user without it"
        );
        return Err(Error::new(Kind::Unsupported, message));
    }
    if fence_of(resource, now.first())?.as_ref() != Some(&next) {
        return Err(unexpected_answer());
    }
    let trail = text(seen, 7).ok_or_else(unexpected_answer)?;
    Ok(Admitted { high: next, session: number(seen, 6).ok_or_else(unexpected_answer)?, trail })
}

/// The server's refusal of an admit or of a query, as an error: nothing was applied.
fn refused(error: &mysql_async::Error, resource: &str, endpoint: &str) -> Error {
    let mysql_async::Error::Server(told) = error else {
        return Error::new(Kind::Unavailable, format!("no answer from {endpoint}: resource=`{resource}`"))
            .with_source(one_line(&error.to_string()));
    };
    let says = format!("{} (error {})", one_line(&told.message), told.code);
    let fail = |kind, what: &str| Error::new(kind, format!("{what}: resource=`{resource}`: {says}"));
    match told.code {
        1146 | 1054 => not_set_up(resource, endpoint),
        1205 => fail(Kind::Contended, "another session has the fence, and may not be ended by this user; try again"),
        1213 => fail(Kind::Contended, "gave way to other writers; try again"),
        1044 | 1142 | 1143 | 1227 => fail(Kind::Unsupported, "this user may not do it; grant it leasehold_fence"),
        1290 | 1792 | 1836 => fail(Kind::Unavailable, "the server takes no writes now; name the one that does"),
        _ => fail(Kind::Unavailable, &format!("{endpoint} refused it")),
    }
}

/// Whether the server has no room: a full disk, or a table that cannot grow.
fn is_full(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(told) if matches!(told.code, 1021 | 1114))
}

/// Whether the server answered and kept the connection. A killed session reports that once, and is gone.
fn is_plain(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(told) if !matches!(told.code, 1053 | 1317 | 1927 | 4031))
}

impl ServerGuard<Conn> {
    async fn begin(&self, token: &Token, policy: Option<Policy>, write: Nonce) -> Result<(Conn, Admitted)> {
        let resource = self.resource();
        self.reach(WriteStep::Connect)?;
        let mut last = None;
        for _ in 0..TRIES {
            let mut conn = (self.connect)().await?;
            self.reach(WriteStep::Admit)?;
            let admit = statements::admit(&self.resource, token, policy, write)?;
            // Outside of any SAVEPOINT that a script may name: it tells whether the transaction is still the same.
            let sql = format!("START TRANSACTION; SAVEPOINT leasehold_{write}; {admit}");
            let older = |inside: &Inside| inside.gives_way_to(token);
            match self.patiently(exchange(&mut conn, &sql), older).await {
                Ok(sets) => {
                    return match decide(&resource, &sets, token, policy) {
                        Ok(admitted) => Ok((conn, admitted)),
                        Err(refused) => {
                            undo(conn).await;
                            Err(refused)
                        }
                    };
                }
                Err(e) if !is_plain(&e) => {
                    return Err(self.overtaken(token, refused(&e, &resource, &self.endpoint)).await);
                }
                Err(e) => {
                    let error = refused(&e, &resource, &self.endpoint);
                    if error.kind() != Kind::Contended {
                        return Err(error);
                    }
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::new(Kind::Contended, format!("gave way too often: resource=`{resource}`"))))
    }

    /// Waits for an exchange, and ends a session that blocks it, if that must give way.
    async fn patiently<T>(
        &self,
        exchange: impl Future<Output = mysql_async::Result<T>>,
        gives_way: impl Fn(&Inside) -> bool,
    ) -> mysql_async::Result<T> {
        tokio::pin!(exchange);
        loop {
            tokio::select! {
                answer = &mut exchange => return answer,
                () = sleep(PATIENCE) => {
                    let eviction = async {
                        let mut other = (self.connect)().await?;
                        evict_if(&mut other, &self.resource, &gives_way).await
                    };
                    // If this fails, the error of the exchange itself tells why.
                    let _ = timeout(ASK, eviction).await;
                }
            }
        }
    }

    /// The transaction is still the one that was admitted, and commits; one exchange. If no answer came, why.
    async fn commit(&self, mut conn: Conn, write: Nonce) -> Result<Option<String>> {
        self.reach(WriteStep::Commit)?;
        let sql = format!("RELEASE SAVEPOINT leasehold_{write}; {}; COMMIT", statements::close(&self.resource));
        let answer = exchange(&mut conn, &sql).await;
        if let Err(lost) = self.reach(WriteStep::Reply) {
            return Ok(Some(lost.to_string()));
        }
        match answer {
            Ok(_) => {
                let _ = conn.disconnect().await;
                Ok(None)
            }
            Err(mysql_async::Error::Server(told)) if told.code == 1305 => Err(escaped(&self.resource())),
            Err(e) if is_plain(&e) => Err(refused(&e, &self.resource(), &self.endpoint)),
            Err(e) => Ok(Some(e.to_string())),
        }
    }

    async fn apply(&self, conn: &mut Conn, token: &Token, script: &Script) -> Result<(Vec<u64>, Rows)> {
        let (mut counts, mut rows) = (Vec::new(), Rows::default());
        for statement in script.statements() {
            self.reach(WriteStep::Apply)?;
            match run_one(conn, &statement.text).await {
                Ok((count, given)) => {
                    counts.push(count);
                    rows = given.unwrap_or(rows);
                }
                Err(e) if is_full(&e) => return Err(no_room(&self.resource(), statement, e)),
                Err(e) if is_plain(&e) => return Err(failed_statement(&self.resource(), statement, e)),
                Err(e) => {
                    // The commit was not sent yet, so nothing was committed.
                    return Err(self.overtaken(token, undone(&self.resource(), e)).await);
                }
            }
        }
        Ok((counts, rows))
    }
}

/// Whether a column has bytes, not text.
fn is_binary(column: &Column) -> bool {
    /// The "character set" of what has none; numbers and dates have it too.
    const BYTES: u16 = 63;
    use mysql_async::consts::ColumnType as Type;
    let kind = column.column_type();
    let is_long =
        matches!(kind, Type::MYSQL_TYPE_TINY_BLOB | Type::MYSQL_TYPE_MEDIUM_BLOB | Type::MYSQL_TYPE_LONG_BLOB);
    let is_string = kind.is_character_type() || kind.is_geometry_type() || kind == Type::MYSQL_TYPE_BIT || is_long;
    is_string && column.character_set() == BYTES
}

async fn run_one(conn: &mut Conn, sql: &str) -> mysql_async::Result<(u64, Option<Rows>)> {
    let mut result = conn.query_iter(sql).await?;
    let mut count = result.affected_rows();
    let columns: Vec<String> = result.columns_ref().iter().map(|column| column.name_str().into_owned()).collect();
    let binary: Vec<bool> = result.columns_ref().iter().map(is_binary).collect();
    let field = |row: &Row, at: usize| match row.as_ref(at) {
        Some(Value::Bytes(bytes)) if binary[at] => Some(hex(bytes)),
        _ => text(row, at),
    };
    let mut values = Vec::new();
    while let Some(row) = result.next().await? {
        values.push((0..columns.len()).map(|at| field(&row, at)).collect());
    }
    result.drop_result().await?;
    if columns.is_empty() {
        return Ok((count, None));
    }
    count = values.len() as u64;
    Ok((count, Some(Rows { columns, values })))
}

#[async_trait]
impl Guard for ServerGuard<Conn> {
    fn resource(&self) -> String {
        format!("{}#{}", self.endpoint, self.resource)
    }

    fn strength(&self) -> Strength {
        Strength::Atomic
    }

    async fn seal(&self, token: &Token) -> Result<HighWater> {
        self.settle(|| self.seal_once(token)).await
    }

    async fn high_water(&self) -> Result<Option<HighWater>> {
        let mut conn = (self.connect)().await?;
        let sql = format!(
            "SELECT lease, lineage, epoch, nonce, seq FROM leasehold_fence WHERE resource = {}",
            literal(self.resource.as_str())
        );
        let sets = exchange(&mut conn, &sql).await.map_err(|e| refused(&e, &self.resource(), &self.endpoint))?;
        let _ = conn.disconnect().await;
        fence_of(&self.resource(), sets.first().and_then(|rows| rows.first()))
    }
}

#[async_trait]
impl Adopt for ServerGuard<Conn> {
    async fn adopt(&self, from: &HighWater, token: &Token, by: &Who, why: &Why) -> Result<HighWater> {
        succession::adopt(&self.resource(), Some(from), from, token)?;
        let note = succession::note(from, by, why);
        self.settle(|| self.give(from, token, &note)).await
    }
}

#[async_trait]
impl SqlGuard for ServerGuard<Conn> {
    async fn remove(&self, whole: bool) -> Result<()> {
        let mut conn = (self.connect)().await?;
        let fail = |e: mysql_async::Error| not_removed(&self.resource(), e);
        let row = format!("DELETE FROM leasehold_fence WHERE resource = {}", literal(self.resource.as_str()));
        exchange(&mut conn, &row).await.map_err(fail)?;
        // Protected tables have a row too, so an empty table is not in use.
        let lock = "LOCK TABLES leasehold_fence WRITE; SELECT COUNT(*) FROM leasehold_fence";
        if whole {
            let found = exchange(&mut conn, lock).await.map_err(fail)?;
            if found.iter().flatten().next().and_then(|row| number(row, 0)) == Some(0) {
                exchange(&mut conn, "DROP TABLE leasehold_fence").await.map_err(fail)?;
            }
        }
        let _ = conn.disconnect().await;
        Ok(())
    }

    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn statements(&self, setup: &Setup) -> String {
        let lines = statements::set_up(&self.resource, setup);
        let is_compound = |line: &&String| line.ends_with("END IF");
        let mut text: String =
            lines.iter().filter(|line| !is_compound(line)).map(|line| format!("{line};\n")).collect();
        let compound: String = lines.iter().filter(is_compound).map(|line| format!("{line}//\n")).collect();
        if !compound.is_empty() {
            text.push_str(&format!("DELIMITER //\n{compound}DELIMITER ;\n"));
        }
        text
    }

    async fn init(&self, setup: &Setup) -> Result<()> {
        let mut conn = (self.connect)().await?;
        let fail = |e: mysql_async::Error| {
            let kind = if is_plain(&e) { Kind::Unsupported } else { Kind::Unavailable };
            let message = format!("cannot set up the guard: resource=`{}`", self.resource());
            Error::new(kind, message).with_source(one_line(&e.to_string()))
        };
        exchange(&mut conn, "DO GET_LOCK('leasehold_init', 20)").await.map_err(fail)?;
        for line in statements::set_up(&self.resource, setup) {
            exchange(&mut conn, &line).await.map_err(fail)?;
        }
        if !setup.unprotect.is_empty() {
            let found = exchange(&mut conn, &statements::triggers(&self.resource)).await.map_err(fail)?;
            if found.iter().flatten().next().and_then(|row| number(row, 0)) == Some(0) {
                // It was the last protected table.
                exchange(&mut conn, &statements::protected(&self.resource, false)).await.map_err(fail)?;
            }
        }
        let _ = conn.disconnect().await;
        Ok(())
    }

    async fn run(&self, token: &Token, script: &Script) -> Result<Outcome> {
        let write = Nonce::random();
        let (mut conn, admitted) = self.begin(token, Some(self.policy), write).await?;
        let (counts, rows) = match self.apply(&mut conn, token, script).await {
            Ok(done) => done,
            Err(error) => {
                undo(conn).await;
                return Err(error);
            }
        };
        if let Some(cause) = self.commit(conn, write).await? {
            self.find_out(token, write, &admitted, &cause).await?;
        }
        Ok(Outcome { high: admitted.high, counts, rows })
    }
}
