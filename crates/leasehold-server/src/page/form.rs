//! Fields of forms and of addresses.

use crate::serve::Problem;
use axum::body::Bytes;
use leasehold_core::{Error, Why};
use std::collections::HashMap;

/// The fields of a form, or of a query.
#[derive(Debug, Default)]
pub struct Fields(HashMap<String, String>);

impl Fields {
    /// Reads the body of a form.
    pub fn of_body(body: &Bytes) -> Result<Self, Problem> {
        let text = std::str::from_utf8(body).map_err(|_| Problem::invalid("the form is not valid UTF-8"))?;
        Ok(Fields::of(text))
    }

    /// Reads a query; none has no fields.
    pub fn of_query(query: Option<&str>) -> Self {
        Fields::of(query.unwrap_or_default())
    }

    fn of(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Fields(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (plain(k), plain(v))).collect(),
        )
    }

    /// A field without the space around it; none if it is empty or not there.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// A field with the space around it.
    pub fn exact(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The reason that every order needs.
    pub fn why(&self) -> Result<Why, Error> {
        Why::named("why", self.get("why").unwrap_or_default())
    }
}

/// A field without its escapes. What is not valid UTF-8 then is replaced: nothing that we look for has it.
fn plain(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let escaped = bytes.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
        let escaped = escaped.filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        match (byte, escaped.and_then(|two| u8::from_str_radix(two, 16).ok())) {
            (b'%', Some(value)) => {
                plain.push(value);
                at += 2;
            }
            (b'+', _) => plain.push(b' '),
            _ => plain.push(*byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// A text as part of a query.
pub fn in_query(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' => {
                escaped.push(char::from(byte))
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lose_their_escapes() {
        let fields = Fields::of("why=a+b%21&q=%3Cb%3E&empty=&bare&odd=%zz%4&u=%C3%A9");
        assert_eq!(fields.get("why"), Some("a b!"));
        assert_eq!(fields.get("q"), Some("<b>"));
        assert_eq!((fields.get("empty"), fields.get("bare"), fields.get("none")), (None, None, None));
        assert_eq!(fields.get("odd"), Some("%zz%4"));
        assert_eq!(fields.get("u"), Some("é"));
        assert_eq!(Fields::of(&format!("x={}", in_query("<é &+%>"))).get("x"), Some("<é &+%>"));
    }
}
