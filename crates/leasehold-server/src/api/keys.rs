//! Keys: made, listed, replaced and ended by those who have a key that allows `admin`.
//!
//! Promise: no key makes or replaces one that may do more than itself: its namespace, names, verbs and end are the bounds
//! ([`Caller::may_make`]). The text of a key is in one answer and nowhere else. Non-promise: making a key takes no
//! `Idempotency-Key`, because its text could not be shown a second time. A repeated request makes a second key.

use super::cursor;
use super::reading::{Params, duration, field, limit, read};
use super::values::{Mark, Time};
use crate::access::{
    Caller, KeyId, KeyRecord, Listed, Namespaces, NewKey, Rotation, Scope, Secret, VerbSet, check_patterns,
};
use crate::serve::{Json, Problem, Site};
use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use leasehold_core::{Error, Label, LeaseName, NamePattern, Timestamp, Who, Why};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The longest time for which a key may be valid, besides for ever.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The longest time for which an old key stays valid.
const LONGEST_OVERLAP: Duration = Duration::from_secs(365 * 86_400);
/// The listing that its cursors belong to.
const LISTING: [&str; 1] = ["keys"];
/// The default overlap.
const OVERLAP: Duration = Duration::from_secs(86_400);

pub(super) fn routes() -> OpenApiRouter<Site> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(rotate)).routes(routes!(revoke))
}

/// A key, without its text.
#[derive(Debug, Serialize, ToSchema)]
pub struct KeyView {
    /// Its name in `ls`, histories and logs. It is not secret.
    id: String,
    /// Its label, for people.
    label: String,
    /// `active`, `expired` or `revoked`.
    state: &'static str,
    /// The namespace that it is for; `*` is every one.
    namespace: String,
    /// The patterns of names that it is for.
    names: Vec<String>,
    /// `read`, `hold`, `work`, `operate`, `admin`, as far as it does.
    allows: Vec<&'static str>,
    /// Who made it: a key's label and id, or what `key create` was told.
    created_by: String,
    /// When it was made, by the store's clock.
    created: Time,
    /// When it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Time>,
    /// When it was last used, to the minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<Time>,
    /// Who revoked it; none if nobody did.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked: Option<Mark>,
    /// The key whose place it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    rotated_from: Option<String>,
    /// The key that takes its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    rotated_to: Option<String>,
    /// The token that it was exchanged for.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<KeyOrigin>,
}

/// The token that a key was exchanged for.
#[derive(Debug, Serialize, ToSchema)]
pub struct KeyOrigin {
    /// The `iss` of the token that it was made for.
    issuer: String,
    /// The subject of the token.
    subject: String,
}

impl KeyView {
    fn new(record: &KeyRecord, used: Option<Timestamp>, state: &'static str) -> Self {
        let revoked = record.revoked.as_ref().map(|revoked| Mark {
            by: revoked.by.to_string(),
            why: revoked.why.to_string(),
            at: revoked.at.into(),
        });
        let origin = record
            .origin
            .as_ref()
            .map(|origin| KeyOrigin { issuer: origin.issuer.clone(), subject: origin.subject.clone() });
        KeyView {
            id: record.id.to_string(),
            label: record.label.to_string(),
            state,
            namespace: record.scope.namespaces.to_string(),
            names: record.scope.names.iter().map(ToString::to_string).collect(),
            allows: record.scope.verbs.iter().map(|verb| verb.as_str()).collect(),
            created_by: record.created.by.to_string(),
            created: record.created.at.into(),
            expires: record.expires.map(Time::from),
            used: used.map(Time::from),
            revoked,
            rotated_from: record.rotated_from.as_ref().map(ToString::to_string),
            rotated_to: record.rotated_to.as_ref().map(ToString::to_string),
            origin,
        }
    }
}

/// A new key, with its secret.
#[derive(Serialize, ToSchema)]
pub struct MadeKey {
    /// The key itself. It cannot be shown again.
    key: String,
    /// What it is for, and when it ends.
    #[serde(flatten)]
    view: KeyView,
}

impl MadeKey {
    fn answer((secret, record): (Secret, KeyRecord)) -> impl IntoResponse {
        let made = MadeKey { key: secret.reveal().to_owned(), view: KeyView::new(&record, None, "active") };
        ([(CACHE_CONTROL, "no-store")], Json(made))
    }
}

/// Which keys to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// At most this many, 1 to 100; 100 by default.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// The `next` of the page before.
    cursor: Option<String>,
}

/// Keys, in the order of their ids.
#[derive(Debug, Serialize, ToSchema)]
pub struct KeyList {
    keys: Vec<KeyView>,
    /// Where the next page begins, if there may be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// The store's time.
    now: Time,
}

/// The caller, as records of keys name it.
fn who(caller: &Caller) -> Who {
    Who::lossy(&format!("{} (key {})", caller.label, caller.key), caller.key.as_str())
}

/// The keys that are for what the caller's own is for, or for less of it.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", params(Wanted),
    responses((status = 200, description = "The keys.", body = KeyList)))]
pub async fn list(
    State(site): State<Site>,
    caller: Caller,
    Params(wanted): Params<Wanted>,
) -> Result<Json<KeyList>, Problem> {
    caller.administers()?;
    let most = limit(wanted.limit, 100, 100)?;
    // Sealed, because the key at which a page ends may be outside the caller's scope.
    let after = cursor::read(&site, &LISTING, wanted.cursor.as_deref()).await?;
    let after = after.map(|id| id.as_str().parse::<KeyId>()).transpose().map_err(|_| cursor::unknown())?;
    let (found, next, now) = site.keys().keys().page(after.as_ref(), most).await?;
    // A damaged record belongs to nobody.
    let keys = found.iter().filter(|key| caller.may_end(&key.record.scope).is_ok());
    let shown = |key: &Listed| KeyView::new(&key.record, key.used, key.state.as_str());
    let next = next.map(|id| LeaseName::new(id.as_str())).transpose()?;
    let next = cursor::after(&site, &LISTING, next.as_ref()).await?;
    Ok(Json(KeyList { keys: keys.map(shown).collect(), next, now: now.into() }))
}

/// A key to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Creating {
    /// Its label, for people.
    label: String,
    /// The namespace that it is for; `*` is every one.
    namespace: String,
    /// The patterns of names that it is for: `*` stands for any characters, `?` for one. By default all names.
    names: Option<Vec<String>>,
    /// `read`, `hold`, `work`, `operate`, `admin`: one or more of these.
    allows: Vec<String>,
    /// How long it is valid, such as `30d`; by default as long as the key that makes it.
    lasts: Option<String>,
}

/// Makes a key. It may do no more than the key that makes it, and ends no later.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = Creating,
    responses((status = 200, description = "The key, which is shown once.", body = MadeKey)))]
pub async fn create(State(site): State<Site>, caller: Caller, body: Bytes) -> Result<impl IntoResponse, Problem> {
    caller.administers()?;
    let Creating { label, namespace, names, allows, lasts } = read(&body)?;
    let names = names.unwrap_or_else(|| vec!["*".to_owned()]);
    let names = names.iter().map(|name| name.parse::<NamePattern>()).collect::<Result<_, Error>>();
    let verbs = allows.iter().map(|verb| verb.parse()).collect::<Result<Vec<_>, Error>>();
    let names = names.and_then(|names: Vec<_>| check_patterns(&names).map(|()| names));
    let (names, verbs) = (field("names", names)?, VerbSet::of(field("allows", verbs)?));
    let namespaces = field("namespace", namespace.parse::<Namespaces>())?;
    let scope = Scope::new(namespaces, names, verbs)?;
    caller.may_make(&scope)?;
    let lasts = lasting(lasts)?;
    let keys = site.keys().keys();
    caller.may_last(lasts, keys.now().await?)?;
    let label = field("label", Label::named("label", label))?;
    let wanted = NewKey { label, scope, lasts, not_after: caller.expires, by: who(&caller) };
    Ok(MadeKey::answer(keys.create(wanted).await?))
}

/// Longer than 0; none is for ever.
fn lasting(text: Option<String>) -> Result<Option<Duration>, Problem> {
    match duration("lasts", text, LONGEST)? {
        Some(Duration::ZERO) => {
            Err(Problem::invalid("field `lasts`: must be longer than 0, such as 30d").with("field", "lasts"))
        }
        lasts => Ok(lasts),
    }
}

/// The id in the path.
pub struct Named(String);

impl FromRequestParts<Site> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, site: &Site) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, site).await;
        path.map(|Path(id)| Named(id)).map_err(|_| Problem::not_found("there is no such key").with("field", "id"))
    }
}

/// The key in the path, if there is one that the caller may know of.
async fn named(site: &Site, caller: &Caller, id: &str) -> Result<KeyRecord, Problem> {
    let missing = || Problem::not_found("there is no such key").with("field", "id");
    let id: KeyId = id.parse().map_err(|_| missing())?;
    let record = site.keys().keys().look(&id).await?.record.ok_or_else(missing)?;
    if caller.may_end(&record.scope).is_ok() { Ok(record) } else { Err(missing()) }
}

/// How to replace a key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rotating {
    /// How long the old one is still accepted, such as `24h`, the default; `0s`: not at all.
    overlap: Option<String>,
    /// How long the new one is valid; by default as long as the old one was, but no longer than the key that asks.
    lasts: Option<String>,
}

/// Replaces a key by a new one for the same.
#[utoipa::path(post, path = "/v1/keys/{id}/rotate", tag = "keys", request_body = Rotating,
    responses((status = 200, description = "The new key, which is shown once.", body = MadeKey)))]
pub async fn rotate(
    State(site): State<Site>,
    caller: Caller,
    Named(id): Named,
    body: Bytes,
) -> Result<impl IntoResponse, Problem> {
    caller.administers()?;
    let Rotating { overlap, lasts } = read(&body)?;
    let (overlap, lasts) = (duration("overlap", overlap, LONGEST_OVERLAP)?.unwrap_or(OVERLAP), lasting(lasts)?);
    let old = named(&site, &caller, &id).await?;
    caller.may_make(&old.scope)?;
    let keys = site.keys().keys();
    caller.may_last(lasts, keys.now().await?)?;
    let rotation = Rotation { overlap, lasts, not_after: caller.expires, by: who(&caller) };
    Ok(MadeKey::answer(keys.rotate(&old.id, &rotation).await?))
}

/// The reason for ending a key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Revoking {
    /// For its record, in one line.
    why: String,
}

/// Ends a key, on every server within 5 s. Repeating it changes nothing.
#[utoipa::path(post, path = "/v1/keys/{id}/revoke", tag = "keys", request_body = Revoking,
    responses((status = 200, description = "It is no longer accepted.", body = KeyView)))]
pub async fn revoke(
    State(site): State<Site>,
    caller: Caller,
    Named(id): Named,
    body: Bytes,
) -> Result<Json<KeyView>, Problem> {
    caller.administers()?;
    let Revoking { why } = read(&body)?;
    let why = field("why", Why::named("why", why))?;
    let old = named(&site, &caller, &id).await?;
    let record = site.keys().keys().revoke(&old.id, &who(&caller), &why).await?;
    Ok(Json(KeyView::new(&record, None, "revoked")))
}
