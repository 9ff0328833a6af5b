//! A transaction that begins with its admit, in one exchange.
//!
//! Promise: it costs no exchange more than a plain transaction; unless it is committed, it is rolled back, also when it is
//! dropped. Non-promise: it is at the session's own isolation level; for another, begin by hand and [`super::admit`].

use super::{call, cause, decide, is_plain, refused, undo};
use crate::sql::{Resource, judge, mode};
use leasehold_core::guard::{HighWater, Policy};
use leasehold_core::{Error, Kind, Nonce, Result, Token};
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::task::{Context, Waker};
use tokio_postgres::Client;

/// A transaction that was admitted. Statements go through the client that it derefs to.
pub struct Fenced<'a> {
    client: &'a mut Client,
    resource: &'a Resource,
    high: HighWater,
    is_open: bool,
}

impl fmt::Debug for Fenced<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fenced({})", self.resource)
    }
}

/// Begins a transaction and admits the token into it: one exchange.
///
/// # Errors
/// Those of [`super::admit`]; nothing is open then.
pub async fn begin<'a>(
    client: &'a mut Client,
    resource: &'a Resource,
    token: &impl AsRef<Token>,
    policy: Policy,
) -> Result<Fenced<'a>> {
    let token = token.as_ref();
    let sql = format!("BEGIN; {}", call(resource, token, mode(Some(policy)), Nonce::random())?);
    let high = HighWater::of(token, token.seq);
    // From here on whatever goes wrong, or is given up, is rolled back.
    let mut fenced = Fenced { client, resource, high, is_open: true };
    let asked = fenced.client.simple_query(&sql).await.map_err(|e| refused(&e, resource.as_str(), "this database"));
    let judge = |high: Option<&HighWater>, _: &str| judge(resource.as_str(), high, token, Some(policy));
    match asked.and_then(|messages| decide(resource.as_str(), &messages, judge)) {
        Ok(admitted) => fenced.high = admitted.high,
        Err(refused) => {
            undo(fenced.client).await;
            fenced.is_open = false;
            return Err(refused);
        }
    }
    Ok(fenced)
}

impl Fenced<'_> {
    /// The fence, as it will be committed.
    pub const fn high_water(&self) -> &HighWater {
        &self.high
    }

    /// Commits the writes and the fence together.
    ///
    /// # Errors
    /// [`Kind::Indeterminate`] if no answer came: read back what was written.
    pub async fn commit(mut self) -> Result<HighWater> {
        let answer = self.client.batch_execute("COMMIT").await;
        // One that was refused is rolled back already.
        self.is_open = false;
        answer.map_err(|e| {
            if is_plain(&e) {
                return refused(&e, self.resource.as_str(), "this database");
            }
            let message = format!("no answer to the commit: resource=`{}`; check the data", self.resource);
            Error::new(Kind::Indeterminate, message).with_source(cause(&e))
        })?;
        Ok(self.high.clone())
    }

    /// Undoes the statements and the check of the token.
    pub async fn rollback(mut self) -> Result<()> {
        self.is_open = false;
        let answer = self.client.batch_execute("ROLLBACK").await;
        answer.map_err(|e| refused(&e, self.resource.as_str(), "this database"))
    }
}

impl Deref for Fenced<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}

impl Drop for Fenced<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // Requests are sent in order: the next user of the client finds the transaction undone. Nobody waits for
            // the answer.
            let _ = pin!(self.client.batch_execute("ROLLBACK")).poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}
