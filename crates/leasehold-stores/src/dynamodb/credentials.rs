//! Where AWS credentials come from: the variables, files and services that AWS's own tools use.
//!
//! Promise: in their order (environment, profile, container, instance); temporary ones are renewed in time, refused ones
//! are looked for anew. Non-promise: profiles that need a sign-in or a role (`sso_*`, `role_arn`, `credential_process`)
//! are not followed; the message says what to do instead.

use crate::http::client::{Untimed, untimed};
use crate::phase::Phase;
use crate::utc::millis_of;
use aws_credential_types::Credentials;
use leasehold_core::{Error, Kind, Result};
use leasehold_system::clock::wall_ms;
use reqwest::{Client, RequestBuilder};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

const CONTAINER: &str = "http://169.254.170.2";
const INSTANCE: &str = "http://169.254.169.254";
const INSTANCE_ROLES: &str = "latest/meta-data/iam/security-credentials/";
/// How long the services on this machine may take.
const SERVICE: Duration = Duration::from_secs(2);
/// Temporary credentials are renewed this long before they end.
const AHEAD_MS: u64 = 5 * 60 * 1000;
const HOW: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; \
                   for a sign-in or a role: eval \"$(aws configure export-credentials --format env)\"";

type Vars = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// All places where credentials may be, and those that were found.
pub(super) struct Chain {
    client: Client,
    vars: Vars,
    profile: Option<String>,
    /// A credentials file that is named in the URL.
    file: Option<PathBuf>,
    found: Mutex<Option<Found>>,
}

#[derive(Clone)]
struct Found {
    credentials: Credentials,
    /// By this machine's clock.
    until_ms: Option<u64>,
}

/// What the container's and the instance's service answer.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Issued {
    access_key_id: String,
    secret_access_key: String,
    token: Option<String>,
    expiration: Option<String>,
}

impl Chain {
    /// Reads variables when they are needed; an empty one counts as none.
    pub(super) fn from_environment(client: Client, profile: Option<&str>, file: Option<&str>) -> Self {
        Chain::new(client, profile, file, Arc::new(|name| std::env::var(name).ok()))
    }

    fn new(client: Client, profile: Option<&str>, file: Option<&str>, vars: Vars) -> Self {
        let (profile, file) = (profile.map(str::to_owned), file.map(PathBuf::from));
        Chain { client, vars, profile, file, found: Mutex::new(None) }
    }

    pub(super) fn var(&self, name: &str) -> Option<String> {
        (self.vars)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    pub(super) fn region(&self) -> Option<String> {
        let variable = self.var("AWS_REGION").or_else(|| self.var("AWS_DEFAULT_REGION"));
        variable.or_else(|| self.profile_fields().remove("region"))
    }

    /// The next request looks for credentials anew.
    pub(super) async fn forget(&self) {
        *self.found.lock().await = None;
    }

    pub(super) async fn credentials(&self) -> Result<Credentials> {
        let mut found = self.found.lock().await;
        if let Some(known) = &*found
            && known.until_ms.is_none_or(|until| wall_ms() + AHEAD_MS < until)
        {
            return Ok(known.credentials.clone());
        }
        let fresh = match (self.look().await, &*found) {
            // Those that are known are good for some minutes yet.
            (Err(_), Some(known)) if known.until_ms.is_some_and(|until| wall_ms() < until) => {
                return Ok(known.credentials.clone());
            }
            (fresh, _) => fresh?,
        };
        let credentials = fresh.credentials.clone();
        *found = Some(fresh);
        Ok(credentials)
    }

    async fn look(&self) -> Result<Found> {
        // A profile or file that is named in the URL is meant, whatever the environment says.
        let is_named = self.profile.is_some() || self.file.is_some();
        if !is_named
            && let (Some(id), Some(secret)) = (self.var("AWS_ACCESS_KEY_ID"), self.var("AWS_SECRET_ACCESS_KEY"))
        {
            return Ok(lasting(id, secret, self.var("AWS_SESSION_TOKEN")));
        }
        let mut fields = self.profile_fields();
        if let (Some(id), Some(secret)) = (fields.remove("aws_access_key_id"), fields.remove("aws_secret_access_key")) {
            return Ok(lasting(id, secret, fields.remove("aws_session_token")));
        }
        if is_named || self.var("AWS_PROFILE").is_some() {
            let name = leasehold_core::printable(&self.profile_name());
            return Err(none(&format!("the AWS profile `{name}` has no access key")));
        }
        if let Some(request) = self.container()? {
            return issued(&answer_of(request).await?);
        }
        if self.var("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Err(none("no AWS credentials"));
        }
        self.instance().await
    }

    /// The request for a container's credentials, where there are such.
    fn container(&self) -> Result<Option<RequestBuilder>> {
        let relative = self.var("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|path| format!("{CONTAINER}{path}"));
        let Some(url) = relative.or_else(|| self.var("AWS_CONTAINER_CREDENTIALS_FULL_URI")) else { return Ok(None) };
        let mut request = self.client.get(url);
        let token = match self.var("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
            Some(file) => {
                let token = std::fs::read_to_string(&file).map_err(|e| {
                    none("cannot read the file in AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").with_source(e)
                })?;
                Some(token.trim().to_owned())
            }
            None => self.var("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
        };
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        Ok(Some(request))
    }

    /// The credentials of the role of an EC2 instance, by the second version of its protocol.
    async fn instance(&self) -> Result<Found> {
        let base = self.var("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| INSTANCE.into());
        let base = base.trim_end_matches('/').to_owned();
        let token = self.client.put(format!("{base}/latest/api/token"));
        let token = answer_of(token.header("x-aws-ec2-metadata-token-ttl-seconds", "60")).await?;
        let token = String::from_utf8_lossy(&token.body).trim().to_owned();
        let get = |path: String| {
            self.client.get(format!("{base}/{INSTANCE_ROLES}{path}")).header("x-aws-ec2-metadata-token", &token)
        };
        let role = answer_of(get(String::new())).await?;
        let role = String::from_utf8_lossy(&role.body).lines().next().unwrap_or_default().trim().to_owned();
        issued(&answer_of(get(role)).await?)
    }

    fn profile_name(&self) -> String {
        self.profile.clone().or_else(|| self.var("AWS_PROFILE")).unwrap_or_else(|| "default".into())
    }

    /// The fields of the chosen profile, those of the credentials file before those of the config file.
    fn profile_fields(&self) -> HashMap<String, String> {
        let name = self.profile_name();
        let file = |variable: &str, usual: &str| {
            let home = || self.var("HOME").map(|home| PathBuf::from(home).join(".aws").join(usual));
            self.var(variable).map(PathBuf::from).or_else(home).and_then(|path| std::fs::read_to_string(path).ok())
        };
        let config = file("AWS_CONFIG_FILE", "config").unwrap_or_default();
        let shared = match &self.file {
            Some(path) => std::fs::read_to_string(path).unwrap_or_default(),
            None => file("AWS_SHARED_CREDENTIALS_FILE", "credentials").unwrap_or_default(),
        };
        let mut fields = section(&config, &format!("profile {name}"));
        if name == "default" {
            fields.extend(section(&config, "default"));
        }
        fields.extend(section(&shared, &name));
        fields
    }
}

fn lasting(id: String, secret: String, token: Option<String>) -> Found {
    Found { credentials: Credentials::new(id, secret, token, None, "leasehold"), until_ms: None }
}

fn none(what: &str) -> Error {
    Error::new(Kind::Unsupported, format!("{what}; {HOW}"))
}

/// A service on this machine that does not answer is none: most machines have none.
async fn answer_of(request: RequestBuilder) -> Result<Untimed> {
    let place = "the credentials service of this machine";
    match untimed(request.timeout(SERVICE), Phase::Reading, place).await {
        Ok(answer) if answer.status == 200 => Ok(answer),
        Ok(answer) if answer.status < 500 && answer.status != 429 => {
            Err(none(&format!("no AWS credentials: {place} answered {}", answer.status)))
        }
        Ok(answer) => Err(Error::new(Kind::Unavailable, format!("{place} failed with {}; try again", answer.status))),
        Err(error) => Err(none("no AWS credentials, and no service of this machine gives any").with_source(error)),
    }
}

fn issued(answer: &Untimed) -> Result<Found> {
    let issued: Issued = serde_json::from_slice(&answer.body)
        .map_err(|_| none("the credentials service of this machine gave an answer that is not understood"))?;
    let until_ms = issued.expiration.as_deref().and_then(millis_of);
    let credentials = Credentials::new(issued.access_key_id, issued.secret_access_key, issued.token, None, "leasehold");
    Ok(Found { credentials, until_ms })
}

/// The fields of one section of an AWS file.
fn section(text: &str, wanted: &str) -> HashMap<String, String> {
    let mut fields = HashMap::new();
    let mut is_wanted = false;
    for line in text.lines() {
        // What is indented belongs to the field above, and is none of ours.
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            is_wanted = name.split_whitespace().eq(wanted.split_whitespace());
        } else if let (true, Some((name, value))) = (is_wanted, line.split_once('=')) {
            fields.insert(name.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn chain(profile: Option<&str>, vars: &[(&str, &str)]) -> Chain {
        let vars: HashMap<String, String> = vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let client = crate::http::builder().build().unwrap();
        Chain::new(client, profile, None, Arc::new(move |name| vars.get(name).cloned()))
    }

    /// A service that gives each of these answers once, and what it was asked.
    fn service(answers: &'static [&'static str]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                let count = stream.read(&mut request).unwrap();
                asked.push(String::from_utf8_lossy(&request[..count]).to_lowercase());
                let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", answer.len());
                stream.write_all(format!("{head}{answer}").as_bytes()).unwrap();
            }
            asked
        });
        (base, asked)
    }

    const ISSUED: &str =
        r#"{"AccessKeyId":"ID","SecretAccessKey":"SECRET","Token":"T","Expiration":"2099-01-01T00:00:00Z"}"#;

    #[tokio::test]
    async fn the_environment_comes_before_the_profile_unless_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("credentials").display().to_string();
        let text = "[default]\naws_access_key_id=D\naws_secret_access_key=d\n[ team ]\nAWS_ACCESS_KEY_ID = T \n\
                    # note\naws_secret_access_key = t=1\naws_session_token=s\ns3 =\n  region = no\n[other]\nregion=x\n";
        std::fs::write(&at, text).unwrap();
        let config = folder.path().join("config").display().to_string();
        std::fs::write(&config, "[default]\nregion=eu-west-1\n[profile team]\nregion=eu-north-1\n").unwrap();
        let files = [("AWS_SHARED_CREDENTIALS_FILE", at.as_str()), ("AWS_CONFIG_FILE", config.as_str())];
        let keys = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "e")];
        for (profile, more, id, secret, region) in [
            (None, &keys[..], "E", "e", "eu-west-1"),
            (Some("team"), &keys[..], "T", "t=1", "eu-north-1"),
            (None, &[("AWS_PROFILE", "team")][..], "T", "t=1", "eu-north-1"),
            (None, &[("AWS_REGION", "us-east-1")][..], "D", "d", "us-east-1"),
        ] {
            let chain = chain(profile, &[&files[..], more].concat());
            let found = chain.credentials().await.unwrap();
            assert_eq!((found.access_key_id(), found.secret_access_key()), (id, secret));
            assert_eq!(chain.region().unwrap(), region);
        }
        let error = chain(Some("other"), &files).credentials().await.unwrap_err();
        assert!(
            error.kind() == Kind::Unsupported && error.to_string().contains("`other` has no access key"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_container_and_an_instance_give_temporary_ones() {
        let (base, asked) = service(&[ISSUED]);
        let full = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", base.as_str());
        let container = chain(None, &[full, ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pod")]);
        let found = container.credentials().await.unwrap();
        assert_eq!((found.access_key_id(), found.session_token()), ("ID", Some("T")));
        // The second time nobody is asked: the service would not answer.
        assert_eq!(container.credentials().await.unwrap().access_key_id(), "ID");
        assert!(asked.join().unwrap()[0].contains("authorization: pod"));

        let (base, asked) = service(&["TOKEN", "my-role\n", ISSUED]);
        let instance = chain(None, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", base.as_str())]);
        assert_eq!(instance.credentials().await.unwrap().access_key_id(), "ID");
        let asked = asked.join().unwrap();
        assert!(asked[0].starts_with("put /latest/api/token "), "{asked:?}");
        assert!(asked[2].starts_with("get /latest/meta-data/iam/security-credentials/my-role "), "{asked:?}");
        assert!(asked[2].contains("x-aws-ec2-metadata-token: token"), "{asked:?}");
    }

    #[tokio::test]
    async fn without_any_the_message_says_what_to_set() {
        let error = chain(None, &[("AWS_EC2_METADATA_DISABLED", "true")]).credentials().await.unwrap_err();
        assert!(error.kind() == Kind::Unsupported && error.to_string().contains("AWS_PROFILE"), "{error}");
    }
}
