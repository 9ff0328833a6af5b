//! What handlers take from a request.

use super::problem::Problem;
use crate::access::{Caller, Denied};
use axum::extract::{FromRequestParts, Path};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use leasehold_stores::Namespace;
use std::collections::HashMap;

/// The key in a request's `Authorization` header, if it has one.
pub fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Denied> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Denied::Malformed("there are two `Authorization` headers"));
    }
    let text = value.to_str().map_err(|_| Denied::Malformed("it has a character that no key has"))?;
    match text.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(key.trim())),
        _ => Err(Denied::Malformed("the header is not `Authorization: Bearer lh_...`")),
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(|| Denied::Missing.into())
    }
}

/// The namespace in the path, which has a parameter `namespace`.
#[derive(Debug, Clone)]
pub struct In(pub Namespace);

impl<S: Send + Sync> FromRequestParts<S> for In {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(path): Path<HashMap<String, String>> = Path::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::invalid("the path is not valid UTF-8 once its escapes are resolved"))?;
        let text = path.get("namespace").map(String::as_str).unwrap_or_default();
        Ok(In(Namespace::new(text)?))
    }
}
