//! The meaning of DynamoDB's error answers: it separates what was certainly not applied from what may have been.

use super::connection::Endpoint;
use crate::http::Answer;
use crate::http::client::quoted;
use crate::phase::Phase;
use leasehold_core::{Error, Kind, Timestamp, printable};
use serde_json::Value;

/// Why a request was not carried out.
pub(super) enum CallError {
    /// The condition did not hold; nothing changed.
    Mismatch,
    /// There is no such table; nothing changed. The time is that of the server's answer.
    NoTable(Timestamp),
    Error(Error),
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::Error(error) => error,
            CallError::Mismatch => Error::new(Kind::Unavailable, "a read was refused as if it had a condition"),
            CallError::NoTable(_) => Error::new(Kind::Unavailable, "the table is not there"),
        }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> CallError {
        CallError::Error(error)
    }
}

/// The meaning of an error answer. DynamoDB changes nothing when the status is below 500.
pub(super) fn refused(endpoint: &Endpoint, answer: &Answer, action: &str, phase: Phase, table: &str) -> CallError {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let code = code_in(answer);
    let said = body["message"].as_str().or_else(|| body["Message"].as_str()).unwrap_or_default();
    let said = quoted(said);
    let (kind, what) = match code.as_str() {
        "ConditionalCheckFailedException" => return CallError::Mismatch,
        "ResourceNotFoundException" => return CallError::NoTable(answer.now),
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "RequestLimitExceeded"
        | "Throttling"
        | "LimitExceededException" => (
            Kind::Unavailable,
            format!("{endpoint} throttles table `{table}` ({code}); try again, or raise its capacity"),
        ),
        "ReplicatedWriteConflictException" | "TransactionConflictException" | "ResourceInUseException" => {
            (Kind::Unavailable, format!("table `{table}` is being changed elsewhere ({code}); try again"))
        }
        "UnrecognizedClientException"
        | "InvalidSignatureException"
        | "IncompleteSignatureException"
        | "MissingAuthenticationTokenException"
        | "MissingAuthenticationToken"
        | "ExpiredTokenException"
        | "InvalidClientTokenId"
        | "SignatureDoesNotMatch"
        | "RequestTimeTooSkewed"
        | "RequestExpired" => (
            Kind::Unsupported,
            format!(
                "{endpoint} refused the AWS credentials ({code}); check AWS_ACCESS_KEY_ID or AWS_PROFILE, and the clock"
            ),
        ),
        "AccessDeniedException" | "AccessDenied" => (
            Kind::Unsupported,
            format!("not allowed: grant dynamodb:{action} on table `{table}` in {}", endpoint.region()),
        ),
        "ValidationException" if said.contains("size") => {
            (Kind::Invalid, format!("the record does not fit into an item of table `{table}`: {said}"))
        }
        "ValidationException" => {
            let advice = "its keys must be `shelf` and `name`, both strings; name another table";
            (Kind::Unsupported, format!("table `{table}` is not leasehold's: {said}; {advice}"))
        }
        _ if answer.status == 429 => (Kind::Unavailable, format!("{endpoint} is asked too often; try again later")),
        _ if matches!(answer.status, 401 | 403) => {
            let status = answer.status;
            let what =
                format!("{endpoint} refused the AWS credentials ({status}); check AWS_ACCESS_KEY_ID or AWS_PROFILE");
            (Kind::Unsupported, what)
        }
        _ if answer.status < 500 => {
            let status = answer.status;
            (Kind::Unsupported, format!("{endpoint} refused {action} with {status} {code}: {said}; check the endpoint"))
        }
        _ => (phase.unanswered(), format!("{endpoint} failed with {} {code}; try again", answer.status)),
    };
    CallError::Error(Error::new(kind, what))
}

/// The code of an error answer; empty if it has none.
pub(super) fn code_in(answer: &Answer) -> String {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let code = body["__type"].as_str().unwrap_or_default();
    printable(code.rsplit('#').next().unwrap_or_default())
}
