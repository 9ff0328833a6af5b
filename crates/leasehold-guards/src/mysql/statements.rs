//! The statements of the MariaDB and MySQL guard, as text: every name and value is a hexadecimal literal.
//!
//! Promise: one exchange admits, one commits; there is nothing to escape. Non-promise: they decide nothing that the one
//! predicate does not decide again.

use crate::sql::{Dialect, Name, Resource, Setup, sequence};
use leasehold::guard::Policy;
use leasehold::{Nonce, Result, Token};

/// What makes the table.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource VARBINARY(255) NOT NULL PRIMARY KEY,
    lease VARBINARY(255) NOT NULL,
    epoch BIGINT NOT NULL,
    nonce VARBINARY(32) NOT NULL,
    seq BIGINT NOT NULL,
    wrote VARBINARY(32) NOT NULL DEFAULT '',
    prior_epoch BIGINT NOT NULL DEFAULT 0,
    prior_seq BIGINT NOT NULL DEFAULT 0,
    prior_wrote VARBINARY(32) NOT NULL DEFAULT '',
    claim BIGINT NULL,
    session BIGINT UNSIGNED NULL,
    admitted BIGINT UNSIGNED NULL
) ENGINE=InnoDB";

/// Bytes as SQL.
pub(super) fn literal(text: &str) -> String {
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("x'{digits}'")
}

/// Locks the fence row, says what was there, moves it on if the token may, and says what is there now.
///
/// `claim` and `session` are for a newer holder, who reads them uncommitted when this session has stopped. In an UPDATE
/// the assignments count from left to right, so what needs the old epoch comes first.
pub(super) fn admit(resource: &Resource, token: &Token, policy: Option<Policy>, wrote: Nonce) -> Result<String> {
    let (r, lease) = (literal(resource.as_str()), literal(token.lease.as_str()));
    let (epoch, nonce, given) = (token.epoch, token.nonce, sequence(token)?);
    let last = format!("IF(epoch = {epoch}, seq, 0)");
    let (seq, condition) = match policy {
        None => (last.clone(), "1 = 1".to_owned()),
        Some(Policy::Reentrant) => (format!("{last} + 1"), "1 = 1".to_owned()),
        Some(Policy::Ordered) => (given.to_string(), format!("{given} > {last}")),
        Some(Policy::OncePerEpoch) => ("1".to_owned(), format!("{last} = 0")),
    };
    let written = match policy {
        None => format!("wrote = IF(epoch < {epoch}, '', wrote)"),
        Some(_) => format!("wrote = '{wrote}', admitted = CONNECTION_ID()"),
    };
    let seen = format!("FROM leasehold_fence WHERE resource = {r} FOR UPDATE");
    Ok(format!(
        "INSERT INTO leasehold_fence (resource, lease, epoch, nonce, seq, claim, session) VALUES ({r}, {lease}, 0, '', 0, \
         {epoch}, CONNECTION_ID()) ON DUPLICATE KEY UPDATE claim = {epoch}, session = CONNECTION_ID(); \
         SELECT lease, epoch, nonce, seq, @@sql_mode, CONNECTION_ID() {seen}; \
         UPDATE leasehold_fence SET prior_wrote = IF(epoch < {epoch}, wrote, prior_wrote), prior_seq = IF(epoch < \
         {epoch}, seq, prior_seq), prior_epoch = IF(epoch < {epoch}, epoch, prior_epoch), {written}, seq = {seq}, lease = \
         {lease}, nonce = '{nonce}', epoch = {epoch} WHERE resource = {r} AND (epoch = 0 OR (lease = {lease} AND (epoch < \
         {epoch} OR (epoch = {epoch} AND nonce = '{nonce}')))) AND {condition}; SELECT lease, epoch, nonce, seq {seen}"
    ))
}

/// Nobody is in here any more: the last act of a transaction.
pub(super) fn close(resource: &Resource) -> String {
    let r = literal(resource.as_str());
    format!("UPDATE leasehold_fence SET claim = NULL, session = NULL, admitted = NULL WHERE resource = {r}")
}

const EVENTS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

/// The table, and the triggers of protected tables. Each line is one statement.
pub(super) fn set_up(resource: &Resource, setup: &Setup) -> Vec<String> {
    let mut lines = vec![TABLE.to_owned()];
    let name =
        |table: &Name, event: &str| table.derived(&format!("leasehold_{}", event.to_lowercase()), Dialect::Mysql);
    for table in setup.protect.iter().chain(&setup.unprotect) {
        lines.extend(EVENTS.iter().map(|event| format!("DROP TRIGGER IF EXISTS {}", name(table, event))));
    }
    for table in &setup.protect {
        for event in EVENTS {
            lines.push(format!(
                "CREATE TRIGGER {} BEFORE {event} ON {} FOR EACH ROW IF NOT EXISTS (SELECT 1 FROM leasehold_fence WHERE \
                 resource = {} AND admitted = CONNECTION_ID()) THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'write \
                 refused: this transaction was not admitted by its leasehold guard; use leasehold sql'; END IF",
                name(table, event),
                table.quoted(Dialect::Mysql),
                literal(resource.as_str())
            ));
        }
    }
    lines
}
