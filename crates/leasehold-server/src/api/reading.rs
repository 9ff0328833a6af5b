//! Parsing what a client sends, and naming the field that is wrong.
//!
//! Promise: a field that is not known is refused, and so is one of another type. A message holds nothing of what was sent but
//! the names of fields.

use crate::serve::Problem;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use leasehold_core::{Error, Timestamp, Token, Ttl, parse_duration};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Parses a body. An empty body counts as one without fields.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let is_empty = body.trim_ascii().is_empty();
    let body = if is_empty { b"{}" } else { body };
    if body.trim_ascii_start().first() != Some(&b'{') {
        // An array would be taken for the fields in their order, which nobody promises.
        return Err(Problem::invalid("the request cannot be read: its body is not a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut json);
    let value = read.map_err(|error| {
        let problem = refuse(&error.path().to_string(), &error.inner().to_string());
        if is_empty { problem.telling("the body is empty; send a JSON object") } else { problem }
    })?;
    json.end().map_err(|_| Problem::invalid("the body is more than one JSON value"))?;
    Ok(value)
}

/// Parses the query after the `?`.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        use std::error::Error as _;
        let read = Query::try_from_uri(&parts.uri);
        let Query(value) = read.map_err(|error| {
            let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            let (path, what) = cause.split_once(": ").unwrap_or(("?", &cause));
            refuse(path, what)
        })?;
        Ok(Params(value))
    }
}

fn refuse(path: &str, what: &str) -> Problem {
    let what = without_values(what);
    let named = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| what.strip_prefix(start)?.split('`').next());
    let field = match (path, named) {
        ("." | "?", Some(name)) => name.to_owned(),
        ("." | "?", None) => String::new(),
        (path, Some(name)) if !path.ends_with(name) => format!("{path}.{name}"),
        (path, _) => path.to_owned(),
    };
    if field.is_empty() {
        return Problem::invalid(format!("the request cannot be read: {what}"));
    }
    // What the message says of the field, without its name again.
    let what = match what.split_once(&format!(" field `{}`", named.unwrap_or_default())) {
        Some(("unknown", rest)) => format!("it is unknown{rest}"),
        Some(("missing", rest)) => format!("it is missing{rest}"),
        Some(("duplicate", rest)) => format!("it is given twice{rest}"),
        _ => what,
    };
    Problem::invalid(format!("field `{field}`: {what}")).with("field", field)
}

/// A message without the values that it quotes.
fn without_values(what: &str) -> String {
    match (what.find('"'), what.rfind('"')) {
        (Some(first), Some(last)) if first < last => format!("{}\"…\"{}", &what[..first], &what[last + 1..]),
        _ => what.to_owned(),
    }
}

/// A value that was read from this field.
pub fn field<T>(name: &str, value: Result<T, Error>) -> Result<T, Problem> {
    value.map_err(|error| Problem::from(error).with("field", name))
}

/// The same for one that may be missing.
pub fn optional<T>(
    name: &str,
    value: Option<String>,
    parse: impl FnOnce(String) -> Result<T, Error>,
) -> Result<Option<T>, Problem> {
    field(name, value.map(parse).transpose())
}

/// The TTL in field `ttl`.
pub fn ttl(text: &str) -> Result<Ttl, Problem> {
    field("ttl", text.parse())
}

/// A duration of this field, up to a bound.
pub fn duration(name: &str, text: Option<String>, most: Duration) -> Result<Option<Duration>, Problem> {
    let found = optional(name, text, |text| parse_duration(&text))?;
    if found.is_some_and(|found| found > most) {
        let most = leasehold_core::format_duration(most);
        return Err(Problem::invalid(format!("field `{name}`: at most {most}")).with("field", name));
    }
    Ok(found)
}

/// The token in field `token`.
pub fn token(text: &str) -> Result<Token, Problem> {
    field("token", text.parse())
}

/// An instant of this field, in RFC 3339.
pub fn instant(name: &str, text: &str) -> Result<Timestamp, Problem> {
    field(name, leasehold_work::schedule::parse_instant(name, text).map(|slot| slot.0))
}

/// The number of entries that a listing may have.
pub fn limit(asked: Option<u32>, usual: usize, most: usize) -> Result<usize, Problem> {
    match asked.map(|asked| asked as usize) {
        None => Ok(usual),
        Some(asked) if (1..=most).contains(&asked) => Ok(asked),
        Some(_) => Err(Problem::invalid(format!("field `limit`: 1 to {most}")).with("field", "limit")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        ttl: String,
        #[serde(default)]
        items: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        priority: u8,
    }

    #[test]
    fn what_is_wrong_is_named_by_its_field_and_never_quoted() {
        let problem = |body: &str| read::<Outer>(body.as_bytes()).unwrap_err().to_json();
        for (body, field) in [
            ("", "ttl"),
            (r#"{"ttl": 5}"#, "ttl"),
            (r#"{"ttl": "1s", "tll": "x"}"#, "tll"),
            (r#"{"ttl": "1s", "ttl": "2s"}"#, "ttl"),
            (r#"{"ttl": "1s", "items": [{"priority": 1}, {"priority": "secret-value"}]}"#, "items[1].priority"),
            (r#"{"ttl": "1s", "items": [{"priority": 1, "x": 1}]}"#, "items[0].x"),
        ] {
            let problem = problem(body);
            assert_eq!(problem["field"], field, "{body}: {problem}");
            assert!(!problem.to_string().contains("secret-value"));
        }
        for body in ["[", "[\"1s\", []]", "\"a\"", "{\"ttl\": \"1s\"} {}", "\u{0}", &"[".repeat(5000)] {
            assert_eq!(problem(body)["kind"], "invalid", "{body}");
        }
        let read: Outer = read(br#"{"ttl": "1s", "items": [{"priority": 1}]}"#).unwrap();
        assert_eq!((read.ttl.as_str(), read.items[0].priority), ("1s", 1));
    }
}
