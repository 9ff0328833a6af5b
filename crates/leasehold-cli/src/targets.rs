//! Databases and buckets as the command line names them, and the guards for them.
//!
//! Promise: an address is parsed once, and nothing is touched by it; what is shown has no password. Non-promise: that it
//! parsed does not mean that it can be reached.

use leasehold_core::guard::{Adopt, Policy};
use leasehold_core::{Error, Kind, Result};
use leasehold_guards::SqliteGuard;
use leasehold_guards::sql::{Resource, SqlGuard};
use leasehold_stores::StoreUrl;
use std::sync::Arc;

/// The schemes of databases that can be guarded.
pub const SQL: &[&str] = &["sqlite", "postgres", "postgresql", "mysql", "mariadb"];
/// The schemes of buckets whose objects can be guarded.
pub const OBJECT: &[&str] = &["s3", "gs", "az"];

/// The guard of a database. A resource that is given counts more than one in the address.
pub fn database(text: &str, resource: Option<&str>, policy: Policy) -> Result<Arc<dyn SqlGuard>> {
    let allowed = "use sqlite:PATH, postgres://host/db or mysql://user@host/database, and #RESOURCE if needed";
    if !text.split_once(':').is_some_and(|(scheme, _)| SQL.contains(&scheme)) {
        return Err(Error::invalid("database", scheme_of(text), allowed));
    }
    let (address, named) = split_option(text, "resource");
    let (address, fragment) =
        address.split_once('#').map_or((address.clone(), None), |(a, f)| (a.to_owned(), Some(f.to_owned())));
    if address == "sqlite:" {
        return Err(Error::invalid("database", text, "name a file: sqlite:PATH"));
    }
    let url: StoreUrl = address.parse().map_err(|e| unusable(e, "database", allowed))?;
    let resource: Resource = match resource.map(ToOwned::to_owned).or(fragment).or(named) {
        Some(name) => name.parse()?,
        None => Resource::default(),
    };
    match (url.path(), url.address()) {
        (Some(path), _) => Ok(Arc::new(SqliteGuard::new(path, resource, policy))),
        #[cfg(feature = "full")]
        (None, Some(address)) => Ok(networked(address, resource, policy)),
        _ => Err(lean(url.scheme())),
    }
}

#[cfg(feature = "full")]
fn networked(address: &leasehold_stores::Address, resource: Resource, policy: Policy) -> Arc<dyn SqlGuard> {
    let endpoint = address.to_string();
    let address = Arc::new(address.clone());
    if address.scheme.starts_with("postgres") {
        let connect = Arc::new(move || {
            let address = address.clone();
            Box::pin(async move { leasehold_stores::postgres::connect(&address).await }) as _
        });
        return Arc::new(leasehold_guards::PostgresGuard::new(connect, endpoint, resource, policy));
    }
    let connect = Arc::new(move || {
        let address = address.clone();
        Box::pin(async move { leasehold_stores::mysql::connect(&address).await }) as _
    });
    Arc::new(leasehold_guards::MysqlGuard::new(connect, endpoint, resource, policy))
}

/// An object in a bucket, and how its body is made unique.
#[cfg(feature = "full")]
pub fn object(
    text: &str,
    salt: Option<&str>,
    content_type: Option<&str>,
    policy: Policy,
) -> Result<(leasehold_guards::ObjectGuard, String)> {
    use leasehold_guards::object::{Salt, Tags, content_type_of};
    let (address, in_address) = split_option(text, "salt");
    let allowed = "use s3://bucket/key, gs://bucket/key or az://container/key";
    let url: StoreUrl = address.parse().map_err(|e| unusable(e, "bucket's object", allowed))?;
    let Some(address) = url.address().filter(|address| OBJECT.contains(&address.scheme.as_str())) else {
        return Err(Error::invalid("object", scheme_of(text), allowed));
    };
    let key = leasehold_guards::object::key(&address.path)
        .map_err(|e| Error::new(Kind::Invalid, format!("invalid object `{address}`")).with_source(e))?;
    let kind = content_type.unwrap_or_else(|| content_type_of(&address.path)).to_owned();
    let is_plain = kind.is_ascii() && !kind.is_empty() && !kind.bytes().any(|b| b.is_ascii_control());
    if !is_plain || kind.len() > 200 {
        return Err(Error::invalid("content type", kind, "use TYPE/SUBTYPE, such as application/json"));
    }
    let tags = if address.scheme == "s3" { Tags::OfTheContent } else { Tags::OfTheWrite };
    let salt = match salt.map(ToOwned::to_owned).or(in_address) {
        Some(text) => text.parse()?,
        None if tags == Tags::OfTheWrite => Salt::None,
        None => Salt::fitting(&kind).ok_or_else(|| {
            let message = format!(
                "content of type `{kind}` on S3 needs a choice: --salt blank (or ?salt=blank) ends every body with a unique \
                 line of blanks and has no window, --salt none leaves it as it is, and a stale put can land while the \
                 content is byte for byte what its writer last saw"
            );
            Error::new(Kind::Invalid, message)
        })?,
    };
    let store = leasehold_stores::object::client(address)?;
    let guard = leasehold_guards::ObjectGuard::new(store, key, address.to_string(), tags, policy)?.salted(salt);
    Ok((guard, kind))
}

/// The guard of an object that `--guard` names.
pub fn object_guard(text: &str) -> Result<Arc<dyn Adopt>> {
    #[cfg(feature = "full")]
    return Ok(Arc::new(object(text, None, None, Policy::Reentrant)?.0));
    #[cfg(not(feature = "full"))]
    Err(lean(scheme_of(text)))
}

/// Deletes a scratch object.
pub async fn remove_object(text: &str) -> Result<()> {
    #[cfg(feature = "full")]
    return object(text, None, None, Policy::Reentrant)?.0.remove().await;
    #[cfg(not(feature = "full"))]
    Err(lean(scheme_of(text)))
}

/// The error for what this build does not have.
#[allow(dead_code, reason = "a full build has everything")]
pub fn lean(scheme: &str) -> Error {
    Error::new(Kind::Unsupported, format!("no driver for `{scheme}`: rebuild with the cargo feature `full`"))
}

/// What is wrong with an address: databases and buckets have those of stores, but not every store can be guarded.
fn unusable(error: Error, what: &str, allowed: &str) -> Error {
    Error::new(error.kind(), format!("no address of a {what}, {allowed}")).with_source(error)
}

/// Only the scheme: the rest may hold a password.
fn scheme_of(text: &str) -> &str {
    text.split_once(':').map_or(text, |(scheme, _)| scheme)
}

/// Takes one option out of an address's query.
fn split_option(text: &str, name: &str) -> (String, Option<String>) {
    let Some((base, query)) = text.split_once('?') else { return (text.to_owned(), None) };
    // A fragment goes with the address.
    let (query, fragment) = query.split_once('#').map_or((query, String::new()), |(q, f)| (q, format!("#{f}")));
    let is_meant = |field: &&str| field.split_once('=').is_some_and(|(known, _)| known == name);
    let found =
        query.split('&').find(is_meant).and_then(|field| field.split_once('=')).map(|(_, value)| value.to_owned());
    let others: Vec<&str> = query.split('&').filter(|field| !is_meant(field)).collect();
    let others = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
    (format!("{base}{others}{fragment}"), found)
}
