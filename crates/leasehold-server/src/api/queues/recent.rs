//! The claims that this server has recently made for requests with an `Idempotency-Key`.
//!
//! Promise: a repeated request finds the items that it was given, for as long as they are in force. Non-promise: another server
//! does not know them; there a repeated request is given others, and the first ones come back when their claims have run out.

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
    order: VecDeque<Nonce>,
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

    /// Remembers what a request was given. A request that was given nothing may ask again.
    pub fn note(&self, request: Nonce, mark: Nonce, tokens: Vec<Token>) {
        if tokens.is_empty() {
            return;
        }
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if claims.tokens.insert(request, (mark, tokens)).is_none() {
            claims.order.push_back(request);
        }
        if claims.order.len() > REMEMBERED
            && let Some(oldest) = claims.order.pop_front()
        {
            claims.tokens.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_the_latest_and_no_more() {
        let (recent, token) =
            (Recent::default(), "x:1:00000000000000000000000000000001:00000000000000000000000000000002:0");
        let (token, mark): (Token, _) = (token.parse().unwrap(), Nonce::from_u128(7));
        for n in 0..=REMEMBERED as u128 {
            recent.note(Nonce::from_u128(n), mark, vec![token.clone()]);
        }
        assert_eq!(recent.find(Nonce::from_u128(0)), None);
        assert_eq!(recent.find(Nonce::from_u128(1)), Some((mark, vec![token.clone()])));
        recent.note(Nonce::from_u128(u128::MAX), mark, Vec::new());
        assert_eq!(recent.find(Nonce::from_u128(u128::MAX)), None);
        assert_eq!(recent.0.lock().unwrap().tokens.len(), REMEMBERED);
    }
}
