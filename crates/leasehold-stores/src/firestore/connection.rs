//! One request to Firestore, and the meaning of its answer.

use crate::credentials::{Renewed, are_refused};
use crate::http::client::{Untimed, quoted, untimed};
use crate::phase::Phase;
use crate::url::is_loopback;
use leasehold_core::{Error, Kind, Result, printable};
use object_store::gcp::GcpCredential;
use reqwest::{Client, Url};
use serde_json::Value;
use std::fmt;

/// Where access tokens come from.
pub(super) enum Tokens {
    /// An emulator accepts every client.
    Emulator,
    Google(Renewed<GcpCredential>),
}

/// Where requests are sent, and with which token.
pub(super) struct Service {
    client: Client,
    tokens: Tokens,
    base: String,
    project: String,
    database: String,
    documents: String,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

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

/// Whether the text is an endpoint. A token is sent unencrypted only to this machine.
pub(super) fn is_endpoint(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let host = url.host_str().unwrap_or_default();
    let is_bare = url.path() == "/" && url.query().is_none() && url.username().is_empty() && url.password().is_none();
    is_bare && !host.is_empty() && (url.scheme() == "https" || (url.scheme() == "http" && is_loopback(host)))
}

pub(super) fn is_endpoint_of_emulator(host: &str) -> bool {
    !host.contains('/')
        && Url::parse(&format!("http://{host}")).is_ok_and(|url| url.has_host() && url.username().is_empty())
}

impl Service {
    pub(super) fn new(client: Client, tokens: Tokens, base: String, project: &str, database: &str) -> Self {
        let documents = format!("projects/{project}/databases/{database}/documents");
        Service { client, tokens, base, project: project.to_owned(), database: database.to_owned(), documents }
    }

    /// The name of the parent of all documents.
    pub(super) fn documents(&self) -> &str {
        &self.documents
    }

    pub(super) const fn is_emulator(&self) -> bool {
        matches!(self.tokens, Tokens::Emulator)
    }

    /// One call. A write is sent once, and again only if its token was refused and has changed.
    pub(super) async fn call(&self, call: &str, question: &Value, phase: Phase) -> Result<Value, CallError> {
        let answer = match &self.tokens {
            Tokens::Emulator => self.exchange(call, question, phase, "owner").await?,
            // Without a token nothing is sent, so an error here leaves no write unknown.
            Tokens::Google(tokens) => {
                let issue = tokens.issue();
                let answer = self.exchange(call, question, phase, &tokens.get().await?.bearer).await?;
                match are_refused(answer.status, "") && tokens.replaced(issue).await {
                    true => self.exchange(call, question, phase, &tokens.get().await?.bearer).await?,
                    false => answer,
                }
            }
        };
        if answer.status != 200 {
            return Err(self.refused(&answer, phase));
        }
        serde_json::from_slice(&answer.body).map_err(|e| {
            let message = format!("{self} gave an answer that is not Firestore's; check the endpoint");
            CallError::Error(Error::new(phase.unanswered(), message).with_source(e))
        })
    }

    async fn exchange(&self, call: &str, question: &Value, phase: Phase, token: &str) -> Result<Untimed> {
        let url = format!("{}/v1/{}{call}", self.base, self.documents);
        untimed(self.client.post(url).json(question).bearer_auth(token), phase, &self.base).await
    }

    /// The meaning of an error answer. `ABORTED` and `ALREADY_EXISTS` share a status, so the code's name decides.
    fn refused(&self, answer: &Untimed, phase: Phase) -> CallError {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        // A call that answers with a stream puts its error into a list.
        let error = if body.is_array() { &body[0]["error"] } else { &body["error"] };
        let code = printable(error["status"].as_str().unwrap_or_default());
        let said = error["message"].as_str().unwrap_or_default();
        let said = quoted(said);
        let (project, database) = (&self.project, &self.database);
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
            ("ABORTED", _) => (Kind::Unavailable, format!("{self} was busy with others' writes; try again")),
            ("RESOURCE_EXHAUSTED", _) => {
                (Kind::Unavailable, format!("project `{project}` is over its quota: {said}; try again later"))
            }
            ("UNAUTHENTICATED", _) => {
                let fix = "check GOOGLE_APPLICATION_CREDENTIALS, the clock, and that the account's key was not revoked";
                (Kind::Unsupported, format!("{self} refused the credentials; {fix}"))
            }
            ("PERMISSION_DENIED", _) => {
                let fix = "grant roles/datastore.user and enable firestore.googleapis.com";
                (Kind::Unsupported, format!("not allowed in project `{project}`: {said}; {fix}"))
            }
            ("INVALID_ARGUMENT", _) => (Kind::Invalid, format!("{self} refused the request: {said}")),
            _ if answer.status < 499 => {
                let status = answer.status;
                (Kind::Unsupported, format!("{self} answered {status} {code}: {said}; check the endpoint"))
            }
            _ => (phase.unanswered(), format!("{self} failed with {} {code}; try again", answer.status)),
        };
        CallError::Error(Error::new(kind, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_error_is_distinguished() {
        let client = crate::http::builder().build().unwrap();
        let service = Service::new(client, Tokens::Emulator, "http://x".into(), "p", "(default)");
        let refused = |status: u16, code: &str, said: &str, phase: Phase| {
            let body =
                format!(r#"[{{"error":{{"code":{status},"message":"{said}","status":"{code}"}}}}]"#).into_bytes();
            match service.refused(&Untimed { status, body }, phase) {
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
