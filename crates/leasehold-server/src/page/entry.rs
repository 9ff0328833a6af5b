//! The way in, and the way out.

use super::form::Fields;
use super::frame::{self, Frame};
use super::visit::{KNOWN, SESSION, VISITOR, Visit, cookie, frame_for, is_secure, prefix};
use crate::access::seal::{LASTS, random_text};
use crate::access::{Caller, Denied, Namespaces, Refused, Verb};
use crate::serve::{Problem, Site};
use askama::Template;
use axum::body::Bytes;
use axum::extract::{OriginalUri, RawQuery, State};
use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use leasehold_stores::Namespace;
use std::time::Duration;

/// How long it is told that a session has ended.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Template)]
#[template(path = "sign-in.html")]
struct SignIn {
    frame: Frame,
    next: String,
    /// Why the last attempt failed.
    refused: Option<String>,
    /// Whether there was a session before, which has ended by itself.
    has_ended: bool,
}

#[derive(Template)]
#[template(path = "namespaces.html")]
struct ChooseNamespace {
    frame: Frame,
    default: String,
    /// Why what was entered is none.
    refused: Option<String>,
}

/// Signed-in visitors continue; others are asked for their key.
pub async fn home(
    State(site): State<Site>,
    OriginalUri(original): OriginalUri,
    inner: Uri,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let fields = Fields::of_query(query.as_deref());
    let base = prefix(Some(&original), &inner);
    let seal = site.seal().await?;
    let session = cookie(&headers, SESSION).unwrap_or_default();
    let key = if session.is_empty() { None } else { seal.open(session, site.keys().now().await?) };
    let refused = match key {
        None => None,
        Some(key) => match site.keys().caller(Some(&key)).await {
            Ok(caller) => {
                let frame = frame_for(&caller, base.clone(), None, seal.token(session));
                return Ok(inside(&caller, frame, &fields));
            }
            Err(Refused::Denied(denied)) => Some(denied.to_string()),
            Err(refused) => return Err(refused.into()),
        },
    };
    let known = cookie(&headers, VISITOR).filter(|text| text.len() > 20).map(str::to_owned);
    let visitor = known.clone().unwrap_or_else(random_text);
    let frame = Frame { base: base.clone(), token: seal.token(&visitor), ..Frame::default() };
    let has_ended = refused.is_none() && cookie(&headers, KNOWN).is_some_and(|known| !known.is_empty());
    let page = SignIn { frame, next: next(&fields), refused, has_ended };
    let mut response = frame::send(StatusCode::OK, &page);
    if known.is_none() {
        set_cookie(&mut response, VISITOR, &visitor, &base, "")?;
    }
    Ok(response)
}

/// Where somebody who is signed in goes from the front page.
fn inside(caller: &Caller, frame: Frame, fields: &Fields) -> Response {
    let entered = fields.get("namespace");
    let (namespace, refused) = match (&caller.scope().namespaces, entered.map(|text| Namespace::new(text)?.to_use())) {
        (Namespaces::One(own), _) => (Some(own.clone()), None),
        (Namespaces::All, None) => (None, None),
        (Namespaces::All, Some(Ok(chosen))) => (Some(chosen), None),
        (Namespaces::All, Some(Err(error))) => (None, Some(error.to_string())),
    };
    match namespace {
        Some(namespace) => Redirect::to(&format!("{}/ns/{namespace}/leases", frame.base)).into_response(),
        None => {
            let default = entered.unwrap_or(Namespace::default().as_str()).to_owned();
            let status = if refused.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
            frame::send(status, &ChooseNamespace { frame, default, refused })
        }
    }
}

/// A visitor with only the form's address is sent to the front page.
pub async fn to_home(OriginalUri(original): OriginalUri, inner: Uri) -> Redirect {
    let base = prefix(Some(&original), &inner);
    Redirect::to(if base.is_empty() { "/" } else { &base })
}

/// A namespace begins with its leases.
pub async fn namespace(visit: Visit) -> Redirect {
    Redirect::to(&visit.frame.to("leases"))
}

/// Takes a key, and gives a session for it.
pub async fn sign_in(
    State(site): State<Site>,
    OriginalUri(original): OriginalUri,
    inner: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let (base, fields) = (prefix(Some(&original), &inner), Fields::of_body(&body)?);
    let seal = site.seal().await?;
    let visitor = cookie(&headers, VISITOR).unwrap_or_default();
    let page = |refused: String| {
        let frame = Frame { base: base.clone(), token: seal.token(visitor), ..Frame::default() };
        SignIn { frame, next: next(&fields), refused: Some(refused), has_ended: false }
    };
    if visitor.is_empty() || !seal.is_token(visitor, fields.get("token").unwrap_or_default()) {
        let why = if headers.contains_key(COOKIE) { "this form is too old" } else { "your browser keeps no cookies" };
        let detail = format!("{why}; open the page again and enter the key there");
        return Ok(frame::send(StatusCode::BAD_REQUEST, &page(detail)));
    }
    let key = fields.get("key");
    match site.keys().caller(key).await {
        // It would see nothing but refusals.
        Ok(caller) if !caller.scope().verbs.has(Verb::Read) => {
            let detail = "this key does not allow `read`; the page needs it".to_owned();
            return Ok(frame::send(StatusCode::FORBIDDEN, &page(detail)));
        }
        Ok(_) => {}
        Err(Refused::Denied(Denied::Missing)) => {
            return Ok(frame::send(StatusCode::UNAUTHORIZED, &page("enter a key".to_owned())));
        }
        Err(Refused::Denied(denied)) => return Ok(frame::send(StatusCode::UNAUTHORIZED, &page(denied.to_string()))),
        Err(refused) => return Err(refused.into()),
    }
    let session = seal.close(key.unwrap_or_default(), site.keys().now().await?)?;
    let next = format!("{base}{}", next(&fields));
    // The front page below a prefix has no slash at its end.
    let next = if base.is_empty() { next.as_str() } else { next.trim_end_matches('/') };
    let mut response = Redirect::to(next).into_response();
    let secure = if is_secure(&headers) { "; Secure" } else { "" };
    set_cookie(&mut response, SESSION, &session, &base, &format!("; Max-Age={}{secure}", LASTS.as_secs()))?;
    set_cookie(&mut response, KNOWN, "yes", &base, &format!("; Max-Age={}{secure}", REMEMBERED.as_secs()))?;
    Ok(response)
}

/// Makes the browser forget the session.
pub async fn sign_out(
    State(site): State<Site>,
    OriginalUri(original): OriginalUri,
    inner: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let seal = site.seal().await?;
    let session = cookie(&headers, SESSION).unwrap_or_default();
    let base = prefix(Some(&original), &inner);
    let mut response = Redirect::to(if base.is_empty() { "/" } else { &base }).into_response();
    if seal.is_token(session, Fields::of_body(&body)?.get("token").unwrap_or_default()) {
        set_cookie(&mut response, SESSION, "", &base, "; Max-Age=0")?;
        set_cookie(&mut response, KNOWN, "", &base, "; Max-Age=0")?;
    }
    Ok(response)
}

/// Where to go after signing in: a page of ours, whatever the address says.
fn next(fields: &Fields) -> String {
    let is_ours = |path: &&str| {
        path.starts_with("/ns/") && path.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '\\' | '"' | '<' | '>'))
    };
    fields.get("next").filter(is_ours).unwrap_or("/").to_owned()
}

fn set_cookie(response: &mut Response, name: &str, value: &str, base: &str, more: &str) -> Result<(), Problem> {
    let path = if base.is_empty() { "/" } else { base };
    let text = format!("{name}={value}; Path={path}; HttpOnly; SameSite=Strict{more}");
    let value = HeaderValue::from_str(&text)
        .map_err(|_| Problem::invalid("the cookie contains a character that is not allowed"))?;
    response.headers_mut().append(SET_COOKIE, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_elsewhere_after_signing_in() {
        let next = |text: &str| next(&Fields::of_query(Some(&format!("next={}", super::super::form::in_query(text)))));
        assert_eq!(next("/ns/default/lease/a?x=1"), "/ns/default/lease/a?x=1");
        for wrong in ["https://other", "//other", "/\\other", "javascript:x", "/nsx", "/ns/a\r\nx: y", "/ns/\"x"] {
            assert_eq!(next(wrong), "/", "{wrong}");
        }
    }
}
