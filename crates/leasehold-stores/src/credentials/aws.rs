//! AWS credentials, in the order of AWS's own tools: environment, profile, web identity, container, instance.
//!
//! Promise: the URL overrides the environment; a pair of variables of which only one is set is an error. A web
//! identity's token leaves this machine only over TLS. Non-promise: `AWS_ROLE_ARN` is used for web identity only.

use super::aws_profile::Profile;
use super::connection::{Connector, REMOTE, Source};
use super::{Env, Provider, Renewed, no_retry, var};
use crate::url::{Secret, is_loopback};
use leasehold_core::{Error, Kind, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::client::HttpClient;
use std::path::PathBuf;
use std::time::Duration;

/// How long a service on this machine may take to answer.
const LOCAL: Duration = Duration::from_secs(2);
const HOW: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; \
                   for a sign-in or a role: eval \"$(aws configure export-credentials --format env)\"";
/// The driver requires a file for a container's token. Without one, [`Connector`] adds the token.
const NO_FILE: &str = if cfg!(windows) { "NUL" } else { "/dev/null" };

/// The settings from the URL and the environment.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) env: Env,
    /// The keys in the URL.
    pub(crate) keys: Option<(String, Secret)>,
    /// The profile in the URL.
    pub(crate) profile: Option<String>,
    /// The credentials file in the URL.
    pub(crate) file: Option<PathBuf>,
    /// The region in the URL.
    pub(crate) region: Option<String>,
}

impl Wanted {
    pub(crate) fn profile(&self) -> Result<Profile> {
        Profile::read(&self.env, self.profile.as_deref(), self.file.as_deref())
    }

    pub(crate) fn region(&self) -> Result<Option<String>> {
        let variable = || var(&self.env, "AWS_REGION").or_else(|| var(&self.env, "AWS_DEFAULT_REGION"));
        match self.region.as_deref().or_else(variable) {
            Some(region) => Ok(Some(region.to_owned())),
            None => Ok(self.profile()?.field("region").map(str::to_owned)),
        }
    }

    pub(crate) fn credentials(self, client: HttpClient) -> Renewed<AwsCredential> {
        Renewed::new(move || self.find(&client))
    }

    fn find(&self, client: &HttpClient) -> Result<Provider<AwsCredential>> {
        let profile = self.profile()?;
        let mut builder = AmazonS3Builder::new().with_bucket_name("unused").with_retry(no_retry());
        if let Some(region) = self.region()? {
            builder = builder.with_region(region);
        }
        let (builder, connector, source) = self.choose(builder, client, &profile)?;
        let built = builder.with_http_connector(connector.clone()).build();
        // The driver's error is not quoted, because it may contain secrets.
        let s3 = built.map_err(|_| Error::new(Kind::Unsupported, format!("{}; {HOW}", source.none)))?;
        Ok(Provider { provider: s3.credentials().clone(), connector, source })
    }

    fn choose(
        &self,
        builder: AmazonS3Builder,
        client: &HttpClient,
        profile: &Profile,
    ) -> Result<(AmazonS3Builder, Connector, Source)> {
        let env = &self.env;
        let connector = |timeout| Connector::new(client.clone(), timeout);
        let lacking = || format!("the AWS profile `{}` has no access key", profile.name);
        let none = if profile.is_named { lacking() } else { "no AWS credentials".to_owned() };
        let web_identity = self.web_identity()?;
        let mut keys = self.keys(profile)?;
        if !profile.is_named && web_identity.is_some() {
            keys = keys.filter(|keys| !keys.is_of_profile);
        }
        if let Some(Keys { id, secret, token, .. }) = keys {
            // The driver panics on characters that a header cannot contain.
            let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_plain(id) || !token.is_none_or(is_plain) {
                let message = "the AWS access key or session token is malformed; copy it again, as plain text";
                return Err(Error::new(Kind::Unsupported, message));
            }
            let mut builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            if let Some(token) = token {
                builder = builder.with_token(token);
            }
            return Ok((builder, connector(LOCAL), local("nobody", none)));
        }
        if self.profile.is_some() || self.file.is_some() {
            profile.refuse_without_keys()?;
            return Err(Error::new(Kind::Unsupported, format!("{}; {HOW}", lacking())));
        }
        if let Some((file, role)) = web_identity {
            let mut builder = builder
                .with_config(AmazonS3ConfigKey::WebIdentityTokenFile, file)
                .with_config(AmazonS3ConfigKey::RoleArn, role);
            for (variable, key) in [
                ("AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName),
                ("AWS_ENDPOINT_URL_STS", AmazonS3ConfigKey::StsEndpoint),
            ] {
                if let Some(value) = var(env, variable) {
                    builder = builder.with_config(key, value);
                }
            }
            let source = Source {
                name: "AWS STS",
                is_local: false,
                file: Some(("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_owned())),
                check: "AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN and the role's trust policy",
                ..local("", none)
            };
            return Ok((builder, connector(REMOTE), source));
        }
        if let Some(container) = self.container(builder.clone(), connector(LOCAL), &none) {
            return Ok(container);
        }
        profile.refuse_without_keys()?;
        if var(env, "AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Err(Error::new(Kind::Unsupported, format!("{none}; {HOW}")));
        }
        let endpoint = var(env, "AWS_EC2_METADATA_SERVICE_ENDPOINT").map(|endpoint| endpoint.trim_end_matches('/'));
        let builder = endpoint.into_iter().fold(builder, |builder, endpoint| builder.with_metadata_endpoint(endpoint));
        Ok((builder, connector(LOCAL), local("the instance's metadata service", none)))
    }

    /// The keys that are known without asking a service, if any.
    fn keys<'a>(&'a self, profile: &'a Profile) -> Result<Option<Keys<'a>>> {
        if let Some((id, secret)) = &self.keys {
            return Ok(Some(Keys { id, secret: secret.reveal(), token: None, is_of_profile: false }));
        }
        if self.profile.is_none() && self.file.is_none() {
            let (id, secret) = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY");
            let token = var(&self.env, "AWS_SESSION_TOKEN");
            match (var(&self.env, id), var(&self.env, secret)) {
                (Some(id), Some(secret)) => return Ok(Some(Keys { id, secret, token, is_of_profile: false })),
                (Some(_), None) => return Err(incomplete(id, secret)),
                (None, Some(_)) => return Err(incomplete(secret, id)),
                (None, None) => {}
            }
        }
        let (id, secret) = (profile.field("aws_access_key_id"), profile.field("aws_secret_access_key"));
        let token = profile.field("aws_session_token");
        Ok(id.zip(secret).map(|(id, secret)| Keys { id, secret, token, is_of_profile: true }))
    }

    /// The token's file and the role.
    fn web_identity(&self) -> Result<Option<(&str, &str)>> {
        let (file, role) = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN");
        let Some(path) = var(&self.env, file) else { return Ok(None) };
        let Some(arn) = var(&self.env, role) else { return Err(incomplete(file, role)) };
        let is_safe = |url: &reqwest::Url| {
            url.scheme() == "https" || (url.scheme() == "http" && url.host_str().is_some_and(is_loopback))
        };
        let endpoint = var(&self.env, "AWS_ENDPOINT_URL_STS");
        if endpoint.is_some_and(|text| !reqwest::Url::parse(text).is_ok_and(|url| is_safe(&url))) {
            let message = "AWS_ENDPOINT_URL_STS is not of the form https://host, or http:// to a loopback address";
            return Err(Error::new(Kind::Unsupported, message));
        }
        Ok(Some((path, arn)))
    }

    /// The container's service, if there is one.
    fn container(
        &self,
        builder: AmazonS3Builder,
        connector: Connector,
        none: &str,
    ) -> Option<(AmazonS3Builder, Connector, Source)> {
        let env = &self.env;
        let variable = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
        let (file, token) = (var(env, variable), var(env, "AWS_CONTAINER_AUTHORIZATION_TOKEN"));
        let builder = match var(env, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
            Some(path) => builder.with_config(AmazonS3ConfigKey::ContainerCredentialsRelativeUri, path),
            None => builder
                .with_config(
                    AmazonS3ConfigKey::ContainerCredentialsFullUri,
                    var(env, "AWS_CONTAINER_CREDENTIALS_FULL_URI")?,
                )
                .with_config(AmazonS3ConfigKey::ContainerAuthorizationTokenFile, file.unwrap_or(NO_FILE)),
        };
        let source = Source {
            file: file.map(|file| (variable, file.to_owned())),
            ..local("the container's credentials service", none.to_owned())
        };
        Some((builder, connector.with_authorization(token.filter(|_| file.is_none())), source))
    }
}

struct Keys<'a> {
    id: &'a str,
    secret: &'a str,
    token: Option<&'a str>,
    is_of_profile: bool,
}

fn local(name: &'static str, none: String) -> Source {
    let check = "that this machine has a role";
    Source { name, is_local: true, file: None, check, none, how: HOW, malformed: Kind::Unsupported }
}

fn incomplete(set: &str, unset: &str) -> Error {
    Error::new(Kind::Unsupported, format!("the AWS credentials are incomplete: {set} is set, {unset} is not"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::connection::stand_in::{Script, answer};
    use std::io::{Read, Write};

    fn wanted(profile: Option<&str>, vars: &[(&str, &str)]) -> Wanted {
        let env = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Wanted { env, profile: profile.map(str::to_owned), ..Wanted::default() }
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
        let (script, _) = Script::serve([]);
        for (profile, more, id, secret, region) in [
            (None, &keys[..], "E", "e", "eu-west-1"),
            (Some("team"), &keys[..], "T", "t=1", "eu-north-1"),
            (None, &[("AWS_PROFILE", "team")][..], "T", "t=1", "eu-north-1"),
            (None, &[("AWS_REGION", "us-east-1")][..], "D", "d", "us-east-1"),
        ] {
            let wanted = wanted(profile, &[&files[..], more].concat());
            assert_eq!(wanted.region().unwrap().unwrap(), region);
            let found = wanted.credentials(script.clone()).get().await.unwrap();
            assert_eq!((found.key_id.as_str(), found.secret_key.as_str()), (id, secret));
        }
        let error = wanted(Some("other"), &files).credentials(script.clone()).get().await.unwrap_err();
        assert!(
            error.kind() == Kind::Unsupported && error.to_string().contains("`other` has no access key"),
            "{error}"
        );
        for (vars, says) in [
            (&keys[..1], "AWS_SECRET_ACCESS_KEY is not"),
            (&keys[1..], "AWS_ACCESS_KEY_ID is not"),
            (&[("AWS_WEB_IDENTITY_TOKEN_FILE", "/x")][..], "AWS_ROLE_ARN is not"),
            (&[("AWS_ACCESS_KEY_ID", "\u{e9}"), ("AWS_SECRET_ACCESS_KEY", "e")][..], "access key or session token"),
        ] {
            let error = wanted(None, vars).credentials(script.clone()).get().await.unwrap_err();
            assert!(error.kind() == Kind::Unsupported && error.to_string().contains(says), "{error}");
        }
    }

    #[tokio::test]
    async fn a_container_and_an_instance_give_temporary_ones() {
        let (script, asked) = Script::serve([answer(200, ISSUED)]);
        let full = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/c");
        let container = wanted(None, &[full, ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pod")]).credentials(script);
        let found = container.get().await.unwrap();
        assert_eq!((found.key_id.as_str(), found.token.as_deref()), ("ID", Some("T")));
        // The second call sends no request.
        assert_eq!(container.get().await.unwrap().key_id, "ID");
        let asked = asked.lock().clone();
        assert!(asked.len() == 1 && asked[0].starts_with("GET http://127.0.0.1:1/c {"), "{asked:?}");
        assert!(asked[0].contains(r#""authorization": Sensitive"#), "{asked:?}");

        let (script, asked) = Script::serve(["TOKEN", "my-role", ISSUED].map(|body| answer(200, body)));
        let endpoint = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:2/");
        assert_eq!(wanted(None, &[endpoint]).credentials(script).get().await.unwrap().key_id, "ID");
        let asked = asked.lock();
        assert!(asked[0].starts_with("PUT http://127.0.0.1:2/latest/api/token "), "{asked:?}");
        assert!(asked[2].contains("/latest/meta-data/iam/security-credentials/my-role "), "{asked:?}");
        assert!(asked[2].contains(r#""x-aws-ec2-metadata-token": "TOKEN""#), "{asked:?}");
    }

    #[tokio::test]
    async fn those_at_hand_are_used_while_renewing_fails_but_not_after_they_were_refused() {
        // The credentials are about to expire, so each call renews them.
        let issued = ISSUED.replace("2099", "2009");
        let (script, asked) = Script::serve([answer(200, &issued), answer(500, ""), answer(500, "")]);
        let uri = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/c");
        let container = wanted(None, &[uri]).credentials(script);
        assert_eq!(container.get().await.unwrap().key_id, "ID");
        assert_eq!(container.get().await.unwrap().key_id, "ID");
        container.refuse();
        let error = container.get().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert_eq!(container.get().await.unwrap_err().kind(), Kind::Unsupported, "nobody is there");
        assert!(asked.lock()[0].starts_with("GET http://169.254.170.2/c "));
    }

    const TOKEN: &str = "eyJ.hunter2.sig";
    const ROLE: &str = "arn:aws:iam::123456789012:role/worker";

    /// AWS STS on loopback, according to its documentation: one action, and only its parameters.
    fn sts() -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 4096];
                let count = stream.read(&mut request).unwrap();
                let request = String::from_utf8_lossy(&request[..count]).into_owned();
                let (status, body) = sts_answer(request.lines().next().unwrap_or_default());
                let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
            }
        });
        base
    }

    fn sts_answer(line: &str) -> (&'static str, String) {
        let refuse = |code: &str| {
            let body = format!("<ErrorResponse><Error><Code>{code}</Code><Message>x</Message></Error></ErrorResponse>");
            ("400 Bad Request", body)
        };
        let path = line.strip_prefix("POST ").and_then(|rest| rest.strip_suffix(" HTTP/1.1")).unwrap_or_default();
        let url = reqwest::Url::parse(&format!("http://sts{path}")).unwrap();
        let mut fields: Env = url.query_pairs().into_owned().collect();
        if fields.remove("WebIdentityToken").as_deref() != Some(TOKEN) {
            return refuse("InvalidIdentityToken");
        }
        let expected = [
            ("Action", "AssumeRoleWithWebIdentity"),
            ("DurationSeconds", "3600"),
            ("RoleArn", ROLE),
            ("RoleSessionName", "nightly"),
            ("Version", "2011-06-15"),
        ];
        if url.path() != "/" || fields != expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into() {
            return refuse("ValidationError");
        }
        let credentials = "<Credentials><AccessKeyId>WEB</AccessKeyId><SecretAccessKey>s</SecretAccessKey>\
                           <SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>";
        let name = "AssumeRoleWithWebIdentity";
        ("200 OK", format!("<{name}Response><{name}Result>{credentials}</{name}Result></{name}Response>"))
    }

    #[tokio::test]
    async fn a_web_identity_is_exchanged_for_keys_and_its_token_is_never_shown() {
        crate::tls::install();
        let client = HttpClient::new(reqwest::Client::builder().no_proxy().build().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token").display().to_string();
        std::fs::write(&file, TOKEN).unwrap();
        std::fs::create_dir(folder.path().join(".aws")).unwrap();
        let keys = "[default]\naws_access_key_id=D\naws_secret_access_key=d\n";
        std::fs::write(folder.path().join(".aws/credentials"), keys).unwrap();
        let (sts, home) = (sts(), folder.path().display().to_string());
        let vars = [
            ("AWS_WEB_IDENTITY_TOKEN_FILE", file.as_str()),
            ("AWS_ROLE_ARN", ROLE),
            ("AWS_ROLE_SESSION_NAME", "nightly"),
            ("AWS_ENDPOINT_URL_STS", sts.as_str()),
            ("HOME", home.as_str()),
        ];
        let with = |more: &[(&str, &str)]| wanted(None, &[&vars[..], more].concat()).credentials(client.clone());
        let found = with(&[]).get().await.unwrap();
        assert_eq!((found.key_id.as_str(), found.token.as_deref()), ("WEB", Some("t")));
        // A named profile comes first, and so do keys.
        assert_eq!(with(&[("AWS_PROFILE", "default")]).get().await.unwrap().key_id, "D");
        let keys = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "e")];
        assert_eq!(with(&keys).get().await.unwrap().key_id, "E");

        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for (more, kind, says) in [
            (("AWS_ROLE_ARN", "arn:aws:iam::1:role/x"), Kind::Unsupported, "STS refused with 400 ValidationError"),
            (("AWS_WEB_IDENTITY_TOKEN_FILE", "/none"), Kind::Unsupported, "`/none` (AWS_WEB_IDENTITY_TOKEN_FILE)"),
            (("AWS_ENDPOINT_URL_STS", &format!("http://{free}")), Kind::Unavailable, "cannot reach AWS STS"),
            (("AWS_ENDPOINT_URL_STS", "http://example.org"), Kind::Unsupported, "AWS_ENDPOINT_URL_STS is not"),
        ] {
            let error = with(&[more]).get().await.unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(error.kind() == kind && shown.contains(says), "{shown}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        std::fs::write(&file, "eyJ.hunter2.old").unwrap();
        let error = with(&[]).get().await.unwrap_err();
        assert!(error.to_string().contains("400 InvalidIdentityToken; check AWS_WEB_IDENTITY_TOKEN_FILE"), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }

    #[tokio::test]
    async fn without_any_the_message_says_what_to_set() {
        let (script, asked) = Script::serve([]);
        let disabled = wanted(None, &[("AWS_EC2_METADATA_DISABLED", "true")]).credentials(script.clone());
        let error = disabled.get().await.unwrap_err();
        assert!(error.kind() == Kind::Unsupported && error.to_string().contains("AWS_PROFILE"), "{error}");
        assert!(asked.lock().is_empty());
        let error = wanted(None, &[]).credentials(script).get().await.unwrap_err();
        assert!(error.kind() == Kind::Unsupported && error.to_string().contains("no AWS credentials"), "{error}");
    }
}
