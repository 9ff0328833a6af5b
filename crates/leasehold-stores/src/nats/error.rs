//! The meaning of errors of NATS and of its driver: it separates what was certainly not applied from what may have been.

use super::config::Config;
use super::wire::{ApiError, NO_JETSTREAM};
use crate::phase::Phase;
use async_nats::ConnectErrorKind;
use async_nats::client::RequestErrorKind;
use leasehold_core::{Error, Kind};

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum CallError {
    /// The connection broke: the request may have been carried out.
    Broken,
    /// No answer came in time: the request may have been carried out.
    Silent,
    /// The subject has no listener now: nothing was done.
    Nobody,
    /// The subject has no listener, because the server has no JetStream: nothing was done.
    Off,
    /// The server denies permission: nothing was done.
    Denied(String),
    /// The server accepts no messages of this size: nothing was sent.
    TooLarge,
    /// The server answered with an error.
    Refused(ApiError),
    /// The answer makes no sense.
    Garbled(String),
    /// Not sent, for this reason.
    Unasked(Error),
}

impl CallError {
    pub(super) fn is(&self, err_code: u32) -> bool {
        matches!(self, CallError::Refused(api_error) if api_error.err_code == err_code)
    }

    /// As an error, for the caller.
    pub(super) fn into_error(self, endpoint: &str, bucket: &str, phase: Phase) -> Error {
        let unknown = phase.unanswered();
        let no_jetstream = || {
            let message =
                format!("jetstream is off at {endpoint}; start nats-server with `-js`, or allow it to the account");
            Error::new(Kind::Unsupported, message)
        };
        match self {
            CallError::Unasked(error) => error,
            CallError::Broken => {
                Error::new(unknown, format!("the connection to {endpoint} broke before the answer came"))
            }
            CallError::Silent => Error::new(unknown, format!("{endpoint} did not answer in time")),
            CallError::Off => no_jetstream(),
            CallError::Nobody => {
                let message = format!("nobody answers for the bucket `{}` at {endpoint} now; try again", bucket);
                Error::new(Kind::Unavailable, message)
            }
            CallError::Denied(complaint) => {
                let message =
                    format!("{endpoint} does not let this user do it ({complaint}); allow `$JS.API.>`, `$KV.>`");
                Error::new(Kind::Unsupported, message)
            }
            CallError::TooLarge => {
                Error::new(Kind::Unsupported, format!("a record is larger than the `max_payload` of {endpoint}"))
            }
            CallError::Garbled(what) => {
                Error::new(unknown, format!("{endpoint} answered what cannot be understood: {what}"))
            }
            CallError::Refused(api_error) if NO_JETSTREAM.contains(&api_error.err_code) => no_jetstream(),
            CallError::Refused(api_error) => {
                let kind = match api_error.code {
                    500.. => unknown,
                    // The server's queue is full: the message was not accepted.
                    429 => Kind::Unavailable,
                    _ => Kind::Unsupported,
                };
                let what = leasehold_core::printable(&api_error.description);
                Error::new(kind, format!("{endpoint} refused with error {}: {what}", api_error.err_code))
            }
        }
    }
}

/// The meaning of the driver's errors.
pub(super) fn failed(error: RequestErrorKind) -> CallError {
    match error {
        RequestErrorKind::NoResponders => CallError::Nobody,
        RequestErrorKind::MaxPayloadExceeded => CallError::TooLarge,
        RequestErrorKind::TimedOut => CallError::Silent,
        RequestErrorKind::InvalidSubject | RequestErrorKind::Other => CallError::Broken,
    }
}

/// The error for a connection that could not be made. Nothing was sent.
pub(super) fn unreachable(config: &Config, error: async_nats::ConnectError) -> Error {
    let endpoint = &config.endpoint;
    let text = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default().to_lowercase();
    let is_about_us = text.contains("authorization") || text.contains("authentication") || text.contains("account");
    let (kind, message) = match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            (Kind::Unsupported, format!("{endpoint} does not accept these credentials; check the user, token or file"))
        }
        _ if is_about_us => {
            (Kind::Unsupported, format!("{endpoint} does not accept these credentials; check the user, token or file"))
        }
        ConnectErrorKind::Tls | ConnectErrorKind::Io if text.contains("certificate") => (
            Kind::Unsupported,
            format!("the certificate of {endpoint} or our own is not accepted; name the authority with `?ca=/path`"),
        ),
        ConnectErrorKind::Tls => (Kind::Unsupported, format!("cannot make a TLS connection to {endpoint}")),
        ConnectErrorKind::ServerParse => (Kind::Invalid, format!("{endpoint} cannot be understood")),
        _ => (Kind::Unavailable, format!("cannot reach {endpoint}; is it running?")),
    };
    Error::new(kind, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::Address;

    /// As nats-server and the driver print it.
    #[test]
    fn a_refused_login_and_a_refused_certificate_are_told_from_a_server_that_is_away() {
        let config = Config::new(&Address::parse("nats", "//h").unwrap(), |_| None).unwrap();
        for (said, kind, advice) in [
            ("nats: authorization violation", Kind::Unsupported, "check the user, token or file"),
            ("nats: User Authentication Expired", Kind::Unsupported, "check the user, token or file"),
            ("nats: Account Authentication Expired", Kind::Unsupported, "check the user, token or file"),
            ("invalid peer certificate: UnknownIssuer", Kind::Unsupported, "name the authority"),
            ("received fatal alert: BadCertificate", Kind::Unsupported, "name the authority"),
            ("Connection refused (os error 111)", Kind::Unavailable, "is it running?"),
        ] {
            let error = unreachable(&config, async_nats::ConnectError::with_source(ConnectErrorKind::Io, said));
            assert_eq!(error.kind(), kind, "{said}");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
