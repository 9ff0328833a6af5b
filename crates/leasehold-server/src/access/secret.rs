//! The text of a key.
//!
//! Its text is `lh_`, a letter that tells what it allows, `_`, the key's id (8 characters), 256 random bits (52) and a checksum
//! (7), in lower-case base 32. The checksum distinguishes a typing error from an unknown key.
//!
//! Promise: neither `Debug` nor a message shows it, and a comparison takes the same time wherever two texts differ.

use super::base32;
use super::verb::VerbSet;
use leasehold_core::{Error, LeaseName, Nonce, Result};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use subtle::ConstantTimeEq;

const PREFIX: &str = "lh_";
const LETTERS: &str = "rwoa";
const ID: usize = 8;
const BODY: usize = 52;
const CHECKSUM: usize = 7;
/// `lh_`, a letter and `_`.
const HEAD: usize = 5;

/// The public name of a key, which logs and operators use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId(String);

impl KeyId {
    /// The id of the key that the first server makes: a fixed one, so that one write decides who makes it.
    pub(crate) fn first() -> Self {
        KeyId("firstkey".into())
    }

    fn random() -> Self {
        let mut text = String::new();
        base32::append(&mut text, &Nonce::random().as_u128().to_be_bytes(), ID);
        KeyId(text)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of one of its records.
    pub(crate) fn record(&self, folder: &str) -> Result<LeaseName> {
        LeaseName::new(format!("{folder}/{self}"))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for KeyId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.starts_with(PREFIX) {
            // Somebody who pastes the key itself must not find it in a message.
            let form =
                "that is a key itself; use its id, the 8 characters after `lh_w_`, as `leasehold key ls` lists it";
            return Err(Error::invalid("key id", "lh_***", form));
        }
        if text.len() != ID || !text.chars().all(base32::is_digit) {
            let form = "use 8 characters of a-z and 2-7, as `leasehold key ls` lists them";
            return Err(Error::invalid("key id", text, form));
        }
        Ok(KeyId(text.to_owned()))
    }
}

impl TryFrom<String> for KeyId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> String {
        id.0
    }
}

/// The whole text of a key, which passed its checksum.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// A new key that allows these verbs.
    pub(crate) fn random(verbs: VerbSet) -> Self {
        Secret::with_id(verbs, &KeyId::random())
    }

    /// The same, with a chosen id.
    pub(crate) fn with_id(verbs: VerbSet, id: &KeyId) -> Self {
        let mut text = format!("{PREFIX}{}_{id}", verbs.letter());
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&Nonce::random().as_u128().to_be_bytes());
        bytes[16..].copy_from_slice(&Nonce::random().as_u128().to_be_bytes());
        base32::append(&mut text, &bytes, BODY);
        let sum = crc32fast::hash(text.as_bytes());
        base32::append(&mut text, &sum.to_be_bytes(), CHECKSUM);
        Secret(text)
    }

    /// Parses a key, or says what is wrong with it without quoting any of it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let mut parts = text.strip_prefix(PREFIX).ok_or("it does not begin with `lh_`")?.chars();
        if !parts.next().is_some_and(|letter| LETTERS.contains(letter)) || parts.next() != Some('_') {
            return Err("after `lh_` comes one of r, w, o and a, and `_`");
        }
        let rest = parts.as_str();
        if !rest.chars().all(base32::is_digit) {
            return Err("it has a character that no key has; keys are of a-z and 2-7");
        }
        if rest.len() != ID + BODY + CHECKSUM {
            return Err("it is cut off or too long; a key has 72 characters");
        }
        let (body, sum) = text.split_at(text.len() - CHECKSUM);
        let mut expected = String::new();
        base32::append(&mut expected, &crc32fast::hash(body.as_bytes()).to_be_bytes(), CHECKSUM);
        if sum != expected {
            return Err("the checksum does not match; it was mistyped or cut off");
        }
        Ok(Secret(text.to_owned()))
    }

    /// The key's id, which its text contains.
    pub fn id(&self) -> KeyId {
        KeyId(self.0[HEAD..HEAD + ID].to_owned())
    }

    /// Whether it is the one that the first server makes.
    pub fn is_first(&self) -> bool {
        self.id() == KeyId::first()
    }

    /// What is stored of it.
    pub(crate) fn hash(&self) -> Hash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, self.0.as_bytes()).as_ref());
        Hash(hash)
    }

    /// The text itself, to be shown once, to the one who asked for the key.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}***)", &self.0[..HEAD + ID])
    }
}

/// The SHA-256 of a key's text.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Hash([u8; 32]);

/// Compared in constant time, so that nobody can find out a hash by trying.
impl PartialEq for Hash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Hash {}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash(***)")
    }
}

impl TryFrom<String> for Hash {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        let wrong = || Error::invalid("hash of a key", "***", "it is 64 hexadecimal digits");
        let mut hash = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        for (index, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Hash(hash))
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> String {
        hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::verb::Verb;
    use super::*;

    fn secret() -> Secret {
        Secret::random(VerbSet::of([Verb::Hold]))
    }

    #[test]
    fn a_key_reads_back_and_no_two_are_alike() {
        let (one, other) = (secret(), secret());
        assert_eq!(one.reveal().len(), 72);
        assert!(one.reveal().starts_with("lh_w_") && one.reveal() != other.reveal() && one.hash() != other.hash());
        let again = Secret::parse(one.reveal()).unwrap();
        assert_eq!((again.id(), again.hash()), (one.id(), one.hash()));
        assert_eq!(one.id().to_string().parse::<KeyId>().unwrap(), one.id());
        assert_eq!(Hash::try_from(String::from(one.hash())).unwrap(), one.hash());
        // Of 256 bits each is set in some key.
        let mut seen = std::collections::HashSet::new();
        (0..64).for_each(|_| seen.extend(secret().reveal()[13..65].char_indices()));
        assert!(seen.len() > 52 * 16, "{}", seen.len());
    }

    #[test]
    fn every_typing_error_of_one_character_is_noticed() {
        let text = secret().reveal().to_owned();
        for at in 0..text.len() {
            for c in ['a', '7', 'z', '_', 'L', '0', 'é'] {
                let wrong: String = text.chars().enumerate().map(|(i, old)| if i == at { c } else { old }).collect();
                assert!(wrong == text || Secret::parse(&wrong).is_err(), "{at} {c}");
            }
        }
        for end in 0..text.len() {
            assert!(Secret::parse(&text[..end]).is_err(), "{end}");
        }
        for wrong in [format!("{text}a"), format!(" {text}"), text.to_uppercase(), String::new()] {
            assert!(Secret::parse(&wrong).is_err());
        }
    }

    #[test]
    fn nothing_that_is_printed_has_the_key_in_it() {
        let secret = secret();
        let body = &secret.reveal()[13..];
        assert!(!format!("{secret:?} {:?}", secret.hash()).contains(body));
        let error = secret.reveal().parse::<KeyId>().unwrap_err().to_string();
        assert!(!error.contains(body) && error.contains("that is a key itself"), "{error}");
    }
}
