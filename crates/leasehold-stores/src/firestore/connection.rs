//! One request to Firestore.

use super::error::{CallError, refused};
use crate::credentials::{Renewed, are_refused};
use crate::http::client::{Untimed, untimed};
use crate::phase::Phase;
use crate::url::is_loopback;
use leasehold_core::{Error, Result};
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
    pub(super) project: String,
    pub(super) database: String,
    documents: String,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
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
            return Err(refused(self, &answer, phase));
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
}
