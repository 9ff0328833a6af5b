//! The table, and every statement on it.

use crate::url::Namespace;
use leasehold_core::Key;
use leasehold_core::store::Along;
use ring::digest::{Context, SHA256};
use std::fmt;

/// The table if none is given.
const DEFAULT_TABLE: &str = "leasehold_record";
/// The schema is always named, so that roles with different search paths use the same table.
const DEFAULT_SCHEMA: &str = "public";
/// PostgreSQL cuts off longer names. In bytes.
const MAX_NAME: usize = 63;

/// The server's time. Not the start of the transaction, which is before the wait for another write.
macro_rules! now {
    () => {
        "clock_timestamp()"
    };
}

/// Evaluated only for a row that was written. Turns `synchronous_commit` on for this transaction, where the role, the
/// database or the server has a weaker setting.
macro_rules! returning {
    () => {
        concat!(
            " RETURNING revision, ",
            now!(),
            ", CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply') THEN NULL \
             ELSE set_config('synchronous_commit', 'on', true) END"
        )
    };
}

/// The same, and notifies if there is a tag and a listener has locked it,
/// because notifying makes commits wait for each other.
macro_rules! telling {
    () => {
        concat!(
            returning!(),
            ", CASE WHEN $5 IS NULL OR pg_try_advisory_xact_lock($5) THEN NULL ELSE pg_notify($6, $5::text) END"
        )
    };
}

/// `~` is higher than every character of a name.
pub(super) const AFTER_ALL_NAMES: &str = "~";

pub(super) const NOW: &str = concat!("SELECT ", now!(), ", pg_is_in_recovery()");

/// The settings on which durability and class depend. Walsenders of logical subscribers do not count as standbys.
pub(super) const SURVEY: &str = concat!(
    "SELECT ",
    now!(),
    ", pg_is_in_recovery(), current_setting('server_version'), current_setting('fsync'), \
     current_setting('full_page_writes'), current_setting('synchronous_commit'), \
     current_setting('synchronous_standby_names'), \
     (SELECT count(*) FROM pg_stat_replication r WHERE r.state IS DISTINCT FROM 'backup' AND NOT EXISTS \
        (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')), \
     (SELECT count(*) FROM pg_stat_replication r WHERE r.sync_state = 'sync'), \
     (SELECT count(*) FROM pg_stat_replication r WHERE r.sync_state = 'quorum'), \
     (SELECT count(*) FROM pg_replication_slots s WHERE s.slot_type = 'physical' AND NOT s.active)"
);

/// A table's name, with its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    schema: String,
    name: String,
}

impl Table {
    /// Parses `table` or `schema.table`. The error says what is wrong.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, String> {
        let text = text.unwrap_or(DEFAULT_TABLE);
        let (schema, name) = text.split_once('.').unwrap_or((DEFAULT_SCHEMA, text));
        for part in [schema, name] {
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if part.is_empty()
                || part.len() > MAX_NAME
                || !part.chars().all(is_plain)
                || part.starts_with(|c: char| c.is_ascii_digit())
            {
                let form = "`table` or `schema.table`, each of 1 to 63 lower-case letters, digits and `_`";
                return Err(format!("the table `{}` is not {form}", leasehold_core::printable(text)));
            }
        }
        Ok(Table { schema: schema.to_owned(), name: name.to_owned() })
    }

    /// Creates the table. Names compare byte by byte; each page has free space,
    /// so that an update need not touch the index.
    pub(super) fn ddl(&self) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {self} (namespace text COLLATE \"C\" NOT NULL, shelf text COLLATE \"C\" NOT NULL, \
             name text COLLATE \"C\" NOT NULL, revision bigint NOT NULL, value bytea NOT NULL, \
             PRIMARY KEY (namespace, shelf, name)) WITH (fillfactor = 50)"
        )
    }

    /// The statements for an administrator, if the role may not create the table.
    pub(super) fn advice(&self, role: &str) -> String {
        let schema = match self.schema.as_str() {
            DEFAULT_SCHEMA => String::new(),
            schema => format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"; "),
        };
        format!("{schema}{}; {}", self.ddl(), self.grant(role))
    }

    /// The statements that let a role use the table.
    pub(super) fn grant(&self, role: &str) -> String {
        let (schema, role) = (&self.schema, quoted(role));
        let usage = match schema.as_str() {
            DEFAULT_SCHEMA => String::new(),
            _ => format!("GRANT USAGE ON SCHEMA \"{schema}\" TO {role}; "),
        };
        format!("{usage}GRANT SELECT, INSERT, UPDATE, DELETE ON {self} TO {role};")
    }
}

/// Quoted, for use in statements.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\".\"{}\"", self.schema, self.name)
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The statements on one table.
pub(super) struct Statements {
    pub(super) read: String,
    pub(super) insert: String,
    pub(super) update: String,
    /// An update that notifies nobody.
    pub(super) renew: String,
    pub(super) delete: String,
    pub(super) list: String,
    /// The same after some skipped rows. They are skipped by their names alone, which are in the index.
    pub(super) list_skipping: String,
    /// Statements that write one row and, if that succeeds, others in the same step.
    along: [String; 8],
}

impl Statements {
    /// The statement that replaces or inserts a row and, in the same step,
    /// inserts another one, deletes one, or both. All take the same parameters.
    pub(super) fn along(&self, replaces: bool, along: &Along<'_>) -> &str {
        let (puts, erases) = (along.put.is_some(), along.erase.is_some());
        &self.along[usize::from(replaces) << 2 | usize::from(puts) << 1 | usize::from(erases)]
    }

    pub(super) fn new(table: &Table) -> Self {
        let head = concat!("SELECT ", now!(), ", pg_is_in_recovery(), r.revision, r.value");
        let is_it = "namespace = $1 AND shelf = $2 AND name = $3 AND revision = $4";
        let insert = format!(
            "INSERT INTO {table} (namespace, shelf, name, revision, value) VALUES ($1, $2, $3, $8, $7) \
             ON CONFLICT DO NOTHING{}",
            telling!()
        );
        let update = format!("UPDATE {table} SET revision = $8, value = $7 WHERE {is_it}{}", telling!());
        // All parts see the table as it was before, so the parts that depend on
        // the first one check the row that it returns.
        let along = std::array::from_fn(|which| {
            let first = if which & 4 == 0 { &insert } else { &update };
            let puts = format!(
                ", come AS (INSERT INTO {table} (namespace, shelf, name, revision, value) \
                 SELECT $1, $11, $12, $8, $13 FROM first ON CONFLICT DO NOTHING)"
            );
            let erases = format!(
                ", gone AS (DELETE FROM {table} WHERE namespace = $1 AND shelf = $9 AND name = $10 \
                 AND EXISTS (SELECT FROM first))"
            );
            let puts = if which & 2 == 0 { "" } else { &puts };
            let erases = if which & 1 == 0 { "" } else { &erases };
            format!("WITH first (revision, now, durable, told) AS ({first}){puts}{erases} SELECT * FROM first")
        });
        Statements {
            along,
            read: format!(
                "{head} FROM (SELECT 1) one LEFT JOIN {table} r ON r.namespace = $1 AND r.shelf = $2 AND r.name = $3"
            ),
            insert,
            update,
            renew: format!("UPDATE {table} SET revision = $6, value = $5 WHERE {is_it}{}", returning!()),
            delete: format!("DELETE FROM {table} WHERE {is_it}{}", telling!()),
            list: format!(
                "{head}, r.name FROM (SELECT 1) one LEFT JOIN LATERAL (SELECT name, revision, value FROM {table} \
                 WHERE namespace = $1 AND shelf = $2 AND name > $3 AND name < $5 ORDER BY name LIMIT $4) r ON true ORDER BY r.name"
            ),
            list_skipping: format!(
                "{head}, r.name FROM (SELECT 1) one LEFT JOIN LATERAL (SELECT name, revision, value FROM {table} \
                 WHERE namespace = $1 AND shelf = $2 AND name >= (SELECT name FROM {table} WHERE namespace = $1 AND shelf = $2 \
                 AND name > $3 AND name < $5 ORDER BY name LIMIT 1 OFFSET $6) AND name < $5 ORDER BY name LIMIT $4) r ON true ORDER BY r.name"
            ),
        }
    }
}

/// The number that identifies a key in notifications. It does not reveal the name.
pub(super) struct Tag<'a> {
    pub(super) number: i64,
    pub(super) channel: &'a str,
}

/// The channel on which a namespace of a table notifies.
pub(super) fn channel(table: &Table, namespace: &Namespace) -> String {
    format!("leasehold_{:016x}", hash(&[&table.to_string(), namespace.as_str()]))
}

/// The number of a key on its channel.
pub(super) fn number(channel: &str, key: &Key) -> i64 {
    hash(&[channel, key.shelf.as_str(), key.name.as_str()]).cast_signed()
}

fn hash(parts: &[&str]) -> u64 {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    let digest = context.finish();
    digest.as_ref().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_named_in_full() {
        assert_eq!(Table::parse(None).unwrap().to_string(), "\"public\".\"leasehold_record\"");
        assert_eq!(Table::parse(Some("ops.leases")).unwrap().to_string(), "\"ops\".\"leases\"");
        for bad in ["", "A", "a b", "a.b.c", "a\"b", ".a", "a.", "1a", &"x".repeat(64)] {
            assert!(Table::parse(Some(bad)).unwrap_err().contains("is not `table` or `schema.table`"), "{bad}");
        }
    }

    #[test]
    fn the_advice_can_be_run_as_it_is() {
        let advice = Table::parse(Some("ops.leases")).unwrap().advice("app\"x");
        assert!(
            advice.starts_with("CREATE SCHEMA IF NOT EXISTS \"ops\"; CREATE TABLE IF NOT EXISTS \"ops\".\"leases\" (")
        );
        assert!(
            advice.ends_with("GRANT USAGE ON SCHEMA \"ops\" TO \"app\"\"x\"; GRANT SELECT, INSERT, UPDATE, DELETE ON \"ops\".\"leases\" TO \"app\"\"x\";"),
            "{advice}"
        );
    }
}
