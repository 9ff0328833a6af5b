//! Style and script, compiled into the binary.

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use ring::digest::{SHA256, digest};
use std::fmt::Write;
use std::sync::OnceLock;

const STYLE: &str = include_str!("../../assets/page.css");
const SCRIPT: &str = include_str!("../../assets/page.js");
/// Idiomorph 0.8.0, as npm has it; its licence is beside it.
const MORPH: &str = include_str!("../../assets/idiomorph.esm.js");
const ICON: &str = include_str!("../../assets/icon.svg");

/// A short digest of all of them: the address of each changes when any does.
pub fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let all = digest(&SHA256, [STYLE, SCRIPT, MORPH, ICON].concat().as_bytes());
        all.as_ref().iter().take(6).fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    })
}

/// Answers with one asset.
pub async fn one(Path((asked, file)): Path<(String, String)>) -> Response {
    let (kind, text) = match file.as_str() {
        "page.css" => ("text/css; charset=utf-8", STYLE),
        "page.js" => ("text/javascript; charset=utf-8", SCRIPT),
        "idiomorph.esm.js" => ("text/javascript; charset=utf-8", MORPH),
        "icon.svg" => ("image/svg+xml", ICON),
        _ => return crate::serve::Problem::not_found("there is no such file").into_response(),
    };
    // Another version's address is answered too, and not kept: servers are replaced one after the other.
    let keep = if asked == version() { "public, max-age=31536000, immutable" } else { "no-store" };
    let set = |name: HeaderName, value| (name, HeaderValue::from_static(value));
    ([set(CONTENT_TYPE, kind), set(CACHE_CONTROL, keep), set(X_CONTENT_TYPE_OPTIONS, "nosniff")], text).into_response()
}
