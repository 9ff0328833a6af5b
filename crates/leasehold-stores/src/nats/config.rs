//! The servers and the login, from the URL and from the variables that NATS's own tools read.
//!
//! Promise: the URL wins; no message contains a secret. Files are read for each connection, so renewed credentials are
//! used. Non-promise: contexts of the `nats` command are not read.

use crate::url::{Address, Host, Secret};
use async_nats::{ConnectOptions, ServerAddr};
use leasehold_core::{Error, Kind, Result, printable};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PORT: u16 = 4222;
/// The most copies that JetStream can keep.
const MAX_REPLICAS: u32 = 5;
const OPTIONS: [&str; 7] = ["ca", "cert", "creds", "inbox", "key", "nkey", "replicas"];
/// The options that name files. A URL is passed to processes in other folders, so their paths are absolute.
const FILES: [&str; 5] = ["ca", "cert", "creds", "key", "nkey"];
/// The host if neither the URL nor `NATS_URL` names one.
const DEFAULT_HOST: &str = "localhost";
/// The interval of pings. A dead idle connection is detected after a few of these.
const PING: Duration = Duration::from_secs(20);

/// How to log in.
#[derive(Debug, Clone)]
enum Proof {
    Nothing,
    Password(String, Secret),
    Token(Secret),
    /// A file with a seed.
    Nkey(PathBuf),
    /// A file with a JWT and a seed.
    Credentials(PathBuf),
}

/// Everything that is needed to connect.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) servers: Vec<ServerAddr>,
    /// The servers, for messages.
    pub(super) endpoint: String,
    /// How many copies a new bucket has.
    pub(super) replicas: u32,
    proof: Proof,
    needs_tls: bool,
    ca: Option<PathBuf>,
    cert: Option<(PathBuf, PathBuf)>,
    inbox: Option<String>,
}

/// Refuses an address that could not be used, without reading the environment.
pub(super) fn check(address: &Address) -> Result<()> {
    address.allow_options(&OPTIONS)?;
    if !address.path.is_empty() {
        return Err(address.invalid("a path means nothing here; use `?namespace=NAME`"));
    }
    for name in FILES {
        if address.option(name).is_some_and(|file| !Path::new(file).is_absolute()) {
            return Err(address.invalid(format!("`{name}` is not an absolute path")));
        }
    }
    if address.option("cert").is_some() != address.option("key").is_some() {
        return Err(address.invalid("`cert` and `key` go together"));
    }
    if address.option("creds").is_some() && address.option("nkey").is_some() {
        return Err(address.invalid("give `creds` or `nkey`, not both"));
    }
    if address.user.is_some() && (address.option("creds").is_some() || address.option("nkey").is_some()) {
        return Err(address.invalid("give a user, `creds` or `nkey`, not two of them"));
    }
    if address.user.is_none() && address.password.is_some() {
        return Err(address.invalid("the user is missing; a token stands before the `@` alone"));
    }
    if address.option("inbox").is_some_and(|inbox| inbox.is_empty() || inbox.contains(['*', '>', ' '])) {
        return Err(address.invalid("`inbox` is not a subject prefix such as `_INBOX_team`"));
    }
    replicas(address).map(drop)
}

fn replicas(address: &Address) -> Result<u32> {
    let Some(text) = address.option("replicas") else { return Ok(1) };
    match text.parse() {
        Ok(count) if (1..=MAX_REPLICAS).contains(&count) => Ok(count),
        _ => Err(address.invalid(format!("`replicas` is not a number from 1 to {MAX_REPLICAS}"))),
    }
}

impl Config {
    /// From the URL, and otherwise from the environment.
    pub(super) fn new(address: &Address, environment: impl Fn(&str) -> Option<String>) -> Result<Self> {
        check(address)?;
        let from = |option: &str, variable: &str| {
            address.option(option).map(str::to_owned).or_else(|| environment(variable)).map(PathBuf::from)
        };
        let mut address_tls = address.scheme != "nats";
        let mut hosts = address.hosts.clone();
        let mut login = (address.user.clone(), address.password.clone());
        if hosts.is_empty() {
            let named = environment("NATS_URL").map(|text| listed(address, &text)).transpose()?;
            let named = named.unwrap_or_else(|| Listed { hosts: vec![], user: None, password: None, needs_tls: false });
            address_tls |= named.needs_tls;
            hosts = named.hosts;
            if login.0.is_none() {
                login = (named.user, named.password);
            }
        }
        if hosts.is_empty() {
            hosts.push(Host { name: DEFAULT_HOST.into(), port: None });
        }
        let scheme = if address_tls { "tls" } else { "nats" };
        let authorities: Vec<String> = hosts.iter().map(|host| host.authority(PORT)).collect();
        let servers = authorities
            .iter()
            .map(|endpoint| format!("{scheme}://{endpoint}").parse())
            .collect::<std::io::Result<Vec<ServerAddr>>>()
            .map_err(|e| address.invalid("a host cannot be understood").with_source(e))?;
        let cert = match (from("cert", "NATS_CERT"), from("key", "NATS_KEY")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            _ => None,
        };
        Ok(Config {
            servers,
            endpoint: printable(&format!("nats://{}", authorities.join(","))),
            replicas: replicas(address)?,
            proof: proof(address, login, &environment),
            // Naming a certificate means requiring TLS.
            needs_tls: address_tls || address.option("ca").is_some() || address.option("cert").is_some(),
            ca: from("ca", "NATS_CA"),
            cert,
            inbox: address.option("inbox").map(str::to_owned).or_else(|| environment("NATS_INBOX_PREFIX")),
        })
    }

    /// The driver's settings. Reads the files.
    pub(super) async fn options(&self) -> Result<ConnectOptions> {
        let options = match &self.proof {
            Proof::Nothing => ConnectOptions::new(),
            Proof::Password(user, password) => {
                ConnectOptions::with_user_and_password(user.clone(), password.reveal().to_owned())
            }
            Proof::Token(token) => ConnectOptions::with_token(token.reveal().to_owned()),
            Proof::Nkey(file) => {
                let seed = tokio::task::spawn_blocking({
                    let file = file.clone();
                    move || std::fs::read_to_string(file)
                });
                let seed = seed.await.map_err(std::io::Error::other).and_then(|seed| seed);
                ConnectOptions::with_nkey(seed.map_err(|e| unreadable(file, e))?.trim().to_owned())
            }
            Proof::Credentials(file) => {
                ConnectOptions::with_credentials_file(file).await.map_err(|e| unreadable(file, e))?
            }
        };
        let mut options = options.name("leasehold").require_tls(self.needs_tls).ping_interval(PING);
        if let Some(ca) = &self.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let Some((cert, key)) = &self.cert {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        if let Some(inbox) = &self.inbox {
            options = options.custom_inbox_prefix(inbox);
        }
        Ok(options)
    }
}

fn unreadable(file: &Path, error: std::io::Error) -> Error {
    let message = format!("cannot use the credentials in `{}`", file.display());
    Error::new(Kind::Unsupported, message).with_source(error)
}

fn proof(
    address: &Address,
    (user, password): (Option<String>, Option<Secret>),
    environment: &impl Fn(&str) -> Option<String>,
) -> Proof {
    let file = |option: &str| address.option(option).map(PathBuf::from);
    match (user, password) {
        (Some(user), Some(password)) => return Proof::Password(user, password),
        (Some(token), None) => {
            return match environment("NATS_PASSWORD") {
                Some(password) => Proof::Password(token, Secret::new(password)),
                None => Proof::Token(Secret::new(token)),
            };
        }
        _ => {}
    }
    if let Some(file) = file("creds") {
        return Proof::Credentials(file);
    }
    if let Some(file) = file("nkey") {
        return Proof::Nkey(file);
    }
    match (environment("NATS_USER"), environment("NATS_PASSWORD")) {
        (Some(user), Some(password)) => return Proof::Password(user, Secret::new(password)),
        (Some(token), None) => return Proof::Token(Secret::new(token)),
        _ => {}
    }
    if let Some(token) = environment("NATS_TOKEN") {
        return Proof::Token(Secret::new(token));
    }
    if let Some(file) = environment("NATS_CREDS") {
        return Proof::Credentials(file.into());
    }
    environment("NATS_NKEY").map_or(Proof::Nothing, |file| Proof::Nkey(file.into()))
}

/// The servers and the login in `NATS_URL`.
struct Listed {
    hosts: Vec<Host>,
    user: Option<String>,
    password: Option<Secret>,
    needs_tls: bool,
}

/// Parses `NATS_URL`: several servers, each with or without a scheme and a user.
fn listed(address: &Address, text: &str) -> Result<Listed> {
    let mut all = Listed { hosts: Vec::new(), user: None, password: None, needs_tls: false };
    for server in text.split(',').map(str::trim).filter(|server| !server.is_empty()) {
        let (scheme, rest) = server.split_once("://").unwrap_or(("nats", server));
        if !matches!(scheme, "nats" | "tls" | "nats+tls") {
            return Err(address.invalid(format!("`NATS_URL` has the scheme `{}`", printable(scheme))));
        }
        let one = Address::parse(scheme, &format!("//{rest}"))
            .map_err(|what| address.invalid(format!("`NATS_URL` cannot be understood: {what}")))?;
        all.needs_tls |= scheme != "nats";
        all.hosts.extend(one.hosts);
        if all.user.is_none() {
            (all.user, all.password) = (one.user, one.password);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        let (scheme, rest) = text.split_once(':').unwrap();
        Address::parse(scheme, rest).unwrap()
    }

    fn login(text: &str, environment: &[(&str, &str)]) -> Result<Config> {
        Config::new(&address(text), |name| {
            environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_url_wins_over_the_environment() {
        let environment = [
            ("NATS_URL", "tls://a:b@one:1,two"),
            ("NATS_USER", "me"),
            ("NATS_PASSWORD", "hunter2"),
            ("NATS_CREDS", "/creds"),
            ("NATS_CA", "/ca"),
        ];
        let from_url = login("nats://u:p@three?creds=/x", &environment);
        assert_eq!(from_url.unwrap_err().kind(), leasehold_core::Kind::Invalid, "a user and a file");
        let from_url = login("nats://three,four:9?creds=/x&replicas=3", &environment).unwrap();
        assert_eq!(from_url.endpoint, "nats://three:4222,four:9");
        assert!(matches!(&from_url.proof, Proof::Credentials(file) if file == &PathBuf::from("/x")));
        assert_eq!((from_url.replicas, from_url.needs_tls, from_url.ca), (3, false, Some("/ca".into())));
        let from_environment = login("nats://", &environment).unwrap();
        assert_eq!(from_environment.endpoint, "nats://one:1,two:4222");
        assert!(from_environment.needs_tls);
        assert!(matches!(&from_environment.proof, Proof::Password(user, _) if user == "a"));
        let from_variables = login("nats://h", &environment).unwrap();
        assert!(matches!(&from_variables.proof, Proof::Password(user, _) if user == "me"));
        assert!(!format!("{from_variables:?}").contains("hunter2"));
        assert_eq!(login("nats://", &[]).unwrap().endpoint, "nats://localhost:4222");
        assert!(matches!(login("nats://s3cret@h", &[]).unwrap().proof, Proof::Token(_)));
        assert!(login("nats+tls://h", &[]).unwrap().needs_tls && login("nats://h?ca=/x", &[]).unwrap().needs_tls);
    }

    #[test]
    fn wrong_addresses_say_what_is_wrong() {
        for (text, says) in [
            ("nats://h/x", "a path means nothing"),
            ("nats://h?replicas=0", "from 1 to 5"),
            ("nats://h?replicas=six", "from 1 to 5"),
            ("nats://h?cert=/x", "go together"),
            ("nats://h?creds=x.creds", "`creds` is not an absolute path"),
            ("nats://h?creds=/x&nkey=/y", "not both"),
            ("nats://u@h?creds=/x", "not two of them"),
            ("nats://:p@h", "the user is missing"),
            ("nats://h?inbox=a.*", "not a subject prefix"),
            ("nats://h?replica=3", "`replica` is not known"),
        ] {
            let error = check(&address(text)).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(says), "{text} gave {error}");
        }
        let error = login("nats://", &[("NATS_URL", "ws://h")]).unwrap_err().to_string();
        assert!(error.contains("`NATS_URL` has the scheme `ws`"), "{error}");
    }
}
