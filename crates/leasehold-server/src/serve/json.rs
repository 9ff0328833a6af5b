//! Answers in JSON.
//!
//! Promise: a line ends with what was answered, so that a terminal shows it and tools that read lines take it.

use super::problem::Problem;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use leasehold_core::{Error, Kind};
use serde::Serialize;

/// An answer, as one line of JSON.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut body = match serde_json::to_vec(&self.0) {
            Ok(body) => body,
            Err(e) => {
                let error = Error::new(Kind::Corrupt, "the answer cannot be written as JSON").with_source(e);
                return Problem::from(error).into_response();
            }
        };
        body.push(b'\n');
        let mut response = body.into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}
