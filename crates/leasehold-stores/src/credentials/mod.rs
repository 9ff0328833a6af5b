//! Credentials of cloud services: found where the service's own tools find them, fetched and renewed by object_store's
//! providers.
//!
//! Promise: temporary credentials are renewed minutes before they expire. While that fails, the old ones are used for as long
//! as they are surely valid. Refused ones are looked up again. No secret is in a message. Non-promise: what needs a sign-in, a
//! program or a chain of roles is not followed; the message says what to run instead.

#[cfg(any(feature = "dynamodb", feature = "object"))]
pub(crate) mod aws;
#[cfg(any(feature = "dynamodb", feature = "object"))]
pub(crate) mod aws_profile;
mod connection;
#[cfg(any(feature = "firestore", feature = "object"))]
pub(crate) mod google;

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
use std::time::Duration;
use tokio::sync::Mutex;

/// Providers renew four or five minutes ahead, so what one returned is valid for this long.
const SURELY_GOOD: Duration = Duration::from_secs(4 * 60);

/// A copy of the environment.
pub(crate) type Env = BTreeMap<String, String>;

/// The environment of this process.
pub(crate) fn env() -> Env {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// A variable that is set and not empty.
pub(crate) fn var<'a>(env: &'a Env, name: &str) -> Option<&'a str> {
    env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
}

/// No hidden retries: they would only delay the error.
fn no_retry() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

/// A provider, and the messages for its failures.
pub(crate) struct Found<C> {
    provider: Arc<dyn CredentialProvider<Credential = C>>,
    connector: Connector,
    source: Source,
}

type Find<C> = Box<dyn Fn() -> Result<Found<C>> + Send + Sync>;

/// Credentials that are looked for when they are first needed.
pub(crate) struct Renewed<C> {
    find: Find<C>,
    state: Mutex<State<C>>,
}

struct State<C> {
    found: Option<Arc<Found<C>>>,
    /// What a provider last returned, and when.
    last: Option<(Arc<C>, Moment)>,
}

impl<C> fmt::Debug for Renewed<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Renewed(***)")
    }
}

impl<C> Renewed<C> {
    fn new(find: impl Fn() -> Result<Found<C>> + Send + Sync + 'static) -> Self {
        Renewed { find: Box::new(find), state: Mutex::new(State { found: None, last: None }) }
    }

    /// Refuses what is unusable, as far as that shows without asking a service.
    #[cfg(feature = "object")]
    pub(crate) fn check(&self) -> Result<()> {
        (self.find)().map(drop)
    }

    /// Makes the next request look the credentials up again.
    #[cfg(any(feature = "dynamodb", feature = "firestore"))]
    pub(crate) async fn forget(&self) {
        *self.state.lock().await = State { found: None, last: None };
    }

    pub(crate) async fn get(&self) -> Result<Arc<C>> {
        let mut state = self.state.lock().await;
        let found = match &state.found {
            Some(found) => found.clone(),
            None => state.found.insert(Arc::new((self.find)()?)).clone(),
        };
        found.connector.begin();
        match (found.provider.get_credential().await, state.last.clone()) {
            (Ok(fresh), _) => {
                state.last = Some((fresh.clone(), clock::now()));
                Ok(fresh)
            }
            (Err(_), Some((last, at))) if clock::now().saturating_since(at) < SURELY_GOOD => Ok(last),
            // The driver's message may quote a file, or an address with a token in it.
            (Err(_), _) => {
                state.found = None;
                Err(found.source.failed(&found.connector.ended()))
            }
        }
    }
}

#[async_trait]
impl<C: fmt::Debug + Send + Sync> CredentialProvider for Renewed<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        let failed = |e| object_store::Error::Generic { store: "credentials", source: Box::new(e) };
        self.get().await.map_err(failed)
    }
}

/// The credential error behind a failed call of the driver, if that is why it failed.
#[cfg(feature = "object")]
pub(crate) fn cause(driver: &object_store::Error) -> Option<&leasehold_core::Error> {
    match driver {
        object_store::Error::Generic { source, .. } => source.downcast_ref(),
        _ => None,
    }
}
