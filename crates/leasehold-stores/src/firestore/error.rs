//! The meaning of Firestore's error answers: it separates what was certainly not applied from what may have been.

use super::connection::Service;
use crate::http::client::{Untimed, quoted};
use crate::phase::Phase;
use leasehold_core::{Error, Kind, printable};
use serde_json::Value;

/// Why a request was not carried out.
pub(super) enum CallError {
    /// The precondition did not hold; nothing changed.
    Mismatch,
    Error(Error),
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::Error(error) => error,
            CallError::Mismatch => Error::new(Kind::Unavailable, "a read was refused as if it had a precondition"),
        }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> CallError {
        CallError::Error(error)
    }
}

/// The meaning of an error answer. `ABORTED` and `ALREADY_EXISTS` share a status, so the code's name decides.
pub(super) fn refused(service: &Service, answer: &Untimed, phase: Phase) -> CallError {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    // A call that answers with a stream puts its error into a list.
    let error = if body.is_array() { &body[0]["error"] } else { &body["error"] };
    let code = printable(error["status"].as_str().unwrap_or_default());
    let said = error["message"].as_str().unwrap_or_default();
    let said = quoted(said);
    let (project, database) = (&service.project, &service.database);
    // The name of a missing document contains `databases`, too.
    let is_about_the_database = said.contains("does not exist for project") || said.contains("Datastore Mode");
    let (kind, what) = match (code.as_str(), phase) {
        ("NOT_FOUND" | "FAILED_PRECONDITION", _) if is_about_the_database => {
            let make = format!(
                "gcloud firestore databases create --project={project} --database='{database}' \
                 --type=firestore-native --location=REGION"
            );
            (Kind::Unsupported, format!("no Firestore database in native mode: {said}; make it: {make}"))
        }
        ("ALREADY_EXISTS" | "FAILED_PRECONDITION" | "NOT_FOUND", Phase::Writing) => return CallError::Mismatch,
        ("ABORTED", _) => (Kind::Unavailable, format!("{service} was busy with others' writes; try again")),
        ("RESOURCE_EXHAUSTED", _) => {
            (Kind::Unavailable, format!("project `{project}` is over its quota: {said}; try again later"))
        }
        ("UNAUTHENTICATED", _) => {
            let fix = "check GOOGLE_APPLICATION_CREDENTIALS, the clock, and that the account's key was not revoked";
            (Kind::Unsupported, format!("{service} refused the credentials; {fix}"))
        }
        ("PERMISSION_DENIED", _) => {
            let fix = "grant roles/datastore.user and enable firestore.googleapis.com";
            (Kind::Unsupported, format!("not allowed in project `{project}`: {said}; {fix}"))
        }
        ("INVALID_ARGUMENT", _) => (Kind::Invalid, format!("{service} refused the request: {said}")),
        _ if answer.status < 499 => {
            let status = answer.status;
            (Kind::Unsupported, format!("{service} answered {status} {code}: {said}; check the endpoint"))
        }
        _ => (phase.unanswered(), format!("{service} failed with {} {code}; try again", answer.status)),
    };
    CallError::Error(Error::new(kind, what))
}

#[cfg(test)]
mod tests {
    use super::super::connection::Tokens;
    use super::*;

    #[test]
    fn every_documented_error_is_distinguished() {
        let client = crate::http::builder().build().unwrap();
        let service = Service::new(client, Tokens::Emulator, "http://x".into(), "p", "(default)");
        let refused = |status: u16, code: &str, said: &str, phase: Phase| {
            let body =
                format!(r#"[{{"error":{{"code":{status},"message":"{said}","status":"{code}"}}}}]"#).into_bytes();
            match super::refused(&service, &Untimed { status, body }, phase) {
                CallError::Mismatch => None,
                CallError::Error(error) => Some(error.kind()),
            }
        };
        for (status, code, reading, writing) in [
            (409, "ABORTED", Some(Kind::Unavailable), Some(Kind::Unavailable)),
            (409, "ALREADY_EXISTS", Some(Kind::Unsupported), None),
            (400, "FAILED_PRECONDITION", Some(Kind::Unsupported), None),
            (404, "NOT_FOUND", Some(Kind::Unsupported), None),
            (429, "RESOURCE_EXHAUSTED", Some(Kind::Unavailable), Some(Kind::Unavailable)),
            (401, "UNAUTHENTICATED", Some(Kind::Unsupported), Some(Kind::Unsupported)),
            (403, "PERMISSION_DENIED", Some(Kind::Unsupported), Some(Kind::Unsupported)),
            (400, "INVALID_ARGUMENT", Some(Kind::Invalid), Some(Kind::Invalid)),
            (499, "CANCELLED", Some(Kind::Unavailable), Some(Kind::Indeterminate)),
            (500, "INTERNAL", Some(Kind::Unavailable), Some(Kind::Indeterminate)),
            (503, "UNAVAILABLE", Some(Kind::Unavailable), Some(Kind::Indeterminate)),
            (504, "DEADLINE_EXCEEDED", Some(Kind::Unavailable), Some(Kind::Indeterminate)),
            (404, "", Some(Kind::Unsupported), Some(Kind::Unsupported)),
            (301, "", Some(Kind::Unsupported), Some(Kind::Unsupported)),
        ] {
            assert_eq!(refused(status, code, "x", Phase::Reading), reading, "{code}");
            assert_eq!(refused(status, code, "x", Phase::Writing), writing, "{code}");
        }
        let said = "The database (default) does not exist for project p";
        assert_eq!(refused(404, "NOT_FOUND", said, Phase::Writing), Some(Kind::Unsupported));
        let said =
            "The Cloud Firestore API is not available for Firestore in Datastore Mode database projects/p/databases/d.";
        assert_eq!(refused(400, "FAILED_PRECONDITION", said, Phase::Writing), Some(Kind::Unsupported));
        let said = "No document to update: projects/p/databases/(default)/documents/leases/default/lease/n:x";
        assert_eq!(refused(404, "NOT_FOUND", said, Phase::Writing), None);
    }
}
