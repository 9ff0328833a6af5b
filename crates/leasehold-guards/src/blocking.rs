//! A thread beside the runtime, for calls that block.
//!
//! Promise: the runtime is not blocked. Non-promise: a call that has started cannot be cancelled.

use leasehold_core::{Error, Kind, Result};

/// Runs a call that may block on a thread where it may.
pub async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(act).await {
        Ok(answer) => answer,
        Err(e) => Err(Error::new(Kind::Indeterminate, "the guard's thread ended before it answered").with_source(e)),
    }
}

/// Implements [`Guard`](leasehold_core::guard::Guard) and [`Adopt`](leasehold_core::guard::Adopt) for a guard that is atomic, and
/// whose calls block: each goes to the one of the same name that ends in `_now`, on a thread where it may.
macro_rules! guard_by_blocking_calls {
    ($guard:ty $(, $kind:ident: $bound:path)?) => {
        #[async_trait::async_trait]
        impl$(<$kind: $bound>)? leasehold_core::guard::Guard for $guard {
            fn resource(&self) -> String {
                self.resource_now()
            }

            fn strength(&self) -> leasehold_core::guard::Strength {
                leasehold_core::guard::Strength::Atomic
            }

            async fn seal(&self, token: &Token) -> Result<HighWater> {
                let (guard, token) = (self.clone(), token.clone());
                crate::blocking::blocking(move || guard.seal_now(&token)).await
            }

            async fn high_water(&self) -> Result<Option<HighWater>> {
                let guard = self.clone();
                crate::blocking::blocking(move || guard.high_water_now()).await
            }
        }

        #[async_trait::async_trait]
        impl$(<$kind: $bound>)? leasehold_core::guard::Adopt for $guard {
            async fn adopt(&self, from: &HighWater, token: &Token, by: &Who, why: &Why) -> Result<HighWater> {
                let (guard, from, token, by, why) =
                    (self.clone(), from.clone(), token.clone(), by.clone(), why.clone());
                crate::blocking::blocking(move || guard.adopt_now(&from, &token, &by, &why)).await
            }
        }
    };
}

pub(crate) use guard_by_blocking_calls;
