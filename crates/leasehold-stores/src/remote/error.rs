//! The meaning of a server's error answers, and of a connection that cannot be made.
//!
//! Promise: a write counts as certainly not applied only if the server's answer says so, or if nothing was sent.

use super::config::{Endpoint, PORT};
use crate::http::causes;
use crate::phase::Phase;
use leasehold_core::wire::Problem;
use leasehold_core::{Error, Kind, Remedy, Why};
use rustls::CertificateError;

/// The kinds of problems that a server reports without having looked at the request.
const OVERLOAD: &[&str] = &["overloaded", "too_many_requests", "ending"];

/// What to do about a server that speaks TLS where none was expected, or the reverse, or whose authority is not known.
/// Neither read a request, and trying again does not help.
pub(super) fn advised(error: Error, endpoint: &Endpoint) -> Error {
    // A write that was perhaps carried out stays so, whatever came back.
    if error.kind() == Kind::Indeterminate {
        return error;
    }
    let Endpoint { base, display_name, .. } = endpoint;
    let is_plain = base.starts_with("http://");
    let is_tls = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<rustls::Error>().cloned();
    let found = causes(&error).find_map(|cause| match is_tls(cause) {
        Some(rustls::Error::InvalidMessage(_)) => {
            let message = format!("{display_name} answered without TLS; on this machine use `leasehold+http://`");
            Some(Error::new(Kind::Unsupported, message))
        }
        Some(rustls::Error::InvalidCertificate(what)) => {
            Some(Error::new(Kind::Unsupported, distrusted(display_name, &what)))
        }
        // A TLS record does not begin with `HTTP`.
        None if is_plain && cause.to_string().contains("invalid HTTP version") => {
            Some(Error::new(Kind::Unsupported, format!("{display_name} answers with TLS: use `leasehold://`")))
        }
        None if is_refused(cause) && !is_plain && !endpoint.has_port => {
            let message = format!(
                "cannot reach {display_name}: connection refused; `leasehold://` without a port means 443, and a server listens \
                 on {PORT} unless told otherwise: `leasehold://HOST:{PORT}/NAMESPACE`, on this machine \
                 `leasehold+http://127.0.0.1/NAMESPACE`"
            );
            Some(Error::new(error.kind(), message))
        }
        None if is_refused(cause) => {
            let message = format!("cannot reach {display_name}: connection refused");
            Some(Error::new(error.kind(), message).with_remedy(Remedy::StartServer))
        }
        _ => None,
    });
    found.unwrap_or(error)
}

fn is_refused(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// What to do about a certificate that is not accepted.
fn distrusted(server: &str, what: &CertificateError) -> String {
    match what {
        CertificateError::UnknownIssuer => {
            format!("this machine does not know the authority of the certificate of {server}; name it: `?ca=FILE`")
        }
        what => {
            format!(
                "the certificate of {server} is not accepted: {what}; an authority of your own is named by `?ca=FILE`"
            )
        }
    }
}

/// Why one server did not do what was requested.
pub(super) struct CallError {
    pub(super) error: Error,
    /// The status of its answer, if it answered.
    pub(super) status: Option<u16>,
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        CallError { error, status: None }
    }
}

/// The meaning of a status other than 200. A server's error kind says whether anything was carried out.
pub(super) fn refused(display_name: &str, status: u16, body: &[u8], phase: Phase) -> Error {
    let Ok(Problem { detail, kind, field, held_epoch, seen_epoch, .. }) = serde_json::from_slice::<Problem>(body)
    else {
        let (kind, what) = match status {
            300..=399 | 404 | 405 => (Kind::Unsupported, "it is no leasehold server; check the URL"),
            400..=428 | 430..=499 => (Kind::Unsupported, "something in front of it refuses the request"),
            429 => (Kind::Unavailable, "it is asked too often; try again later"),
            _ => (phase.unanswered(), "try again"),
        };
        return Error::new(kind, format!("{display_name} answered {status}: {what}"));
    };
    // A leasehold server's own words: all of them, in one line.
    let detail = Why::lossy(&detail, "it does not say why");
    let kind = match Kind::named(&kind) {
        None if OVERLOAD.contains(&kind.as_str()) => Kind::Unavailable,
        // A read changes nothing, whether it was carried out or not.
        Some(Kind::Indeterminate) => phase.unanswered(),
        Some(kind) => kind,
        // The server is the right one, and has not what was named.
        None if status == 404 && field.is_some() => Kind::Invalid,
        None if status < 500 => Kind::Unsupported,
        None => phase.unanswered(),
    };
    if status == 404 && field.as_deref() == Some("path") {
        let message = format!(
            "{display_name} has nothing at this path; the store's URL is leasehold://HOST/NAMESPACE, or \
             leasehold://HOST/PREFIX/NAMESPACE where the server was started with --path-prefix /PREFIX"
        );
        return Error::new(Kind::Unsupported, message);
    }
    let error = Error::new(kind, format!("{display_name}: {detail}"));
    match (held_epoch, seen_epoch) {
        (Some(held), Some(seen)) => error.with_epochs(held, seen),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::client::untimed;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// As the driver prints it of a TLS alert, which is what a server with TLS answers to plain HTTP.
    #[tokio::test]
    async fn a_server_with_tls_is_recognised_by_its_answer_to_plain_http() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // An answer before the request would be another fault.
            assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
            stream.write_all(&[0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x46]).await.unwrap();
            stream
        });
        let client = crate::http::builder().build().unwrap();
        let error = untimed(client.get(&base), Phase::Writing, "x").await.map(drop).unwrap_err();
        let said: Vec<String> = causes(&error).map(ToString::to_string).collect();
        assert!(said.iter().any(|said| said == "invalid HTTP version parsed"), "{said:?}");
        let endpoint = Endpoint { base, display_name: "the server at h".into(), has_port: true };
        let advised = advised(Error::unavailable("cannot reach x", error), &endpoint);
        assert_eq!(advised.kind(), Kind::Unsupported);
        assert!(advised.to_string().starts_with("the server at h answers with TLS"), "{advised}");
        drop(server.await.unwrap());
    }
}
