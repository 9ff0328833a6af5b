//! The service, endpoint and credentials of a bucket, from the URL, the environment and the usual files.
//!
//! Promise: the variables and files that each service's own tools read are read here too, and an error names the wrong
//! one. Non-promise: nothing is sent; the first call fetches credentials that have to be fetched.

use super::azure::ConnectionString;
use super::connection::Connector;
use super::error::Advice;
use super::layout::Compared;
use crate::credentials::{Env, Replaceable, aws, google as google_credentials, var};
use crate::url::{Address, Secret};
use leasehold_core::{Error, Kind, Result};
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The account and key of every Azurite. They are published and open nothing else.
const AZURITE_ACCOUNT: &str = "devstoreaccount1";
const AZURITE_KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// What the store needs from every one of the driver's clients.
pub(super) trait Cloud: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Cloud for T {}

/// The service, or the one that the server is compatible with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    S3,
    Google,
    Azure,
}

impl Service {
    pub(super) fn of(address: &Address) -> Result<Self> {
        match address.scheme.as_str() {
            "s3" => Ok(Service::S3),
            "gs" => Ok(Service::Google),
            "az" => Ok(Service::Azure),
            other => Err(address.invalid(format!("`{other}` is not an object store's scheme"))),
        }
    }

    /// The scheme, which is the store's name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Service::S3 => "s3",
            Service::Google => "gs",
            Service::Azure => "az",
        }
    }

    const fn options(self) -> &'static [&'static str] {
        match self {
            Service::S3 => &["endpoint", "region", "ca"],
            Service::Google => &["endpoint", "ca"],
            Service::Azure => &["endpoint", "account", "ca"],
        }
    }

    pub(super) const fn compared(self) -> Compared {
        match self {
            Service::S3 | Service::Azure => Compared::ETag,
            Service::Google => Compared::Generation,
        }
    }

    fn advice(self, bucket: &str) -> Advice {
        let (credentials, creation) = match self {
            Service::S3 => (
                "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE and ~/.aws/credentials; the policy must \
                 allow s3:GetObject, s3:PutObject and s3:ListBucket",
                format!("create it with: aws s3api create-bucket --bucket {bucket}"),
            ),
            Service::Google => (
                "check GOOGLE_APPLICATION_CREDENTIALS, or run: gcloud auth application-default login; the role must allow \
                 storage.objects.get, create, delete and list",
                format!("create it with: gcloud storage buckets create gs://{bucket}"),
            ),
            Service::Azure => (
                "check AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, or AZURE_STORAGE_CONNECTION_STRING; the role must \
                 allow to read, write and list blobs",
                format!("create it with: az storage container create --name {bucket}"),
            ),
        };
        Advice {
            credentials: credentials.into(),
            creation,
            redirected: "the bucket is elsewhere: set its region with `?region=` or AWS_REGION, or the `endpoint`"
                .into(),
        }
    }
}

/// A bucket, and a client for it.
pub(super) struct Bucket {
    pub(super) cloud: Arc<dyn Cloud>,
    /// The credentials, if they can be looked up again.
    pub(super) credentials: Option<Arc<dyn Replaceable>>,
    pub(super) service: Service,
    pub(super) name: String,
    /// The folder of all namespaces.
    pub(super) prefix: Path,
    /// The server, for messages: without secrets.
    pub(super) display_name: String,
    /// The server's name as a part of an object's key.
    pub(super) label: String,
    pub(super) advice: Advice,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({}, prefix `{}`)", self.display_name, self.prefix)
    }
}

/// Refuses an address that could not be used, before anything is opened.
pub(super) fn check(address: &Address) -> Result<()> {
    let service = Service::of(address)?;
    address.allow_options(service.options())?;
    match address.hosts.as_slice() {
        [] => return Err(address.invalid(format!("the bucket is missing; use {}://bucket/prefix", service.name()))),
        [host] if host.port.is_none() => {}
        _ => {
            return Err(
                address.invalid("after `//` stands one bucket; a server is named by `?endpoint=http://host:port`")
            );
        }
    }
    if address.user.is_some() && address.password.is_none() {
        return Err(address.invalid("a user without a password; credentials are best left to the environment"));
    }
    Path::parse(address.path.trim_matches('/'))
        .map_err(|e| address.invalid(format!("the prefix cannot be used: {e}")))?;
    if let Some(endpoint) = address.option("endpoint") {
        check_endpoint(endpoint).map_err(|what| address.invalid(format!("the option `endpoint` {what}")))?;
    }
    if address.option("region").is_some_and(|region| !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')) {
        return Err(address.invalid("the option `region` is not a region's name, such as `eu-central-1`"));
    }
    Ok(())
}

fn check_endpoint(endpoint: &str) -> Result<(), &'static str> {
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let rest = rest.ok_or("does not begin with `http://` or `https://`")?;
    if rest.contains(['?', '#', ' ']) {
        return Err("has more than a host, a port and a path");
    }
    match rest.split('/').next() {
        None | Some("") => Err("has no host"),
        Some(authority) if authority.contains('@') => Err("has a user; credentials do not belong there"),
        Some(_) => Ok(()),
    }
}

fn is_local(endpoint: &str) -> bool {
    let host = endpoint.split("://").nth(1).unwrap_or_default();
    ["127.", "localhost", "[::1]"].iter().any(|local| host.starts_with(local))
}

/// Reads the settings and builds the client.
pub(super) fn bucket(address: &Address, env: &Env) -> Result<Bucket> {
    check(address)?;
    let built = match Service::of(address)? {
        Service::S3 => s3(address, env)?,
        Service::Google => google(address, env),
        Service::Azure => azure(address, env)?,
    };
    bucket_by(built, address, env)
}

/// The same, with a builder that already has its endpoint.
pub(super) fn bucket_by(built: (Builder, Option<String>), address: &Address, env: &Env) -> Result<Bucket> {
    let (builder, endpoint) = built;
    let service = Service::of(address)?;
    let name = address.hosts[0].name.clone();
    let prefix = Path::parse(address.path.trim_matches('/')).unwrap_or_default();
    if let Some(endpoint) = &endpoint {
        check_endpoint(endpoint).map_err(|what| {
            let message =
                format!("the endpoint `{}` of {} {what}", leasehold_core::printable(endpoint), service.name());
            Error::new(Kind::Invalid, message)
        })?;
    }
    let connector = connector(address, env, service, endpoint.as_deref().is_some_and(is_local))?;
    let display_name = match &endpoint {
        Some(endpoint) => format!("{} `{name}` at {endpoint}", bucket_word(service)),
        None => format!("{} `{name}`", bucket_word(service)),
    };
    let advice = service.advice(&name);
    let (builder, credentials) = builder.identified(address, env, &connector)?;
    let connector = connector.with_credentials(credentials.clone());
    let cloud = builder.build(&name, connector).map_err(|e| {
        let why = e.split_whitespace().collect::<Vec<_>>().join(" ");
        Error::new(Kind::Unsupported, format!("cannot use {display_name}: {why}; {}", advice.credentials))
    })?;
    let label = endpoint.as_deref().map_or_else(|| "the-service-itself".to_owned(), label_of);
    Ok(Bucket { cloud, credentials, service, name, prefix, display_name, label, advice })
}

const fn bucket_word(service: Service) -> &'static str {
    match service {
        Service::S3 => "s3 bucket",
        Service::Google => "google bucket",
        Service::Azure => "azure container",
    }
}

fn label_of(endpoint: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    endpoint.trim_end_matches('/').replacen("://", "-", 1).chars().map(safe).collect()
}

fn connector(address: &Address, env: &Env, service: Service, is_local: bool) -> Result<Connector> {
    let file = address.option("ca").or_else(|| match service {
        Service::S3 => var(env, "AWS_CA_BUNDLE"),
        Service::Google | Service::Azure => var(env, "REQUESTS_CA_BUNDLE"),
    });
    let unusable = |file: &str, why: String| {
        Error::new(
            Kind::Invalid,
            format!("cannot use the certificates in `{}`: {why}", leasehold_core::printable(file)),
        )
    };
    let pem = match file {
        Some(file) => Some(std::fs::read(file).map_err(|e| unusable(file, e.to_string()))?),
        None => None,
    };
    Connector::new(pem.as_deref(), is_local).map_err(|why| unusable(file.unwrap_or("the system"), why))
}

/// The driver's builders, without the settings that they share.
pub(super) enum Builder {
    S3(Box<AmazonS3Builder>),
    Google { builder: Box<GoogleCloudStorageBuilder>, has_token: bool },
    Azure(Box<MicrosoftAzureBuilder>),
}

impl Builder {
    /// Adds the credentials, which are fetched over this connector if necessary.
    fn identified(
        self,
        address: &Address,
        env: &Env,
        connector: &Connector,
    ) -> Result<(Self, Option<Arc<dyn Replaceable>>)> {
        Ok(match self {
            Builder::S3(builder) => {
                let credentials = Arc::new(wanted(address, env).credentials(connector.client()));
                credentials.check()?;
                (Builder::S3(Box::new(builder.with_credentials(credentials.clone()))), Some(credentials))
            }
            Builder::Google { builder, has_token: false } => {
                let credentials = Arc::new(google_credentials::credentials(connector.client(), env.clone(), None));
                credentials.check()?;
                let builder = Box::new(builder.with_credentials(credentials.clone()));
                (Builder::Google { builder, has_token: true }, Some(credentials))
            }
            builder => (builder, None),
        })
    }

    fn build(self, bucket: &str, connector: Connector) -> Result<Arc<dyn Cloud>, String> {
        // A conditional write that is repeated after it was applied looks refused.
        let retry = RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() };
        let options = ClientOptions::new().with_allow_http(true);
        let built: object_store::Result<Arc<dyn Cloud>> = match self {
            Builder::S3(builder) => builder
                .with_bucket_name(bucket)
                .with_retry(retry)
                .with_client_options(options)
                .with_conditional_put(S3ConditionalPut::ETagMatch)
                .with_disable_bulk_delete(true)
                .with_http_connector(connector)
                .build()
                .map(|cloud| Arc::new(cloud) as _),
            Builder::Google { builder, .. } => builder
                .with_bucket_name(bucket)
                .with_retry(retry)
                .with_client_options(options)
                .with_http_connector(connector)
                .build()
                .map(|cloud| Arc::new(cloud) as _),
            Builder::Azure(builder) => builder
                .with_container_name(bucket)
                .with_retry(retry)
                .with_client_options(options)
                .with_http_connector(connector)
                .build()
                .map(|cloud| Arc::new(cloud) as _),
        };
        built.map_err(|e| e.to_string())
    }
}

fn s3(address: &Address, env: &Env) -> Result<(Builder, Option<String>)> {
    let wanted = wanted(address, env);
    let mut builder = AmazonS3Builder::new();
    if let Some(region) = wanted.region()? {
        builder = builder.with_region(region);
    }
    let profile = wanted.profile()?;
    let endpoint = address
        .option("endpoint")
        .or_else(|| var(env, "AWS_ENDPOINT_URL_S3"))
        .or_else(|| var(env, "AWS_ENDPOINT_URL"))
        .or_else(|| profile.field("endpoint_url"));
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    Ok((Builder::S3(Box::new(builder)), endpoint.map(str::to_owned)))
}

/// The settings for AWS's credentials.
fn wanted(address: &Address, env: &Env) -> aws::Wanted {
    aws::Wanted {
        env: env.clone(),
        keys: address.user.clone().zip(address.password.clone()),
        region: address.option("region").map(str::to_owned),
        ..aws::Wanted::default()
    }
}

fn google(address: &Address, env: &Env) -> (Builder, Option<String>) {
    let emulator = var(env, "STORAGE_EMULATOR_HOST").map(|host| {
        let scheme = if host.contains("://") { "" } else { "http://" };
        format!("{scheme}{}", host.trim_end_matches('/'))
    });
    let endpoint = address.option("endpoint").map(|endpoint| endpoint.trim_end_matches('/').to_owned()).or(emulator);
    let token = address
        .password
        .as_ref()
        .map(Secret::reveal)
        .or_else(|| var(env, "CLOUDSDK_AUTH_ACCESS_TOKEN"))
        .or_else(|| var(env, "GOOGLE_OAUTH_ACCESS_TOKEN"))
        // An emulator accepts any token, and has no metadata server.
        .or_else(|| endpoint.as_deref().filter(|endpoint| endpoint.starts_with("http://")).map(|_| "emulator"));
    let mut builder = GoogleCloudStorageBuilder::new();
    if let Some(endpoint) = &endpoint {
        builder = builder.with_base_url(endpoint);
    }
    if let Some(token) = token {
        let credential = GcpCredential { bearer: token.to_owned() };
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(credential)));
    }
    (Builder::Google { builder: Box::new(builder), has_token: token.is_some() }, endpoint)
}

/// The variables that the driver interprets as Azure's own tools do.
const AZURE_VARIABLES: &[&str] = &[
    "AZURE_AUTHORITY_HOST",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_TENANT_ID",
];

fn azure(address: &Address, env: &Env) -> Result<(Builder, Option<String>)> {
    let mut builder = MicrosoftAzureBuilder::new();
    for name in AZURE_VARIABLES {
        if let (Some(value), Ok(key)) = (var(env, name), name.to_ascii_lowercase().parse::<AzureConfigKey>()) {
            builder = builder.with_config(key, value);
        }
    }
    let string = match var(env, "AZURE_STORAGE_CONNECTION_STRING") {
        Some(text) => ConnectionString::parse(text)?,
        None => ConnectionString::default(),
    };
    let account = address
        .user
        .as_deref()
        .or_else(|| address.option("account"))
        .or(string.account.as_deref())
        .or_else(|| var(env, "AZURE_STORAGE_ACCOUNT"))
        .or_else(|| var(env, "AZURE_STORAGE_ACCOUNT_NAME"))
        .ok_or_else(|| {
            address.invalid("the storage account is missing; give `?account=` or set AZURE_STORAGE_ACCOUNT")
        })?;
    let key = address
        .password
        .as_ref()
        .map(Secret::reveal)
        .or(string.key.as_deref())
        .or_else(|| var(env, "AZURE_STORAGE_KEY"))
        .or_else(|| var(env, "AZURE_STORAGE_ACCOUNT_KEY"))
        .or_else(|| (account == AZURITE_ACCOUNT).then_some(AZURITE_KEY));
    let endpoint = address.option("endpoint").or(string.endpoint.as_deref()).map(|endpoint| {
        let endpoint = endpoint.trim_end_matches('/');
        // Azurite's accounts are in the first part of the path, not of the host.
        let bare = endpoint.split("://").nth(1).is_some_and(|rest| !rest.contains('/'));
        if bare && is_local(endpoint) { format!("{endpoint}/{account}") } else { endpoint.to_owned() }
    });
    builder = builder.with_account(account);
    match (key, &string.sas) {
        (Some(key), _) => builder = builder.with_access_key(key),
        (None, Some(sas)) => builder = builder.with_config(AzureConfigKey::SasKey, sas),
        (None, None) => {}
    }
    if let Some(endpoint) = &endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    Ok((Builder::Azure(Box::new(builder)), endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_testbed::{Flaw, StandIn};
    use object_store::ObjectStoreExt;

    fn address(text: &str) -> Address {
        let (scheme, rest) = text.split_once(':').unwrap();
        Address::parse(scheme, rest).unwrap()
    }

    /// The `Authorization` header of a request.
    async fn authorization(server: &StandIn, address_: &str, env: &[(&str, &str)]) -> String {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let bucket = bucket(&address(address_), &env).unwrap();
        assert!(bucket.display_name.contains(&server.port().to_string()), "{}", bucket.display_name);
        let _ = bucket.cloud.get(&Path::from("x")).await;
        server.authorization()
    }

    #[tokio::test]
    async fn s3_takes_keys_region_and_endpoint_from_where_its_tools_do() {
        let server = StandIn::s3(Flaw::None);
        let endpoint = format!("http://127.0.0.1:{}", server.port());
        let keys = [("AWS_ACCESS_KEY_ID", "ENVID"), ("AWS_SECRET_ACCESS_KEY", "x"), ("AWS_REGION", "eu-west-3")];
        let by_env = [&keys[..], &[("AWS_ENDPOINT_URL", endpoint.as_str())]].concat();
        let signed = authorization(&server, "s3://b/p", &by_env).await;
        assert!(signed.contains("Credential=ENVID/") && signed.contains("/eu-west-3/s3/"), "{signed}");
        let url = format!("s3://URLID:x@b/p?region=us-west-2&endpoint={endpoint}");
        let signed = authorization(&server, &url, &keys).await;
        assert!(signed.contains("Credential=URLID/") && signed.contains("/us-west-2/s3/"), "{signed}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        std::fs::write(&file, "[ci]\naws_access_key_id = FILEID\naws_secret_access_key = x\n").unwrap();
        let by_file = [
            ("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap()),
            ("AWS_PROFILE", "ci"),
            ("AWS_ENDPOINT_URL_S3", endpoint.as_str()),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ];
        assert!(authorization(&server, "s3://b", &by_file).await.contains("Credential=FILEID/"));
        let half = Env::from([("AWS_ACCESS_KEY_ID".to_owned(), "x".to_owned())]);
        let error = bucket(&address("s3://b"), &half).unwrap_err();
        assert!(error.to_string().contains("AWS_SECRET_ACCESS_KEY is not"), "{error}");
    }

    #[tokio::test]
    async fn google_and_azure_take_theirs_too() {
        let server = StandIn::google(Flaw::None);
        let host = format!("127.0.0.1:{}", server.port());
        let by_env = [("STORAGE_EMULATOR_HOST", host.as_str()), ("CLOUDSDK_AUTH_ACCESS_TOKEN", "tok")];
        assert_eq!(authorization(&server, "gs://b", &by_env).await, "Bearer tok");
        assert_eq!(authorization(&server, "gs://b", &by_env[..1]).await, "Bearer emulator");
        let key = "c2VjcmV0";
        let string = format!("AccountName=acct;AccountKey={key};BlobEndpoint=http://{host}/acct");
        let signed = authorization(&server, "az://c/p", &[("AZURE_STORAGE_CONNECTION_STRING", string.as_str())]).await;
        assert!(signed.starts_with("SharedKey acct:"), "{signed}");
        let by_env = [("AZURE_STORAGE_ACCOUNT", "other"), ("AZURE_STORAGE_KEY", key)];
        let signed = authorization(&server, &format!("az://c?endpoint=http://{host}"), &by_env).await;
        assert!(signed.starts_with("SharedKey other:"), "{signed}");
        let error = bucket(&address("az://c"), &Env::new()).unwrap_err();
        assert!(error.to_string().contains("AZURE_STORAGE_ACCOUNT"), "{error}");
        let missing = Env::from([("GOOGLE_APPLICATION_CREDENTIALS".to_owned(), "/no/such/file".to_owned())]);
        let error = bucket(&address("gs://b"), &missing).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("GOOGLE_APPLICATION_CREDENTIALS"), "{error}");
    }
}
