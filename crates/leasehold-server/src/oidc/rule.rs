//! Which tokens are exchanged, and for what.

use super::issuer::IssuerUrl;
use crate::access::{Scope, Verb};
use leasehold_core::{Error, Result, format_duration, is_like, printable};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How long a key lasts, unless the rule says otherwise.
pub const LASTS: Duration = Duration::from_secs(15 * 60);
/// The shortest and the longest that a rule may say.
const LASTS_WITHIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
/// The longest text of a rule.
const MAX_BYTES: usize = 1024;

/// A rule: a token of this issuer, for this audience, with these claims, is exchanged for a key of this scope.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The issuer whose tokens it accepts.
    pub issuer: IssuerUrl,
    /// A file with the issuer's keys, if they are not fetched over the network.
    pub jwks_file: Option<PathBuf>,
    /// The audience that they must name.
    pub audience: Audience,
    /// The claims that they must have.
    pub claims: Claims,
    /// The scope of the key.
    pub scope: Scope,
    /// How long the key is valid.
    pub lasts: Lasts,
}

/// The audience of a token: what its bearer asked the issuer for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audience(String);

impl Audience {
    /// The text, as the token must have it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Audience {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() || text.len() > MAX_BYTES || text.chars().any(char::is_control) {
            let form = format!(
                "use what clients ask their issuer for, such as https://leases.example.org: one line of at most {MAX_BYTES} bytes"
            );
            return Err(Error::invalid("audience", printable(text), form));
        }
        Ok(Audience(text.to_owned()))
    }
}

/// How long the keys of a rule are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lasts(Duration);

impl Lasts {
    /// A lifetime from 1 s to 1 h.
    pub fn new(lasts: Duration) -> Result<Self> {
        if !(LASTS_WITHIN[0]..=LASTS_WITHIN[1]).contains(&lasts) {
            let form = "use 1s to 1h: whoever needs it longer exchanges again";
            return Err(Error::invalid("duration", format_duration(lasts), form));
        }
        Ok(Lasts(lasts))
    }

    /// The lifetime as a duration.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl Default for Lasts {
    fn default() -> Self {
        Lasts(LASTS)
    }
}

/// Refuses a scope that no token may be exchanged for.
pub fn check_scope(scope: &Scope) -> Result<()> {
    if scope.verbs.has(Verb::Admin) {
        let form = "a key that was exchanged cannot make others: use read, hold, work and operate";
        return Err(Error::invalid("verbs", scope.verbs, form));
    }
    Ok(())
}

/// The claims that a token must have: at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims(BTreeMap<String, Wanted>);

impl Claims {
    /// These claims; an error if there are none.
    pub fn new(claims: BTreeMap<String, Wanted>) -> Result<Self> {
        if claims.is_empty() {
            let form = "name at least one, such as repository = \"acme/site\": an issuer gives tokens to others than you. If all of \
                        them are meant, say sub = \"*\"";
            return Err(Error::invalid("claims", "{}", form));
        }
        Ok(Claims(claims))
    }

    /// Whether a token has all of these claims.
    pub fn are_in(&self, said: &Map<String, Value>) -> bool {
        self.0.iter().all(|(name, wanted)| said.get(name).is_some_and(|value| wanted.takes(value)))
    }
}

impl fmt::Display for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, &self.0)
    }
}

fn list(f: &mut fmt::Formatter<'_>, claims: &BTreeMap<String, Wanted>) -> fmt::Result {
    for (index, (name, wanted)) in claims.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        write!(f, "{comma}{name}={wanted}")?;
    }
    Ok(())
}

/// The required value of a claim. If the claim is a list, one of its elements must have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// A text like this, in which `*` stands for any characters and `?` for one.
    Text(String),
    /// Exactly this boolean.
    Flag(bool),
    /// Exactly this number.
    Number(i64),
    /// Any one of these.
    AnyOf(Vec<Wanted>),
    /// An object with these fields.
    Inside(BTreeMap<String, Wanted>),
}

impl Wanted {
    /// A text or pattern; an error if no claim could match it.
    pub fn text(text: &str) -> Result<Self> {
        if text.is_empty() || text.len() > MAX_BYTES || text.chars().any(char::is_control) {
            let form = format!("use one line of 1 to {MAX_BYTES} bytes; `*` stands for any characters and `?` for one");
            return Err(Error::invalid("claim", printable(text), form));
        }
        Ok(Wanted::Text(text.to_owned()))
    }

    fn takes(&self, said: &Value) -> bool {
        match (self, said) {
            (Wanted::AnyOf(several), _) => several.iter().any(|one| one.takes(said)),
            (_, Value::Array(several)) => several.iter().any(|one| !one.is_array() && self.takes(one)),
            (Wanted::Text(pattern), Value::String(text)) => is_like(pattern, text),
            (Wanted::Flag(wanted), Value::Bool(said)) => wanted == said,
            (Wanted::Number(wanted), Value::Number(said)) => said.as_i64() == Some(*wanted),
            (Wanted::Inside(wanted), Value::Object(said)) => {
                wanted.iter().all(|(name, wanted)| said.get(name).is_some_and(|value| wanted.takes(value)))
            }
            _ => false,
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Text(text) => f.write_str(text),
            Wanted::Flag(flag) => flag.fmt(f),
            Wanted::Number(number) => number.fmt(f),
            Wanted::AnyOf(several) => {
                let texts: Vec<String> = several.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", texts.join(", "))
            }
            Wanted::Inside(claims) => {
                f.write_str("{")?;
                list(f, claims)?;
                f.write_str("}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claims(wanted: &[(&str, Wanted)]) -> Claims {
        Claims::new(wanted.iter().map(|(name, wanted)| ((*name).to_owned(), wanted.clone())).collect()).unwrap()
    }

    fn text(text: &str) -> Wanted {
        Wanted::text(text).unwrap()
    }

    fn said(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn every_claim_must_be_there_and_like_the_rule() {
        let rule = claims(&[("repository", text("acme/site")), ("ref", text("refs/heads/*"))]);
        assert!(rule.are_in(&said(json!({ "repository": "acme/site", "ref": "refs/heads/main", "x": 1 }))));
        for wrong in [
            json!({}),
            json!({ "repository": "acme/site" }),
            json!({ "repository": "acme/site", "ref": "refs/tags/v1" }),
            json!({ "repository": "acme/site2", "ref": "refs/heads/main" }),
            json!({ "repository": "Acme/site", "ref": "refs/heads/main" }),
            json!({ "repository": null, "ref": "refs/heads/main" }),
            json!({ "repository": { "acme/site": 1 }, "ref": "refs/heads/main" }),
        ] {
            assert!(!rule.are_in(&said(wrong.clone())), "{wrong}");
        }
    }

    #[test]
    fn a_claim_may_be_a_list_a_flag_a_number_or_an_object() {
        let nested = Wanted::Inside([("namespace".to_owned(), text("ci"))].into());
        let rule = claims(&[("kubernetes.io", nested)]);
        assert!(rule.are_in(&said(json!({ "kubernetes.io": { "namespace": "ci", "pod": { "name": "a" } } }))));
        assert!(!rule.are_in(&said(json!({ "kubernetes.io": { "namespace": "cd" } }))));
        assert!(!rule.are_in(&said(json!({ "kubernetes.io": "ci" }))));
        assert_eq!(rule.to_string(), "kubernetes.io={namespace=ci}");
        let rule = claims(&[("groups", text("ops"))]);
        assert!(rule.are_in(&said(json!({ "groups": ["dev", "ops"] }))));
        assert!(!rule.are_in(&said(json!({ "groups": ["dev", ["ops"]] }))));
        let rule = claims(&[("email_verified", Wanted::Flag(true)), ("level", Wanted::Number(3))]);
        assert!(rule.are_in(&said(json!({ "email_verified": true, "level": 3 }))));
        for wrong in [json!({ "email_verified": "true", "level": 3 }), json!({ "email_verified": true, "level": 3.5 })]
        {
            assert!(!rule.are_in(&said(wrong.clone())), "{wrong}");
        }
        let rule = claims(&[("ref", Wanted::AnyOf(vec![text("main"), text("release/?")]))]);
        assert!(rule.are_in(&said(json!({ "ref": "release/1" }))) && !rule.are_in(&said(json!({ "ref": "dev" }))));
        assert_eq!(rule.to_string(), "ref=[main, release/?]");
    }

    #[test]
    fn rules_that_let_in_more_than_was_meant_are_refused() {
        let error = Claims::new(BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains("sub = \"*\""), "{error}");
        assert!(Wanted::text("").is_err() && Wanted::text("a\nb").is_err());
        for (lasts, is_fit) in [(0, false), (1, true), (3600, true), (3601, false)] {
            assert_eq!(Lasts::new(Duration::from_secs(lasts)).is_ok(), is_fit, "{lasts}");
        }
        let error = check_scope(&Scope::everything().unwrap()).unwrap_err().to_string();
        assert!(error.contains("cannot make others"), "{error}");
    }
}
