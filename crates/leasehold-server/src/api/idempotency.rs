//! Recognising the attempts at one request.
//!
//! Promise: two attempts with one `Idempotency-Key`, by one key, at one address, are one request: a lease knows it by its nonce,
//! a queue by its items' keys. Where what is asked for is in the mark that it leaves ([`Attempt`]), another request under the same
//! key is told apart and refused. Non-promise: nothing is stored for it. It is known for as long as the record that it changed
//! remembers it. Two different requests that are sent under one key at the same moment are not told apart.

use leasehold_core::{Nonce, Result};
use leasehold_work::queue::DedupeKey;
use ring::digest::{Context, SHA256};

/// Identifies the request that an attempt belongs to.
#[derive(Debug, Clone)]
pub struct Idempotency([u8; 32]);

impl Idempotency {
    /// A request identified by these words, whatever they contain.
    pub fn new(words: &[&str]) -> Self {
        Idempotency(hash(words.iter().map(|word| word.as_bytes())))
    }

    /// The nonce of the request.
    pub fn nonce(&self) -> Nonce {
        let half: [u8; 16] = std::array::from_fn(|at| self.0[at]);
        Nonce::from_u128(u128::from_be_bytes(half))
    }

    /// An attempt at what these words say, for marks in records.
    pub fn at(&self, words: &[&[u8]]) -> Attempt {
        let (mut mark, asked) = ([0; 16], hash(words.iter().copied()));
        mark[..REQUEST].copy_from_slice(&self.0[..REQUEST]);
        mark[REQUEST..].copy_from_slice(&asked[..16 - REQUEST]);
        Attempt(mark)
    }
}

/// How many bytes of a mark identify the request. The others identify what it asks for.
const REQUEST: usize = 12;

/// The mark that an attempt leaves: its request, and what that asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt([u8; 16]);

impl Attempt {
    /// The mark as a nonce.
    pub fn nonce(self) -> Nonce {
        Nonce::from_u128(u128::from_be_bytes(self.0))
    }

    /// Whether this nonce belongs to an attempt with the same key that asked for something else.
    pub fn is_reused_by(self, other: Nonce) -> bool {
        let other = other.as_u128().to_be_bytes();
        other[..REQUEST] == self.0[..REQUEST] && other != self.0
    }

    /// The key of the `index`th item that it adds.
    pub fn item(self, index: usize) -> Result<DedupeKey> {
        format!("idem-{}-{index}", hex(&self.0)).parse()
    }

    /// The prefix of the ids of all items that were added under its key, and the prefix of those that it adds itself.
    pub fn items(self) -> [String; 2] {
        [format!("k.idem-{}", hex(&self.0[..REQUEST])), format!("k.idem-{}-", hex(&self.0))]
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash<'a>(words: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for word in words {
        context.update(&(word.len() as u64).to_be_bytes());
        context.update(word);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_counts_and_so_does_where_it_ends() {
        let of = |words: &[&str]| Idempotency::new(words).nonce();
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        for other in [&["a", "c"][..], &["ab", ""], &["", "ab"], &["a"], &["a", "b", ""]] {
            assert_ne!(of(other), of(&["a", "b"]), "{other:?}");
        }
        let attempt = Idempotency::new(&["a"]).at(&[]);
        assert_ne!(attempt.item(0).unwrap(), attempt.item(1).unwrap());
        assert!(attempt.item(usize::MAX).is_ok());
    }

    #[test]
    fn another_request_under_the_same_key_is_told_apart() {
        let (request, other) = (Idempotency::new(&["a"]), Idempotency::new(&["b"]));
        let attempt = request.at(&[b"x"]);
        assert!(!attempt.is_reused_by(request.at(&[b"x"]).nonce()));
        assert!(attempt.is_reused_by(request.at(&[b"y"]).nonce()));
        assert!(!attempt.is_reused_by(other.at(&[b"y"]).nonce()));
        let [all, own] = attempt.items();
        for (id, is_of_key, is_own) in
            [(attempt, true, true), (request.at(&[b"y"]), true, false), (other.at(&[b"x"]), false, false)]
        {
            let id = format!("k.{}", id.item(7).unwrap());
            assert_eq!((id.starts_with(&all), id.starts_with(&own)), (is_of_key, is_own), "{id}");
        }
    }
}
