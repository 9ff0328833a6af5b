//! The server's settings on which class and durability depend.

use super::connection::Connections;
use crate::phase::Phase;
use leasehold_core::store::{Class, Survey};
use leasehold_core::{Error, Kind, Result};
use mysql_async::Row;
use std::collections::HashMap;

const LOOK: &str = "SELECT VERSION(); \
    SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', \
    'sync_binlog', 'read_only', 'transaction_isolation', 'tx_isolation', 'wsrep_on', 'wsrep_sync_wait', \
    'group_replication_group_name', 'autocommit'); \
    SHOW GLOBAL STATUS WHERE Variable_name IN ('Slaves_connected', 'Rpl_semi_sync_master_status', \
    'Rpl_semi_sync_source_status'); \
    SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'; \
    SELECT COUNT(*) FROM information_schema.user_privileges WHERE privilege_type = 'PROCESS' \
    AND grantee = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), ''''); \
    SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'leasehold_record'";

pub(super) async fn look(connections: &Connections) -> Result<Survey> {
    let endpoint = connections.endpoint();
    let answer = connections.exchange(Phase::Reading, LOOK, Vec::new()).await?;
    if let Some(stop) = answer.stopped {
        return Err(stop.into_error(endpoint));
    }
    let [version, variables, status, dumps, process, engine] = &answer.sets[..] else {
        return Err(Error::new(Kind::Unavailable, format!("{endpoint} told only part of its settings")));
    };
    let seen = ServerState {
        version: text(version.first(), 0).unwrap_or_default(),
        settings: variables.iter().chain(status).filter_map(pair).collect(),
        dump_threads: number(dumps),
        may_see_threads: number(process) > 0,
        engine: text(engine.first(), 0).map(|engine| engine.to_uppercase()),
    };
    Ok(judge(&seen))
}

/// The server's settings and state.
#[derive(Debug, Default)]
struct ServerState {
    version: String,
    /// Names in lower case, values in upper case.
    settings: HashMap<String, String>,
    /// Connected replicas, as far as this user may see them.
    dump_threads: u64,
    may_see_threads: bool,
    engine: Option<String>,
}

impl ServerState {
    fn get(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    fn is_on(&self, name: &str) -> bool {
        matches!(self.get(name), Some("ON" | "1"))
    }

    /// How many replicas are connected; none if that cannot be seen.
    fn replicas(&self) -> Option<u64> {
        match self.get("slaves_connected").and_then(|count| count.parse::<u64>().ok()) {
            // Replicas that registered, or that only read the log.
            Some(count) => Some(count.max(self.dump_threads)),
            None if self.may_see_threads => Some(self.dump_threads),
            None => (self.dump_threads > 0).then_some(self.dump_threads),
        }
    }
}

fn judge(seen: &ServerState) -> Survey {
    let survey = Survey::plain(Class::A).fine("version", seen.version.clone());
    let survey = disk(survey, seen);
    let survey = replication(survey, seen);
    let survey = clusters(survey, seen);
    reading(survey, seen)
}

/// What survives a crash of the server itself.
fn disk(mut survey: Survey, seen: &ServerState) -> Survey {
    let flush = seen.get("innodb_flush_log_at_trx_commit").unwrap_or("not reported");
    survey = if flush == "1" || (flush == "3" && seen.version.contains("MariaDB")) {
        survey.fine("innodb_flush_log_at_trx_commit", flush)
    } else {
        let advice = "set it to 1: otherwise a crash forgets swaps that were answered";
        worse(survey).advise("innodb_flush_log_at_trx_commit", flush, advice)
    };
    let doublewrite = seen.get("innodb_doublewrite").unwrap_or("not reported");
    survey = if matches!(doublewrite, "ON" | "1" | "DETECT_AND_RECOVER") {
        survey.fine("innodb_doublewrite", doublewrite)
    } else {
        let advice = "turn it on, unless the disk writes whole pages: a power cut may tear one";
        worse(survey).advise("innodb_doublewrite", doublewrite, advice)
    };
    match &seen.engine {
        Some(engine) if engine == "INNODB" => survey.fine("engine of leasehold_record", "InnoDB"),
        Some(engine) => worse(survey).advise(
            "engine of leasehold_record",
            engine.clone(),
            "run ALTER TABLE leasehold_record ENGINE=InnoDB: other engines do not survive a crash as promised",
        ),
        None => survey.fine("engine of leasehold_record", "not made yet"),
    }
}

/// What survives a failover to a replica.
fn replication(survey: Survey, seen: &ServerState) -> Survey {
    if !seen.is_on("log_bin") {
        return survey.fine("log_bin", seen.get("log_bin").unwrap_or("not reported"));
    }
    let survey = survey.fine("log_bin", "ON");
    let sync = seen.get("sync_binlog").unwrap_or("not reported");
    let survey = if sync == "1" {
        survey.fine("sync_binlog", sync)
    } else {
        let advice = "set it to 1: otherwise replicas and the server may disagree after a crash";
        worse(survey).advise("sync_binlog", sync, advice)
    };
    let is_semi_sync = seen.is_on("rpl_semi_sync_master_status") || seen.is_on("rpl_semi_sync_source_status");
    match seen.replicas() {
        Some(0) => survey.fine("replicas", "none"),
        Some(count) if is_semi_sync => worse(survey).advise(
            "replicas",
            format!("{count}, semi-synchronous"),
            "let the wait be AFTER_SYNC with a timeout that is never reached, and fail over only to a replica that \
             acknowledged: then nothing that was answered is lost; that was not tried here, so the class stays B",
        ),
        Some(count) => worse(survey).advise(
            "replicas",
            format!("{count}, asynchronous"),
            "turn semi-synchronous replication on: a failover may lose swaps that were answered; after one, advance each \
             lease whose guard reports that the store regressed",
        ),
        None => worse(survey).advise(
            "replicas",
            "cannot be seen",
            "grant PROCESS to this user, so that replicas that a failover could lose swaps to can be seen",
        ),
    }
}

/// Several servers that all accept writes.
fn clusters(mut survey: Survey, seen: &ServerState) -> Survey {
    if seen.is_on("wsrep_on") {
        let wait = seen.get("wsrep_sync_wait").unwrap_or("0").to_owned();
        survey = worse(survey).advise(
            "wsrep_on",
            format!("ON, wsrep_sync_wait={wait}"),
            "set wsrep_sync_wait=1 or more on every node, or send all leases to one node: otherwise a read may be old",
        );
    }
    if seen.get("group_replication_group_name").is_some_and(|name| !name.is_empty()) {
        survey = worse(survey).advise(
            "group_replication",
            "ON",
            "set group_replication_consistency=BEFORE_AND_AFTER, or send all leases to the primary",
        );
    }
    survey
}

/// Whether reads and writes on this server can be trusted.
fn reading(mut survey: Survey, seen: &ServerState) -> Survey {
    let isolation = seen.get("transaction_isolation").or_else(|| seen.get("tx_isolation"));
    if isolation == Some("READ-UNCOMMITTED") {
        let advice = "set it to REPEATABLE-READ; leasehold does so on its own connections, but a proxy may undo that";
        survey = survey.advise("transaction_isolation", "READ-UNCOMMITTED", advice);
    }
    if matches!(seen.get("read_only"), Some(value) if value != "OFF" && value != "0") {
        survey = worse(survey).advise(
            "read_only",
            seen.get("read_only").unwrap_or_default(),
            "name the server that takes writes: this one looks like a replica, whose reads may be old",
        );
    }
    survey
}

fn worse(survey: Survey) -> Survey {
    Survey { class: Class::B, ..survey }
}

fn text(row: Option<&Row>, at: usize) -> Option<String> {
    row?.get_opt::<String, usize>(at)?.ok()
}

fn pair(row: &Row) -> Option<(String, String)> {
    Some((text(Some(row), 0)?.to_lowercase(), text(Some(row), 1)?.to_uppercase()))
}

fn number(rows: &[Row]) -> u64 {
    rows.first().and_then(|row| row.get_opt::<u64, usize>(0)?.ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(settings: &[(&str, &str)]) -> ServerState {
        let sound = [("innodb_flush_log_at_trx_commit", "1"), ("innodb_doublewrite", "ON"), ("log_bin", "OFF")];
        let settings = sound.iter().chain(settings).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ServerState { version: "8.0.36".into(), settings: settings.collect(), ..ServerState::default() }
    }

    fn advised(survey: &Survey) -> Vec<&str> {
        survey.remarks.iter().filter(|remark| remark.advice.is_some()).map(|remark| remark.setting.as_str()).collect()
    }

    #[test]
    fn a_single_server_that_flushes_is_of_class_a() {
        let survey = judge(&seen(&[]));
        assert_eq!((survey.class, advised(&survey)), (Class::A, vec![]));
    }

    #[test]
    fn whatever_may_forget_an_answer_makes_it_class_b() {
        for (settings, named) in [
            (&[("innodb_flush_log_at_trx_commit", "2")][..], "innodb_flush_log_at_trx_commit"),
            (&[("innodb_flush_log_at_trx_commit", "3")], "innodb_flush_log_at_trx_commit"),
            (&[("innodb_doublewrite", "OFF")], "innodb_doublewrite"),
            (&[("log_bin", "ON"), ("sync_binlog", "0"), ("slaves_connected", "0")], "sync_binlog"),
            (&[("log_bin", "ON"), ("sync_binlog", "1"), ("slaves_connected", "2")], "replicas"),
            (&[("log_bin", "ON"), ("sync_binlog", "1")], "replicas"),
            (&[("wsrep_on", "ON")], "wsrep_on"),
            (&[("group_replication_group_name", "A-B")], "group_replication"),
            (&[("read_only", "ON")], "read_only"),
        ] {
            let survey = judge(&seen(settings));
            assert_eq!((survey.class, advised(&survey)), (Class::B, vec![named]), "{settings:?}");
        }
        let survey = judge(&ServerState { engine: Some("MYISAM".into()), ..seen(&[]) });
        assert_eq!((survey.class, advised(&survey)), (Class::B, vec!["engine of leasehold_record"]));
    }

    #[test]
    fn replicas_count_as_absent_only_where_they_could_be_seen() {
        let log = [("log_bin", "ON"), ("sync_binlog", "1")];
        let survey = judge(&ServerState { may_see_threads: true, ..seen(&log) });
        assert_eq!((survey.class, advised(&survey)), (Class::A, vec![]));
        let survey = judge(&ServerState { may_see_threads: true, dump_threads: 1, ..seen(&log) });
        assert_eq!((survey.class, advised(&survey)), (Class::B, vec!["replicas"]));
    }
}
