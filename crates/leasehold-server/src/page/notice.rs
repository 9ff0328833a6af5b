//! Problems as pages, for those who look with a browser, and what somebody is told once.

use super::form::{Fields, in_query};
use super::frame::{self, Frame};
use super::visit::{SESSION, base_of, cookie, frame_around};
use crate::serve::{Problem, Site};
use askama::Template;
use axum::body::to_bytes;
use axum::extract::{OriginalUri, Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use leasehold_core::Kind;
use serde_json::Value;

/// More than any problem has.
const LONGEST: usize = 64 * 1024;

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    frame: Frame,
    title: &'static str,
    detail: String,
    /// Where to sign in and come back to this page, if the problem is about the key.
    sign_in: Option<String>,
}

/// What somebody is to be told on the page where an order leads. Its browser keeps it until that page is opened, and no longer:
/// an address would tell it again to everybody who opens it.
const NOTICE: &str = "leasehold_notice";

/// Leads to a page of ours, and tells this there once.
pub fn and_tell(address: &str, told: &str) -> Response {
    let mut response = Redirect::to(address).into_response();
    let cookie = format!("{NOTICE}={told}; Path={address}; Max-Age=60; HttpOnly; SameSite=Strict");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

/// What is to be told on the page that is opened by this request.
pub fn told(headers: &HeaderMap) -> Fields {
    // A tab that only keeps itself current shows no notice, and leaves it to the one that was led here.
    let is_opened = headers.get("sec-fetch-dest").is_none_or(|wanted| wanted == "document");
    Fields::of_query(cookie(headers, NOTICE).filter(|_| is_opened))
}

/// Makes a page of every problem that a route answers with, and ends a notice that was shown.
pub async fn as_page(State(site): State<Site>, request: Request, next: Next) -> Response {
    let around = Around::of(&request);
    let is_told = request.method() == Method::GET && told(request.headers()).get("done").is_some();
    let original = request.extensions().get::<OriginalUri>().map_or(request.uri(), |original| &original.0);
    let path = original.path().to_owned();
    let response = next.run(request).await;
    let is_problem = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/problem+json");
    let mut response = if is_problem { around.dress(&site, response).await } else { response };
    if is_told && let Ok(end) = HeaderValue::from_str(&format!("{NOTICE}=; Path={path}; Max-Age=0")) {
        response.headers_mut().append(SET_COOKIE, end);
    }
    response
}

/// Whether a browser wants a page.
fn wants_a_page(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|text| text.split(',')).any(|kind| kind.trim_start().starts_with("text/html"))
}

/// The answer where nothing is: a page for browsers, and a problem for programs.
pub async fn nothing(site: &Site, request: Request, problem: Problem) -> Response {
    answer(site, request, problem, Problem::not_found("there is no page at this address")).await
}

/// The answer where something is, but not for this method: whoever opens the address of a form, such as `/sign-out`.
pub async fn not_allowed(site: &Site, request: Request, problem: Problem) -> Response {
    let for_people = Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "this address takes a form, and has no page to show",
    );
    answer(site, request, problem, for_people).await
}

/// One problem as it is, for programs, and another as a page for browsers.
async fn answer(site: &Site, request: Request, for_programs: Problem, for_people: Problem) -> Response {
    if !wants_a_page(request.headers()) {
        return for_programs.into_response();
    }
    let around = Around::of(&request);
    around.dress(site, for_people.into_response()).await
}

/// What of a request says what its page has around it.
struct Around {
    session: String,
    base: String,
    path: String,
    /// The page that somebody is on, for after signing in.
    page: String,
}

impl Around {
    fn of(request: &Request) -> Self {
        let path = request.uri().path();
        let page = match *request.method() {
            Method::GET => request.uri().path_and_query().map_or(path, |page| page.as_str()),
            // Orders are sent to the page that they are about; this one has a form of its own, that needs a query.
            _ => path.strip_suffix("/dead-letters").unwrap_or(path),
        };
        Around {
            page: page.to_owned(),
            session: cookie(request.headers(), SESSION).unwrap_or_default().to_owned(),
            base: base_of(request),
            path: path.to_owned(),
        }
    }

    fn sign_in(&self) -> String {
        let home = if self.base.is_empty() { "/" } else { &self.base };
        format!("{home}?next={}", in_query(&self.page))
    }

    /// Makes a page of a problem.
    async fn dress(&self, site: &Site, response: Response) -> Response {
        let (parts, body) = response.into_parts();
        let body: Value =
            to_bytes(body, LONGEST).await.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default();
        let page = ProblemPage {
            frame: frame_around(site, &self.session, self.base.clone(), &self.path).await,
            title: title(parts.status, body["kind"].as_str().unwrap_or_default()),
            detail: body["detail"].as_str().unwrap_or("no more is known").to_owned(),
            sign_in: (parts.status == StatusCode::UNAUTHORIZED).then(|| self.sign_in()),
        };
        let mut response = frame::send(parts.status, &page);
        if let Some(after) = parts.headers.get(RETRY_AFTER) {
            response.headers_mut().insert(RETRY_AFTER, after.clone());
        }
        // What the gate leaves for the log.
        response.extensions_mut().extend(parts.extensions);
        response
    }
}

/// What a problem is called.
fn title(status: StatusCode, kind: &str) -> &'static str {
    match status {
        _ if kind == "session_ended" => "Your session has ended",
        StatusCode::SERVICE_UNAVAILABLE if kind == "overloaded" => "Too much to do at the moment",
        StatusCode::SERVICE_UNAVAILABLE if kind == "ending" => "This server is ending",
        StatusCode::SERVICE_UNAVAILABLE if kind == Kind::Contended.as_str() => "Others were faster each time",
        StatusCode::UNAUTHORIZED => "Sign in again",
        StatusCode::FORBIDDEN => "Not allowed with this key",
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => "Nothing here",
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => "Changed since you looked",
        StatusCode::SERVICE_UNAVAILABLE => "The store cannot be reached",
        StatusCode::TOO_MANY_REQUESTS => "Too many requests",
        StatusCode::GATEWAY_TIMEOUT => "Perhaps done, perhaps not",
        StatusCode::BAD_REQUEST => "Bad request",
        _ => "It did not work",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_busy_or_ends_does_not_blame_the_store() {
        let title = |kind: &str| title(StatusCode::SERVICE_UNAVAILABLE, kind);
        assert_eq!(title("unavailable"), "The store cannot be reached");
        for kind in ["overloaded", "ending", "contended"] {
            assert!(!title(kind).contains("store"), "{kind}");
        }
    }
}
