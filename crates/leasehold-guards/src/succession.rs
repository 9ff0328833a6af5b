//! The rules for giving a resource to another lease.
//!
//! Promise: the fence must be exactly what the operator saw, and a lease that returns needs a higher epoch than
//! before. Non-promise: to change the fence in one step, and to stop the former lease's writers, is up to the guard.

use leasehold_core::guard::HighWater;
use leasehold_core::{Epoch, Error, Kind, LeaseName, Lineage, Remedy, Result, Token, Who, Why};
use std::fmt;

/// How many bytes the list of former leases may take: some thirty leases with names of usual length.
pub(crate) const MAX_FORMER_BYTES: usize = 2000;

/// The leases that a resource belonged to before, each with the highest epoch that the resource has seen of it.
///
/// It is stored with the fence and never shortened, so that a lease that returns cannot start below the epoch it had
/// reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Former(Vec<(LeaseName, Lineage, Epoch)>);

impl Former {
    /// Reads what [`Former`] displays: `LEASE:LINEAGE:EPOCH`, separated by blanks.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut former = Former::default();
        for entry in text.split(' ').filter(|entry| !entry.is_empty()) {
            let mut parts = entry.split(':');
            let (lease, lineage, epoch) = (parts.next()?, parts.next()?, parts.next()?);
            if parts.next().is_some() {
                return None;
            }
            former.add(lease.parse().ok()?, lineage.parse().ok()?, epoch.parse().ok()?);
        }
        Some(former)
    }

    /// The same; the error names the resource.
    pub(crate) fn read(resource: &str, text: &str) -> Result<Self> {
        Former::parse(text).ok_or_else(|| {
            let message = format!("corrupt fence: resource=`{resource}`: its list of former leases cannot be read");
            Error::new(Kind::Corrupt, message)
        })
    }

    fn add(&mut self, lease: LeaseName, lineage: Lineage, epoch: Epoch) {
        match self.0.iter_mut().find(|(name, line, _)| (name, *line) == (&lease, lineage)) {
            Some((_, _, seen)) => *seen = (*seen).max(epoch),
            None => self.0.push((lease, lineage, epoch)),
        }
    }

    /// The highest epoch that the resource has seen of this token's lease before it was given away.
    pub(crate) fn seen(&self, token: &Token) -> Option<Epoch> {
        let of =
            |(lease, lineage, _): &&(LeaseName, Lineage, Epoch)| (lease, *lineage) == (&token.lease, token.lineage);
        self.0.iter().find(of).map(|(_, _, epoch)| *epoch)
    }

    /// The list after the resource went from `from` to the token's lease, in at most `limit` bytes.
    pub(crate) fn given(&self, resource: &str, from: &HighWater, token: &Token, limit: usize) -> Result<Self> {
        returning(resource, self.seen(token), token)?;
        let mut next = self.clone();
        // A fence that no writer has used yet has seen nothing.
        let is_seen = from.epoch > Epoch::ZERO;
        if is_seen && (&from.lease, from.lineage) != (&token.lease, token.lineage) {
            next.add(from.lease.clone(), from.lineage, from.epoch);
        }
        if next.to_string().len() > limit {
            let message = format!(
                "not adopted: resource=`{resource}` was given away {} times, and its fence has no room to remember one more \
                 lease; nothing was changed. Give it to one of the leases that had it, with a higher epoch, or guard it \
                 under another name",
                self.0.len()
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        Ok(next)
    }
}

impl fmt::Display for Former {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (lease, lineage, epoch)) in self.0.iter().enumerate() {
            write!(f, "{}{lease}:{lineage}:{epoch}", if at == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Refuses a lease that returns to a resource, unless its epoch is higher than any that the resource has seen of it.
pub(crate) fn returning(resource: &str, seen: Option<Epoch>, token: &Token) -> Result<()> {
    let Some(seen) = seen.filter(|seen| token.epoch <= *seen) else { return Ok(()) };
    let lease = &token.lease;
    // The same epoch may be one that was given away and is wanted back. A lower one was granted by a store that went
    // back in time.
    let (kind, what) = match token.epoch == seen {
        true => (Kind::Fenced, "stale epoch refused"),
        false => (Kind::Regressed, "store regressed"),
    };
    let message = format!(
        "{what}: resource=`{resource}` has seen epoch {seen} of lease `{lease}` before it was given to another lease, and a \
         lease that comes back needs a higher epoch; the token has {}. Nothing was changed. Acquire `{lease}` again and adopt \
         with that token. If the store was restored from an old copy, stop the job first, then move it past that epoch",
        token.epoch
    );
    Err(Error::new(kind, message).with_remedy(Remedy::restored(lease, seen)))
}

/// What the fence should become. It may be so already: the answer to a first attempt may have been lost.
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

/// Who adopted it and why. It is stored with the fence, for people only.
pub(crate) fn note(from: &HighWater, by: &Who, why: &Why) -> String {
    format!("from {} by {by}: {why}", from.token().wire())
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Epoch, Lineage, Nonce};

    fn token(lineage: u128, epoch: u64) -> Token {
        let (epoch, nonce) = (Epoch::new(epoch).unwrap(), Nonce::from_u128(u128::from(epoch)));
        Token { lease: "job".parse().unwrap(), lineage: Lineage::from_u128(lineage), epoch, nonce, seq: 0 }
    }

    #[test]
    fn a_lease_that_comes_back_needs_a_higher_epoch() {
        let (first, second) = (HighWater::of(&token(1, 3), 0), HighWater::of(&token(2, 1), 0));
        let given = Former::default().given("r", &first, &token(2, 1), MAX_FORMER_BYTES).unwrap();
        assert_eq!(Former::parse(&given.to_string()), Some(given.clone()));
        for (epoch, kind) in [(1, Kind::Regressed), (3, Kind::Fenced)] {
            let error = given.given("r", &second, &token(1, epoch), MAX_FORMER_BYTES).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            let (lease, past) = ("job".parse().unwrap(), Epoch::new(3).unwrap());
            assert_eq!(error.remedy(), Some(&Remedy::Advance { lease, past, back_to: None }), "{error}");
        }
        let back = given.given("r", &second, &token(1, 4), MAX_FORMER_BYTES).unwrap();
        // Said again, for the answer may have been lost.
        assert_eq!(back.given("r", &second, &token(1, 4), MAX_FORMER_BYTES).unwrap(), back);
        assert_eq!((back.seen(&token(1, 1)), back.seen(&token(2, 1))), (Epoch::new(3).ok(), Epoch::new(1).ok()));
        assert_eq!(back.given("r", &second, &token(1, 4), 10).unwrap_err().kind(), Kind::Unsupported);
        for wrong in ["x", "x:1", "a:b:c", &format!("{back}:")] {
            assert_eq!(Former::parse(wrong), None, "{wrong}");
        }
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
