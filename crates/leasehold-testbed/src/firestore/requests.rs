//! What a request may say: all that is documented and that our client needs, and nothing else.

use super::{PROJECT, Refusal, invalid};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

const MAX_ID_BYTES: usize = 1500;
const MAX_DOCUMENT_BYTES: usize = 1024 * 1024;

/// An object with these fields and no others.
pub(super) fn object<'a>(value: &'a Value, allowed: &[&str]) -> Result<&'a Map<String, Value>, Refusal> {
    let object = value.as_object().ok_or_else(|| invalid(format!("not an object: {value}")))?;
    match object.keys().find(|field| !allowed.contains(&field.as_str())) {
        Some(field) => {
            Err(invalid(format!("Invalid JSON payload received. Unknown name \"{field}\": Cannot find field.")))
        }
        None => Ok(object),
    }
}

/// An object with exactly one of these fields.
pub(super) fn one_of<'a>(value: &'a Value, allowed: &[&str]) -> Result<(&'a str, &'a Value), Refusal> {
    let object = object(value, allowed)?;
    match object.iter().next() {
        Some((name, value)) if object.len() == 1 => Ok((name, value)),
        _ => Err(invalid(format!("exactly one of {allowed:?} is needed"))),
    }
}

pub(super) fn text<'a>(value: &'a Value, what: &str) -> Result<&'a str, Refusal> {
    value.as_str().ok_or_else(|| invalid(format!("{what} is not a string")))
}

pub(super) fn list<'a>(value: &'a Value, what: &str) -> Result<&'a [Value], Refusal> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| invalid(format!("{what} is not a list")))
}

/// The path of a document, without what is before its first collection.
pub(super) fn document_name(value: &Value) -> Result<String, Refusal> {
    let name = text(value, "a document's name")?;
    let start = format!("projects/{PROJECT}/databases/(default)/documents/");
    let path =
        name.strip_prefix(&start).ok_or_else(|| invalid(format!("Document name \"{name}\" is not below {start}")))?;
    let ids: Vec<&str> = path.split('/').collect();
    if !ids.len().is_multiple_of(2) {
        return Err(invalid(format!("Document name \"{name}\" has an odd number of parts")));
    }
    for id in ids {
        check_id(id)?;
    }
    Ok(path.to_owned())
}

pub(super) fn check_id(id: &str) -> Result<(), Refusal> {
    let is_reserved = id.len() >= 4 && id.starts_with("__") && id.ends_with("__");
    if id.is_empty() || id.len() > MAX_ID_BYTES || id == "." || id == ".." || is_reserved || id.contains('/') {
        return Err(invalid(format!("Resource id \"{id}\" is invalid")));
    }
    Ok(())
}

/// The fields of a document: strings and bytes.
pub(super) fn fields(value: &Value) -> Result<Value, Refusal> {
    let fields = value.as_object().ok_or_else(|| invalid("`fields` is not an object"))?;
    let mut size = 0;
    for (name, value) in fields {
        let (kind, value) = one_of(value, &["stringValue", "bytesValue"])?;
        let value = text(value, name)?;
        size += name.len() + value.len();
        if kind == "bytesValue" && BASE64.decode(value).is_err() {
            return Err(invalid(format!("Invalid value at 'fields.{name}' (TYPE_BYTES), Base64 decoding failed")));
        }
    }
    if size > MAX_DOCUMENT_BYTES {
        return Err(invalid("Document cannot be written because its size exceeds the maximum allowed size"));
    }
    Ok(value.clone())
}

/// A query over one collection, in the order of one field.
pub(super) struct Query {
    pub(super) collection: String,
    pub(super) field: String,
    pub(super) after: Option<String>,
    pub(super) limit: usize,
}

pub(super) fn query(question: &Value) -> Result<Query, Refusal> {
    let question = object(question, &["structuredQuery"])?;
    let query = question.get("structuredQuery").unwrap_or(&Value::Null);
    object(query, &["from", "orderBy", "startAt", "limit"])?;
    let ([from], [order]) = (list(&query["from"], "`from`")?, list(&query["orderBy"], "`orderBy`")?) else {
        return Err(invalid("one collection and one order are needed"));
    };
    object(from, &["collectionId"])?;
    let collection = text(&from["collectionId"], "`collectionId`")?;
    check_id(collection)?;
    object(order, &["field", "direction"])?;
    object(&order["field"], &["fieldPath"])?;
    if order["direction"] != "ASCENDING" {
        return Err(invalid("only ascending is known here"));
    }
    let after = match query.get("startAt") {
        None => None,
        Some(cursor) => {
            object(cursor, &["values", "before"])?;
            let [value] = list(&cursor["values"], "`values`")? else { return Err(invalid("one value per order")) };
            if cursor["before"] != false {
                return Err(invalid("only a start after a value is known here"));
            }
            Some(text(one_of(value, &["stringValue"])?.1, "a cursor's value")?.to_owned())
        }
    };
    // A number of 32 bits, and not zero.
    let limit = query["limit"].as_u64().filter(|limit| (1..=i32::MAX as u64).contains(limit));
    let limit = limit.ok_or_else(|| invalid("limit must be positive"))?;
    Ok(Query {
        collection: collection.to_owned(),
        field: text(&order["field"]["fieldPath"], "`fieldPath`")?.to_owned(),
        after,
        limit: usize::try_from(limit).unwrap(),
    })
}
