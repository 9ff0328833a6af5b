//! The documents, their times, and preconditions.

use super::requests::{document_name, fields, list, object, one_of, query, text};
use super::{PROJECT, Refusal, invalid};
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

#[derive(Clone)]
struct Document {
    fields: Value,
    created: u64,
    updated: u64,
}

/// All documents by path, and a log from which they are read again.
pub(super) struct Records {
    documents: BTreeMap<String, Document>,
    log: File,
    /// Microseconds since 1970 of the last commit.
    last: u64,
}

impl Records {
    pub(super) fn load(folder: &Path) -> Self {
        let path = folder.join("log");
        let mut documents = BTreeMap::new();
        let mut last = 0;
        // A line that was cut off by a kill belongs to a commit that was not answered.
        for line in
            std::fs::read_to_string(&path).unwrap_or_default().split_inclusive('\n').filter(|l| l.ends_with('\n'))
        {
            let entry: Value = serde_json::from_str(line).unwrap();
            let name = entry["name"].as_str().unwrap().to_owned();
            last = entry["at"].as_u64().unwrap();
            match entry["fields"].is_null() {
                true => drop(documents.remove(&name)),
                false => {
                    let (created, updated) = (entry["created"].as_u64().unwrap(), entry["updated"].as_u64().unwrap());
                    documents.insert(name, Document { fields: entry["fields"].clone(), created, updated });
                }
            }
        }
        let log = File::options().create(true).append(true).open(path).unwrap();
        Records { documents, log, last }
    }

    /// A time that is later than every commit's. Many in one millisecond share its thousand microseconds.
    fn tick(&mut self) -> u64 {
        self.last = (leasehold_system::clock::wall_ms() * 1000).max(self.last + 1);
        self.last
    }

    pub(super) fn batch_get(&mut self, question: &Value) -> Result<Value, Refusal> {
        let question = object(question, &["documents"])?;
        let names = list(question.get("documents").unwrap_or(&Value::Null), "`documents`")?;
        let now = self.tick();
        let mut answers = Vec::new();
        for value in names {
            let name = document_name(value)?;
            answers.push(match self.documents.get(&name) {
                Some(document) => json!({ "found": shown(&name, document), "readTime": time(now) }),
                None => json!({ "missing": value, "readTime": time(now) }),
            });
        }
        Ok(Value::Array(answers))
    }

    pub(super) fn run_query(&mut self, room: &str, question: &Value) -> Result<Value, Refusal> {
        let query = query(question)?;
        let start = match room {
            "" => format!("{}/", query.collection),
            room => format!("{room}/{}/", query.collection),
        };
        let now = self.tick();
        let mut found: Vec<(&str, &String, &Document)> = self
            .documents
            .iter()
            .filter(|(name, _)| name.strip_prefix(&start).is_some_and(|id| !id.contains('/')))
            // Who does not have the field is not in its index.
            .filter_map(|(name, d)| Some((d.fields[&query.field]["stringValue"].as_str()?, name, d)))
            .filter(|(value, _, _)| query.after.as_deref().is_none_or(|after| *value > after))
            .collect();
        found.sort_by_key(|(value, name, _)| (*value, *name));
        let answers: Vec<Value> = found
            .iter()
            .take(query.limit)
            .map(|(_, name, document)| json!({ "document": shown(name, document), "readTime": time(now) }))
            .collect();
        Ok(if answers.is_empty() { json!([{ "readTime": time(now) }]) } else { Value::Array(answers) })
    }

    /// One write; a commit of ours never has more.
    pub(super) fn commit(&mut self, question: &Value) -> Result<Value, Refusal> {
        let question = object(question, &["writes"])?;
        let [write] = list(question.get("writes").unwrap_or(&Value::Null), "`writes`")? else {
            return Err(invalid("one write is expected here"));
        };
        object(write, &["update", "delete", "currentDocument"])?;
        let (name, next) = match (write.get("update"), write.get("delete")) {
            (Some(update), None) => {
                object(update, &["name", "fields"])?;
                (document_name(&update["name"])?, Some(fields(&update["fields"])?))
            }
            (None, Some(name)) => (document_name(name)?, None),
            _ => return Err(invalid("a write updates or deletes")),
        };
        self.check(&name, &write["currentDocument"])?;
        let now = self.tick();
        let old = self.documents.get(&name).cloned();
        let document = next.map(|fields| match &old {
            // A write that changes nothing keeps the time.
            Some(old) if old.fields == fields => old.clone(),
            Some(old) => Document { fields, created: old.created, updated: now },
            None => Document { fields, created: now, updated: now },
        });
        let line = match &document {
            Some(d) => {
                json!({ "name": name, "at": now, "fields": d.fields, "created": d.created, "updated": d.updated })
            }
            None => json!({ "name": name, "at": now }),
        };
        self.log.write_all(format!("{line}\n").as_bytes()).unwrap();
        let result = match document {
            Some(document) => {
                let result = json!({ "updateTime": time(document.updated) });
                self.documents.insert(name, document);
                result
            }
            None => {
                self.documents.remove(&name);
                json!({})
            }
        };
        Ok(json!({ "writeResults": [result], "commitTime": time(now) }))
    }

    fn check(&self, name: &str, precondition: &Value) -> Result<(), Refusal> {
        let failed = |status: StatusCode, code: &'static str, what: &str| {
            Err(Refusal(status, code, format!("{what}: projects/{PROJECT}/databases/(default)/documents/{name}")))
        };
        let (kind, value) = one_of(precondition, &["exists", "updateTime"])?;
        match (kind, self.documents.get(name)) {
            ("exists", found) => match (value.as_bool(), found) {
                (None, _) => Err(invalid("`exists` is not a boolean")),
                (Some(false), Some(_)) => failed(StatusCode::CONFLICT, "ALREADY_EXISTS", "Document already exists"),
                (Some(true), None) => failed(StatusCode::NOT_FOUND, "NOT_FOUND", "No document to update"),
                _ => Ok(()),
            },
            (_, found) => {
                let wanted = text(value, "`updateTime`")?;
                if wanted.len() != time(0).len() || !wanted.ends_with('Z') || wanted.as_bytes()[10] != b'T' {
                    return Err(invalid(format!("Invalid value at 'updateTime': {wanted}")));
                }
                match found {
                    None => failed(StatusCode::NOT_FOUND, "NOT_FOUND", "No document to update"),
                    Some(document) if time(document.updated) != wanted => {
                        let what = "the stored version does not match the required base version";
                        failed(StatusCode::BAD_REQUEST, "FAILED_PRECONDITION", what)
                    }
                    Some(_) => Ok(()),
                }
            }
        }
    }
}

fn shown(path: &str, document: &Document) -> Value {
    json!({
        "name": format!("projects/{PROJECT}/databases/(default)/documents/{path}"),
        "fields": document.fields,
        "createTime": time(document.created),
        "updateTime": time(document.updated),
    })
}

/// Microseconds since 1970 as the service writes them.
fn time(micros: u64) -> String {
    format!("{:.6}", jiff::Timestamp::from_microsecond(micros.cast_signed()).unwrap())
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_are_written_as_the_service_does() {
        assert_eq!(super::time(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(super::time(1_794_785_245_123_999), "2026-11-15T23:27:25.123999Z");
        assert_eq!(super::time(951_827_696_700_000), "2000-02-29T12:34:56.700000Z");
    }
}
