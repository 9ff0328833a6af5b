//! `key`: who may use the server, and for what. It opens the store itself, or asks the server if that is the store: then the key
//! that asks must allow `admin`, and can make none that may do more than itself.

mod shown;

use super::operate::by;
use crate::args::{KeyArgs, KeyCreate, KeyExchange, KeyRevoke, KeyRotate, KeyVerb};
use crate::config::{blame_flag, duration_of};
use crate::context::{Context, open_store};
use crate::exit::Exit;
use crate::output;
use crate::table::Column::{self, Extra, State, Text, Whole};
use crate::table::table;
use leasehold_core::{Error, Kind, Label, Result, Timestamp, Why, format_duration, secret};
use leasehold_server::access::{KeyId, Keys, Namespaces, NewKey, Rotation, Scope};
use leasehold_stores::Namespace;
use leasehold_stores::remote::RemoteKeys;
use serde_json::{Value, json};
use shown::Shown;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Where a token is looked for that no flag names; also with `_FILE`.
const TOKEN: &str = "LEASEHOLD_OIDC_TOKEN";
/// What is read of a file: more than any server takes.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

const COLUMNS: [Column; 9] = [
    Whole("ID"),
    Text("LABEL"),
    State("STATE"),
    Text("NAMESPACE"),
    Text("NAMES"),
    Text("ALLOWS"),
    Extra("CREATED"),
    Whole("EXPIRES"),
    Whole("USED"),
];

pub async fn key(context: &Context, args: KeyArgs) -> Result<Exit> {
    match args.verb {
        KeyVerb::Create(args) => create(context, &args).await,
        KeyVerb::Ls => ls(context).await,
        KeyVerb::Rotate(args) => rotate(context, &args).await,
        KeyVerb::Revoke(args) => revoke(context, &args).await,
        KeyVerb::Exchange(args) => exchange(context, &args).await,
    }
}

/// The records of keys in the store that the settings name.
pub async fn keys(context: &Context) -> Result<Keys> {
    let url = context.settings()?.store.value.in_namespace(Namespace::server());
    Ok(Keys::new(open_store(&url).await?.store().clone()))
}

/// The keys of the server that is the store, if it is one.
fn served(context: &Context) -> Result<Option<RemoteKeys>> {
    RemoteKeys::of(&context.settings()?.store.value)
}

/// A server knows who asks by the key.
fn unsigned(by: Option<&str>) -> Result<()> {
    match by {
        None => Ok(()),
        Some(by) => Err(Error::invalid("--by", by, "a server names the key that asks; leave it out")),
    }
}

async fn create(context: &Context, args: &KeyCreate) -> Result<Exit> {
    let own = || Ok(Namespaces::One(context.settings()?.store.value.namespace().clone()));
    let named = |text: &str| text.parse().map_err(|e| blame_flag(e, "--namespace"));
    let namespaces = args.namespace.as_deref().map_or_else(own, named)?;
    let pattern = |text: &str| text.parse().map_err(|e| blame_flag(e, "--name"));
    let names = if args.name.is_empty() { vec!["*"] } else { args.name.iter().map(String::as_str).collect() };
    let names = names.into_iter().map(pattern).collect::<Result<_>>()?;
    let verbs = args.allow.parse().map_err(|e| blame_flag(e, "--allow"))?;
    let (label, scope) = (Label::named("--label", &*args.label)?, Scope::new(namespaces, names, verbs)?);
    let lasts = lasting("--expires", args.expires.as_deref())?;
    if let Some(server) = served(context)? {
        unsigned(args.by.as_deref())?;
        let wanted = json!({
            "label": label.as_str(),
            "namespace": scope.namespaces.to_string(),
            "names": scope.names.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "allows": scope.verbs.iter().map(|verb| verb.as_str()).collect::<Vec<_>>(),
            "lasts": lasts.map(format_duration),
        });
        return show(context, &Shown::answered(&server.change("", &wanted).await?)?);
    }
    let wanted = NewKey { label, scope, lasts, not_after: None, by: by(args.by.as_deref())? };
    let (secret, record) = keys(context).await?.create(wanted).await?;
    show(context, &Shown::new(&record, None, "active").with_key(&secret))
}

async fn rotate(context: &Context, args: &KeyRotate) -> Result<Exit> {
    let id: KeyId = args.id.parse()?;
    let overlap = duration_of("--overlap", Some(&args.overlap))?.unwrap_or_default();
    let lasts = lasting("--expires", args.expires.as_deref())?;
    if let Some(server) = served(context)? {
        unsigned(args.by.as_deref())?;
        let asked = json!({ "overlap": format_duration(overlap), "lasts": lasts.map(format_duration) });
        return show(context, &Shown::answered(&server.change(&format!("/{id}/rotate"), &asked).await?)?);
    }
    let rotation = Rotation { overlap, lasts, not_after: None, by: by(args.by.as_deref())? };
    let (secret, record) = keys(context).await?.rotate(&id, &rotation).await?;
    show(context, &Shown::new(&record, None, "active").with_key(&secret))
}

async fn revoke(context: &Context, args: &KeyRevoke) -> Result<Exit> {
    let id: KeyId = args.id.parse()?;
    let why = Why::named("--why", &*args.why)?;
    let ended = match served(context)? {
        Some(server) => {
            unsigned(args.by.as_deref())?;
            let asked = json!({ "why": why.as_str() });
            Shown::answered(&server.change(&format!("/{id}/revoke"), &asked).await?)?
        }
        None => {
            let record = keys(context).await?.revoke(&id, &by(args.by.as_deref())?, &why).await?;
            Shown::new(&record, None, "revoked")
        }
    };
    // Who revoked it before, and why, stays as it is.
    let told = match ended.revoked().filter(|(_, earlier)| *earlier != why.as_str()) {
        Some((by, earlier)) => {
            format!("key {id} ({}) was revoked before, by {by}: {earlier}; nothing changed\n", ended.label())
        }
        None => format!("revoked key {id} ({}); servers refuse it within 5s\n", ended.label()),
    };
    context.print(|| ended.json(), || told)
}

/// Asks the server that is the store, which alone knows its rules.
async fn exchange(context: &Context, args: &KeyExchange) -> Result<Exit> {
    let token = match args.token_file.as_deref() {
        Some(path) => Some(token_in(path)?),
        None => secret::variable(TOKEN)?,
    };
    let Some(token) = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()) else {
        let message = format!("no token: name its file with --token-file, or set {TOKEN}, or {TOKEN}_FILE to its file");
        return Err(Error::new(Kind::Invalid, message));
    };
    let made = leasehold_stores::remote::exchange(&context.settings()?.store.value, &token).await?;
    let (id, label, until) = (&made.id, &made.label, &made.expires.at);
    output::say(&format!("key {id} ({label}) is valid until {until} and is not shown again"));
    let own = context.settings()?.store.value.namespace().as_str();
    if made.namespace != "*" && made.namespace != own {
        let message = format!(
            "warning: the key is for the namespace `{}`, and the store's URL names `{own}`: end the URL with `/{}`",
            made.namespace, made.namespace
        );
        output::say(&message);
    }
    context.print(|| serde_json::to_value(&made).unwrap_or_default(), || format!("{}\n", made.key))
}

/// The token in a file; `-` is standard input.
fn token_in(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin().take(MAX_TOKEN_BYTES).read_to_string(&mut text),
        false => File::open(path).and_then(|file| file.take(MAX_TOKEN_BYTES).read_to_string(&mut text)),
    };
    read.map_err(|e| {
        let message = format!("cannot read the token in `{}`", path.display());
        Error::new(Kind::Invalid, message).with_source(e)
    })?;
    Ok(text)
}

async fn ls(context: &Context) -> Result<Exit> {
    let (mut listed, mut damaged, now) = match served(context)? {
        Some(server) => listed_by(&server).await?,
        None => {
            let (found, now) = keys(context).await?.list().await?;
            let (mut listed, mut damaged) = (Vec::new(), Vec::new());
            for key in found {
                match key {
                    Ok(key) => listed.push(Shown::new(&key.record, key.used, key.state.as_str())),
                    Err(error) => damaged.push(error),
                }
            }
            (listed, damaged, now)
        }
    };
    damaged.iter().for_each(|error| output::warn(&error.to_string()));
    listed.sort_by_key(Shown::created);
    context.print(
        || Value::Array(listed.iter().map(Shown::json).collect()),
        || table(&COLUMNS, listed.iter().map(|key| key.row(now))),
    )?;
    if damaged.is_empty() { Ok(Exit::Done) } else { Err(damaged.swap_remove(0)) }
}

/// All keys that a server shows, and the time there.
async fn listed_by(server: &RemoteKeys) -> Result<(Vec<Shown>, Vec<Error>, Timestamp)> {
    let (mut listed, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let page = server.page(cursor.as_deref()).await?;
        for key in page["keys"].as_array().into_iter().flatten() {
            listed.push(Shown::answered(key)?);
        }
        match page["next"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return Ok((listed, Vec::new(), Timestamp::from_millis(page["now"]["ms"].as_u64().unwrap_or(0)))),
        }
    }
}

/// Prints a new key: the text alone on standard output, so that it can be piped into a file.
fn show(context: &Context, made: &Shown) -> Result<Exit> {
    output::say(&format!("key {} ({}): keep what follows, it is not shown again", made.id(), made.label()));
    context.print(|| made.json(), || format!("{}\n", made.key().unwrap_or_default()))
}

fn lasting(flag: &str, text: Option<&str>) -> Result<Option<Duration>> {
    match duration_of(flag, text)? {
        Some(Duration::ZERO) => {
            Err(blame_flag(Error::invalid("duration", "0s", "use more than nothing, such as 30d"), flag))
        }
        lasts => Ok(lasts),
    }
}
