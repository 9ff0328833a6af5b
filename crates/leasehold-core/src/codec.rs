//! Records as bytes: one header line with format version and checksum, then JSON.
//!
//! Promise: a flipped bit, a truncated file and a newer format are recognised, and such a record is never overwritten. Every
//! released format stays readable (golden files in `tests/golden/`). Non-promise: the JSON is for machines; `show --json` is
//! the stable form.

use crate::error::{Error, Kind, Result};
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserializer, Serialize};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// The format that this version writes.
pub const FORMAT: u32 = 1;
/// The largest record, header included.
pub const MAX_RECORD_BYTES: usize = 128 * 1024;

/// Encodes a record of this kind (`ownership`, `counters`).
pub fn encode<T: Serialize>(kind: &str, record: &T) -> Result<Vec<u8>> {
    let body = serde_json::to_vec(record)
        .map_err(|e| Error::new(Kind::Invalid, format!("cannot encode {kind} record")).with_source(e))?;
    let mut bytes = header(kind, FORMAT, &body).into_bytes();
    bytes.extend_from_slice(&body);
    if bytes.len() > MAX_RECORD_BYTES {
        let message = format!("{kind} record has {} bytes; at most {MAX_RECORD_BYTES} are stored", bytes.len());
        return Err(Error::new(Kind::Invalid, message));
    }
    Ok(bytes)
}

/// Decodes a record of this kind; `name` names the record in messages.
pub fn decode<T: DeserializeOwned>(kind: &str, bytes: &[u8], name: &str) -> Result<T> {
    let corrupt = |what: &str| {
        Error::new(
            Kind::Corrupt,
            format!("corrupt {kind} record `{name}`: {what}; it was left as it is, restore it from a backup"),
        )
    };
    if bytes.len() > MAX_RECORD_BYTES {
        return Err(corrupt("it is too large"));
    }
    let end = bytes.iter().position(|b| *b == b'\n').ok_or_else(|| corrupt("the header line is missing"))?;
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| corrupt("the header is not text"))?;
    let body = &bytes[end + 1..];
    let words: Vec<&str> = head.split(' ').collect();
    let ["leasehold", found, version, _, _] = words[..] else {
        return Err(corrupt("the header is not one of leasehold's"));
    };
    if found != kind {
        return Err(corrupt("it is a record of another kind"));
    }
    let version: u32 =
        version.strip_prefix('v').and_then(|v| v.parse().ok()).ok_or_else(|| corrupt("the version is not a number"))?;
    if version > FORMAT {
        let message = format!(
            "{kind} record `{name}` has format {version}, this leasehold knows up to {FORMAT}; it was left as it is, \
             upgrade leasehold"
        );
        return Err(Error::new(Kind::Unsupported, message));
    }
    if format!("{head}\n") != header(kind, version, body) {
        return Err(corrupt("the checksum does not match"));
    }
    // Checked once as a whole; otherwise serde would check each of its many strings.
    let body = std::str::from_utf8(body).map_err(|e| corrupt("it is not text").with_source(e))?;
    serde_json::from_str(body).map_err(|e| corrupt("a field is wrong").with_source(e))
}

fn header(kind: &str, version: u32, body: &[u8]) -> String {
    // The checksum covers kind and version too: a flipped bit there must not pass as another format.
    let mut hash = crc32fast::Hasher::new();
    hash.update(kind.as_bytes());
    hash.update(&version.to_le_bytes());
    hash.update(body);
    format!("leasehold {kind} v{version} {:08x} {}\n", hash.finalize(), body.len())
}

/// Deserializes a value from its text, without copying the text.
pub(crate) fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err = Error>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_str(Parsed(PhantomData))
}

struct Parsed<T>(PhantomData<T>);

impl<T: FromStr<Err = Error>> Visitor<'_> for Parsed<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::record::Ownership;

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = encode("ownership", &Ownership::default()).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                let error = decode::<Ownership>("ownership", &bad, "x").unwrap_err();
                assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "byte {at} bit {bit}: {error}");
            }
        }
    }

    #[test]
    fn every_truncation_is_noticed() {
        let bytes = encode("ownership", &Ownership::default()).unwrap();
        for len in 0..bytes.len() {
            assert_eq!(decode::<Ownership>("ownership", &bytes[..len], "x").unwrap_err().kind(), Kind::Corrupt);
        }
    }

    #[test]
    fn a_newer_format_is_unsupported_not_corrupt() {
        let body = br#"{"epoch":1}"#;
        let mut bytes = header("ownership", FORMAT + 1, body).into_bytes();
        bytes.extend_from_slice(body);
        let error = decode::<Ownership>("ownership", &bytes, "x").unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("upgrade leasehold"));
    }
}
