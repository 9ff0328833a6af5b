//! Who visits: from the cookie to the key, and what a handler needs to answer.

use super::form::{Fields, in_query};
use super::frame::Frame;
use super::notice;
use super::subject::path_of;
use crate::access::seal::Seal;
use crate::access::{Caller, Namespaces, Verb};
use crate::api::cursor::Beginnings;
use crate::api::trigger::ask_for_run;
use crate::serve::{In, Problem, Site};
use axum::extract::{FromRequestParts, OriginalUri, Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use leasehold_core::{Coordinator, LeaseName, Who};
use leasehold_stores::Namespace;
use leasehold_work::schedule::requests::{NewRequest, Requested};

/// The cookie of a session.
pub const SESSION: &str = "leasehold_session";
/// The cookie of whoever is about to sign in.
pub const VISITOR: &str = "leasehold_visitor";
/// The cookie of whoever had a session and did not sign out. It outlives the session, so that its end can be told.
pub const KNOWN: &str = "leasehold_known";

/// Puts the key of a session where the gate looks for one. Without a session, shows the way in.
///
/// Only the cookie counts here: a page is for browsers, and other programs have an API.
pub async fn by_cookie(State(site): State<Site>, mut request: Request, next: Next) -> Response {
    if let Err(problem) = same_origin(request.method(), request.headers()) {
        return problem.into_response();
    }
    let seal = match site.seal().await {
        Ok(seal) => seal,
        Err(error) => return Problem::from(error).into_response(),
    };
    let key = match cookie(request.headers(), SESSION) {
        None => None,
        Some(cookie) => match site.keys().now().await {
            Ok(now) => seal.open(cookie, now),
            Err(error) => return Problem::from(error).into_response(),
        },
    };
    let header = key.and_then(|key| HeaderValue::from_str(&format!("Bearer {key}")).ok());
    let Some(mut header) = header else {
        return if request.method() == Method::GET {
            let page = request.uri().path_and_query().map_or("/", |page| page.as_str());
            Redirect::to(&format!("{}?next={}", home(&base_of(&request)), in_query(page))).into_response()
        } else {
            let detail = "your session has ended, or this browser has none; nothing was done. Sign in, and repeat it";
            Problem::new(StatusCode::UNAUTHORIZED, "session_ended", detail).into_response()
        };
    };
    header.set_sensitive(true);
    request.headers_mut().insert(AUTHORIZATION, header);
    next.run(request).await
}

/// Refuses a form of another site before anything of it is read.
pub async fn from_own_site(request: Request, next: Next) -> Response {
    match same_origin(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn home(base: &str) -> &str {
    if base.is_empty() { "/" } else { base }
}

/// Refuses what another site makes a browser send. Forms carry a token besides.
fn same_origin(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    // Browsers say it themselves to servers that they trust, whatever a proxy makes of the host.
    let is_same = match text(HeaderName::from_static("sec-fetch-site")) {
        Some(site) => site == "same-origin",
        None => is_own_origin(&text),
    };
    if is_same {
        return Ok(());
    }
    Err(Problem::invalid("this form was not sent from this site; reload the page and try again"))
}

fn is_own_origin<'a>(text: &impl Fn(HeaderName) -> Option<&'a str>) -> bool {
    let origin = text(ORIGIN).and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    origin.is_some() && origin == text(HOST)
}

/// Whether the browser speaks TLS, to this server or to a proxy before it.
pub fn is_secure(headers: &HeaderMap) -> bool {
    headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

/// The value of a cookie.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// What every path begins with: what the router took off.
pub fn base_of(request: &Request) -> String {
    prefix(request.extensions().get::<OriginalUri>().map(|original| &original.0), request.uri())
}

/// The part of the original path that the router took off.
pub fn prefix(original: Option<&Uri>, inner: &Uri) -> String {
    let Some(original) = original.map(Uri::path) else { return String::new() };
    // The front page below a prefix is the prefix itself, without a slash at its end.
    let own = if inner.path() == "/" { "" } else { inner.path() };
    original.strip_suffix(own).unwrap_or_default().trim_end_matches('/').to_owned()
}

/// What a page has around it for this caller.
pub fn frame_for(caller: &Caller, base: String, namespace: Option<&Namespace>, token: String) -> Frame {
    let names: Vec<String> = caller.scope().names.iter().map(ToString::to_string).collect();
    Frame {
        base,
        namespace: namespace.map(|namespace| namespace.as_str().to_owned()),
        who: Some((caller.label.to_string(), caller.key.to_string())),
        token,
        roams: caller.scope().namespaces == Namespaces::All,
        about: None,
        narrow: (!names.iter().any(|name| name == "*")).then(|| names.join(", ")),
    }
}

/// The same for whoever has this session, as far as can be told: for pages that say what went wrong. `path` says the namespace.
pub async fn frame_around(site: &Site, session: &str, base: String, path: &str) -> Frame {
    let bare = Frame { base: base.clone(), ..Frame::default() };
    let (Ok(seal), Ok(now)) = (site.seal().await, site.keys().now().await) else { return bare };
    let Some(key) = seal.open(session, now) else { return bare };
    let Ok(caller) = site.keys().caller(Some(&key)).await else { return bare };
    let named =
        path.strip_prefix("/ns/").and_then(|rest| rest.split('/').next()).and_then(|name| Namespace::new(name).ok());
    let namespace = match &caller.scope().namespaces {
        Namespaces::One(own) => Some(own.clone()),
        Namespaces::All => named.filter(|namespace| caller.enters(namespace).is_ok()),
    };
    frame_for(&caller, base, namespace.as_ref(), seal.token(session))
}

/// A request for a page of a namespace, by somebody who may enter it.
#[derive(Debug)]
pub struct Visit {
    /// Whose key it is.
    pub caller: Caller,
    /// The namespace in the path, which the key is for.
    pub namespace: Namespace,
    /// The store of that namespace, for what is done within the request.
    pub coordinator: Coordinator,
    /// What the page has around it.
    pub frame: Frame,
    /// What the visitor was to be told on this page, once.
    pub noticed: Fields,
    /// The session's cookie, to which tokens of forms belong.
    cookie: String,
    /// The address of the page, of which a place in its listing is.
    path: String,
    site: Site,
}

impl Visit {
    /// Refuses if the caller may not look at this name.
    pub fn reads(&self, name: &str) -> Result<(), Problem> {
        Ok(self.caller.may(Verb::Read, &self.namespace, Some(name))?)
    }

    /// What the names begin with that are shown in listings.
    pub fn reach(&self) -> Beginnings {
        Beginnings::of(self.caller.scope())
    }

    /// Whether a name of a listing is shown.
    pub fn sees(&self, name: &str) -> bool {
        self.caller.sees(&self.namespace, name)
    }

    /// The store, as those who wait have it: for a task that outlives the request.
    pub async fn coordinator_of_waiter(&self) -> Result<Coordinator, Problem> {
        Ok(self.site.coordinator_of_waiter(&self.namespace).await?)
    }

    /// Whether the caller may give orders about this name.
    pub fn operates(&self, name: &str) -> bool {
        self.caller.may(Verb::Operate, &self.namespace, Some(name)).is_ok()
    }

    /// Who gives an order, for histories.
    pub fn who(&self) -> Who {
        let Caller { label, key, .. } = &self.caller;
        Who::lossy(&format!("{label} (key {key})"), key.as_str())
    }

    /// Asks the schedulers for a run.
    pub async fn ask_for_run(&self, new: NewRequest) -> Result<Requested, Problem> {
        ask_for_run(&self.site, &self.namespace, &self.coordinator, new).await
    }

    /// The name that a page's listing continues after.
    pub async fn after(&self, fields: &Fields) -> Result<Option<LeaseName>, Problem> {
        let seal = self.seal().await?;
        Ok(fields.get("after").and_then(|cursor| seal.after(&["page", &self.path], cursor)))
    }

    /// The same for an address: the name may be one that the visitor is not to know.
    pub async fn cursor(&self, after: Option<&LeaseName>) -> Result<Option<String>, Problem> {
        let Some(name) = after else { return Ok(None) };
        Ok(Some(self.seal().await?.cursor(&["page", &self.path], name)?))
    }

    /// The seal of sessions.
    pub async fn seal(&self) -> Result<&Seal, Problem> {
        Ok(self.site.seal().await?)
    }

    /// Refuses a form without the token of this session.
    pub async fn check(&self, token: &str) -> Result<(), Problem> {
        if self.seal().await?.is_token(&self.cookie, token) {
            return Ok(());
        }
        Err(Problem::from(leasehold_core::Error::invalid(
            "form",
            "its token",
            "it is not of this session; open the page again and repeat it there. Nothing was done",
        )))
    }
}

impl FromRequestParts<Site> for Visit {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, site: &Site) -> Result<Self, Problem> {
        let In(namespace) = In::from_request_parts(parts, site).await?;
        let caller = Caller::from_request_parts(parts, site).await?;
        caller.enters(&namespace)?;
        if !caller.scope().verbs.has(Verb::Read) {
            // An empty page would say that nothing is there.
            caller.may(Verb::Read, &namespace, None)?;
        }
        let cookie = cookie(&parts.headers, SESSION).unwrap_or_default().to_owned();
        let coordinator = site.coordinator(&namespace).await?;
        let base = prefix(parts.extensions.get::<OriginalUri>().map(|original| &original.0), &parts.uri);
        let token = site.seal().await?.token(&cookie);
        let frame = Frame { about: path_of(parts.uri.path()), ..frame_for(&caller, base, Some(&namespace), token) };
        let noticed = notice::told(&parts.headers);
        let path = parts.uri.path().to_owned();
        Ok(Visit { caller, namespace, coordinator, frame, noticed, cookie, path, site: site.clone() })
    }
}
