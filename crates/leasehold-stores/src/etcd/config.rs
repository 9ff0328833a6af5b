//! Where a cluster is and how to log in: from the URL, and otherwise from etcdctl's own variables.
//!
//! Promise: contradictions are refused, and TLS is never dropped silently. Non-promise: it makes no connection.

use crate::http;
use crate::open::redacted_text;
use crate::url::{Address, Host, Secret};
use leasehold_core::{Error, Kind, Result, printable};
use reqwest::{Certificate, Client, Identity, redirect};
use std::time::Duration;

const PORT: u16 = 2379;
/// The scheme that means TLS.
const TLS: &str = "etcds";
const OPTIONS: &[&str] = &["cacert", "cert", "key"];
/// The interval of TCP keepalives. A watch may be silent for long; this detects that the other end is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Reads an environment variable.
pub(super) type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One member of the cluster, or a proxy in front of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// `http://host:port`
    pub(super) base: String,
    /// Its name in messages.
    pub(super) display_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: Secret,
}

/// Everything that is needed to talk to a cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// At least one member.
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) credentials: Option<Credentials>,
    /// PEM files: the authorities to trust instead of the system's, and our own certificate and key.
    ca: Option<String>,
    identity: Option<(String, String)>,
}

/// Refuses an address, judged by its text alone.
pub(super) fn check(address: &Address) -> Result<()> {
    address.allow_options(OPTIONS)?;
    if !address.path.is_empty() {
        return Err(address.invalid("a path is not allowed here; a namespace is `?namespace=NAME`"));
    }
    // Without hosts, the environment decides about TLS.
    if address.hosts.is_empty() { Ok(()) } else { refuse_files_without_tls(address, address.scheme == TLS) }
}

fn refuse_files_without_tls(address: &Address, is_tls: bool) -> Result<()> {
    if !is_tls && OPTIONS.iter().any(|name| address.option(name).is_some()) {
        return Err(address.invalid("`cacert`, `cert` and `key` need TLS: begin the url with `etcds://`"));
    }
    Ok(())
}

impl Config {
    pub(super) fn gather(address: &Address, variable: Variable<'_>) -> Result<Self> {
        check(address)?;
        let endpoints = endpoints(address, variable)?;
        let is_tls = endpoints.iter().any(|endpoint| endpoint.base.starts_with("https:"));
        refuse_files_without_tls(address, is_tls)?;
        let file = |option: &str, name: &str| {
            let given = address.option(option).map(str::to_owned).or_else(|| variable(name));
            given.filter(|file| is_tls && !file.is_empty())
        };
        let identity = match (file("cert", "ETCDCTL_CERT"), file("key", "ETCDCTL_KEY")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(address.invalid("a client certificate needs both `cert` and `key`")),
        };
        let credentials = credentials(address, variable)?;
        Ok(Config { endpoints, credentials, ca: file("cacert", "ETCDCTL_CACERT"), identity })
    }

    /// The HTTP client. Reads the PEM files.
    pub(super) fn client(&self) -> Result<Client> {
        // HTTP/1.1: a watch has a connection of its own, and is ended by dropping it. Redirects are not followed.
        let mut builder = http::builder().http1_only().redirect(redirect::Policy::none()).tcp_keepalive(KEEPALIVE);
        if let Some(file) = &self.ca {
            let trusted = Certificate::from_pem_bundle(&pem(file)?).map_err(|e| not_pem(file, "certificate", e))?;
            if trusted.is_empty() {
                return Err(unusable(file, "it has no PEM certificate"));
            }
            builder = builder.tls_certs_only(trusted);
        }
        if let Some((cert, key)) = &self.identity {
            let text = [pem(key)?, b"\n".to_vec(), pem(cert)?].concat();
            let identity = Identity::from_pem(&text).map_err(|e| not_pem(cert, "certificate and key", e))?;
            builder = builder.identity(identity);
        }
        builder.build().map_err(|e| {
            Error::new(Kind::Unsupported, "the tls settings for etcd cannot be used; check cacert, cert and key")
                .with_source(e)
        })
    }
}

fn pem(file: &str) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|e| unusable(file, "it cannot be read").with_source(e))
}

fn not_pem(file: &str, what: &str, error: reqwest::Error) -> Error {
    unusable(file, &format!("it is no PEM {what}")).with_source(error)
}

fn unusable(file: &str, what: &str) -> Error {
    Error::new(Kind::Unsupported, format!("cannot use the file `{}` for etcd: {what}", printable(file)))
}

fn endpoints(address: &Address, variable: Variable<'_>) -> Result<Vec<Endpoint>> {
    let is_tls = address.scheme == TLS;
    if !address.hosts.is_empty() {
        return Ok(address.hosts.iter().map(|host| endpoint(host, is_tls)).collect());
    }
    let listed = variable("ETCDCTL_ENDPOINTS").unwrap_or_default();
    let mut found = Vec::new();
    for text in listed.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let refuse = |what: &str| Error::invalid("ETCDCTL_ENDPOINTS", redacted_text(text), what);
        let (is_tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", _)) if is_tls => return Err(refuse("it is without TLS, which `etcds://` asks for")),
            Some(("http", rest)) => (false, rest),
            Some(_) => return Err(refuse("use `http://host:port`, `https://host:port` or `host:port`")),
            None => (is_tls, text),
        };
        let parsed = Address::parse("etcd", &format!("//{rest}")).map_err(|what| refuse(&what))?;
        match (parsed.hosts.as_slice(), parsed.path.as_str(), &parsed.user) {
            ([host], "", None) => found.push(endpoint(host, is_tls)),
            _ => return Err(refuse("use `http://host:port`, `https://host:port` or `host:port`")),
        }
    }
    if found.is_empty() {
        found.push(endpoint(&Host { name: "127.0.0.1".into(), port: None }, is_tls));
    }
    Ok(found)
}

fn endpoint(host: &Host, is_tls: bool) -> Endpoint {
    let authority = host.authority(PORT);
    let scheme = if is_tls { "https" } else { "http" };
    Endpoint { base: format!("{scheme}://{authority}"), display_name: format!("etcd at {}", printable(&authority)) }
}

/// The user in the URL, or else `ETCDCTL_USER`, which may be `user:password`; a missing password is `ETCDCTL_PASSWORD`.
fn credentials(address: &Address, variable: Variable<'_>) -> Result<Option<Credentials>> {
    let (user, password) = match &address.user {
        Some(user) => (user.clone(), address.password.clone()),
        None if address.password.is_some() => return Err(address.invalid("a password without a user")),
        None => match variable("ETCDCTL_USER").filter(|user| !user.is_empty()) {
            None => return Ok(None),
            Some(both) => match both.split_once(':') {
                Some((user, password)) => (user.to_owned(), Some(Secret::new(password))),
                None => (both, None),
            },
        },
    };
    let Some(password) = password.or_else(|| variable("ETCDCTL_PASSWORD").map(Secret::new)) else {
        let what = format!("the user `{}` has no password; put it into ETCDCTL_PASSWORD", printable(&user));
        return Err(address.invalid(what));
    };
    Ok(Some(Credentials { user, password }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(text: &str, variables: &[(&str, &str)]) -> Result<Config> {
        let (scheme, rest) = text.split_once(':').unwrap();
        let address = Address::parse(scheme, rest).unwrap();
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Config::gather(&address, &variable)
    }

    fn bases(config: &Config) -> Vec<&str> {
        config.endpoints.iter().map(|endpoint| endpoint.base.as_str()).collect()
    }

    #[test]
    fn the_url_counts_before_the_environment() {
        let variables = [
            ("ETCDCTL_ENDPOINTS", "http://elsewhere:1"),
            ("ETCDCTL_USER", "other:secret"),
            ("ETCDCTL_PASSWORD", "from-env"),
            ("ETCDCTL_CACERT", "/ca"),
            ("ETCDCTL_CERT", "/cert"),
            ("ETCDCTL_KEY", "/key"),
        ];
        let config = gather("etcds://me:mine@a,[::1]:9?cacert=/own", &variables).unwrap();
        assert_eq!(bases(&config), ["https://a:2379", "https://[::1]:9"]);
        assert_eq!(config.ca.as_deref(), Some("/own"));
        assert_eq!(config.identity, Some(("/cert".into(), "/key".into())));
        let credentials = config.credentials.unwrap();
        assert_eq!((credentials.user.as_str(), credentials.password.reveal()), ("me", "mine"));
        let credentials = gather("etcd://me@a", &variables).unwrap().credentials.unwrap();
        assert_eq!((credentials.user.as_str(), credentials.password.reveal()), ("me", "from-env"));
    }

    #[test]
    fn what_the_url_leaves_out_comes_from_etcdctls_variables() {
        let variables =
            [("ETCDCTL_ENDPOINTS", "https://a:1, b:2,http://c/"), ("ETCDCTL_USER", "u:p:q"), ("ETCDCTL_CACERT", "/ca")];
        let config = gather("etcd://", &variables).unwrap();
        assert_eq!(bases(&config), ["https://a:1", "http://b:2", "http://c:2379"]);
        assert_eq!(config.ca.as_deref(), Some("/ca"));
        assert!(!format!("{config:?}").contains("p:q"));
        assert_eq!(config.credentials.unwrap().password.reveal(), "p:q");
        let config = gather("etcds://", &[]).unwrap();
        assert_eq!(bases(&config), ["https://127.0.0.1:2379"]);
        assert_eq!(config.credentials, None);
        // Without TLS, etcdctl's certificates do not apply.
        assert_eq!(gather("etcd://h", &[("ETCDCTL_CERT", "/cert")]).unwrap().identity, None);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (text, variables, says) in [
            ("etcd://h/path", &[] as &[(&str, &str)], "a path is not allowed here"),
            ("etcd://?cacert=/ca", &[], "begin the url with `etcds://`"),
            ("etcd://h?cacert=/ca", &[], "begin the url with `etcds://`"),
            ("etcds://h?ca=/ca", &[], "`ca` is not known; known are `cacert`, `cert`, `key`"),
            ("etcds://h?cert=/c", &[], "both `cert` and `key`"),
            ("etcd://me@h", &[], "the user `me` has no password"),
            ("etcd://:x@h", &[], "a password without a user"),
            ("etcds://", &[("ETCDCTL_ENDPOINTS", "http://h:1")], "without TLS"),
            ("etcd://", &[("ETCDCTL_ENDPOINTS", "unix://x")], "use `http://host:port`"),
            ("etcd://", &[("ETCDCTL_ENDPOINTS", "h:0")], "1 to 65535"),
            ("etcd://", &[("ETCDCTL_ENDPOINTS", "http://u:hunter2@h:1")], "http://u:***@h:1"),
        ] {
            let error = gather(text, variables).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{text}");
            assert!(error.to_string().contains(says), "{text} gave {error}");
            assert!(!error.to_string().contains("hunter2"), "{text} gave {error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "nothing").unwrap();
        for (query, says) in [
            (format!("cacert={}", empty.display()), "no PEM certificate"),
            (format!("cacert={}/none", folder.path().display()), "cannot be read"),
            (format!("cert={0}&key={0}", empty.display()), "no PEM certificate and key"),
        ] {
            let error = gather(&format!("etcds://h?{query}"), &[]).unwrap().client().unwrap_err();
            assert_eq!(error.kind(), Kind::Unsupported);
            assert!(error.to_string().contains(says) && error.to_string().contains("/"), "{query} gave {error}");
        }
    }
}
