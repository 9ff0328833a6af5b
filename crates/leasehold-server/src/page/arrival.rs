//! Somebody who follows a link of another site, such as a chat or a mail.
//!
//! A session's cookie is `SameSite=Strict`: a browser does not send it when another site leads here, so that no other site can make
//! it do anything. Whoever has a session would be asked for the key again. So the answer is a page that opens the same address once
//! more, from here.
//!
//! Promise: never in a loop. A cookie that such a browser does send says that it was here, and is ended by the next request.
//! Non-promise: browsers tell where somebody comes from over TLS and on this machine only; over plain HTTP from another machine
//! they are asked for the key.

use super::frame::{self, Frame};
use super::visit::{SESSION, base_of, cookie};
use askama::Template;
use axum::extract::Request;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

/// The cookie of a browser that was told to open the address again.
const ARRIVED: &str = "leasehold_arrived";

#[derive(Template)]
#[template(path = "arrival.html")]
struct Arrival {
    frame: Frame,
}

/// Lets those who come from another site open the address again from this one.
pub async fn from_elsewhere(request: Request, next: Next) -> Response {
    let (base, was_here) = (base_of(&request), has(request.headers(), ARRIVED));
    if !was_here && is_link(request.method(), request.headers()) && !has(request.headers(), SESSION) {
        let page = Arrival { frame: Frame { base: base.clone(), ..Frame::default() } };
        let mut response = frame::send(StatusCode::OK, &page);
        mark(&mut response, &base, "yes; Max-Age=10");
        return response;
    }
    let mut response = next.run(request).await;
    if was_here {
        mark(&mut response, &base, "; Max-Age=0");
    }
    response
}

fn has(headers: &HeaderMap, name: &str) -> bool {
    cookie(headers, name).is_some_and(|value| !value.is_empty())
}

/// Whether somebody follows a link of another site.
fn is_link(method: &Method, headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
    *method == Method::GET
        && is("sec-fetch-site", "cross-site")
        && is("sec-fetch-mode", "navigate")
        && is("sec-fetch-dest", "document")
}

fn mark(response: &mut Response, base: &str, value: &str) {
    let path = if base.is_empty() { "/" } else { base };
    // The one cookie that is sent with a link of another site. It says nothing about anybody.
    let cookie = format!("{ARRIVED}={value}; Path={path}; HttpOnly; SameSite=Lax");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
}
