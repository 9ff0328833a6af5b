//! `config`: the settings in force and where each came from.

use crate::config::Source;
use crate::context::Context;
use crate::exit::Exit;
use crate::notify::Told;
use crate::table::Column::{Text, Whole};
use crate::table::table;
use leasehold_core::Result;
use leasehold_work::notify::{Cause, Rule};
use serde_json::{Value, json};

/// What is shown of a key.
const HIDDEN: &str = "***";

/// The variable that says which key a server is sent, if one does: the key itself, or the file that has it.
fn key_variable() -> Option<&'static str> {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    ["LEASEHOLD_KEY", "LEASEHOLD_KEY_FILE"].into_iter().find(is_set)
}

pub fn config(context: &Context) -> Result<Exit> {
    let settings = context.settings()?;
    let unset = |key: &str| match key {
        "label" => "(the machine's name)",
        "state" => "(unknown: HOME is not set)",
        "log" => "(info for `schedule`, `work`, `serve` and `proxy`, warn for others)",
        "history_age" => "(for ever)",
        "metrics" | "metrics_leases" => "(none)",
        _ => "(a sixth of the ttl, at most 10s)",
    };
    let file = Source::File(settings.notify.file.clone()).to_string();
    let told = settings.notify.read_each().0;
    let events = |rule: &Rule| Cause::ALL.into_iter().filter(|cause| rule.on.has(*cause)).map(Cause::as_str).collect();
    context.print(
        || {
            let entry = |(key, value, source): (&str, Option<String>, &Source)| {
                (key.to_owned(), json!({ "value": value, "source": source.to_string() }))
            };
            let channel = |(rule, target): &Told| {
                let on: Vec<&str> = events(rule);
                json!({ "channel": rule.channel.as_str(), "on": on, "target": target.to_string() })
            };
            let channels: Vec<Value> = told.iter().map(channel).collect();
            let notify =
                (!told.is_empty()).then(|| ("notify".to_owned(), json!({ "value": channels, "source": file })));
            let oidc = oidc::json(settings).map(|entry| ("oidc".to_owned(), entry));
            let key = key_variable().map(|name| {
                let source = Source::Environment(name).to_string();
                ("key".to_owned(), json!({ "value": HIDDEN, "source": source }))
            });
            Value::Object(settings.rows().map(entry).into_iter().chain(key).chain(notify).chain(oidc).collect())
        },
        || {
            let row = |(key, value, source): (&str, Option<String>, &Source)| {
                vec![key.to_owned(), value.unwrap_or_else(|| unset(key).into()), source.to_string()]
            };
            let channel = |(rule, target): &Told| {
                let on: Vec<&str> = events(rule);
                vec![format!("notify {}", rule.channel.as_str()), format!("{}: {target}", on.join(", ")), file.clone()]
            };
            let key = key_variable()
                .map(|name| vec!["key".to_owned(), HIDDEN.to_owned(), Source::Environment(name).to_string()]);
            table(
                &[Whole("SETTING"), Text("VALUE"), Text("FROM")],
                settings
                    .rows()
                    .map(row)
                    .into_iter()
                    .chain(key)
                    .chain(told.iter().map(channel))
                    .chain(oidc::rows(settings)),
            )
        },
    )?;
    oidc::check(settings)?;
    settings.notify.check().map(|_| Exit::Done)
}

/// Whose tokens are exchanged, in builds that have the server.
#[cfg(feature = "server")]
mod oidc {
    use crate::config::{Settings, Source};
    use leasehold_core::{Result, format_duration};
    use leasehold_server::oidc::Rule;
    use serde_json::{Value, json};

    fn source(settings: &Settings) -> String {
        Source::File(settings.oidc.file.clone()).to_string()
    }

    fn names(rule: &Rule) -> Vec<String> {
        rule.scope.names.iter().map(ToString::to_string).collect()
    }

    pub fn json(settings: &Settings) -> Option<Value> {
        let rule = |rule: &Rule| {
            json!({
                "issuer": rule.issuer.as_str(),
                "jwks_file": rule.jwks_file.as_ref().map(|file| file.display().to_string()),
                "audience": rule.audience.as_str(),
                "claims": rule.claims.to_string(),
                "namespace": rule.scope.namespaces.to_string(),
                "names": names(rule),
                "allow": rule.scope.verbs.iter().map(|verb| verb.as_str()).collect::<Vec<_>>(),
                "lasts": format_duration(rule.lasts.get()),
            })
        };
        let rules: Vec<Value> = settings.oidc.read().ok()?.iter().map(rule).collect();
        (!rules.is_empty()).then(|| json!({ "value": rules, "source": source(settings) }))
    }

    pub fn rows(settings: &Settings) -> Vec<Vec<String>> {
        let row = |(rule, number): (Rule, usize)| {
            let (scope, lasts) = (&rule.scope, format_duration(rule.lasts.get()));
            let (names, namespace) = (names(&rule).join(" "), &scope.namespaces);
            let file = rule.jwks_file.as_ref().map(|file| format!(" (keys in {})", file.display())).unwrap_or_default();
            let what = format!(
                "{}{file} for {}: {}: {} on {names} in {namespace} for {lasts}",
                rule.issuer,
                rule.audience.as_str(),
                rule.claims,
                scope.verbs
            );
            vec![format!("oidc {number}"), what, source(settings)]
        };
        settings.oidc.read().unwrap_or_default().into_iter().zip(1..).map(row).collect()
    }

    pub fn check(settings: &Settings) -> Result<()> {
        settings.oidc.read().map(|_| ())
    }
}

#[cfg(not(feature = "server"))]
mod oidc {
    use crate::config::Settings;
    use leasehold_core::Result;
    use serde_json::Value;

    pub fn json(_: &Settings) -> Option<Value> {
        None
    }

    pub fn rows(_: &Settings) -> Vec<Vec<String>> {
        Vec::new()
    }

    #[allow(clippy::unnecessary_wraps, reason = "as with the server")]
    pub fn check(_: &Settings) -> Result<()> {
        Ok(())
    }
}
