//! The salt: it makes every body unique where a service's tags are those of the content.
//!
//! Promise: no two salted bodies are equal, so no tag comes back. The metadata say that there is a salt, and it can be
//! removed. Non-promise: readers get it too, so it is for contents in which trailing blanks mean nothing.

use bytes::{Bytes, BytesMut};
use leasehold_core::{Error, Nonce, Result};
use std::str::FromStr;

/// 128 bits, a newline, and one before, so that a text's last line is left as it is.
const BLANKS: usize = 130;

/// How a body is made unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Salt {
    /// The body is sent as it is.
    None,
    /// A line of blanks and tabs at its end.
    Blank,
}

impl Salt {
    /// The salt that does this content type no harm, if there is one.
    pub fn fitting(content_type: &str) -> Option<Self> {
        let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let known =
            ["application/json", "application/x-ndjson", "application/xml", "application/yaml", "image/svg+xml"];
        let is_text = (kind.starts_with("text/") && kind != "text/csv" && kind != "text/tab-separated-values")
            || known.contains(&kind.as_str())
            || kind.ends_with("+json")
            || kind.ends_with("+xml");
        is_text.then_some(Salt::Blank)
    }

    pub(super) fn add(self, body: Bytes, write: Nonce) -> Bytes {
        if self == Salt::None {
            return body;
        }
        let mut salted = BytesMut::with_capacity(body.len() + BLANKS);
        salted.extend_from_slice(&body);
        salted.extend_from_slice(b"\n");
        let number = write.as_u128();
        let bits = (0..128).map(|bit| if number >> bit & 1 == 1 { b'\t' } else { b' ' });
        salted.extend(bits);
        salted.extend_from_slice(b"\n");
        salted.freeze()
    }

    pub(super) fn remove(body: Bytes) -> Bytes {
        let length = body.len().saturating_sub(BLANKS);
        body.slice(..length)
    }
}

impl FromStr for Salt {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "none" => Ok(Salt::None),
            "blank" => Ok(Salt::Blank),
            _ => Err(Error::invalid("salt", text, "use `blank` or `none`")),
        }
    }
}

/// The content type that a key's ending stands for.
pub fn content_type_of(key: &str) -> &'static str {
    let ending = key.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, ending)| ending);
    match ending.to_ascii_lowercase().as_str() {
        "json" => "application/json",
        "ndjson" | "jsonl" => "application/x-ndjson",
        "html" | "htm" => "text/html",
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "css" => "text/css",
        "js" | "mjs" => "text/javascript",
        "csv" => "text/csv",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        "yaml" | "yml" => "application/yaml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "pdf" => "application/pdf",
        "gz" => "application/gzip",
        "zip" => "application/zip",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_can_be_taken_off_and_never_comes_back() {
        for body in ["", "{}", "a\n"] {
            let (one, other) = (Nonce::random(), Nonce::random());
            let salted = Salt::Blank.add(Bytes::from(body), one);
            assert_eq!(salted.len(), body.len() + BLANKS);
            assert_ne!(salted, Salt::Blank.add(Bytes::from(body), other));
            assert_eq!(Salt::remove(salted), Bytes::from(body));
        }
        assert_eq!(Salt::None.add(Bytes::from("x"), Nonce::random()), Bytes::from("x"));
        assert_eq!(Salt::fitting("application/json; charset=utf-8"), Some(Salt::Blank));
        assert_eq!(Salt::fitting("text/csv"), None);
        assert_eq!(Salt::fitting("application/octet-stream"), None);
        assert_eq!(content_type_of("a.b/out.JSON"), "application/json");
        assert_eq!(content_type_of("a.json/out"), "application/octet-stream");
    }
}
