//! Which request an attempt is one of.
//!
//! Promise: two attempts with one `Idempotency-Key`, by one key, at one address, are one request: a lease knows it by its nonce,
//! a queue by its items' keys. Non-promise: nothing is stored for it. It is known for as long as the record that it changed
//! remembers it.

use leasehold_core::{Nonce, Result};
use leasehold_work::queue::DedupeKey;
use ring::digest::{Context, SHA256};

/// What an attempt's request is known by.
#[derive(Debug, Clone)]
pub struct Idempotency([u8; 32]);

impl Idempotency {
    /// Of these words, whatever is in them.
    pub fn new(words: &[&str]) -> Self {
        let mut context = Context::new(&SHA256);
        for word in words {
            context.update(&(word.len() as u64).to_be_bytes());
            context.update(word.as_bytes());
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(context.finish().as_ref());
        Idempotency(hash)
    }

    /// The nonce of the request.
    pub fn nonce(&self) -> Nonce {
        let half: [u8; 16] = std::array::from_fn(|at| self.0[at]);
        Nonce::from_u128(u128::from_be_bytes(half))
    }

    /// The key of the `index`th item that it adds.
    pub fn item(&self, index: usize) -> Result<DedupeKey> {
        let hash: String = self.0[16..].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("idem-{hash}-{index}").parse()
    }
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
        let request = Idempotency::new(&["a"]);
        assert_ne!(request.item(0).unwrap(), request.item(1).unwrap());
        assert!(request.item(usize::MAX).is_ok());
    }
}
