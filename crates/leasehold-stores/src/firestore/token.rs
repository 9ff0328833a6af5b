//! Access tokens: from a service account's key, a user's own sign-in, or the machine's metadata server.
//!
//! Promise: found as Google's own libraries find them (GOOGLE_APPLICATION_CREDENTIALS, gcloud's file, metadata server),
//! renewed in time, never shown. Non-promise: workload identity federation (`external_account`) is not followed.

use crate::http::client::untimed;
use crate::phase::Phase;
use crate::url::Secret;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use leasehold_core::{Error, Kind, Result, printable};
use leasehold_system::clock::wall_ms;
use reqwest::{Client, RequestBuilder, Url};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

const SCOPE: &str = "https://www.googleapis.com/auth/datastore";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";
const METADATA: &str = "metadata.google.internal";
const METADATA_PATH: &str = "computeMetadata/v1/instance/service-accounts/default/token";
/// The longest that a service account may ask for.
const LIFE_S: u64 = 3600;
/// Tokens are renewed this long before they end.
const AHEAD_MS: u64 = 2 * 60 * 1000;
/// How long the metadata server may take: it is on this machine, or it is not.
const METADATA_TIMEOUT: Duration = Duration::from_secs(3);
const HOW: &str = "set GOOGLE_APPLICATION_CREDENTIALS to a service account's key file, or run: \
                   gcloud auth application-default login";

pub(super) type Vars = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Where tokens come from.
pub(super) enum Source {
    /// An emulator takes everybody for its master.
    Emulator,
    Real(Box<Real>),
}

pub(super) struct Real {
    client: Client,
    /// A credentials file that is named in the URL.
    file: Option<PathBuf>,
    vars: Vars,
    found: Mutex<Option<Found>>,
}

#[derive(Clone)]
struct Found {
    token: Secret,
    /// By this machine's clock.
    until_ms: u64,
}

/// What a credentials file says.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Identity {
    ServiceAccount {
        client_email: String,
        private_key: String,
        private_key_id: Option<String>,
        token_uri: Option<String>,
    },
    AuthorizedUser {
        client_id: String,
        client_secret: String,
        refresh_token: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Issued {
    access_token: String,
    expires_in: u64,
}

impl Source {
    pub(super) fn new(client: Client, file: Option<&str>, vars: Vars) -> Self {
        Source::Real(Box::new(Real { client, file: file.map(PathBuf::from), vars, found: Mutex::new(None) }))
    }

    pub(super) async fn token(&self) -> Result<Secret> {
        match self {
            Source::Emulator => Ok(Secret::new("owner")),
            Source::Real(real) => real.token().await,
        }
    }

    /// The next request asks for a token anew.
    pub(super) async fn forget(&self) {
        if let Source::Real(real) = self {
            *real.found.lock().await = None;
        }
    }
}

impl Real {
    async fn token(&self) -> Result<Secret> {
        let mut found = self.found.lock().await;
        if let Some(known) = &*found
            && wall_ms() + AHEAD_MS < known.until_ms
        {
            return Ok(known.token.clone());
        }
        let fresh = match (self.look().await, &*found) {
            // The one that is known is good for some minutes yet.
            (Err(_), Some(known)) if wall_ms() < known.until_ms => return Ok(known.token.clone()),
            (fresh, _) => fresh?,
        };
        let token = fresh.token.clone();
        *found = Some(fresh);
        Ok(token)
    }

    async fn look(&self) -> Result<Found> {
        let var = |name: &str| (self.vars)(name).filter(|value| !value.is_empty());
        let named = self.file.clone().or_else(|| var("GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from));
        let folder = var("CLOUDSDK_CONFIG")
            .map(PathBuf::from)
            .or_else(|| var("HOME").map(|home| PathBuf::from(home).join(".config/gcloud")));
        let usual = folder.map(|folder| folder.join("application_default_credentials.json"));
        let Some(path) = named.or_else(|| usual.filter(|path| path.is_file())) else {
            let host = var("GCE_METADATA_HOST").unwrap_or_else(|| METADATA.into());
            let request = self.client.get(format!("http://{host}/{METADATA_PATH}")).header("metadata-flavor", "Google");
            return issued(request.timeout(METADATA_TIMEOUT), "the metadata server").await;
        };
        let shown = printable(&path.display().to_string());
        let text = std::fs::read(&path).map_err(|e| {
            Error::new(Kind::Unsupported, format!("cannot read the credentials in `{shown}`; {HOW}")).with_source(e)
        })?;
        // The parser's own message could quote a secret.
        let account: Identity = serde_json::from_slice(&text).map_err(|_| {
            Error::new(Kind::Unsupported, format!("`{shown}` is not a credentials file of Google's; {HOW}"))
        })?;
        self.exchange(account, &shown).await
    }

    async fn exchange(&self, account: Identity, shown: &str) -> Result<Found> {
        match account {
            Identity::ServiceAccount { client_email, private_key, private_key_id, token_uri } => {
                let uri = token_uri.unwrap_or_else(|| TOKEN_URI.into());
                let claim =
                    assertion(&client_email, &private_key, private_key_id.as_deref(), &uri).ok_or_else(|| {
                        Error::new(Kind::Unsupported, format!("the private key in `{shown}` is not an RSA key; {HOW}"))
                    })?;
                let form = [("grant_type", GRANT), ("assertion", claim.as_str())];
                issued(self.posted(&uri, &form)?, "the token server").await
            }
            Identity::AuthorizedUser { client_id, client_secret, refresh_token } => {
                let form = [
                    ("grant_type", "refresh_token"),
                    ("client_id", client_id.as_str()),
                    ("client_secret", client_secret.as_str()),
                    ("refresh_token", refresh_token.as_str()),
                ];
                issued(self.posted(TOKEN_URI, &form)?, "the token server").await
            }
            Identity::Other => {
                let what = format!("`{shown}` is of a kind that is not supported");
                Err(Error::new(Kind::Unsupported, format!("{what}; {HOW}")))
            }
        }
    }

    fn posted(&self, uri: &str, form: &[(&str, &str)]) -> Result<RequestBuilder> {
        // A URL knows how a form is written.
        let mut body = Url::parse("http://x").map_err(|_| Error::new(Kind::Invalid, "not a URL"))?;
        body.query_pairs_mut().extend_pairs(form);
        let request = self.client.post(uri).header("content-type", "application/x-www-form-urlencoded");
        Ok(request.body(body.query().unwrap_or_default().to_owned()))
    }
}

/// The signed claim of a service account, as RFC 7523 has it.
fn assertion(email: &str, key: &str, key_id: Option<&str>, audience: &str) -> Option<String> {
    let der = PrivatePkcs8KeyDer::from_pem_slice(key.as_bytes()).ok()?;
    let pair = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).ok()?;
    let mut header = json!({ "alg": "RS256", "typ": "JWT" });
    if let Some(id) = key_id {
        header["kid"] = json!(id);
    }
    let now = wall_ms() / 1000;
    let claims = json!({ "iss": email, "scope": SCOPE, "aud": audience, "iat": now, "exp": now + LIFE_S });
    let signed = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).ok()?;
    Some(format!("{signed}.{}", BASE64.encode(signature)))
}

/// Nothing was written yet, whatever happens here.
async fn issued(request: RequestBuilder, place: &str) -> Result<Found> {
    let answer = match untimed(request, Phase::Reading, place).await {
        Ok(answer) => answer,
        Err(error) if place == "the metadata server" => {
            let message = format!("no Google credentials, and no metadata server gives any; {HOW}");
            return Err(Error::new(Kind::Unsupported, message).with_source(error));
        }
        Err(error) => return Err(error),
    };
    match answer.status {
        200 => {
            let issued: Issued = serde_json::from_slice(&answer.body)
                .map_err(|_| Error::new(Kind::Unavailable, format!("{place} gave an answer that is not understood")))?;
            let until_ms = wall_ms().saturating_add(issued.expires_in.saturating_mul(1000));
            Ok(Found { token: Secret::new(issued.access_token), until_ms })
        }
        status @ (429 | 500..) => {
            Err(Error::new(Kind::Unavailable, format!("{place} failed with {status}; try again")))
        }
        status => {
            let message =
                format!("{place} refused the credentials with {status}; check the clock and the key, or {HOW}");
            Err(Error::new(Kind::Unsupported, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn credentials_that_cannot_be_used_are_never_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.json").display().to_string();
        let client = crate::http::builder().build().unwrap();
        for (text, says) in [
            ("{hunter2", "not a credentials file"),
            (r#"{"type":"service_account","client_email":"hunter2"}"#, "not a credentials file"),
            (r#"{"type":"external_account","x":"hunter2"}"#, "a kind that is not supported"),
            (
                r#"{"type":"service_account","client_email":"a","private_key":"-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n"}"#,
                "not an RSA key",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Source::new(client.clone(), Some(&file), Arc::new(|_| None)).token().await.unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(error.kind() == Kind::Unsupported && shown.contains(says), "{shown}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        let error = Source::new(client, Some("/none.json"), Arc::new(|_| None)).token().await.unwrap_err();
        assert!(error.to_string().contains("cannot read the credentials in `/none.json`"), "{error}");
    }
}
