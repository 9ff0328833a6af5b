//! A key as `key` prints it: the same, whether its record was read from the store or came from a server.

use crate::output;
use leasehold_core::{Error, Kind, Result, Timestamp};
use leasehold_server::access::{KeyId, KeyRecord, Secret};
use serde_json::{Map, Value, json};

/// A key: what `--json` prints of it, and when what happened to it.
#[derive(Clone)]
pub struct Shown {
    json: Map<String, Value>,
    created: Timestamp,
    expires: Option<Timestamp>,
    used: Option<Timestamp>,
}

impl Shown {
    /// Takes everything but the use and the state from the record.
    pub fn new(record: &KeyRecord, used: Option<Timestamp>, state: &str) -> Self {
        let time = |at: Timestamp| output::rfc3339(at);
        let json = json!({
            "id": record.id.as_str(),
            "label": record.label.as_str(),
            "state": state,
            "namespace": record.scope.namespaces.to_string(),
            "names": record.scope.names.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "allows": record.scope.verbs.iter().map(|verb| verb.as_str()).collect::<Vec<_>>(),
            "created_by": record.created.by.as_str(),
            "created_at": time(record.created.at),
            "expires_at": record.expires.map(time),
            "used_at": used.map(time),
            "revoked": record.revoked.as_ref().map(|revoked| json!({
                "by": revoked.by.as_str(), "why": revoked.why.as_str(), "at": time(revoked.at),
            })),
            "rotated_from": record.rotated_from.as_ref().map(KeyId::as_str),
            "rotated_to": record.rotated_to.as_ref().map(KeyId::as_str),
            "origin": record.origin.as_ref().map(|origin| json!({ "issuer": origin.issuer, "subject": origin.subject })),
        });
        Shown { json: object(json), created: record.created.at, expires: record.expires, used }
    }

    /// By what a server answers.
    pub fn answered(answer: &Value) -> Result<Self> {
        let instant = |at: &Value| at["ms"].as_u64().map(Timestamp::from_millis);
        let Some(created) = instant(&answer["created"]) else {
            return Err(Error::new(Kind::Unsupported, "the server answers what this version does not understand"));
        };
        let (expires, used) = (instant(&answer["expires"]), instant(&answer["used"]));
        let mut json = Map::new();
        for name in ["id", "label", "state", "namespace", "names", "allows", "created_by"] {
            json.insert(name.to_owned(), answer[name].clone());
        }
        json.insert("created_at".to_owned(), output::rfc3339(created).into());
        json.insert("expires_at".to_owned(), expires.map(output::rfc3339).into());
        json.insert("used_at".to_owned(), used.map(output::rfc3339).into());
        let mut revoked = answer["revoked"].clone();
        if let Some(at) = instant(&revoked["at"]) {
            revoked["at"] = output::rfc3339(at).into();
        }
        json.insert("revoked".to_owned(), revoked);
        for name in ["rotated_from", "rotated_to", "origin"] {
            json.insert(name.to_owned(), answer[name].clone());
        }
        if let Some(key) = answer["key"].as_str() {
            json.insert("key".to_owned(), key.into());
        }
        Ok(Shown { json, created, expires, used })
    }

    /// With the key itself.
    #[must_use]
    pub fn with_key(mut self, secret: &Secret) -> Self {
        self.json.insert("key".to_owned(), secret.reveal().into());
        self
    }

    pub fn json(&self) -> Value {
        Value::Object(self.json.clone())
    }

    pub fn created(&self) -> Timestamp {
        self.created
    }

    pub fn id(&self) -> &str {
        self.text("id")
    }

    pub fn label(&self) -> &str {
        self.text("label")
    }

    /// The key itself, if it was just made.
    pub fn key(&self) -> Option<&str> {
        self.json.get("key").and_then(Value::as_str)
    }

    /// Who revoked it, and why.
    pub fn revoked(&self) -> Option<(&str, &str)> {
        let revoked = self.json.get("revoked")?;
        Some((revoked["by"].as_str()?, revoked["why"].as_str()?))
    }

    /// As a row of the table.
    pub fn row(&self, now: Timestamp) -> Vec<String> {
        let time = |at: Option<Timestamp>| at.map_or_else(|| "never".into(), |at| output::relative(at, now));
        vec![
            self.id().to_owned(),
            self.label().to_owned(),
            self.text("state").to_owned(),
            self.text("namespace").to_owned(),
            self.list("names", " "),
            self.list("allows", ","),
            time(Some(self.created)),
            time(self.expires),
            time(self.used),
        ]
    }

    fn text(&self, name: &str) -> &str {
        self.json.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn list(&self, name: &str, between: &str) -> String {
        let words = self.json.get(name).and_then(Value::as_array).into_iter().flatten();
        words.filter_map(Value::as_str).collect::<Vec<_>>().join(between)
    }
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(fields) = value { fields } else { Map::new() }
}
