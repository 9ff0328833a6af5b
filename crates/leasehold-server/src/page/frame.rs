//! What every page has around it, and how a page is sent.

use super::assets;
use crate::serve::Problem;
use askama::Template;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

/// Only what this server sends is run, shown or asked.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What every page has around it.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    /// What every path begins with: empty, or a prefix.
    pub base: String,
    /// The namespace, if the page is of one.
    pub namespace: Option<String>,
    /// What the page is about, as the stream of changes takes it.
    pub about: Option<String>,
    /// Who is signed in: the key's label and id.
    pub who: Option<(String, String)>,
    /// The token of forms.
    pub token: String,
    /// Whether there are other namespaces to go to.
    pub roams: bool,
    /// The names that the key is for, if these are not all.
    pub narrow: Option<String>,
}

impl Frame {
    /// Where a file of ours is.
    pub fn asset(&self, file: &str) -> String {
        format!("{}/assets/{}/{file}", self.base, assets::version())
    }

    /// Where the front page is.
    pub fn home(&self) -> &str {
        if self.base.is_empty() { "/" } else { &self.base }
    }

    /// Where the logo leads: to the leases of this namespace.
    pub fn start(&self) -> String {
        if self.namespace.is_some() { self.to("leases") } else { self.home().to_owned() }
    }

    /// Where a page of this namespace is.
    pub fn to(&self, page: impl std::fmt::Display) -> String {
        format!("{}/ns/{}/{page}", self.base, self.namespace.as_deref().unwrap_or_default())
    }
}

/// Sends a page.
pub fn send(status: StatusCode, page: &impl Template) -> Response {
    let html = match page.render() {
        Ok(html) => html,
        Err(error) => {
            let detail = format!("the page could not be made: {error}");
            return Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail).into_response();
        }
    };
    let set = |name: HeaderName, value| (name, HeaderValue::from_static(value));
    let headers = [
        set(CONTENT_TYPE, "text/html; charset=utf-8"),
        set(CACHE_CONTROL, "no-store"),
        set(HeaderName::from_static("content-security-policy"), POLICY),
        set(HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        // Not `no-referrer`: forms would be sent without an origin to check.
        set(REFERRER_POLICY, "same-origin"),
        set(X_CONTENT_TYPE_OPTIONS, "nosniff"),
        set(X_FRAME_OPTIONS, "DENY"),
    ];
    (status, headers, html).into_response()
}
