//! Credentials of cloud services: found where the service's own tools find them, fetched and renewed by object_store's
//! providers.
//!
//! Promise: temporary ones are renewed minutes before they end, and while that fails those at hand are used as long as
//! they are surely good; refused ones are looked for anew; no secret is in a message. Non-promise: what needs a sign-in,
//! a program or a chain of roles is not followed; the message says what to run instead.

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

/// Providers renew four or five minutes ahead, so what one gave out is good for this long.
const SURELY_GOOD: Duration = Duration::from_secs(4 * 60);

/// The environment, as it was found.
pub(crate) type Env = BTreeMap<String, String>;

/// The environment of this process.
pub(crate) fn env() -> Env {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// A variable that is set to something.
pub(crate) fn var<'a>(env: &'a Env, name: &str) -> Option<&'a str> {
    env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
}

/// Nothing is repeated behind the caller's back: a failed request would only take longer to be told.
fn no_retry() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

/// A provider, and what is said when it fails.
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
    /// The last that a provider gave out, and when.
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

    /// Refuses what can be seen to be unusable without asking anybody.
    #[cfg(feature = "object")]
    pub(crate) fn check(&self) -> Result<()> {
        (self.find)().map(drop)
    }

    /// The next request looks for credentials anew.
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
            // What the driver says may quote a file, or an address that has a token in it.
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

/// Why there were no credentials for a call of the driver, if that is why it failed.
#[cfg(feature = "object")]
pub(crate) fn cause(driver: &object_store::Error) -> Option<&leasehold_core::Error> {
    match driver {
        object_store::Error::Generic { source, .. } => source.downcast_ref(),
        _ => None,
    }
}
