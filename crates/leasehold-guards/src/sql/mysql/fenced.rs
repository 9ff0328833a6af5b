//! A transaction that begins with its admit, in one exchange.
//!
//! Promise: where the epoch is known and no table is protected it costs no exchange more than a plain transaction, and
//! nothing is to be closed; otherwise one more. Unless it is committed, it is undone: its connection is closed, or reset if it
//! is a pool's.
//! Non-promise: it is at the session's own isolation level; for another, begin by hand and [`super::admit`].

use super::{admit, exchange, is_plain, one_line, refused, statements, undo};
use crate::sql::Resource;
use leasehold_core::guard::{HighWater, Policy};
use leasehold_core::{Error, Kind, Nonce, Result, Token};
use mysql_async::Conn;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A transaction that was admitted. Statements go through the connection that it derefs to.
pub struct Fenced {
    conn: Conn,
    resource: Resource,
    high: HighWater,
    /// Whether protected tables are open to it.
    is_open: bool,
}

impl fmt::Debug for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fenced({})", self.resource)
    }
}

/// Begins a transaction and admits the token into it. The connection comes back from [`Fenced::commit`]; it must not be in
/// a transaction.
///
/// # Errors
/// Those of [`super::admit`]; the connection is closed then.
pub async fn begin(mut conn: Conn, resource: &Resource, token: &impl AsRef<Token>, policy: Policy) -> Result<Fenced> {
    let token = token.as_ref();
    let high = HighWater::of(token, token.seq);
    // From here on whatever goes wrong, or is given up, is undone.
    conn.reset_connection(true);
    let mut fenced = Fenced { conn, resource: resource.clone(), high, is_open: false };
    let sql = statements::admit_again(resource, token, policy, Nonce::random())?;
    let moved = match exchange(&mut *fenced, &sql).await {
        Ok(_) => fenced.last_insert_id().filter(|seq| *seq > 0),
        Err(e) => return Err(refused(&e, resource.as_str(), "this database")),
    };
    if let Some(seq) = moved {
        fenced.high.seq = seq;
    } else {
        match admit(&mut *fenced, resource, token, policy).await {
            Ok(high) => (fenced.high, fenced.is_open) = (high, true),
            Err(refused) => {
                undo(fenced.conn).await;
                return Err(refused);
            }
        }
    }
    Ok(fenced)
}

impl Fenced {
    /// The fence, as it will be committed.
    pub const fn high_water(&self) -> &HighWater {
        &self.high
    }

    /// Commits the writes and the fence together, and gives the connection back.
    ///
    /// # Errors
    /// [`Kind::Indeterminate`] if no answer came: read back what was written.
    pub async fn commit(mut self) -> Result<Conn> {
        let close = if self.is_open { format!("{}; ", statements::close(&self.resource)) } else { String::new() };
        match exchange(&mut *self, &format!("{close}COMMIT")).await {
            Ok(_) => Ok(self.over()),
            Err(e) if is_plain(&e) => Err(refused(&e, self.resource.as_str(), "this database")),
            Err(e) => {
                let message = format!("no answer to the commit: resource=`{}`; check the data", self.resource);
                Err(Error::new(Kind::Indeterminate, message).with_source(one_line(&e.to_string())))
            }
        }
    }

    /// Undoes everything, and gives the connection back.
    pub async fn rollback(mut self) -> Result<Conn> {
        let answer = exchange(&mut *self, "ROLLBACK").await;
        answer.map_err(|e| refused(&e, self.resource.as_str(), "this database"))?;
        Ok(self.over())
    }

    fn over(mut self) -> Conn {
        let as_its_pool_has_it = self.conn.opts().pool_opts().reset_connection();
        self.conn.reset_connection(as_its_pool_has_it);
        self.conn
    }
}

impl Deref for Fenced {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        &self.conn
    }
}

impl DerefMut for Fenced {
    fn deref_mut(&mut self) -> &mut Conn {
        &mut self.conn
    }
}
