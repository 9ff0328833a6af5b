//! The claims that this server has recently made for requests with an `Idempotency-Key`.
//!
//! Promise: a repeated request finds the items that it was given, for as long as they are in force. Whoever makes many claims makes
//! the server forget their own, and not those of others. Non-promise: another server does not know them; there a repeated request
//! is given others, and the first ones come back when their claims have run out.

use crate::access::Account;
use leasehold_core::{Nonce, Token};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// How many claims are remembered.
const REMEMBERED: usize = 4_096;

/// The results of claims, by the nonces of their requests.
#[derive(Debug, Clone, Default)]
pub struct Recent(Arc<Mutex<Claims>>);

#[derive(Debug, Default)]
struct Claims {
    /// What each request was given, and the mark of what it asked for.
    tokens: HashMap<Nonce, (Nonce, Vec<Token>)>,
    /// The requests of each account, the oldest first.
    orders: HashMap<Account, VecDeque<Nonce>>,
    /// Attempts at one request come one after the other: the second finds what the first was given.
    turns: HashMap<Nonce, Weak<tokio::sync::Mutex<()>>>,
}

impl Recent {
    /// The lock that lets the attempts at this request take turns.
    pub fn turn(&self, request: Nonce) -> Arc<tokio::sync::Mutex<()>> {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        claims.turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = claims.turns.get(&request).and_then(Weak::upgrade).unwrap_or_default();
        claims.turns.insert(request, Arc::downgrade(&turn));
        turn
    }

    /// What an earlier attempt at this request was given, and the mark of what it asked for.
    pub fn find(&self, request: Nonce) -> Option<(Nonce, Vec<Token>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).tokens.get(&request).cloned()
    }

    /// Remembers what a request of this account was given. A request that was given nothing may ask again.
    pub fn note(&self, account: &Account, request: Nonce, mark: Nonce, tokens: Vec<Token>) {
        if tokens.is_empty() {
            return;
        }
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if claims.tokens.insert(request, (mark, tokens)).is_none() {
            claims.orders.entry(account.clone()).or_default().push_back(request);
        }
        if claims.tokens.len() > REMEMBERED {
            claims.forget_one();
        }
    }
}

impl Claims {
    /// Forgets the oldest of the account that has most.
    fn forget_one(&mut self) {
        let Some((account, order)) = self.orders.iter_mut().max_by_key(|(_, order)| order.len()) else { return };
        if let Some(oldest) = order.pop_front() {
            self.tokens.remove(&oldest);
        }
        if order.is_empty() {
            let account = account.clone();
            self.orders.remove(&account);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(key: &str) -> Account {
        Account::Key(key.parse().unwrap())
    }

    fn nonce(number: usize) -> Nonce {
        Nonce::from_u128(number as u128)
    }

    #[test]
    fn it_remembers_the_latest_and_no_more() {
        let (recent, token) =
            (Recent::default(), "x:1:00000000000000000000000000000001:00000000000000000000000000000002:0");
        let (token, mark): (Token, _) = (token.parse().unwrap(), nonce(7));
        let note = |key: &str, number| recent.note(&account(key), nonce(number), mark, vec![token.clone()]);
        (0..=REMEMBERED).for_each(|number| note("aaaaaaaa", number));
        assert_eq!(recent.find(nonce(0)), None);
        assert_eq!(recent.find(nonce(1)), Some((mark, vec![token.clone()])));
        recent.note(&account("aaaaaaaa"), nonce(usize::MAX), mark, Vec::new());
        assert_eq!(recent.find(nonce(usize::MAX)), None);
        // Another's claims take the places of those that this one has too many of, and stay whatever it does.
        (10_000..10_100).for_each(|number| note("bbbbbbbb", number));
        (20_000..30_000).for_each(|number| note("aaaaaaaa", number));
        assert!((10_000..10_100).all(|number| recent.find(nonce(number)).is_some()));
        let claims = recent.0.lock().unwrap();
        let ordered: usize = claims.orders.values().map(VecDeque::len).sum();
        assert_eq!((claims.tokens.len(), ordered), (REMEMBERED, REMEMBERED));
    }
}
