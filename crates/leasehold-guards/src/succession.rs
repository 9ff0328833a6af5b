//! What it takes to give a resource to another lease.
//!
//! Promise: only from the very fence that the operator saw, and never to an older epoch of the lease that has it.
//! Non-promise: the guard makes the step atomic, and shuts the former lease's writers out.

use leasehold::guard::HighWater;
use leasehold::{Error, Kind, Result, Token, Who, Why};

/// What the fence should become; also if it is so already, for the answer to a first attempt may have been lost.
pub(crate) fn adopt(resource: &str, high: Option<&HighWater>, from: &HighWater, token: &Token) -> Result<HighWater> {
    if from.lease == token.lease && from.lineage == token.lineage {
        let message = format!(
            "resource=`{resource}` belongs to this lease already, at epoch {}: there is nothing to adopt; nothing was changed",
            from.epoch
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    let next = HighWater::of(token, 0);
    if high == Some(from) || high == Some(&next) {
        return Ok(next);
    }
    let shown = |high: &HighWater| format!("{} of lineage {}, write {}", high.token(), high.lineage, high.seq);
    let seen = high.map_or_else(|| "nobody's".to_owned(), shown);
    let message = format!(
        "not adopted: the fence of resource=`{resource}` has moved: it was {}, and is {seen} now; nothing was changed. Stop \
         the job that writes there, look again and repeat",
        shown(from)
    );
    Err(Error::new(Kind::Contended, message))
}

/// The words that are kept with the fence. Nothing reads them but people.
pub(crate) fn note(from: &HighWater, by: &Who, why: &Why) -> String {
    format!("from {} by {by}: {why}", from.token().wire())
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{Epoch, Lineage, Nonce};

    fn token(lineage: u128, epoch: u64) -> Token {
        let (epoch, nonce) = (Epoch::new(epoch).unwrap(), Nonce::from_u128(u128::from(epoch)));
        Token { lease: "job".parse().unwrap(), lineage: Lineage::from_u128(lineage), epoch, nonce, seq: 0 }
    }

    #[test]
    fn a_resource_is_adopted_only_as_it_was_seen_and_never_by_its_own_lease() {
        let (from, given) = (HighWater::of(&token(1, 7), 3), token(2, 1));
        let next = HighWater::of(&given, 0);
        assert_eq!(adopt("r", Some(&from), &from, &given).unwrap(), next);
        assert_eq!(adopt("r", Some(&next), &from, &given).unwrap(), next, "again");
        for moved in [None, Some(HighWater::of(&token(1, 7), 4)), Some(HighWater::of(&token(3, 7), 3))] {
            let error = adopt("r", moved.as_ref(), &from, &given).unwrap_err();
            assert_eq!(error.kind(), Kind::Contended, "{error}");
        }
        for epoch in [6, 7, 8] {
            assert_eq!(adopt("r", Some(&from), &from, &token(1, epoch)).unwrap_err().kind(), Kind::Invalid);
        }
    }
}
