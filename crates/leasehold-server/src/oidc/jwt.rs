//! A token as it was sent: a header, claims and a signature (RFC 7519).
//!
//! Promise: neither `Debug` nor a refusal shows its text. Non-promise: its claims cannot be believed before
//! [`KeySet::check`](super::key_set::KeySet::check) has found who signed it.

use super::algorithm::Algorithm;
use super::refusal::Refusal;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold_core::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt;

/// The longest token.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// The longest subject: OpenID Connect allows 255 characters.
const MAX_SUBJECT_BYTES: usize = 512;

/// A token that is well formed. Its signature has not been checked.
pub struct Jwt {
    algorithm: Algorithm,
    key_id: Option<String>,
    claims: Map<String, Value>,
    /// The header and the claims, as they were signed.
    message: String,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    crit: Option<Value>,
}

impl Jwt {
    /// Parses a token; its signature is not checked yet.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text.len() > MAX_TOKEN_BYTES {
            return Err(Refusal::Malformed("it has more than 16384 bytes"));
        }
        let Some((message, signature)) = text.rsplit_once('.') else {
            return Err(Refusal::Malformed("it is not three parts with dots between them"));
        };
        let Some((header, claims)) = message.split_once('.').filter(|(_, claims)| !claims.contains('.')) else {
            return Err(Refusal::Malformed("it is not three parts with dots between them"));
        };
        let header: Header = part(header).ok_or(Refusal::Malformed("its header is not a JSON object with `alg`"))?;
        let Some(algorithm) = Algorithm::named(&header.alg) else {
            let known = "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA";
            return Err(Refusal::Untrusted(format!("its signature algorithm is not accepted: use {known}")));
        };
        if header.crit.is_some() {
            return Err(Refusal::Untrusted("its header has `crit`: it must not be accepted without extensions".into()));
        }
        if !header.typ.as_deref().is_none_or(is_for_this) {
            return Err(Refusal::Untrusted("its `typ` says that it is for something else".into()));
        }
        let claims = part(claims).ok_or(Refusal::Malformed("its claims are no JSON object"))?;
        let signature = URL_SAFE_NO_PAD.decode(signature);
        let signature = signature.map_err(|_| Refusal::Malformed("its signature is no base64url"))?;
        Ok(Jwt { algorithm, key_id: header.kid, claims, message: message.to_owned(), signature })
    }

    /// The algorithm that it names.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The id of the key that it names.
    pub fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }

    /// What was signed, and the signature.
    pub fn signed(&self) -> (&[u8], &[u8]) {
        (self.message.as_bytes(), &self.signature)
    }

    /// All of its claims.
    pub const fn claims(&self) -> &Map<String, Value> {
        &self.claims
    }

    /// The issuer that it names (`iss`).
    pub fn issuer(&self) -> Result<&str, Refusal> {
        self.claims.get("iss").and_then(Value::as_str).ok_or(Refusal::Malformed("it has no issuer (`iss`)"))
    }

    /// The subject that it names (`sub`).
    pub fn subject(&self) -> Result<&str, Refusal> {
        let subject = self.claims.get("sub").and_then(Value::as_str);
        let subject = subject.filter(|subject| !subject.is_empty() && subject.len() <= MAX_SUBJECT_BYTES);
        subject.ok_or(Refusal::Malformed("it has no subject (`sub`) of 1 to 512 bytes"))
    }

    /// Whether it is meant for this audience.
    pub fn is_for(&self, audience: &str) -> bool {
        match self.claims.get("aud") {
            Some(Value::String(only)) => only == audience,
            Some(Value::Array(several)) => several.iter().any(|one| one.as_str() == Some(audience)),
            _ => false,
        }
    }

    /// A claim that is a time; none if it is missing.
    pub fn time(&self, claim: &'static str) -> Result<Option<Timestamp>, Refusal> {
        let Some(value) = self.claims.get(claim) else { return Ok(None) };
        // Seconds since 1970, with a fraction if need be. What is beyond the year 9999 is a mistake.
        let seconds = value.as_f64().filter(|seconds| (0.0..253_402_300_800.0).contains(seconds));
        let seconds = seconds.ok_or(Refusal::Malformed("a time in it is no number of seconds since 1970"))?;
        Ok(Some(Timestamp::from_millis((seconds * 1000.0) as u64)))
    }
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Jwt(***)")
    }
}

/// Whether a token of this type may be exchanged: identity and access tokens may, logout tokens, for example, may not.
fn is_for_this(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    matches!(kind.strip_prefix("application/").unwrap_or(&kind), "jwt" | "at+jwt")
}

fn part<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}
