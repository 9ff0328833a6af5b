//! The generations of the protocol: a session that `initialize` opens, or requests that each stand alone.
//!
//! Up to 2025-11-25 a client shakes hands once. From 2026-07-28 on there is no handshake: every request names its version in
//! `_meta`, and every result its type. Promise: each request is answered in the generation that it was asked in, whatever
//! came before it. Non-promise: a connection is not held to one generation; a client whose question `server/discover` took
//! too long may still shake hands.

use super::rpc::{INVALID_PARAMS, Reply};
use serde_json::{Value, json};

/// The versions without a handshake, newest first.
const STATELESS: [&str; 1] = ["2026-07-28"];
/// The versions that begin with `initialize`, newest first.
const SESSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// The code that 2026-07-28 gives to a version that is not spoken.
const UNSUPPORTED_VERSION: i64 = -32022;
/// The tools change only with this program.
const FRESH_MS: u64 = 3_600_000;

const INSTRUCTIONS: &str = "Leases decide who may work; epochs decide whose writes count. Acquire a lease before work that only \
                            one may do at a time, write through the fenced tools, and release it when done. Each grant has a \
                            larger epoch; a resource that has seen a newer one refuses yours. Answers: `held` means that \
                            somebody else works on it, so do something else or wait; `lost` and `fenced` mean that somebody \
                            else has taken over, so stop this work, write nothing more and report it.";

/// How a request is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// In a session, which lasts as long as the connection: leases are kept for it.
    Session,
    /// For itself alone: nothing is kept between two requests.
    Stateless,
}

impl Era {
    /// The generation of a request, or the error that it gets.
    pub fn of(id: &Value, method: &str, params: &Value) -> Result<Era, Reply> {
        // It is of no newer version, whatever else a client puts in.
        if method == "initialize" {
            return Ok(Era::Session);
        }
        let meta = &params["_meta"];
        let Some(version) = meta.get(VERSION) else {
            // The question which versions there are is answered even so.
            return Ok(if method == "server/discover" { Era::Stateless } else { Era::Session });
        };
        let wrong = |what: String| Reply::error(id.clone(), INVALID_PARAMS, &what);
        let Some(version) = version.as_str() else { return Err(wrong(format!("_meta `{VERSION}` must be a string"))) };
        if !STATELESS.contains(&version) {
            let shown = leasehold_core::printable(version);
            let message = if SESSIONS.contains(&version) {
                format!("version {shown} begins with `initialize`; in `_meta` use {}", STATELESS[0])
            } else {
                format!("unsupported protocol version `{shown}`")
            };
            let data = json!({ "supported": versions(), "requested": version });
            return Err(Reply::error(id.clone(), UNSUPPORTED_VERSION, &message).with_data(data));
        }
        if !meta.get(CAPABILITIES).is_some_and(Value::is_object) {
            return Err(wrong(format!("_meta must have `{CAPABILITIES}`, an object")));
        }
        Ok(Era::Stateless)
    }

    /// A result as this generation has it.
    pub fn shape(self, mut result: Value) -> Value {
        if self == Era::Stateless {
            result["resultType"] = json!("complete");
            result["_meta"] = json!({ SERVER: server() });
        }
        result
    }

    /// The same for a result that clients may keep for a while.
    pub fn shape_lasting(self, mut result: Value) -> Value {
        if self == Era::Stateless {
            result["ttlMs"] = json!(FRESH_MS);
            result["cacheScope"] = json!("public");
        }
        self.shape(result)
    }
}

fn versions() -> Vec<&'static str> {
    [&STATELESS[..], &SESSIONS[..]].concat()
}

fn server() -> Value {
    json!({ "name": "leasehold", "version": env!("CARGO_PKG_VERSION") })
}

fn capabilities() -> Value {
    json!({ "tools": { "listChanged": false } })
}

/// The answer to `initialize`: the version that was asked for, or the newest of a session.
pub fn initialize(params: &Value) -> Value {
    let asked = params.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
    let version = SESSIONS.iter().find(|version| **version == asked).unwrap_or(&SESSIONS[0]);
    json!({
        "protocolVersion": version,
        "capabilities": capabilities(),
        "serverInfo": server(),
        "instructions": format!(
            "{INSTRUCTIONS} What you acquire is renewed in the background, and released when this connection ends."
        ),
    })
}

/// The answer to `server/discover`.
pub fn discover() -> Value {
    json!({
        "supportedVersions": versions(),
        "capabilities": capabilities(),
        "instructions": format!(
            "{INSTRUCTIONS} Nothing is renewed for you: call lease_renew with the token well before its time is over, and \
             lease_release when done."
        ),
    })
}
