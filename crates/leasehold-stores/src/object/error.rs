//! The meaning of a call that failed: it separates what was certainly not applied from what may have been.

use super::connection::{CALL, Exchange};
use crate::credentials;
use crate::phase::Phase;
use leasehold_core::{Error, Kind};

/// The error for a failed call. The driver's own error is used only if nothing
/// was sent. Otherwise [`Exchange`] says more, in one line and without addresses.
pub(super) fn failed(
    driver: Option<object_store::Error>,
    seen: &Exchange,
    phase: Phase,
    bucket: &str,
    advice: &Advice,
) -> Error {
    let code = if seen.code.is_empty() { String::new() } else { format!(" {}", seen.code) };
    let Some(status) = seen.status else {
        return match driver {
            _ if seen.unconnected => Error::new(Kind::Unavailable, format!("cannot connect to {bucket}: {}", seen.why)),
            _ if seen.sent && seen.why.is_empty() => {
                Error::new(phase.unanswered(), format!("{bucket} did not answer within {} s", CALL.as_secs()))
            }
            _ if seen.sent => Error::new(phase.unanswered(), format!("no answer from {bucket}: {}", seen.why)),
            Some(driver) => {
                let (kind, why) = match credentials::cause(&driver) {
                    Some(cause) => (cause.kind(), cause.to_string()),
                    None => (Kind::Unavailable, format!("{driver}; {}", advice.credentials)),
                };
                let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
                Error::new(kind, format!("cannot ask {bucket}: {why}"))
            }
            None => {
                Error::new(Kind::Unavailable, format!("no credentials for {bucket} in time; {}", advice.credentials))
            }
        };
    };
    let said = format!("{bucket} answered {status}{code}");
    let refused = |what: &str| Error::new(Kind::Unsupported, format!("{said}: {what}"));
    match (status, seen.code.as_str()) {
        (_, "RequestTimeTooSkewed") => refused("this machine's clock is too far off for its signature; set it right"),
        (_, "NoSuchBucket" | "ContainerNotFound") => refused(&advice.creation),
        (301 | 302 | 307 | 308, _) | (400, "AuthorizationHeaderMalformed") => refused(&advice.redirected),
        _ if seen.is_refused() => refused(&advice.credentials),
        (409, _) => Error::new(Kind::Contended, format!("{said}: others are writing this record; try again")),
        (429, _) => Error::new(Kind::Unavailable, format!("{said}: it is asked too often")),
        (501, _) => refused("it does not know conditional writes"),
        (408 | 500.., _) => Error::new(phase.unanswered(), said),
        (200..=299, _) => {
            Error::new(phase.unanswered(), format!("the answer of {bucket} was cut off or lacks an ETag"))
        }
        _ => refused("the request was not understood"),
    }
}

/// The next step, in the service's terms.
#[derive(Debug)]
pub(super) struct Advice {
    pub(super) credentials: String,
    pub(super) creation: String,
    pub(super) redirected: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice() -> Advice {
        Advice { credentials: "keys".into(), creation: "make it".into(), redirected: "region".into() }
    }

    #[test]
    fn a_failure_is_what_was_seen() {
        let unsent = Exchange::default();
        let unconnected = Exchange { sent: true, unconnected: true, why: "refused".into(), ..Exchange::default() };
        let unanswered = Exchange { sent: true, why: "reset".into(), ..Exchange::default() };
        let silent = Exchange { sent: true, ..Exchange::default() };
        let status = |status, code: &str| Exchange {
            sent: true,
            status: Some(status),
            code: code.into(),
            ..Exchange::default()
        };
        for (seen, reading, writing) in [
            (unsent, Kind::Unavailable, Kind::Unavailable),
            (unconnected, Kind::Unavailable, Kind::Unavailable),
            (unanswered, Kind::Unavailable, Kind::Indeterminate),
            (silent, Kind::Unavailable, Kind::Indeterminate),
            (status(500, "InternalError"), Kind::Unavailable, Kind::Indeterminate),
            (status(503, "SlowDown"), Kind::Unavailable, Kind::Indeterminate),
            (status(200, ""), Kind::Unavailable, Kind::Indeterminate),
            (status(429, ""), Kind::Unavailable, Kind::Unavailable),
            (status(409, "ConditionalRequestConflict"), Kind::Contended, Kind::Contended),
            (status(403, "AccessDenied"), Kind::Unsupported, Kind::Unsupported),
            (status(401, ""), Kind::Unsupported, Kind::Unsupported),
            (status(404, "NoSuchBucket"), Kind::Unsupported, Kind::Unsupported),
            (status(301, "PermanentRedirect"), Kind::Unsupported, Kind::Unsupported),
            (status(501, "NotImplemented"), Kind::Unsupported, Kind::Unsupported),
            (status(400, "InvalidArgument"), Kind::Unsupported, Kind::Unsupported),
        ] {
            for (phase, kind) in [(Phase::Reading, reading), (Phase::Writing, writing)] {
                let error = failed(None, &seen, phase, "s3", &advice());
                assert_eq!(error.kind(), kind, "{seen:?} {phase:?}: {error}");
                assert!(!error.to_string().contains('\n'));
            }
        }
    }
}
