//! Where the server is and how to log in: read from the address and checked before anything is opened.

use crate::url::Address;
use ::redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, TlsCertificates,
};
use leasehold_core::{Error, Kind, Result};
use std::ops::RangeInclusive;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// The variable from which `redis-cli` takes the password.
const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";
const OPTIONS: &[&str] =
    &["mode", "wait_replicas", "wait_ms", "sentinel_user", "sentinel_password", "cacert", "cert", "key"];
/// How long to wait for replicas if the address does not say.
const DEFAULT_WAIT_MS: u64 = 1_000;

/// A server: host and port.
pub(super) type Node = (String, u16);

/// What the hosts of the address are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    /// The one server.
    Single,
    /// Some nodes of a cluster.
    Cluster,
    /// Sentinels, which know where the primary of this name is.
    Sentinel(String),
}

/// How many replicas must have a write before it is answered, and how long that may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) replicas: u64,
    pub(super) ms: u64,
}

/// A user and a password; each may be missing.
#[derive(Clone, Default)]
struct Credentials {
    user: Option<String>,
    password: Option<String>,
}

/// All settings in the address.
pub(super) struct Config {
    pub(super) mode: Mode,
    pub(super) hosts: Vec<Node>,
    pub(super) wait: Option<Wait>,
    /// The server's name in messages.
    pub(super) name: String,
    db: i64,
    credentials: Credentials,
    sentinel_credentials: Credentials,
    is_tls: bool,
    certificates: Option<TlsCertificates>,
}

impl Config {
    /// Reads the address, without touching files or the network.
    pub(super) fn parse(address: &Address) -> Result<Self> {
        address.allow_options(OPTIONS)?;
        let (mode, db) = mode(address)?;
        let port = if let Mode::Sentinel(_) = mode { SENTINEL_PORT } else { PORT };
        let mut hosts: Vec<Node> =
            address.hosts.iter().map(|host| (host.name.clone(), host.port.unwrap_or(port))).collect();
        if hosts.is_empty() {
            hosts.push(("127.0.0.1".into(), port));
        }
        if mode == Mode::Single && hosts.len() > 1 {
            return Err(address.invalid("several hosts need the option `mode=cluster` or `mode=sentinel`"));
        }
        let is_tls = matches!(address.scheme.as_str(), "rediss" | "valkeys");
        if !is_tls && ["cacert", "cert", "key"].iter().any(|name| address.option(name).is_some()) {
            return Err(address.invalid("`cacert`, `cert` and `key` are for TLS; write `rediss://`"));
        }
        if address.option("cert").is_some() != address.option("key").is_some() {
            return Err(address.invalid("`cert` and `key` belong together; give both or none"));
        }
        let password = address.password.as_ref().map(|password| password.reveal().to_owned());
        Ok(Config {
            wait: wait(address)?,
            name: address.to_string(),
            db,
            credentials: Credentials { user: address.user.clone(), password },
            sentinel_credentials: Credentials {
                user: address.option("sentinel_user").map(str::to_owned),
                password: address.option("sentinel_password").map(str::to_owned),
            },
            is_tls,
            certificates: None,
            mode,
            hosts,
        })
    }

    /// Also reads the environment and the certificate files.
    pub(super) fn load(address: &Address, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut config = Config::parse(address)?;
        if config.credentials.password.is_none() {
            config.credentials.password = variable(PASSWORD_VARIABLE).filter(|password| !password.is_empty());
        }
        if !config.is_tls {
            return Ok(config);
        }
        crate::tls::install();
        let file = |option: &str| {
            let read = |path| {
                std::fs::read(path).map_err(|e| {
                    let what = format!("cannot read the file `{path}` of the option `{option}`");
                    Error::new(Kind::Unsupported, what).with_source(e)
                })
            };
            address.option(option).map(read).transpose()
        };
        let client_tls = match (file("cert")?, file("key")?) {
            (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
            _ => None,
        };
        config.certificates = Some(TlsCertificates { client_tls, root_cert: file("cacert")? });
        // Reports a file that is not a certificate now, not at the first call.
        config.client(&config.hosts[0]).map(drop)?;
        Ok(config)
    }

    /// A client for one server of the store.
    pub(super) fn client(&self, node: &Node) -> Result<Client> {
        // RESP3, which all servers since Redis 6 support, pushes hints on the same connection.
        let settings = RedisConnectionInfo::default().set_db(self.db).set_protocol(ProtocolVersion::RESP3);
        self.build(node, settings, &self.credentials)
    }

    /// A client for one of the sentinels.
    pub(super) fn sentinel(&self, node: &Node) -> Result<Client> {
        self.build(node, RedisConnectionInfo::default(), &self.sentinel_credentials)
    }

    fn build(&self, (host, port): &Node, settings: RedisConnectionInfo, credentials: &Credentials) -> Result<Client> {
        let mut settings = settings.set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &credentials.user {
            settings = settings.set_username(user);
        }
        // A user without a password must not become the default user: the driver sends the user only with a password.
        if let Some(password) = credentials.password.as_deref().or(credentials.user.as_ref().map(|_| "")) {
            settings = settings.set_password(password);
        }
        let (host, port) = (host.clone(), *port);
        let address = if self.is_tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let build = || {
            let info = address.into_connection_info()?.set_redis_settings(settings);
            match &self.certificates {
                Some(certificates) => Client::build_with_tls(info, certificates.clone()),
                None => Client::open(info),
            }
        };
        build().map_err(|e| {
            let what = format!("cannot use the certificates given for {}; they must be PEM files", self.name);
            Error::new(Kind::Unsupported, what).with_source(e)
        })
    }
}

fn mode(address: &Address) -> Result<(Mode, i64)> {
    let path = address.path.as_str();
    match address.option("mode") {
        None | Some("single") => Ok((Mode::Single, database(address, path)?)),
        Some("cluster") if matches!(path, "" | "0") => Ok((Mode::Cluster, 0)),
        Some("cluster") => Err(address.invalid("a cluster has only the database 0; leave the path out")),
        Some("sentinel") => {
            let (name, db) = path.split_once('/').unwrap_or((path, ""));
            if name.is_empty() {
                return Err(address.invalid("the path must be the name that the sentinels know the primary by"));
            }
            Ok((Mode::Sentinel(name.to_owned()), database(address, db)?))
        }
        Some(_) => Err(address.invalid("the option `mode` is `single`, `cluster` or `sentinel`")),
    }
}

fn database(address: &Address, text: &str) -> Result<i64> {
    match text {
        "" => Ok(0),
        _ => text
            .parse::<u16>()
            .map(i64::from)
            .map_err(|_| address.invalid("the path must be the number of a database, such as `/0`")),
    }
}

fn wait(address: &Address) -> Result<Option<Wait>> {
    let number = |name: &str, allowed: RangeInclusive<u64>| {
        let parse = |text: &str| text.parse().ok().filter(|number| allowed.contains(number));
        match address.option(name).map(parse) {
            None => Ok(None),
            Some(Some(number)) => Ok(Some(number)),
            Some(None) => {
                let what = format!("the option `{name}` is a number from {} to {}", allowed.start(), allowed.end());
                Err(address.invalid(what))
            }
        }
    };
    match (number("wait_replicas", 1..=100)?, number("wait_ms", 1..=4_000)?) {
        (Some(replicas), ms) => Ok(Some(Wait { replicas, ms: ms.unwrap_or(DEFAULT_WAIT_MS) })),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(address.invalid("`wait_ms` goes with `wait_replicas`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        let (scheme, rest) = text.split_once(':').unwrap();
        Config::parse(&Address::parse(scheme, rest).unwrap())
    }

    #[test]
    fn an_address_says_which_servers_and_what_they_are() {
        let config = parse("redis://h/3?wait_replicas=2").unwrap();
        assert_eq!((config.mode, config.db, config.wait), (Mode::Single, 3, Some(Wait { replicas: 2, ms: 1_000 })));
        assert_eq!(config.hosts, [("h".to_owned(), 6379)]);
        let config = parse("rediss://u:p@a:1,b?mode=cluster").unwrap();
        assert_eq!((config.mode, config.is_tls), (Mode::Cluster, true));
        assert_eq!(config.hosts, [("a".to_owned(), 1), ("b".to_owned(), 6379)]);
        let config = parse("redis://a,b:7/mymaster/2?mode=sentinel&wait_replicas=1&wait_ms=50").unwrap();
        assert_eq!((config.mode, config.db), (Mode::Sentinel("mymaster".into()), 2));
        assert_eq!(config.hosts, [("a".to_owned(), 26379), ("b".to_owned(), 7)]);
        assert_eq!(config.wait.unwrap().ms, 50);
        assert_eq!(parse("redis://").unwrap().hosts, [("127.0.0.1".to_owned(), 6379)]);
    }

    #[test]
    fn a_password_comes_from_the_environment_if_the_address_has_none() {
        let load = |text: &str| {
            let (scheme, rest) = text.split_once(':').unwrap();
            let variable = |name: &str| (name == "REDISCLI_AUTH").then(|| "from-env".to_owned());
            Config::load(&Address::parse(scheme, rest).unwrap(), variable).unwrap().credentials.password.unwrap()
        };
        assert_eq!(load("redis://worker@h"), "from-env");
        assert_eq!(load("redis://worker:own@h"), "own");
    }

    #[test]
    fn wrong_addresses_say_what_is_wrong() {
        for (text, says) in [
            ("redis://a,b", "several hosts need the option"),
            ("redis://a/x", "number of a database"),
            ("redis://a/-1", "number of a database"),
            ("redis://a/1?mode=cluster", "only the database 0"),
            ("redis://a?mode=sentinel", "name that the sentinels know"),
            ("redis://a/m/x?mode=sentinel", "number of a database"),
            ("redis://a?mode=ring", "`single`, `cluster` or `sentinel`"),
            ("redis://a?wait_ms=5", "goes with `wait_replicas`"),
            ("redis://a?wait_replicas=0", "from 1 to 100"),
            ("redis://a?wait_replicas=1&wait_ms=0", "from 1 to 4000"),
            ("redis://a?cacert=/x", "write `rediss://`"),
            ("rediss://a?cert=/x", "belong together"),
            ("redis://a?wait=1", "`wait` is not known"),
        ] {
            let error = parse(text).err().unwrap();
            assert_eq!(error.kind(), Kind::Invalid, "{text}");
            assert!(error.to_string().contains(says), "{text} gave {error}");
        }
    }
}
