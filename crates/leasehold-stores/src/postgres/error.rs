//! The meaning of the driver's errors: it separates what was certainly not applied from what may have been.

use super::config::Config;
use crate::phase::Phase;
use leasehold_core::{Error, Kind};
use std::error::Error as StdError;
use tokio_postgres::error::Severity;

/// How a call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// The table does not exist; nothing was done.
    MissingTable,
    /// Another writer was faster, and the server rolled the call back, so it may be repeated.
    Overtaken(Error),
    /// The server is not the primary; nothing was done.
    Standby(Error),
    /// The connection is lost.
    Cut(Error),
    /// Any other failure; the store does not repeat the call.
    Final(Error),
}

impl CallError {
    pub(super) fn into_error(self) -> Error {
        match self {
            CallError::Overtaken(error)
            | CallError::Standby(error)
            | CallError::Cut(error)
            | CallError::Final(error) => error,
            CallError::MissingTable => Error::new(Kind::Unavailable, "the table of the postgres store is missing"),
        }
    }
}

/// The error for a standby.
pub(super) fn standby(endpoint: &str) -> Error {
    let advice = "name the primary, or all servers of the cluster, in the store url";
    Error::new(Kind::Unavailable, format!("{endpoint} is a standby, which may lag behind; {advice}"))
}

/// The error for a call that was not answered in time.
pub(super) fn silent(phase: Phase, endpoint: &str) -> CallError {
    let kind = phase.unanswered();
    CallError::Cut(Error::new(kind, format!("{endpoint} did not answer in time")))
}

/// The driver's error as ours.
pub(super) fn failed(error: tokio_postgres::Error, phase: Phase, endpoint: &str, config: &Config) -> CallError {
    use CallError::{Final, MissingTable, Overtaken};
    let Some(told) = error.as_db_error() else {
        return unanswered(error.into(), phase, endpoint, config);
    };
    let state = told.code().code();
    // Only a plain error is the answer to a statement, which is then rolled back. Other severities end the connection
    // at any point, or come from a pooler that lost the server.
    let is_plain = matches!(told.parsed_severity(), Some(Severity::Error) | None) && !state.starts_with("08");
    let says = format!("{} ({state})", leasehold_core::printable(told.message()));
    let (role, table) = (&config.user, &config.table);
    let unavailable = |what: String| Error::new(Kind::Unavailable, what);
    let unsupported = |what: String| Final(Error::new(Kind::Unsupported, what));
    match state {
        "28P01" | "28000" => unsupported(format!(
            "{endpoint} refused role `{role}`: {says}; check the password, the role and pg_hba.conf"
        )),
        "3D000" => unsupported(format!("{endpoint} has no such database: {says}; create it or name another")),
        "42501" if phase == Phase::Preparing => unsupported(format!(
            "role `{role}` may not create the table at {endpoint}; let an administrator run: {}",
            table.advice(role)
        )),
        "42501" => unsupported(format!(
            "role `{role}` may not use the table at {endpoint}: {says}; run: {}",
            table.grant(role)
        )),
        "3F000" => unsupported(format!(
            "the schema is missing at {endpoint}; let an administrator run: {}",
            table.advice(role)
        )),
        // Before anything was sent: a waiter retries.
        "53300" if phase == Phase::Connecting => Final(Error::new(
            Kind::Contended,
            format!("{endpoint} has as many clients as it allows: {says}; try again"),
        )),
        "42P01" if is_plain => MissingTable,
        "42703" | "42804" | "42809" | "42883" => {
            unsupported(format!("{table} at {endpoint} is not a leasehold table: {says}; name another with `?table=`"))
        }
        // Two processes that create the table at once collide in the catalogue.
        "42P07" | "42710" | "23505" | "XX000" if phase == Phase::Preparing => {
            Overtaken(unavailable(format!("{endpoint} could not make the table: {says}; try again")))
        }
        "40001" | "40P01" if is_plain => {
            Overtaken(unavailable(format!("{endpoint} gave way to other writers again and again: {says}; try again")))
        }
        "25006" if is_plain => CallError::Standby(standby(endpoint)),
        "53100" if is_plain => {
            Final(unavailable(format!("no space left at {endpoint}; nothing was changed, free some and try again")))
        }
        _ if is_plain || phase != Phase::Writing => {
            Final(unavailable(format!("{endpoint} answered: {says}; try again")))
        }
        _ => {
            let what = format!("{endpoint} ended the connection in the middle of a write: {says}");
            CallError::Cut(Error::new(Kind::Indeterminate, what))
        }
    }
}

/// The error when the server did not answer: the connection was cut, or never opened.
fn unanswered(error: Box<dyn StdError + Send + Sync>, phase: Phase, endpoint: &str, config: &Config) -> CallError {
    let text = error.to_string();
    match phase {
        // The driver reports a missing password as a configuration error.
        Phase::Connecting if text.contains("authentication") || text.contains("configuration") => {
            let what = format!("{endpoint} refused role `{}`: {}; give a password", config.user, cause(&*error));
            CallError::Final(Error::new(Kind::Unsupported, what))
        }
        Phase::Connecting if text.contains("TLS") => {
            let what = format!("no secure connection to {endpoint}: {}; check sslmode and sslrootcert", cause(&*error));
            // A server without TLS, or with an untrusted certificate, needs a person. A cut connection does not.
            let kind = if is_io(&*error) { Kind::Unavailable } else { Kind::Unsupported };
            CallError::Final(Error::new(kind, what))
        }
        Phase::Connecting => CallError::Final(Error::unavailable(format!("cannot reach {endpoint}"), error)),
        Phase::Writing => {
            let what = format!("{endpoint} did not answer a write");
            CallError::Cut(Error::new(Kind::Indeterminate, what).with_source(error))
        }
        Phase::Reading | Phase::Preparing => {
            CallError::Cut(Error::unavailable(format!("{endpoint} did not answer"), error))
        }
    }
}

fn cause(error: &dyn StdError) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether a failed handshake was cut rather than refused.
fn is_io(error: &dyn StdError) -> bool {
    let source = error.source().and_then(|e| e.downcast_ref::<std::io::Error>());
    source.is_some_and(|e| e.kind() != std::io::ErrorKind::InvalidData && e.kind() != std::io::ErrorKind::InvalidInput)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::Address;

    /// As the driver prints what a person has to set right, and what may pass.
    #[test]
    fn a_login_or_tls_that_cannot_work_is_told_from_a_server_that_is_away() {
        let config = Config::read(&Address::parse("postgres", "//me@h/db").unwrap(), |_| None).unwrap();
        for (said, kind, advice) in [
            ("invalid configuration: password missing", Kind::Unsupported, "give a password"),
            ("authentication error: unsupported authentication method", Kind::Unsupported, "give a password"),
            ("error performing TLS handshake: server does not support TLS", Kind::Unsupported, "check sslmode"),
            ("error connecting to server: Connection refused (os error 111)", Kind::Unavailable, "cannot reach"),
        ] {
            let CallError::Final(error) =
                unanswered(said.into(), Phase::Connecting, "postgres server `h:5432`", &config)
            else {
                panic!("{said}")
            };
            assert_eq!(error.kind(), kind, "{said}");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
