//! Refusals as a client reads them: a status, a JSON problem, and the numbers in a header.
//!
//! Promise: one line that names what is wrong and what to do; never a token's nonce. Non-promise: what hyper refuses by
//! itself (a request that is no HTTP) has a status and no body.

use super::body::{self, Reply};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use leasehold_core::guard::Rejection;
use leasehold_core::{Epoch, Error, Kind, LeaseName};
use serde_json::json;

/// The header with both numbers of a refusal: `held=41 seen=42`.
pub(crate) const FENCED: HeaderName = HeaderName::from_static("leasehold-fenced");

const REFUSED: &str = "refused";

/// What is wrong with a request.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    kind: Kind,
    detail: String,
    numbers: Option<(Epoch, Epoch)>,
    retry_after: Option<u64>,
    /// The lease of the request, and its epoch.
    of: Option<(LeaseName, Epoch)>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, kind: Kind, detail: impl Into<String>) -> Self {
        let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1);
        Problem { status, kind, detail: detail.into(), numbers: None, retry_after, of: None }
    }

    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, Kind::Invalid, detail)
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, Kind::Unavailable, detail)
    }

    pub(crate) fn rejection(rejection: Rejection, resource: &str) -> Self {
        let status = match &rejection {
            Rejection::Stale { .. } => StatusCode::PRECONDITION_FAILED,
            Rejection::Foreign { .. } | Rejection::OtherLineage { .. } => StatusCode::FORBIDDEN,
            Rejection::Regressed { .. } | Rejection::Replayed { .. } | Rejection::Spent { .. } => StatusCode::CONFLICT,
        };
        let numbers = match &rejection {
            Rejection::Stale { held, seen } => Some((*held, *seen)),
            Rejection::Regressed { seen, .. } => Some((*seen, *seen)),
            _ => None,
        };
        let error = rejection.into_error(resource);
        Problem { numbers, ..Problem::new(status, error.kind(), error.to_string()) }
    }

    /// The store granted an epoch below what the resource has seen.
    pub(crate) fn rejection_of_store(resource: &str, lease: &LeaseName, held: Epoch, seen: Epoch) -> Self {
        let error = leasehold_core::guard::regressed(resource, lease, seen);
        Problem { numbers: Some((held, seen)), ..Problem::from(error) }
    }

    /// The same, of a request under this lease.
    pub(crate) fn of(self, lease: LeaseName, epoch: Epoch) -> Self {
        Problem { of: Some((lease, epoch)), ..self }
    }

    /// Logs the refusal: the lease and the epochs, and nothing else of the request.
    pub(crate) fn log(&self) {
        let (status, error, detail) = (self.status.as_u16(), self.kind.as_str(), &self.detail);
        let Some((lease, epoch)) = &self.of else {
            // A check of a standby proxy is not worth a line in the log.
            if self.kind != Kind::Unavailable {
                tracing::info!(outcome = REFUSED, status, error, "a request was refused ({status}): {detail}");
            }
            return;
        };
        let (what, lease, epoch) = (format!("a request of `{lease}`, epoch {epoch},"), lease.as_str(), epoch.get());
        macro_rules! tell {
            ($level:ident) => {
                tracing::$level!(
                    lease,
                    epoch,
                    outcome = REFUSED,
                    status,
                    error,
                    "{what} was refused ({status}): {detail}"
                )
            };
        }
        match self.kind {
            Kind::Regressed => tell!(error),
            Kind::Unavailable => tell!(info),
            _ => tell!(warn),
        }
    }

    pub(crate) fn response(&self) -> Response<Reply> {
        let mut body = json!({
            "title": self.status.canonical_reason().unwrap_or("refused"),
            "status": self.status.as_u16(),
            "kind": self.kind.as_str(),
            "detail": self.detail,
        });
        let mut response = Response::new(body::full(""));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some((held, seen)) = self.numbers {
            body["held"] = held.get().into();
            body["seen"] = seen.get().into();
            if let Ok(value) = HeaderValue::from_str(&format!("held={held} seen={seen}")) {
                headers.insert(FENCED, value);
            }
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        *response.body_mut() = body::full(format!("{body}\n"));
        response
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            Kind::Fenced | Kind::Lost => StatusCode::PRECONDITION_FAILED,
            Kind::Invalid => StatusCode::FORBIDDEN,
            Kind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            Kind::Corrupt => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::Regressed => StatusCode::CONFLICT,
            Kind::Moved => StatusCode::GONE,
            // Nothing was forwarded, whatever became of the fence: to ask again is safe.
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Problem::new(status, error.kind(), error.to_string())
    }
}
