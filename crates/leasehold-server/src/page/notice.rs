//! Problems as pages, for those who look with a browser.

use super::frame::{self, Frame};
use super::visit::base_of;
use askama::Template;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::Value;

/// More than any problem has.
const LONGEST: usize = 64 * 1024;

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    frame: Frame,
    title: &'static str,
    detail: String,
    is_about_the_key: bool,
}

/// Makes a page of every problem that a route answers with.
pub async fn as_page(request: Request, next: Next) -> Response {
    let base = base_of(&request);
    let response = next.run(request).await;
    let is_problem = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/problem+json");
    if !is_problem {
        return response;
    }
    let (parts, body) = response.into_parts();
    let body: Value =
        to_bytes(body, LONGEST).await.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default();
    let page = ProblemPage {
        frame: Frame { base, ..Frame::default() },
        title: title(parts.status),
        detail: body["detail"].as_str().unwrap_or("no more is known").to_owned(),
        is_about_the_key: parts.status == StatusCode::UNAUTHORIZED,
    };
    let mut response = frame::send(parts.status, &page);
    if let Some(after) = parts.headers.get(RETRY_AFTER) {
        response.headers_mut().insert(RETRY_AFTER, after.clone());
    }
    // What the gate leaves for the log.
    response.extensions_mut().extend(parts.extensions);
    response
}

fn title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "Sign in again",
        StatusCode::FORBIDDEN => "Not allowed with this key",
        StatusCode::NOT_FOUND => "Nothing here",
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => "Changed since you looked",
        StatusCode::SERVICE_UNAVAILABLE => "The store cannot be reached",
        StatusCode::TOO_MANY_REQUESTS => "Too many requests",
        StatusCode::GATEWAY_TIMEOUT => "Perhaps done, perhaps not",
        StatusCode::BAD_REQUEST => "Bad request",
        _ => "It did not work",
    }
}
