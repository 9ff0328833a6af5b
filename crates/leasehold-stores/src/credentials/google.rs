//! Google's access tokens: from a service account's key, a user's own sign-in, or the machine's metadata server.
//!
//! Promise: found where Google's own libraries find them (GOOGLE_APPLICATION_CREDENTIALS, gcloud's file, metadata
//! server). Non-promise: workload identity federation (`external_account`) is not supported.
//!
//! A service account signs its token itself, for the scope `cloud-platform`, without a token server (AIP-4111). That
//! scope covers Cloud Storage and Firestore; the account's roles decide what it may do there.

use super::connection::{Connector, REMOTE, Source};
use super::{Env, Provider, Renewed, no_retry, var};
use leasehold_core::{Error, Kind, Result, printable};
use object_store::client::HttpClient;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the metadata server may take to answer. If it exists, it is on this machine.
const LOCAL: Duration = Duration::from_secs(3);
const HOW: &str = "set GOOGLE_APPLICATION_CREDENTIALS to a service account's key file, or run: \
                   gcloud auth application-default login";

/// The credentials from this environment, or from the file that the URL names.
pub(crate) fn credentials(client: HttpClient, env: Env, file: Option<PathBuf>) -> Renewed<GcpCredential> {
    Renewed::new(move || find(&client, &env, file.as_deref()))
}

fn find(client: &HttpClient, env: &Env, file: Option<&Path>) -> Result<Provider<GcpCredential>> {
    let named = file.map(PathBuf::from).or_else(|| var(env, "GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from));
    let home = || var(env, "HOME").map(|home| PathBuf::from(home).join(".config/gcloud"));
    let folder = var(env, "CLOUDSDK_CONFIG").map(PathBuf::from).or_else(home);
    let usual = folder.map(|folder| folder.join("application_default_credentials.json"));
    let file = named.or_else(|| usual.filter(|path| path.is_file()));
    let mut builder = GoogleCloudStorageBuilder::new().with_bucket_name("unused").with_retry(no_retry());
    let (connector, source, refusal) = match file {
        Some(path) => {
            let shown = printable(&path.display().to_string());
            refuse_other_kinds(&path, &shown)?;
            builder = builder.with_application_credentials(path.display().to_string());
            let refusal = format!("`{shown}` lacks a field, or its private key is not an RSA key");
            (Connector::new(client.clone(), REMOTE), source("Google's token server", false), refusal)
        }
        None => {
            let source = source("the metadata server", true);
            (Connector::new(client.clone(), LOCAL), source, "gcloud's credentials file cannot be used".to_owned())
        }
    };
    // The driver's message could quote a secret.
    let built = builder.with_http_connector(connector.clone()).build();
    let storage = built.map_err(|_| Error::new(Kind::Unsupported, format!("{refusal}; {HOW}")))?;
    Ok(Provider { provider: storage.credentials().clone(), connector, source })
}

fn source(name: &'static str, is_local: bool) -> Source {
    let (check, none) = ("the clock and the key", "no Google credentials".to_owned());
    Source { name, is_local, file: None, check, none, how: HOW, malformed: Kind::Unavailable }
}

/// Reports what is wrong with a file before the driver does: the driver's message names neither the file nor a remedy.
fn refuse_other_kinds(path: &Path, shown: &str) -> Result<()> {
    let refuse = |what: String| Error::new(Kind::Unsupported, format!("{what}; {HOW}"));
    let text =
        std::fs::read(path).map_err(|e| refuse(format!("cannot read the credentials in `{shown}`")).with_source(e))?;
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    match value["type"].as_str() {
        Some("service_account" | "authorized_user") => Ok(()),
        Some(_) => Err(refuse(format!("`{shown}` is of a kind that is not supported"))),
        None => Err(refuse(format!("`{shown}` is not a credentials file of Google's"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::connection::stand_in::{Script, answer};

    fn file(folder: &Path, text: &str) -> PathBuf {
        let path = folder.join("key.json");
        std::fs::write(&path, text).unwrap();
        path
    }

    #[tokio::test]
    async fn credentials_that_cannot_be_used_are_never_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let (script, _) = Script::serve([]);
        for (text, says) in [
            ("{hunter2", "not a credentials file"),
            (r#"{"type":"service_account","client_email":"hunter2"}"#, "lacks a field"),
            (r#"{"type":"external_account","x":"hunter2"}"#, "a kind that is not supported"),
            (
                r#"{"type":"service_account","client_email":"a","private_key_id":"1","private_key":"-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n"}"#,
                "not an RSA key",
            ),
        ] {
            let file = file(folder.path(), text);
            let error = credentials(script.clone(), Env::new(), Some(file)).get().await.unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(error.kind() == Kind::Unsupported && shown.contains(says), "{shown}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        let error = credentials(script, Env::new(), Some("/none.json".into())).get().await.unwrap_err();
        assert!(error.to_string().contains("cannot read the credentials in `/none.json`"), "{error}");
    }

    #[tokio::test]
    async fn a_users_sign_in_is_exchanged_and_a_refusal_says_what_to_check() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"type":"authorized_user","client_id":"i","client_secret":"hunter2","refresh_token":"r&1"}"#;
        let env = Env::from([("CLOUDSDK_CONFIG".to_owned(), folder.path().display().to_string())]);
        std::fs::write(folder.path().join("application_default_credentials.json"), text).unwrap();
        let refused = answer(400, r#"{"error":"invalid_grant"}"#);
        let (script, asked) = Script::serve([answer(200, r#"{"access_token":"T","expires_in":3599}"#), refused]);
        let tokens = credentials(script, env, None);
        assert_eq!(tokens.get().await.unwrap().bearer, "T");
        // The second call sends no request.
        assert_eq!(tokens.get().await.unwrap().bearer, "T");
        tokens.refuse();
        let error = tokens.get().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert!(error.to_string().contains("token server refused with 400; check the clock"), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        let asked = asked.lock();
        assert!(asked[0].starts_with("POST https://accounts.google.com/o/oauth2/token"), "{asked:?}");
        assert!(asked[0].contains("client_secret=hunter2&refresh_token=r%261"), "{asked:?}");
    }

    #[tokio::test]
    async fn a_metadata_server_that_fails_is_distinguished_from_one_that_is_not_there() {
        if std::env::home_dir().is_some_and(|home| home.join(".config/gcloud").exists()) {
            eprintln!("skipped: the driver would use this user's own sign-in of gcloud");
            return;
        }
        // It is asked by name and by IP address.
        let (script, _) = Script::serve([answer(503, ""), answer(503, "")]);
        let tokens = credentials(script, Env::new(), None);
        assert_eq!(tokens.get().await.unwrap_err().kind(), Kind::Unavailable);
        // The script has ended: no service answers.
        let error = tokens.get().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("set GOOGLE_APPLICATION_CREDENTIALS"), "{error}");
    }
}
