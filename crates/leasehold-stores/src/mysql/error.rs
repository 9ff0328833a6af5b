//! The meaning of the driver's errors. This is the one place that separates
//! *certainly not applied* from *may be applied*.

use crate::phase::Phase;
use leasehold_core::{Error, Kind};
use mysql_async::{DriverError, IoError, ServerError};
use std::io;

/// Why the server refused a statement.
#[derive(Debug)]
pub(super) enum Stop {
    /// The table does not exist.
    NoTable,
    /// Such a row already exists.
    Taken,
    /// This user lacks a permission.
    NotPermitted(Error),
    /// The server is a replica, perhaps since a failover.
    ReadOnly(Error),
    Failed(Error),
}

impl Stop {
    /// As an error, for callers that treat all of them alike.
    pub(super) fn into_error(self, endpoint: &str) -> Error {
        match self {
            Stop::NoTable => Error::new(Kind::Unavailable, format!("{endpoint} has no table leasehold_record")),
            Stop::Taken => Error::new(Kind::Unavailable, format!("{endpoint} has such a row already")),
            Stop::NotPermitted(error) | Stop::ReadOnly(error) | Stop::Failed(error) => error,
        }
    }
}

/// What to do about a connection that failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// The server answered with an error; the connection is fine.
    Refused(Stop),
    /// The connection is broken; another one may work.
    Broken(Error),
    /// The driver's pool has ended: a new one is needed.
    NoPool,
    /// The server has no TLS, and TLS was requested.
    NoTls(Error),
    /// The login was refused, perhaps wrongly: the driver drops the last byte of
    /// MariaDB's ed25519 challenge if that is zero, which happens once in 256 logins.
    NoLogin(Error),
    /// Another connection would fail too.
    Final(Error),
}

/// The driver's error as ours.
pub(super) fn failed(error: mysql_async::Error, phase: Phase, endpoint: &str) -> CallError {
    let kind = phase.unanswered();
    let unsupported = |message: String| Error::new(Kind::Unsupported, message);
    match error {
        mysql_async::Error::Server(error) if phase == Phase::Connecting && error.code == 1045 => {
            CallError::NoLogin(refused(&error, phase, endpoint).into_error(endpoint))
        }
        mysql_async::Error::Server(error) => CallError::Refused(refused(&error, phase, endpoint)),
        mysql_async::Error::Driver(DriverError::PoolDisconnected) => CallError::NoPool,
        mysql_async::Error::Driver(DriverError::NoClientSslFlagFromServer) => {
            CallError::NoTls(unsupported(format!("{endpoint} has no TLS; set it up there, or give `ssl-mode=DISABLED`")))
        }
        mysql_async::Error::Driver(
            error @ (DriverError::UnknownAuthPlugin { .. }
            | DriverError::CleartextPluginDisabled
            | DriverError::MysqlOldPasswordDisabled),
        ) => {
            let known = "mysql_native_password, caching_sha2_password or ed25519";
            CallError::Broken(
                unsupported(format!("{endpoint} wants a login that is not known here; give the user one of {known}"))
                    .with_source(error),
            )
        }
        mysql_async::Error::Io(error) if phase == Phase::Connecting && is_distrust(&error) => CallError::Broken(
            unsupported(format!(
                "the certificate of {endpoint} is not trusted; name its authority with `ssl-ca=`, and the host as it does"
            ))
            .with_source(error),
        ),
        error => {
            let what = match phase {
                Phase::Connecting => format!("cannot reach {endpoint}"),
                Phase::Reading | Phase::Preparing => format!("the connection to {endpoint} broke"),
                Phase::Writing => format!("the connection to {endpoint} broke while writing"),
            };
            CallError::Broken(Error::new(kind, what).with_source(error))
        }
    }
}

/// Whether TLS rejected a certificate; the driver wraps that as invalid data.
fn is_distrust(error: &IoError) -> bool {
    match error {
        IoError::Tls(_) => true,
        IoError::Io(error) => error.kind() == io::ErrorKind::InvalidData,
    }
}

/// The meaning of the server's errors. After an error that is not listed here,
/// a write may have been applied: the server can also fail after its commit.
fn refused(error: &ServerError, phase: Phase, endpoint: &str) -> Stop {
    let said: String = error.message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let said = format!("{said} (error {})", error.code);
    let fail = |kind, what: String| Error::new(kind, what).with_source(said);
    match error.code {
        1146 => Stop::NoTable,
        1062 => Stop::Taken,
        // Access denied, by user, host, socket login, expired password or lock of the account.
        1045 | 1130 | 1698 | 1820 | 1862 | 3118 | 3955 | 4151 => Stop::NotPermitted(fail(
            Kind::Unsupported,
            format!("{endpoint} refuses the user; check user, password and from where the user may connect"),
        )),
        1044 | 1142 | 1143 | 1227 | 1370 => Stop::NotPermitted(fail(
            Kind::Unsupported,
            format!("{endpoint} denies this; grant SELECT, INSERT, UPDATE, DELETE and CREATE on the database"),
        )),
        1046 | 1049 => Stop::Failed(fail(
            Kind::Unsupported,
            format!("{endpoint} has no such database; make it with CREATE DATABASE"),
        )),
        1054 | 1136 | 1364 => Stop::Failed(fail(
            Kind::Unsupported,
            format!("the table leasehold_record of {endpoint} is another program's; use another database"),
        )),
        1205 | 1213 => {
            Stop::Failed(fail(Kind::Unavailable, format!("{endpoint} was busy with the same record; try again")))
        }
        1290 | 1792 | 1836 => Stop::ReadOnly(fail(
            Kind::Unavailable,
            format!("{endpoint} takes no writes now; name the server that does, if it is a replica"),
        )),
        1021 | 1114 => Stop::Failed(fail(
            Kind::Unavailable,
            format!("no space left at {endpoint}; nothing was changed, free some and try again"),
        )),
        // Too many connections: a waiter retries.
        1040 | 1203 | 1226 if phase == Phase::Connecting => {
            Stop::Failed(fail(Kind::Contended, format!("{endpoint} has as many clients as it allows; try again")))
        }
        // The same for a statement. Or a node that has not joined its cluster, or was rolled back by it.
        1040 | 1203 | 1226 | 1047 | 3100 | 3101 => {
            Stop::Failed(fail(Kind::Unavailable, format!("{endpoint} cannot serve now; try again")))
        }
        // Statements are prepared once per connection.
        1461 => Stop::Failed(fail(
            Kind::Unavailable,
            format!("{endpoint} prepares no more statements; raise `max_prepared_stmt_count` there"),
        )),
        // Not understood, or too large.
        1064 | 1153 | 1193 | 1406 => {
            Stop::Failed(fail(Kind::Unsupported, format!("{endpoint} does not understand this")))
        }
        _ if phase == Phase::Writing => {
            Stop::Failed(fail(Kind::Indeterminate, format!("{endpoint} failed in the middle of a write")))
        }
        _ => Stop::Failed(fail(Kind::Unavailable, format!("{endpoint} refuses"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(code: u16, phase: Phase) -> Option<Kind> {
        let error = ServerError { code, message: "so\nit is".into(), state: "HY000".into() };
        match refused(&error, phase, "mysql://h/d") {
            Stop::NoTable | Stop::Taken => None,
            Stop::NotPermitted(error) | Stop::ReadOnly(error) | Stop::Failed(error) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                Some(error.kind())
            }
        }
    }

    #[test]
    fn only_known_refusals_are_sure() {
        for sure in [1205, 1213, 1290, 1836, 1114, 1040, 3101] {
            assert_eq!(kind_of(sure, Phase::Writing), Some(Kind::Unavailable), "{sure}");
        }
        // An error during commit, a shutdown, a kill, an error of the storage engine.
        for unsure in [1180, 1053, 1317, 1927, 1030, 1105] {
            assert_eq!(kind_of(unsure, Phase::Writing), Some(Kind::Indeterminate), "{unsure}");
            assert_eq!(kind_of(unsure, Phase::Reading), Some(Kind::Unavailable), "{unsure}");
        }
        for set_up in [1045, 1142, 1049, 1054] {
            assert_eq!(kind_of(set_up, Phase::Writing), Some(Kind::Unsupported), "{set_up}");
        }
    }
}
