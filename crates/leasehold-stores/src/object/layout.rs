//! The key of a record in a bucket, and the content of its object.
//!
//! Promise: the keys of a shelf sort as its names do. Every write has a unique body, so that an ETag made from the
//! content is never used twice. A revision that this store never issued is recognised without a request. Non-promise:
//! an object that another program put under the prefix is reported as damaged.

use leasehold_core::store::Revision;
use leasehold_core::{Error, Kind, LeaseName, Nonce, Result};
use object_store::UpdateVersion;
use object_store::path::Path;

/// The mark before the tag: of a value, or of the tombstone of an erased record.
const VALUE: &[u8; 4] = b"LHv1";
const ERASED: &[u8; 4] = b"LHe1";
/// The size of a tombstone in bytes: a mark and a tag.
const TOMBSTONE_BYTES: usize = 20;
/// Follows a value's tag, so that even an empty value is longer than a
/// tombstone, and sizes in a listing tell them apart.
const VALUE_BEGINS: u8 = b'\n';

/// Whether an object of this size is a tombstone. All tombstones have one size, and no value is that small.
pub(super) const fn is_tombstone(size: u64) -> bool {
    size <= TOMBSTONE_BYTES as u64
}

/// The content of an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// The random tag of the write that stored it.
    pub(super) tag: Nonce,
    /// None for a tombstone.
    pub(super) value: Option<Vec<u8>>,
}

/// The body of a value, or of a tombstone.
pub(super) fn body(tag: Nonce, value: Option<&[u8]>) -> Vec<u8> {
    let mut body = Vec::with_capacity(TOMBSTONE_BYTES + 1 + value.map_or(0, <[u8]>::len));
    body.extend_from_slice(if value.is_some() { VALUE } else { ERASED });
    body.extend_from_slice(&tag.as_u128().to_be_bytes());
    if let Some(value) = value {
        body.push(VALUE_BEGINS);
        body.extend_from_slice(value);
    }
    body
}

/// Parses a body.
pub(super) fn content(body: &[u8], path: &Path) -> Result<Content> {
    let damaged = || {
        let message = format!("the object `{path}` is not a leasehold record: it was damaged or put there by hand");
        Error::new(Kind::Corrupt, message)
    };
    let (mark, rest) = body.split_first_chunk::<4>().ok_or_else(damaged)?;
    let (tag, rest) = rest.split_first_chunk::<16>().ok_or_else(damaged)?;
    let tag = Nonce::from_u128(u128::from_be_bytes(*tag));
    match (mark, rest) {
        (ERASED, []) => Ok(Content { tag, value: None }),
        (VALUE, [VALUE_BEGINS, value @ ..]) => Ok(Content { tag, value: Some(value.to_vec()) }),
        _ => Err(damaged()),
    }
}

/// What the server compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compared {
    /// The ETag, on S3 and Azure.
    ETag,
    /// Google's number of the write.
    Generation,
}

/// The revision of a write: its own tag, and what the server compares. None if the server returned nothing to compare.
pub(super) fn revision(tag: Nonce, compared: Compared, e_tag: Option<&str>, version: Option<&str>) -> Option<Revision> {
    let compared = match compared {
        Compared::ETag => e_tag?,
        Compared::Generation => version?,
    };
    (!compared.is_empty()).then(|| Revision(format!("{tag}.{compared}")))
}

/// The revision of a tombstone. No swap can expect it, because there is no value.
pub(super) fn erased(tag: Nonce) -> Revision {
    Revision(format!("{tag}."))
}

/// What the server has to compare. None for a tombstone's revision, and for one that this store never issued: an
/// invented one could be `*` or `0`, which mean something else to servers.
pub(super) fn expected(revision: &Revision, compared: Compared) -> Option<UpdateVersion> {
    let (tag, text) = revision.0.split_once('.')?;
    tag.parse::<Nonce>().ok()?;
    (!text.is_empty()).then(|| match compared {
        Compared::ETag => UpdateVersion { e_tag: Some(text.to_owned()), version: None },
        Compared::Generation => UpdateVersion { e_tag: None, version: Some(text.to_owned()) },
    })
}

/// A name as one segment of an object's key, in the same order. It has no `/`, because a server on top of a file system
/// cannot have both `a` and `a/b`, and no dot at the end, which Azure drops.
pub(super) fn encode(name: &LeaseName) -> String {
    let mut text = String::with_capacity(name.as_str().len() + 8);
    for c in name.as_str().chars() {
        match c {
            '.' => text.push_str(".0"),
            '/' => text.push_str(".1"),
            _ => text.push(c),
        }
    }
    text
}

/// The name in an object's key; none if the key is not one of ours.
pub(super) fn decode(segment: &str) -> Option<LeaseName> {
    let mut name = String::with_capacity(segment.len());
    let mut chars = segment.chars();
    while let Some(c) = chars.next() {
        name.push(match c {
            '.' => match chars.next()? {
                '0' => '.',
                '1' => '/',
                _ => return None,
            },
            '/' => return None,
            c => c,
        });
    }
    LeaseName::new(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_names_do_and_lead_back_to_them() {
        let mut names: Vec<LeaseName> =
            ["a", "a/b", "a.b", "a-b", "a0", "aA", "a_", "aa", "a/", "a.", "A", "a..", "a./b", "a.0", "a/0", "a.1"]
                .into_iter()
                .filter_map(|name| LeaseName::new(name).ok())
                .collect();
        names.sort();
        let keys: Vec<String> = names.iter().map(encode).collect();
        assert!(keys.is_sorted(), "{keys:?}");
        for (name, key) in names.iter().zip(&keys) {
            assert_eq!(decode(key).as_ref(), Some(name), "{key}");
            assert!(!key.contains('/') && !key.ends_with('.'), "{key}");
            assert!(Path::parse(format!("p/{key}")).is_ok(), "{key}");
        }
        for foreign in ["a/b", "a.", "a.2", "", "a b", "..", "."] {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn bodies_are_read_back_and_sizes_tell_tombstones() {
        let (tag, path) = (Nonce::random(), Path::from("p"));
        for value in [Some(b"".as_slice()), Some(b"x"), Some(b"\n\0\n"), None] {
            let body = body(tag, value);
            assert_eq!(content(&body, &path).unwrap(), Content { tag, value: value.map(<[u8]>::to_vec) });
            assert_eq!(is_tombstone(body.len() as u64), value.is_none());
        }
        let whole = body(tag, Some(b"x"));
        for foreign in [b"".as_slice(), b"hello", &whole[..20], &[&body(tag, None)[..], b"x"].concat()] {
            assert_eq!(content(foreign, &path).unwrap_err().kind(), Kind::Corrupt);
        }
    }

    #[test]
    fn a_made_up_revision_is_never_asked_about() {
        let tag = Nonce::random();
        for made_up in ["", "*", "0", ".\"x\"", "x.\"y\"", &tag.to_string()] {
            assert_eq!(expected(&Revision(made_up.into()), Compared::ETag), None, "{made_up}");
        }
        assert_eq!(expected(&erased(tag), Compared::ETag), None);
        assert_eq!(revision(tag, Compared::Generation, Some("\"x\""), None), None);
        let given = revision(tag, Compared::ETag, Some("\"a.b\""), None).unwrap();
        assert_eq!(expected(&given, Compared::ETag).unwrap().e_tag.as_deref(), Some("\"a.b\""));
    }
}
