//! What an item carries: bytes of a bounded size.
//!
//! Promise: any bytes come back as they were, and take at most a third more space in a record. Non-promise: it is not
//! for large data. Keep that elsewhere, and let the payload say where.

use crate::{Error, Kind, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes, stored as text where they are text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// The most bytes that an item may carry.
    pub const MAX_BYTES: usize = 48 * 1024;
    /// The most bytes that a result may have.
    pub const MAX_RESULT_BYTES: usize = 16 * 1024;

    /// A payload of these bytes; an error above [`Payload::MAX_BYTES`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let advice =
            "keep it elsewhere and give a path or a URL, or use a spool (spool:/path), where it may have any size";
        Payload::bounded("payload", bytes, Payload::MAX_BYTES, advice)
    }

    /// A result of these bytes; an error above [`Payload::MAX_RESULT_BYTES`].
    pub fn result(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        Payload::bounded("result", bytes, Payload::MAX_RESULT_BYTES, "keep it elsewhere and give a path or a URL")
    }

    fn bounded(what: &str, bytes: impl Into<Vec<u8>>, most: usize, advice: &str) -> Result<Self> {
        let bytes = bytes.into();
        if bytes.len() > most {
            return Err(Error::new(Kind::Invalid, format!("the {what} has more than {most} bytes; {advice}")));
        }
        Ok(Payload(bytes))
    }

    /// The bytes, as they were given.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if the bytes are UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The bytes as base64, for JSON output.
    pub fn base64(&self) -> String {
        STANDARD.encode(&self.0)
    }

    /// The text, if it is short, or takes no more space as JSON than base64 would.
    fn plain(&self) -> Option<&str> {
        let escaped: usize = self.0.iter().map(|byte| escaped(*byte)).sum();
        let most = self.0.len().div_ceil(3) * 4;
        self.text().filter(|_| escaped <= most.max(READABLE))
    }
}

/// Text of at most this many bytes as JSON is stored as text, even if base64 were shorter.
const READABLE: usize = 4096;

/// The length of one byte of text in JSON.
const fn escaped(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stored<T> {
    Text(T),
    Base64(T),
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.plain() {
            Some(text) => Stored::Text(text).serialize(serializer),
            None => Stored::Base64(self.base64()).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let bytes = match Stored::<String>::deserialize(deserializer)? {
            Stored::Text(text) => text.into_bytes(),
            Stored::Base64(text) => {
                STANDARD.decode(text).map_err(|_| serde::de::Error::custom("the payload is not base64"))?
            }
        };
        Ok(Payload(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        let full = |byte: u8| vec![byte; Payload::MAX_BYTES];
        for bytes in
            [b"".to_vec(), "é\u{2028}".into(), all, vec![0; 1000], full(7), full(0xff), full(b'"'), full(b'\n')]
        {
            let payload = Payload::new(bytes.clone()).unwrap();
            let json = serde_json::to_string(&payload).unwrap();
            let most = (bytes.len().div_ceil(3) * 4).max(READABLE) + 13;
            assert!(json.len() <= most, "{} bytes became {}", bytes.len(), json.len());
            assert_eq!(serde_json::from_str::<Payload>(&json).unwrap().bytes(), bytes);
        }
        assert!(serde_json::from_str::<Payload>(r#"{"base64":"abc"}"#).is_err());
        assert!(serde_json::from_str::<Payload>(r#"{"base64":"é"}"#).is_err());
    }

    #[test]
    fn a_text_stays_readable() {
        let json = |text: &str| serde_json::to_string(&Payload::new(text).unwrap()).unwrap();
        assert_eq!(json("to: ada\n"), r#"{"text":"to: ada\n"}"#);
        assert_eq!(json(r#"{"a":"b"}"#), r#"{"text":"{\"a\":\"b\"}"}"#);
        assert!(json(&"a line of a letter\n".repeat(2000)).starts_with(r#"{"text":"#));
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let error = Payload::new(vec![0; Payload::MAX_BYTES + 1]).unwrap_err();
        assert!(
            error.to_string().contains("the payload has more than 49152 bytes")
                && error.to_string().contains("spool:/path"),
            "{error}"
        );
    }
}
