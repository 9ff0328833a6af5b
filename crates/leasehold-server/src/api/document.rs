//! The description of the API, OpenAPI 3.1, made from the code: `docs/openapi.json` is a copy of it.

use super::{events, exchange, fences, jobs, keys, leases, queues};
use crate::serve::{Site, next_steps};
use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

/// The prefix of all paths that are about one namespace.
const IN_NAMESPACE: &str = "/v1/ns/{namespace}/";

/// What all operations have in common is added by [`document`].
#[derive(OpenApi)]
#[openapi(info(
    title = "Leasehold",
    description = "Leases, queues, jobs and fences for those who must not hold the store's password. Every answer that is not \
                   a success is application/problem+json with a `kind` that programs decide by. See docs/api.md."
))]
struct Api;

/// A router for requests that need a key.
pub(super) fn keyed() -> OpenApiRouter<Site> {
    OpenApiRouter::with_openapi(Api::openapi())
        .merge(leases::routes())
        .merge(queues::routes())
        .merge(jobs::routes())
        .merge(events::routes())
        .merge(fences::routes())
        .merge(keys::routes())
}

/// A router for requests that need no key.
pub(super) fn open() -> OpenApiRouter<Site> {
    exchange::routes()
}

/// The description of the API, as it is served.
///
/// # Panics
/// If the description cannot be written as JSON, which a test would show.
#[allow(clippy::expect_used, reason = "a test serves it")]
pub fn document() -> String {
    let (_, api) = keyed().merge(open()).split_for_parts();
    let mut api = serde_json::to_value(&api).expect("a description is JSON");
    api["openapi"] = "3.1.0".into();
    api["info"]["version"] = "1".into();
    api["components"]["securitySchemes"]["key"] =
        json!({ "type": "http", "scheme": "bearer", "description": "A key, as `leasehold key create` prints it." });
    api["components"]["schemas"]["Problem"] = problem();
    api["security"] = json!([{ "key": [] }]);
    let may_be_missing = bodies_that_may_be_missing(&api);
    let paths = api["paths"].as_object_mut();
    for (path, methods) in paths.into_iter().flatten() {
        for (method, operation) in methods.as_object_mut().into_iter().flatten() {
            complete(path, method, operation);
            let Some(body) = operation.get_mut("requestBody") else { continue };
            if may_be_missing.iter().any(|schema| body["content"]["application/json"]["schema"]["$ref"] == *schema) {
                body["required"] = false.into();
            }
        }
    }
    for path in open().split_for_parts().1.paths.paths.into_keys() {
        for operation in api["paths"][path].as_object_mut().into_iter().flat_map(|methods| methods.values_mut()) {
            operation["security"] = json!([]);
        }
    }
    format!("{:#}\n", api)
}

/// References to the bodies that have no required field: a missing body is read as an empty one.
fn bodies_that_may_be_missing(api: &Value) -> Vec<String> {
    let schemas = api["components"]["schemas"].as_object().into_iter().flatten();
    let optional = schemas.filter(|(_, schema)| schema["required"].as_array().is_none_or(Vec::is_empty));
    optional.map(|(name, _)| format!("#/components/schemas/{name}")).collect()
}

/// Adds to an operation what all have: its path's parameters, the header of writes, its refusals, and a name.
fn complete(path: &str, method: &str, operation: &mut Value) {
    let rest = path.strip_prefix(IN_NAMESPACE).or_else(|| path.strip_prefix("/v1/")).unwrap_or(path);
    let words: Vec<&str> = rest.split('/').map(|word| word.trim_matches(['{', '}'])).collect();
    operation["operationId"] = format!("{method}_{}", words.join("_").replace('-', "_")).into();
    let given: Vec<Value> = operation["parameters"].as_array().cloned().unwrap_or_default();
    let of_path = path.split('/').filter_map(|word| word.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = of_path
        .map(|name| {
            json!({ "name": name, "in": "path", "required": true, "description": meaning(name), "schema": { "type": "string" } })
        })
        .collect();
    // A key could not be shown a second time. Making another does no harm: the first was shown to nobody.
    if method == "post" && path.starts_with(IN_NAMESPACE) {
        parameters.push(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "required": false,
            "description": "The same for each attempt at one request: a repeated one is not carried out again.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$" },
        }));
    }
    parameters.extend(given);
    operation["parameters"] = parameters.into();
    operation["responses"]["default"] = json!({
        "description": "Refused, or not known: see `kind`.",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
}

fn meaning(parameter: &str) -> &'static str {
    match parameter {
        "namespace" => "The namespace.",
        "queue" => "The name of a queue.",
        "id" => "The id of an item or of a key.",
        _ => "A name. A `/` in it is written `%2F`, or `~` where a proxy does not let that pass.",
    }
}

/// RFC 9457, with fields of our own.
fn problem() -> Value {
    json!({
        "type": "object",
        "description": "What is wrong with a request. Which other fields there are depends on the kind.",
        "required": ["type", "title", "status", "kind", "detail", "next_step"],
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "kind": { "type": "string", "description": "The word that programs decide by." },
            "detail": { "type": "string", "description": "What is wrong and what to do, for people." },
            "next_step": { "type": "string", "enum": next_steps(), "description": "What the client does next. It follows from the kind." },
            "field": { "type": "string", "description": "The field of the request that is wrong." },
            "retry_after_seconds": { "type": "integer" },
        },
        "additionalProperties": true,
    })
}
