//! The token server: a service account's signed claim, checked by openssl.

use super::{Refusal, invalid};
use crate::program;
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

pub(super) const EMAIL: &str = "worker@demo.iam.gserviceaccount.com";
const SCOPE: &str = "https://www.googleapis.com/auth/datastore";

pub(super) fn make_keys(folder: &Path) {
    let (key, public) = (folder.join("key.pem"), folder.join("public.pem"));
    let made = [
        Command::new(program("openssl"))
            .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out"])
            .arg(&key)
            .output(),
        Command::new(program("openssl")).args(["pkey", "-pubout", "-in"]).arg(&key).arg("-out").arg(public).output(),
    ];
    for output in made {
        let output = output.unwrap();
        assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Refuses a claim that the real token server would refuse.
pub(super) fn verify(form: &str, audience: &str, folder: &Path) -> Result<(), Refusal> {
    let refuse = |what: &str| Err(Refusal(StatusCode::BAD_REQUEST, "invalid_grant", what.to_owned()));
    if folder.join("revoked").exists() {
        return refuse("Invalid JWT Signature.");
    }
    let start = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=";
    let claim = form.strip_prefix(start).ok_or_else(|| invalid("not the form of RFC 7523"))?;
    let parts: Vec<&str> = claim.split('.').collect();
    let [header, claims, signature] = parts[..] else { return refuse("not a signed claim") };
    let (Some(header_), Some(claims_), Ok(signature)) = (json(header), json(claims), BASE64.decode(signature)) else {
        return refuse("not base64url");
    };
    if header_["alg"] != "RS256" || header_["typ"] != "JWT" {
        return refuse("not an RS256 claim");
    }
    if claims_["iss"] != EMAIL || claims_["scope"] != SCOPE || claims_["aud"] != audience {
        return refuse("iss, scope or aud is wrong");
    }
    let now = leasehold_system::clock::wall_ms() / 1000;
    let (issued, expires) = (claims_["iat"].as_u64().unwrap_or(0), claims_["exp"].as_u64().unwrap_or(0));
    if issued > now || issued + 300 < now || expires <= issued || expires - issued > 3600 {
        return refuse("the claim's times are out of bounds");
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
    if verified.status.success() { Ok(()) } else { refuse("Invalid JWT Signature.") }
}

fn json(part: &str) -> Option<Value> {
    serde_json::from_slice(&BASE64.decode(part).ok()?).ok()
}
