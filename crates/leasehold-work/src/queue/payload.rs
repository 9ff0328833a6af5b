//! What an item carries: bytes of a bounded size.
//!
//! Promise: any bytes come back as they were. Non-promise: large data belongs elsewhere; the payload then says where.

use leasehold::{Error, Kind, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::Write;

/// Bytes, kept as text where they are text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// The most bytes that an item carries.
    pub const MAX_BYTES: usize = 48 * 1024;
    /// The most bytes that a result has.
    pub const MAX_RESULT_BYTES: usize = 16 * 1024;

    /// A payload of these bytes, if they are not too many.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        Payload::bounded("payload", bytes, Payload::MAX_BYTES)
    }

    /// A result of these bytes, if they are not too many.
    pub fn result(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        Payload::bounded("result", bytes, Payload::MAX_RESULT_BYTES)
    }

    fn bounded(what: &str, bytes: impl Into<Vec<u8>>, most: usize) -> Result<Self> {
        let bytes = bytes.into();
        if bytes.len() > most {
            let message = format!(
                "the {what} has {} bytes, at most {most} are kept; keep it elsewhere and give a path or a URL",
                bytes.len()
            );
            return Err(Error::new(Kind::Invalid, message));
        }
        Ok(Payload(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if it is text.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// As hexadecimal digits.
    pub fn hex(&self) -> String {
        let mut text = String::with_capacity(self.0.len() * 2);
        for byte in &self.0 {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// The text, where writing it as JSON does not blow it up.
    fn plain(&self) -> Option<&str> {
        let escaped = self.0.iter().filter(|b| b.is_ascii_control()).count();
        self.text().filter(|text| escaped * 5 <= text.len() || text.len() < 64)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stored<T> {
    Text(T),
    Hex(T),
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.plain() {
            Some(text) => Stored::Text(text).serialize(serializer),
            None => Stored::Hex(self.hex()).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let bytes = match Stored::<String>::deserialize(deserializer)? {
            Stored::Text(text) => text.into_bytes(),
            Stored::Hex(text) => {
                unhex(&text).ok_or_else(|| serde::de::Error::custom("the payload is not hexadecimal"))?
            }
        };
        Ok(Payload(bytes))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in
            [b"".to_vec(), b"hello\nworld".to_vec(), "é\u{2028}".into(), all, vec![0; 1000], vec![7; 48 * 1024]]
        {
            let payload = Payload::new(bytes.clone()).unwrap();
            let json = serde_json::to_string(&payload).unwrap();
            assert!(json.len() <= 2 * bytes.len() + 400, "{} bytes became {}", bytes.len(), json.len());
            assert_eq!(serde_json::from_str::<Payload>(&json).unwrap().bytes(), bytes);
        }
        assert!(serde_json::from_str::<Payload>(r#"{"hex":"abc"}"#).is_err());
        assert!(serde_json::from_str::<Payload>(r#"{"hex":"zz"}"#).is_err());
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let error = Payload::new(vec![0; Payload::MAX_BYTES + 1]).unwrap_err();
        assert!(error.to_string().contains("49153 bytes, at most 49152"), "{error}");
    }
}
