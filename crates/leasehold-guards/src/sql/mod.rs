//! Guards of databases: one row per resource is the fence, and it is checked and moved inside the user's transaction.
//!
//! Promise: a write and the fence commit together or not at all, so a stale writer changes nothing, at any isolation
//! level. A refusal rolls everything back. Non-promise: a session that never calls admit is stopped only where a table
//! is protected. Statements that the database commits by itself cannot be guarded.

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
mod script;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use script::{MAX_SCRIPT_BYTES, Script, Statement};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use server::ServerGuard;

use async_trait::async_trait;
use leasehold_core::guard::{self, Adopt, HighWater, Policy};
use leasehold_core::{Epoch, Error, Kind, LeaseName, Nonce, Remedy, Result, Token};
use std::fmt::{self, Write as _};
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

/// Whose SQL it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MariaDB and MySQL.
    Mysql,
    /// SQLite.
    Sqlite,
}

/// Opens a new connection with every call.
pub type Connect<T> = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<T>> + Send>> + Send + Sync>;

/// What a fence row guards: a whole database, or the part of it that one lease is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resource(String);

impl Resource {
    /// The name by which a database as a whole is fenced.
    pub const WHOLE: &'static str = "database";
    const MAX_BYTES: usize = 200;

    /// As it is in the fence table.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Resource {
    fn default() -> Self {
        Resource(Resource::WHOLE.to_owned())
    }
}

impl FromStr for Resource {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fits = !text.is_empty() && text.len() <= Resource::MAX_BYTES && !text.chars().any(char::is_control);
        if !fits || text.trim() != text {
            let allowed =
                format!("use 1 to {} bytes, no control character, no blank at either end", Resource::MAX_BYTES);
            return Err(Error::invalid("resource", text, allowed));
        }
        Ok(Resource(text.to_owned()))
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A table, or a column, with its schema if one was given: `orders`, `sales.orders`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name {
    schema: Option<String>,
    own: String,
}

impl Name {
    /// The name as an identifier of this dialect: whatever is in it, it is only a name.
    pub fn quoted(&self, dialect: Dialect) -> String {
        let quote = if dialect == Dialect::Mysql { '`' } else { '"' };
        let quoted = |part: &str| format!("{quote}{}{quote}", part.replace(quote, &format!("{quote}{quote}")));
        match &self.schema {
            Some(schema) => format!("{}.{}", quoted(schema), quoted(&self.own)),
            None => quoted(&self.own),
        }
    }

    /// An identifier derived from this one, for its triggers. A checksum tells long names apart.
    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    pub(crate) fn derived(&self, prefix: &str, dialect: Dialect) -> String {
        let sum = self
            .own
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let short: String = self.own.chars().filter(char::is_ascii_alphanumeric).take(24).collect();
        Name { schema: self.schema.clone(), own: format!("{prefix}_{short}_{sum:016x}") }.quoted(dialect)
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('.').collect();
        let fits = |part: &&str| !part.is_empty() && part.len() <= 63 && !part.chars().any(char::is_control);
        match parts.as_slice() {
            [own] if fits(own) => Ok(Name { schema: None, own: (*own).to_owned() }),
            [schema, own] if fits(schema) && fits(own) => {
                Ok(Name { schema: Some((*schema).to_owned()), own: (*own).to_owned() })
            }
            _ => {
                let allowed = "use TABLE or SCHEMA.TABLE as the catalogue spells it, each of 1 to 63 bytes";
                Err(Error::invalid("table", text, allowed))
            }
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.own),
            None => f.write_str(&self.own),
        }
    }
}

/// What `--init` is to set up, besides the fence table.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Tables whose writers must have been admitted.
    pub protect: Vec<Name>,
    /// Tables that anybody may write to again.
    pub unprotect: Vec<Name>,
}

/// What a script did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The fence, as it was committed with the writes.
    pub high: HighWater,
    /// How many rows each statement changed or gave.
    pub counts: Vec<u64>,
    /// The rows of the last statement that gave any.
    pub rows: Rows,
}

/// Rows as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The values; none for NULL.
    pub values: Vec<Vec<Option<String>>>,
}

/// A database that is guarded.
#[async_trait]
pub trait SqlGuard: Adopt {
    /// Whose SQL it speaks.
    fn dialect(&self) -> Dialect;

    /// The statements that set it up, for those who want to run them by hand.
    fn statements(&self, setup: &Setup) -> String;

    /// Sets it up. It may be called any number of times, also concurrently.
    async fn init(&self, setup: &Setup) -> Result<()>;

    /// Admits the token and runs the script, in one transaction.
    async fn run(&self, token: &Token, script: &Script) -> Result<Outcome>;

    /// Removes this resource's fence; with `whole` also the table and the functions, if there is no other fence. Only
    /// for scratch names: a stale writer that comes later is not refused.
    async fn remove(&self, whole: bool) -> Result<()>;
}

/// The two halves of a fenced `UPDATE` for tables that have a fencing column of their own:
/// `UPDATE t SET total = 5, <set> WHERE id = 7 AND <condition>`.
///
/// It compares the epoch alone, so it cannot tell two grants of one epoch apart: see docs/guards/sql.md.
///
/// ```
/// use leasehold_guards::sql::{Dialect, fencing_column};
/// let token: leasehold_core::Token = "daily:42:0000000000000000000000000000000a:0123456789abcdef0123456789abcdef:0".parse()?;
/// let (set, condition) = fencing_column(Dialect::Postgres, &"fence".parse()?, &token);
/// assert_eq!(set, "\"fence\" = 42");
/// assert_eq!(condition, "(\"fence\" IS NULL OR \"fence\" <= 42)");
/// # Ok::<(), leasehold_core::Error>(())
/// ```
pub fn fencing_column(dialect: Dialect, column: &Name, token: &Token) -> (String, String) {
    let (column, epoch) = (column.quoted(dialect), token.epoch);
    (format!("{column} = {epoch}"), format!("({column} IS NULL OR {column} <= {epoch})"))
}

/// The word for a policy in the fence's own functions.
#[cfg(feature = "postgres")]
pub(crate) const fn mode(policy: Option<Policy>) -> &'static str {
    match policy {
        None => "seal",
        Some(Policy::Reentrant) => "reentrant",
        Some(Policy::Ordered) => "ordered",
        Some(Policy::OncePerEpoch) => "once",
    }
}

/// A row of the fence table: lease, lineage, epoch, nonce, sequence.
pub(crate) type FenceRow = (String, String, i64, String, i64);

/// The high water in a row; none if no token was admitted yet.
pub(crate) fn high_water(resource: &str, row: Option<FenceRow>) -> Result<Option<HighWater>> {
    let Some((lease, lineage, epoch, nonce, seq)) = row.filter(|(_, _, epoch, ..)| *epoch != 0) else {
        return Ok(None);
    };
    let read = || {
        Ok(HighWater {
            lease: lease.parse::<LeaseName>()?,
            lineage: lineage.parse()?,
            epoch: Epoch::new(u64::try_from(epoch).unwrap_or(0))?,
            nonce: nonce.parse::<Nonce>()?,
            seq: u64::try_from(seq).map_err(|_| Error::invalid("seq", seq, "use 0 or more"))?,
        })
    };
    read().map(Some).map_err(|e: Error| {
        let message = format!("corrupt fence: resource=`{resource}`: its row in leasehold_fence cannot be read");
        Error::new(Kind::Corrupt, message).with_source(e)
    })
}

/// What the row should become: the one predicate, for a seal or for a write.
pub(crate) fn judge(
    resource: &str,
    high: Option<&HighWater>,
    token: &Token,
    policy: Option<Policy>,
) -> Result<HighWater> {
    let judged = match policy {
        None => guard::seal(high, token),
        Some(policy) => guard::admit(high, token, policy),
    };
    judged.map_err(|rejection| rejection.into_error(resource))
}

/// Sequences are kept as signed numbers of 64 bits.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn sequence(token: &Token) -> Result<i64> {
    i64::try_from(token.seq).map_err(|_| Error::invalid("token's sequence", token.seq, "use at most 2^63 - 1"))
}

/// How many writes a fence row remembers.
const TRAIL: usize = 8;
/// How long the column `trail` is then: 32 digits each, a blank in between.
pub(crate) const TRAIL_CHARS: usize = 33 * TRAIL - 1;

/// Whether a write was applied, by the trail of the row, read under its lock when the write could not be under way any
/// more. It was, if its number is in the trail. It was not, if the trail goes back to the one `before`.
pub(crate) fn outcome(resource: &str, trail: &str, write: Nonce, before: &str, cause: &str) -> Result<()> {
    let write = write.to_string();
    let last = before.split(' ').next().filter(|last| !last.is_empty());
    let numbers: Vec<&str> = trail.split(' ').filter(|number| !number.is_empty()).collect();
    if numbers.contains(&&*write) {
        Ok(())
    } else if numbers.len() < TRAIL || last.is_some_and(|last| numbers.contains(&last)) {
        Err(undone(resource, cause))
    } else {
        Err(unknown(resource, "others have written many times since", cause))
    }
}

/// Attempts to move the fence without any other write.
#[derive(Default)]
pub(crate) struct Settling {
    /// Why the last attempt was not answered.
    lost: Option<String>,
}

impl Settling {
    /// The result, if this attempt decides it.
    pub(crate) fn add<T>(&mut self, tried: Result<(T, Option<String>)>) -> Option<Result<T>> {
        match (tried, &self.lost) {
            (Ok((high, None)), _) => Some(Ok(high)),
            (Ok((_, Some(cause))), _) => {
                self.lost = Some(cause);
                None
            }
            // It is still unknown whether the first attempt was applied.
            (Err(e), Some(_)) if matches!(e.kind(), Kind::Contended | Kind::Unavailable) => None,
            (Err(e), _) => Some(Err(e)),
        }
    }

    pub(crate) fn given_up(self, resource: &str, what: &str) -> Error {
        unknown(resource, what, self.lost.unwrap_or_default())
    }
}

/// The error for a write that may or may not have been applied.
pub(crate) fn unknown(resource: &str, what: &str, why: impl fmt::Display) -> Error {
    let message = format!(
        "no answer to the commit: resource=`{resource}`: {what}, so it is unknown whether it was applied; check the data \
         before you try again"
    );
    Error::new(Kind::Indeterminate, message).with_source(one_line(&why.to_string()))
}

/// The error for a write that a broken connection undid.
pub(crate) fn undone(resource: &str, why: impl fmt::Display) -> Error {
    let message = format!("the connection broke and all was rolled back: resource=`{resource}`; try again");
    Error::new(Kind::Unavailable, message).with_source(one_line(&why.to_string()))
}

/// The error for a database that was never set up.
pub(crate) fn not_set_up(resource: &str, location: &str) -> Error {
    let message =
        format!("resource=`{resource}` has no fence yet: {location} has no table leasehold_fence; set it up once");
    Error::new(Kind::Unsupported, message).with_remedy(Remedy::SetUpSql)
}

/// The error for a fence that could not be removed.
pub(crate) fn not_removed(resource: &str, why: impl fmt::Display) -> Error {
    let message = format!("cannot remove the fence: resource=`{resource}`: {}", one_line(&why.to_string()));
    Error::new(Kind::Unavailable, message)
}

/// The error for a script whose transaction is not the one that was begun.
pub(crate) fn escaped(resource: &str) -> Error {
    let message = format!(
        "the script left its transaction: resource=`{resource}`: a statement, or a procedure that it called, committed or \
         rolled back by itself, so a part may be written without the guard; nothing more was done, check the data"
    );
    Error::new(Kind::Corrupt, message)
}

/// What a server said, in one line that is not too long.
pub(crate) fn one_line(text: &str) -> String {
    const SHOWN: usize = 400;
    text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Bytes as psql shows them.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("\\x"), |mut shown, byte| {
        let _ = write!(shown, "{byte:02x}");
        shown
    })
}

/// The text, or the bytes in hexadecimal if it is not UTF-8.
pub(crate) fn shown(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| hex(bytes), ToOwned::to_owned)
}

/// The error for a statement that failed because the server's disk is full.
pub(crate) fn no_room(resource: &str, statement: &Statement, why: impl fmt::Display) -> Error {
    let message = format!(
        "the database's disk is full, all was rolled back: resource=`{resource}`: make room there and try again; \
         statement in line {}: {}",
        statement.line,
        one_line(&why.to_string())
    );
    Error::new(Kind::Unavailable, message)
}

/// The error for one statement.
pub(crate) fn failed_statement(resource: &str, statement: &Statement, why: impl fmt::Display) -> Error {
    let message = format!(
        "statement in line {} failed, all were rolled back: resource=`{resource}`: {}",
        statement.line,
        one_line(&why.to_string())
    );
    Error::new(Kind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fate_of_a_write_is_known_as_far_as_the_trail_goes_back() {
        let number = Nonce::from_u128;
        let trail = |numbers: &[u128]| numbers.iter().map(|n| number(*n).to_string()).collect::<Vec<_>>().join(" ");
        let told = |trail: &str, write, before: &str| outcome("db", trail, write, before, "x").err().map(|e| e.kind());
        assert_eq!(told("", number(9), ""), Some(Kind::Unavailable));
        assert_eq!(told(&trail(&[9]), number(9), ""), None);
        assert_eq!(told(&trail(&[12, 11, 9, 8]), number(9), &trail(&[8])), None);
        assert_eq!(told(&trail(&[12, 11, 8]), number(9), &trail(&[8])), Some(Kind::Unavailable));
        let full = trail(&[27, 26, 25, 24, 23, 22, 21, 20]);
        assert_eq!(full.len(), TRAIL_CHARS);
        assert_eq!(told(&full, number(9), &trail(&[20, 19])), Some(Kind::Unavailable));
        assert_eq!(told(&full, number(9), &trail(&[19, 18])), Some(Kind::Indeterminate));
        assert_eq!(told(&full, number(9), ""), Some(Kind::Indeterminate));
    }
}
