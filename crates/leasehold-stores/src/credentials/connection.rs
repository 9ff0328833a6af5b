//! The connections over which credentials are fetched, and what a failure there means.

use crate::url::Secret;
use async_trait::async_trait;
use leasehold_core::{Error, Kind, printable};
use leasehold_system::sync::Mutex;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use std::sync::Arc;
use std::time::Duration;

/// How long a service on the Internet may take to answer.
pub(super) const REMOTE: Duration = Duration::from_secs(8);
/// How much of an error's body is read, in bytes: enough for its code.
const CODE_BYTES: usize = 4096;

/// How the last request ended.
#[derive(Debug, Default, Clone)]
pub(super) enum Ended {
    #[default]
    Unsent,
    /// Why there was no answer.
    Unanswered(String),
    Answered {
        status: u16,
        code: String,
    },
}

/// Creates the providers' connections. Clones share how the last request ended.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    client: HttpClient,
    timeout: Duration,
    /// The value of an `Authorization` header to add to each request.
    authorization: Option<Secret>,
    ended: Arc<Mutex<Ended>>,
}

impl Connector {
    pub(super) fn new(client: HttpClient, timeout: Duration) -> Self {
        Connector { client, timeout, authorization: None, ended: Arc::default() }
    }

    #[cfg(any(feature = "dynamodb", feature = "object"))]
    pub(super) fn with_authorization(mut self, token: Option<&str>) -> Self {
        self.authorization = token.map(Secret::new);
        self
    }

    pub(super) fn begin(&self) {
        self.note(Ended::Unsent);
    }

    pub(super) fn ended(&self) -> Ended {
        self.ended.lock().clone()
    }

    fn note(&self, ended: Ended) {
        *self.ended.lock() = ended;
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some(mut value) = self.authorization.as_ref().and_then(|s| HeaderValue::from_str(s.reveal()).ok()) {
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let exchange = async {
            let (parts, body) = self.client.execute(request).await?.into_parts();
            Ok((parts, body.bytes().await?))
        };
        let answer = tokio::time::timeout(self.timeout, exchange).await.unwrap_or_else(|_| {
            let late = format!("no answer within {} s", self.timeout.as_secs());
            Err(HttpError::new(HttpErrorKind::Timeout, std::io::Error::other(late)))
        });
        let (parts, body) = answer.inspect_err(|e| self.note(Ended::Unanswered(innermost(e))))?;
        let code = if parts.status.is_success() { String::new() } else { code_in(&body) };
        self.note(Ended::Answered { status: parts.status.as_u16(), code });
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

/// The innermost cause: the most specific one, and without an address.
fn innermost(error: &HttpError) -> String {
    let mut at: &(dyn std::error::Error + 'static) = error;
    while let Some(cause) = at.source() {
        at = cause;
    }
    printable(&at.to_string())
}

/// The `<Code>` in an error's body; empty if there is none.
pub(crate) fn code_in(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(CODE_BYTES)]);
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map_or("", |(code, _)| code);
    if code.chars().all(|c| c.is_ascii_alphanumeric()) { code.to_owned() } else { String::new() }
}

/// Where credentials come from, for messages.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) name: &'static str,
    /// Whether it is a service on this machine. If it does not answer, it does not exist: most machines have none.
    pub(super) is_local: bool,
    /// A file that the provider reads before it sends a request, and the variable that names it.
    pub(super) file: Option<(&'static str, String)>,
    /// What to check when it refuses.
    pub(super) check: &'static str,
    /// The message when there is nothing else to try.
    pub(super) none: String,
    /// What to do in that case.
    pub(super) how: &'static str,
    /// The kind of the error for an answer that makes no sense.
    pub(super) malformed: Kind,
}

impl Source {
    /// The error for a failure. In every case nothing was written yet.
    pub(super) fn failed(&self, ended: &Ended) -> Error {
        let Source { name, check, none, how, .. } = self;
        let (kind, message) = match (ended, &self.file) {
            (Ended::Unsent, Some((variable, file))) => {
                (Kind::Unsupported, format!("cannot use the token in `{}` ({variable}); {how}", printable(file)))
            }
            (Ended::Unsent, None) => (Kind::Unsupported, format!("{none}; {how}")),
            (Ended::Unanswered(why), _) if self.is_local => {
                (Kind::Unsupported, format!("{none}, and {name} gives none ({why}); {how}"))
            }
            (Ended::Unanswered(why), _) => (Kind::Unavailable, format!("cannot reach {name}: {why}")),
            (Ended::Answered { status: status @ (429 | 500..), .. }, _) => {
                (Kind::Unavailable, format!("{name} failed with {status}; try again"))
            }
            (Ended::Answered { status: 200..=299, .. }, _) => {
                (self.malformed, format!("{name} gave an answer that is not understood; {how}"))
            }
            (Ended::Answered { status, code }, _) => {
                let code = if code.is_empty() { String::new() } else { format!(" {code}") };
                (Kind::Unsupported, format!("{name} refused with {status}{code}; check {check}, or {how}"))
            }
        };
        Error::new(kind, message)
    }
}

/// Services that answer from a script, without a network.
#[cfg(test)]
pub(super) mod stand_in {
    use super::*;
    use std::collections::VecDeque;

    type Answer = (u16, String);
    type Asked = Arc<Mutex<Vec<String>>>;

    /// Returns each of its answers once, then none.
    #[derive(Debug)]
    pub(in crate::credentials) struct Script {
        answers: Mutex<VecDeque<Answer>>,
        asked: Asked,
    }

    pub(in crate::credentials) fn answer(status: u16, body: &str) -> Answer {
        (status, body.to_owned())
    }

    impl Script {
        pub(in crate::credentials) fn serve(answers: impl IntoIterator<Item = Answer>) -> (HttpClient, Asked) {
            let asked = Asked::default();
            let answers = Mutex::new(answers.into_iter().collect());
            (HttpClient::new(Script { answers, asked: asked.clone() }), asked)
        }
    }

    #[async_trait]
    impl HttpService for Script {
        async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
            let (parts, body) = request.into_parts();
            let body = String::from_utf8_lossy(body.as_bytes().unwrap()).into_owned();
            let asked = format!("{} {} {:?} {body}", parts.method, parts.uri, parts.headers);
            self.asked.lock().push(asked);
            let Some((status, body)) = self.answers.lock().pop_front() else {
                return Err(HttpError::new(HttpErrorKind::Connect, std::io::Error::other("refused")));
            };
            let mut response = HttpResponse::new(body.into_bytes().into());
            *response.status_mut() = status.try_into().unwrap();
            Ok(response)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read() {
        assert_eq!(code_in(b"<?xml?>\n<Error><Code>NoSuchKey</Code><Key>a</Key></Error>"), "NoSuchKey");
        assert_eq!(code_in(b"<Error><Code>a\nb</Code></Error>"), "");
        assert_eq!(code_in(b"oh no"), "");
    }
}
