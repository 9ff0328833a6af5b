//! Credentials of cloud services: found where the service's own tools find
//! them, fetched and renewed by object_store's providers.
//!
//! Promise: temporary credentials are renewed minutes before they expire. While renewing fails, the
//! old ones are used for as long as they are certainly valid. Refused credentials are looked up
//! again, and if they have changed, the request is sent once more ([`Renewed::replaced`]). No message
//! contains a secret. Non-promise: credentials that need a sign-in, a program or a chain of roles are
//! not supported; the message says what to run instead. Azure's credentials are the driver's own.

#[cfg(any(feature = "dynamodb", feature = "object"))]
pub(crate) mod aws;
#[cfg(any(feature = "dynamodb", feature = "object"))]
pub(crate) mod aws_profile;
mod connection;
#[cfg(any(feature = "firestore", feature = "object"))]
pub(crate) mod google;
#[cfg(test)]
#[cfg(all(feature = "dynamodb", feature = "firestore"))]
mod rotation_tests;

use async_trait::async_trait;
#[cfg(feature = "object")]
pub(crate) use connection::code_in;
use connection::{Connector, Source};
use leasehold_core::Result;
use leasehold_system::clock::{self, Moment};
use object_store::{CredentialProvider, RetryConfig};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

/// Providers renew four or five minutes ahead, so whatever one returned is valid for at least this long.
const SURELY_GOOD: Duration = Duration::from_secs(4 * 60);

/// A copy of the environment.
pub(crate) type Env = BTreeMap<String, String>;

/// The environment of this process.
pub(crate) fn env() -> Env {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The value of a variable that is set and not empty.
pub(crate) fn var<'a>(env: &'a Env, name: &str) -> Option<&'a str> {
    env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
}

/// No hidden retries: they would only delay the error.
fn no_retry() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

/// A provider, and the messages for its failures.
pub(crate) struct Provider<C> {
    provider: Arc<dyn CredentialProvider<Credential = C>>,
    connector: Connector,
    source: Source,
}

type Find<C> = Box<dyn Fn() -> Result<Provider<C>> + Send + Sync>;

/// Credentials that are looked up when they are first needed.
pub(crate) struct Renewed<C> {
    find: Find<C>,
    state: Mutex<State<C>>,
    /// Set by a refusal, until the credentials are looked up again.
    refused: AtomicBool,
    /// How often the credentials were replaced.
    issue: AtomicU64,
}

/// Which of the credentials, counted by replacements, a request is sent with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Issue(u64);

/// The codes of error answers with status 400 for credentials that are wrong, expired or insufficient.
const REFUSALS: &[&str] = &[
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "InvalidToken",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];

/// Whether an answer refuses the credentials of its request. Then the request was not carried out.
pub(crate) fn are_refused(status: u16, code: &str) -> bool {
    matches!(status, 401 | 403) || (status == 400 && REFUSALS.contains(&code))
}

struct State<C> {
    found: Option<Arc<Provider<C>>>,
    /// What a provider last returned, and when.
    last: Option<(Arc<C>, Moment)>,
}

impl<C> fmt::Debug for Renewed<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Renewed(***)")
    }
}

impl<C: PartialEq> Renewed<C> {
    fn new(find: impl Fn() -> Result<Provider<C>> + Send + Sync + 'static) -> Self {
        let state = Mutex::new(State { found: None, last: None });
        Renewed { find: Box::new(find), state, refused: AtomicBool::new(false), issue: AtomicU64::new(0) }
    }

    /// Refuses unusable credentials, as far as that can be seen without asking a service.
    #[cfg(feature = "object")]
    pub(crate) fn check(&self) -> Result<()> {
        (self.find)().map(drop)
    }

    /// Call it before a request is sent.
    pub(crate) fn issue(&self) -> Issue {
        Issue(self.issue.load(Ordering::SeqCst))
    }

    /// Makes the next request look the credentials up again: they may have changed, in a file or at a service.
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::SeqCst);
    }

    /// Looks the credentials up again after those of this issue were refused. Returns whether they have changed. Then
    /// the request, which was not carried out, may be sent once more.
    pub(crate) async fn replaced(&self, issue: Issue) -> bool {
        if self.issue() == issue {
            self.refuse();
            return self.get().await.is_ok() && self.issue() != issue;
        }
        true
    }

    pub(crate) async fn get(&self) -> Result<Arc<C>> {
        let mut state = self.state.lock().await;
        let were_refused = self.refused.load(Ordering::SeqCst);
        if were_refused {
            state.found = None;
        }
        let found = match &state.found {
            Some(found) => found.clone(),
            None => state.found.insert(Arc::new((self.find)()?)).clone(),
        };
        found.connector.begin();
        match (found.provider.get_credential().await, state.last.clone()) {
            (Ok(fresh), before) => {
                if before.is_some_and(|(before, _)| before != fresh) {
                    self.issue.fetch_add(1, Ordering::SeqCst);
                }
                state.last = Some((fresh.clone(), clock::now()));
                if were_refused {
                    self.refused.store(false, Ordering::SeqCst);
                }
                Ok(fresh)
            }
            (Err(_), Some((last, at))) if !were_refused && clock::now().saturating_since(at) < SURELY_GOOD => Ok(last),
            // The driver's message may quote a file, or an address with a token in it.
            (Err(_), _) => {
                state.found = None;
                Err(found.source.failed(&found.connector.ended()))
            }
        }
    }
}

#[async_trait]
impl<C: PartialEq + fmt::Debug + Send + Sync> CredentialProvider for Renewed<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        let failed = |e| object_store::Error::Generic { store: "credentials", source: Box::new(e) };
        self.get().await.map_err(failed)
    }
}

/// The same, for any kind of credentials.
#[cfg(feature = "object")]
#[async_trait]
pub(crate) trait Replaceable: fmt::Debug + Send + Sync {
    fn issue(&self) -> Issue;
    fn refuse(&self);
    async fn replaced(&self, issue: Issue) -> bool;
}

#[cfg(feature = "object")]
#[async_trait]
impl<C: PartialEq + Send + Sync> Replaceable for Renewed<C> {
    fn issue(&self) -> Issue {
        self.issue()
    }

    fn refuse(&self) {
        self.refuse();
    }

    async fn replaced(&self, issue: Issue) -> bool {
        self.replaced(issue).await
    }
}

/// The credential error behind a failed call of the driver, if there is one.
#[cfg(feature = "object")]
pub(crate) fn cause(driver: &object_store::Error) -> Option<&leasehold_core::Error> {
    match driver {
        object_store::Error::Generic { source, .. } => source.downcast_ref(),
        _ => None,
    }
}
