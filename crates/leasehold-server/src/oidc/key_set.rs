//! The public keys that an issuer publishes (RFC 7517).
//!
//! Promise: a key checks only signatures by the algorithms of its type, and by the one that it names. Keys for other purposes, or
//! that we cannot use, are left out; they do not hide others.

use super::algorithm::{Algorithm, Curve};
use super::jwt::Jwt;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::Value;

/// How many keys of a set are used. More are a mistake, or make each token without a key id costly.
const MAX_KEYS: usize = 64;

/// The keys that an issuer publishes.
#[derive(Debug, Clone, Default)]
pub struct KeySet(Vec<PublicKey>);

#[derive(Debug, Clone)]
struct PublicKey {
    id: Option<String>,
    /// The only algorithm that it is for, if it names one.
    algorithm: Option<Algorithm>,
    material: Material,
}

#[derive(Debug, Clone)]
enum Material {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    Point { curve: Curve, bytes: Vec<u8> },
}

/// Whether a set has the signer of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureCheck {
    /// The set has the signer's key, and the signature is valid.
    Signed,
    /// The set has the key that the token names, but that key did not sign it.
    Forged,
    /// The set has no key that could have signed it.
    Missing,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Parses a published document.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let document: Document =
            serde_json::from_slice(bytes).map_err(|_| "it is no JSON of the form {\"keys\": [...]}")?;
        let keys = document.keys.into_iter().filter_map(|value| usable(serde_json::from_value(value).ok()?));
        Ok(KeySet(keys.take(MAX_KEYS).collect()))
    }

    /// Whether one of these keys signed a token.
    pub fn check(&self, token: &Jwt) -> SignatureCheck {
        let is_named = |key: &&PublicKey| token.key_id().is_none() || key.id.as_deref() == token.key_id();
        let mut named = self.0.iter().filter(is_named).peekable();
        match (named.peek().is_some(), token.key_id()) {
            (false, _) => SignatureCheck::Missing,
            _ if named.any(|key| key.verifies(token)) => SignatureCheck::Signed,
            (true, Some(_)) => SignatureCheck::Forged,
            (true, None) => SignatureCheck::Missing,
        }
    }
}

impl PublicKey {
    fn verifies(&self, token: &Jwt) -> bool {
        let algorithm = token.algorithm();
        if self.algorithm.is_some_and(|only| only != algorithm) {
            return false;
        }
        let (message, signature) = token.signed();
        match &self.material {
            Material::Rsa { modulus, exponent } => algorithm.rsa().is_some_and(|parameters| {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(parameters, message, signature).is_ok()
            }),
            Material::Point { curve, bytes } => algorithm
                .on(*curve)
                .is_some_and(|algorithm| UnparsedPublicKey::new(algorithm, bytes).verify(message, signature).is_ok()),
        }
    }
}

/// A key that checks signatures and that we can use.
fn usable(jwk: Jwk) -> Option<PublicKey> {
    let is_to_verify = jwk.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
        && jwk.key_ops.is_none_or(|operations| operations.iter().any(|operation| operation == "verify"));
    if !is_to_verify {
        return None;
    }
    let algorithm = match jwk.alg.as_deref() {
        None => None,
        Some(name) => Some(Algorithm::named(name)?),
    };
    let number = |text: Option<String>| {
        let bytes = URL_SAFE_NO_PAD.decode(text?).ok()?;
        // ring takes numbers without leading zeros.
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Some(bytes[zeros..].to_vec())
    };
    let exact =
        |text: Option<String>, length: usize| URL_SAFE_NO_PAD.decode(text?).ok().filter(|bytes| bytes.len() == length);
    let point = |length: usize, x: Option<String>, y: Option<String>| {
        // The uncompressed form.
        Some([vec![4], exact(x, length)?, exact(y, length)?].concat())
    };
    let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("RSA", _) => Material::Rsa { modulus: number(jwk.n)?, exponent: number(jwk.e)? },
        ("EC", Some("P-256")) => Material::Point { curve: Curve::P256, bytes: point(32, jwk.x, jwk.y)? },
        ("EC", Some("P-384")) => Material::Point { curve: Curve::P384, bytes: point(48, jwk.x, jwk.y)? },
        ("OKP", Some("Ed25519")) => Material::Point { curve: Curve::Ed25519, bytes: exact(jwk.x, 32)? },
        _ => return None,
    };
    Some(PublicKey { id: jwk.kid, algorithm, material })
}
