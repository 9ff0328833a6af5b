//! The statements of the MariaDB and MySQL guard, as text: every name and value is a hexadecimal literal.
//!
//! Promise: one exchange admits, one commits, and nothing has to be escaped. Non-promise: they do not decide alone:
//! `guard::admit` decides again.

use crate::sql::{Dialect, Name, Resource, Setup, TRAIL_CHARS, sequence};
use crate::succession::Former;
use leasehold_core::guard::Policy;
use leasehold_core::{Nonce, Result, Token};

/// What makes the table.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource VARBINARY(255) NOT NULL PRIMARY KEY,
    lease VARBINARY(255) NOT NULL,
    lineage VARBINARY(32) NOT NULL,
    epoch BIGINT NOT NULL,
    nonce VARBINARY(32) NOT NULL,
    seq BIGINT NOT NULL,
    trail VARBINARY(263) NOT NULL DEFAULT '',
    confirmed VARBINARY(32) NOT NULL DEFAULT '',
    adopted VARBINARY(2000) NOT NULL DEFAULT '',
    former VARBINARY(2000) NOT NULL DEFAULT '',
    claim VARBINARY(64) NULL,
    session BIGINT UNSIGNED NULL,
    admitted BIGINT UNSIGNED NULL,
    protected TINYINT NOT NULL DEFAULT 0
) ENGINE=InnoDB";

/// Text as a hexadecimal literal, which needs no escapes.
pub(super) fn literal(text: &str) -> String {
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("x'{digits}'")
}

/// Locks the row, and makes it if it is not there. `claim` and `session` are for a newer holder, which reads them
/// uncommitted if this session has stopped. `admitted` tells a session that is inside from one that has committed.
fn enter(resource: &Resource, token: &Token) -> String {
    let (r, lease, lineage, claim) =
        (literal(resource.as_str()), literal(token.lease.as_str()), token.lineage, claim(token));
    format!(
        "INSERT INTO leasehold_fence (resource, lease, lineage, epoch, nonce, seq, claim, session, admitted) VALUES ({r}, \
         {lease}, '{lineage}', 0, '', 0, {claim}, CONNECTION_ID(), 0) ON DUPLICATE KEY UPDATE claim = {claim}, session = \
         CONNECTION_ID(), admitted = 0; SELECT lease, lineage, epoch, nonce, seq, @@sql_mode, CONNECTION_ID(), trail, former \
         FROM leasehold_fence WHERE resource = {r} FOR UPDATE"
    )
}

/// What a session writes about itself while it has the row: its lineage and epoch.
fn claim(token: &Token) -> String {
    format!("'{}:{}'", token.lineage, token.epoch)
}

/// The trail with one more number at its head.
fn longer(write: Nonce) -> String {
    format!("LEFT(CONCAT('{write}', IF(trail = '', '', ' '), trail), {TRAIL_CHARS})")
}

/// Locks the fence row, says what was there, moves it on if the token may, and says what is there now. In an UPDATE the
/// assignments count from left to right, so what needs the old epoch comes first.
pub(super) fn admit(resource: &Resource, token: &Token, policy: Option<Policy>, write: Nonce) -> Result<String> {
    let (r, lease) = (literal(resource.as_str()), literal(token.lease.as_str()));
    let (epoch, lineage, nonce, given) = (token.epoch, token.lineage, token.nonce, sequence(token)?);
    let last = format!("IF(epoch = {epoch}, seq, 0)");
    let (seq, condition) = match policy {
        None => (last.clone(), "1 = 1".to_owned()),
        Some(Policy::Reentrant) => (format!("{last} + 1"), "1 = 1".to_owned()),
        Some(Policy::Ordered) => (given.to_string(), format!("{given} > {last}")),
        Some(Policy::OncePerEpoch) => ("1".to_owned(), format!("{last} = 0")),
    };
    let written = match policy {
        None => String::new(),
        Some(_) => format!("trail = {}, admitted = CONNECTION_ID(), ", longer(write)),
    };
    Ok(format!(
        "{}; UPDATE leasehold_fence SET {written}seq = {seq}, lease = {lease}, lineage = '{lineage}', nonce = '{nonce}', epoch = \
         {epoch} WHERE resource = {r} AND (epoch = 0 OR (lease = {lease} AND lineage = '{lineage}' AND (epoch < {epoch} OR \
         (epoch = {epoch} AND nonce = '{nonce}')))) AND {condition}; SELECT lease, lineage, epoch, nonce, seq FROM \
         leasehold_fence WHERE resource = {r} FOR UPDATE",
        enter(resource, token)
    ))
}

/// Begins a transaction that moves the fence on, where the epoch is there already and no table is protected. The new number
/// comes back as the last inserted id; if none does, [`admit`] has to find out why.
///
/// Nothing needs to be closed then: `claim` and `session` stay, and [`in_the_way`] tells them from those of one who is in
/// here by the trail, which is another one every time. Otherwise it is `admitted` that tells: whatever is found, this
/// session has the row from here on, and a newer holder must see whose it is.
pub(super) fn admit_again(resource: &Resource, token: &Token, policy: Policy, write: Nonce) -> Result<String> {
    let (r, lease) = (literal(resource.as_str()), literal(token.lease.as_str()));
    let (epoch, lineage, nonce, given) = (token.epoch, token.lineage, token.nonce, sequence(token)?);
    let (seq, condition) = match policy {
        Policy::Reentrant => ("seq + 1".to_owned(), String::new()),
        Policy::Ordered => (given.to_string(), format!(" AND seq < {given}")),
        Policy::OncePerEpoch => ("1".to_owned(), " AND seq = 0".to_owned()),
    };
    let is_known = format!(
        "lease = {lease} AND lineage = '{lineage}' AND epoch = {epoch} AND nonce = '{nonce}' AND protected = 0{condition}"
    );
    let claim = claim(token);
    // `seq` is changed last, so that the condition sees what was there.
    Ok(format!(
        "START TRANSACTION; INSERT INTO leasehold_fence (resource, lease, lineage, epoch, nonce, seq, claim, session, admitted) \
         VALUES ({r}, {lease}, '{lineage}', 0, '', 0, {claim}, CONNECTION_ID(), 0) ON DUPLICATE KEY UPDATE admitted = \
         IF({is_known}, NULL, 0), trail = IF({is_known}, {}, trail), claim = {claim}, session = CONNECTION_ID(), seq = \
         IF({is_known}, LAST_INSERT_ID({seq}), seq)",
        longer(write)
    ))
}

/// Locks the row and says what is there, for [`adopt`] to follow.
pub(super) fn look(resource: &Resource, token: &Token) -> String {
    enter(resource, token)
}

/// Gives the row to the token's lease. It changes the row in any case, so that its commit is flushed.
pub(super) fn adopt(resource: &Resource, token: &Token, note: &str, former: &Former, write: Nonce) -> String {
    let (r, lease, note) = (literal(resource.as_str()), literal(token.lease.as_str()), literal(note));
    let former = literal(&former.to_string());
    let (epoch, lineage, nonce) = (token.epoch, token.lineage, token.nonce);
    format!(
        "UPDATE leasehold_fence SET lease = {lease}, lineage = '{lineage}', epoch = {epoch}, nonce = '{nonce}', seq = 0, adopted = \
         {note}, former = {former}, confirmed = '{write}' WHERE resource = {r}"
    )
}

/// Writes the row without changing its meaning, as soon as nobody has it locked, and gives its trail. InnoDB shows a
/// commit before it is flushed; when this write was answered, everything that it read is flushed.
pub(super) fn confirm(resource: &Resource, write: Nonce) -> String {
    let r = literal(resource.as_str());
    format!(
        "START TRANSACTION; INSERT INTO leasehold_fence (resource, lease, lineage, epoch, nonce, seq, confirmed) VALUES ({r}, '', \
         '', 0, '', 0, '{write}') ON DUPLICATE KEY UPDATE confirmed = '{write}'; SELECT trail FROM leasehold_fence WHERE \
         resource = {r} FOR UPDATE; COMMIT"
    )
}

/// Finds the session that has the row locked: reads the row uncommitted, committed, and uncommitted again. If the
/// first and the last agree and the second differs, a session is inside.
pub(super) fn in_the_way(resource: &Resource) -> String {
    let look = |level: &str| {
        let r = literal(resource.as_str());
        format!(
            "SET TRANSACTION ISOLATION LEVEL READ {level}; SELECT claim, session, trail, admitted, lineage, epoch FROM leasehold_fence \
             WHERE resource = {r}"
        )
    };
    [look("UNCOMMITTED"), look("COMMITTED"), look("UNCOMMITTED")].join("; ")
}

/// Records that tables are protected under a resource: from then on, admitting a token also opens them.
pub(super) fn protected(resource: &Resource, is_protected: bool) -> String {
    let (resource, flag) = (literal(resource.as_str()), u8::from(is_protected));
    format!(
        "INSERT INTO leasehold_fence (resource, lease, lineage, epoch, nonce, seq, protected) VALUES ({resource}, '', '', 0, '', 0, \
         {flag}) ON DUPLICATE KEY UPDATE protected = {flag}"
    )
}

/// How many triggers of protected tables ask about a resource.
pub(super) fn triggers(resource: &Resource) -> String {
    let asked = literal(resource.as_str()).replace('\'', "''");
    format!(
        "SELECT COUNT(*) FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND ACTION_STATEMENT LIKE '%FROM \
         leasehold_fence WHERE resource = {asked}%'"
    )
}

/// The session is no longer inside: the last statement of a transaction.
pub(super) fn close(resource: &Resource) -> String {
    let r = literal(resource.as_str());
    format!("UPDATE leasehold_fence SET claim = NULL, session = NULL, admitted = NULL WHERE resource = {r}")
}

const EVENTS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

/// The table, and the triggers of protected tables. Each line is one statement.
pub(super) fn set_up(resource: &Resource, setup: &Setup) -> Vec<String> {
    let mut lines = vec![TABLE.to_owned()];
    if !setup.protect.is_empty() {
        // Before the triggers: then no transaction that does not know of them is still running when they are made.
        lines.push(protected(resource, true));
    }
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
