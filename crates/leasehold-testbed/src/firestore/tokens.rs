//! A service account's self-signed token (AIP-4111), checked by openssl.

use crate::programs::{output_of, program};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

pub(super) const EMAIL: &str = "worker@demo.iam.gserviceaccount.com";
pub(super) const KEY_ID: &str = "1";
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

pub(super) fn make_keys(folder: &Path) {
    let (key, public) = (folder.join("key.pem"), folder.join("public.pem"));
    let make = ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out"];
    output_of(Command::new(program("openssl")).args(make).arg(&key));
    output_of(Command::new(program("openssl")).args(["pkey", "-pubout", "-in"]).arg(&key).arg("-out").arg(public));
}

/// Whether the real service would take this token.
pub(super) fn is_good(token: &str, folder: &Path) -> bool {
    let parts: Vec<&str> = token.split('.').collect();
    let [header, claims, signature] = parts[..] else { return false };
    let (Some(header_), Some(claims_), Ok(signature)) = (parsed(header), parsed(claims), BASE64.decode(signature))
    else {
        return false;
    };
    if header_ != json!({ "alg": "RS256", "typ": "JWT", "kid": KEY_ID }) {
        return false;
    }
    let now = leasehold_system::clock::wall_ms() / 1000;
    let (issued, expires) = (claims_["iat"].as_u64().unwrap_or(0), claims_["exp"].as_u64().unwrap_or(0));
    // A token with a scope has no audience.
    let expected = json!({ "iss": EMAIL, "sub": EMAIL, "scope": SCOPE, "iat": issued, "exp": expires });
    if claims_ != expected || issued > now || expires <= now || expires - issued > 3600 {
        return false;
    }
    let (text, proof) = (folder.join("claim"), folder.join("signature"));
    std::fs::write(&text, format!("{header}.{claims}")).unwrap();
    std::fs::write(&proof, signature).unwrap();
    let verified = Command::new(program("openssl"))
        .args(["dgst", "-sha256", "-verify"])
        .arg(folder.join("public.pem"))
        .arg("-signature")
        .args([proof, text])
        .output()
        .unwrap();
    verified.status.success()
}

fn parsed(part: &str) -> Option<Value> {
    serde_json::from_slice(&BASE64.decode(part).ok()?).ok()
}
