//! The address of a store that is reached over the network: `scheme://user:password@host:port,host:port/path?option=value`.
//!
//! Promise: parsed once, percent-decoded, several hosts allowed; the password is in a type that cannot be shown.
//! Non-promise: each store checks its own parts and options. The [`Namespace`] is an option of every store.

use leasehold_core::{Error, Kind, Remedy, Result, Shelf, printable};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Schemes for which a user without a password is, or may be, a token.
const TOKEN_SCHEMES: &[&str] = &[
    "nats",
    "tls",
    "nats+tls",
    "do+https",
    "do+http",
    "leasehold",
    "leasehold+http",
    "redis",
    "rediss",
    "valkey",
    "valkeys",
];

/// Whether a user without a password is a secret in URLs of this scheme.
pub(crate) fn is_token(scheme: &str) -> bool {
    TOKEN_SCHEMES.contains(&scheme)
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text that must not be shown.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text itself, for the driver that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One server of an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    /// Its name or IP address; an IPv6 address has no brackets here.
    pub name: String,
    /// Its port, if one was given.
    pub port: Option<u16>,
}

impl Host {
    /// Host and port as in URLs; the given port is used if the host has none.
    pub fn authority(&self, default_port: u16) -> String {
        let port = self.port.unwrap_or(default_port);
        if self.name.contains(':') { format!("[{}]:{port}", self.name) } else { format!("{}:{port}", self.name) }
    }
}

/// Where a networked store is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// The scheme, such as `postgres`.
    pub scheme: String,
    /// The user in the URL.
    pub user: Option<String>,
    /// The password in the URL.
    pub password: Option<Secret>,
    /// The servers, in the order given; there may be none.
    pub hosts: Vec<Host>,
    /// The path without its first `/`.
    pub path: String,
    options: Vec<(String, String)>,
}

impl Address {
    /// Parses what follows `scheme:`. The error says what is wrong, without the value.
    pub(crate) fn parse(scheme: &str, rest: &str) -> Result<Self, String> {
        let rest = rest.strip_prefix("//").ok_or_else(|| format!("`//` is missing after `{scheme}:`"))?;
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // A password that was cut in two must not be shown as a host or a path.
        let is_cut = !authority.contains('@') && authority.contains(':');
        let cut = || "there is an `@` after the host; in a password write `/` as `%2F` and `?` as `%3F`".to_owned();
        if is_cut && path.contains('@') {
            return Err(cut());
        }
        // The last `@` counts: a password may contain one.
        let (user, hosts) = authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
        let (user, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            Some((user, password)) => (non_empty(decode(user)?), non_empty(decode(password)?).map(Secret)),
            None => (None, None),
        };
        let hosts = hosts.split(',').filter(|host| !host.is_empty()).map(host).collect::<Result<Vec<_>, String>>();
        let hosts = hosts.map_err(|what| if is_cut && query.contains('@') { cut() } else { what })?;
        let mut options = Vec::new();
        for field in query.split('&').filter(|field| !field.is_empty()) {
            let (name, value) = field.split_once('=').ok_or("an option has no `=`")?;
            let name = decode(name)?;
            if options.iter().any(|(known, _)| *known == name) {
                return Err(format!("the option `{}` is given twice", printable(&name)));
            }
            options.push((name, decode(value)?));
        }
        Ok(Address { scheme: scheme.to_owned(), user, password, hosts, path: decode(path)?, options })
    }

    /// Removes and returns an option, so that the remaining ones can be refused.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.options.iter().position(|(known, _)| known == name)?;
        Some(self.options.remove(at).1)
    }

    /// The value of an option.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Refuses options that the store does not know.
    pub fn allow_options(&self, known: &[&str]) -> Result<()> {
        let Some((name, _)) = self.options.iter().find(|(name, _)| !known.contains(&name.as_str())) else {
            return Ok(());
        };
        let mut known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
        // The path of a server's URL has it.
        if !self.scheme.starts_with("leasehold") {
            known.push("`namespace`".into());
        }
        Err(self.invalid(format!("the option `{}` is not known; known are {}", printable(name), known.join(", "))))
    }

    /// The error for an address that this store cannot use.
    pub fn invalid(&self, what: impl fmt::Display) -> Error {
        Error::new(Kind::Invalid, format!("invalid store url `{self}`: {what}"))
    }
}

/// Without the password or token, and without the options, because one may be a secret.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        match (&self.user, &self.password) {
            (Some(user), Some(_)) => write!(f, "{}:***@", printable(user))?,
            (None, Some(_)) => f.write_str(":***@")?,
            (Some(_), None) if is_token(&self.scheme) => f.write_str("***@")?,
            (Some(user), None) => write!(f, "{}@", printable(user))?,
            (None, None) => {}
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let name = if host.name.contains(':') { format!("[{}]", host.name) } else { host.name.clone() };
            write!(f, "{comma}{}", printable(&name))?;
            if let Some(port) = host.port {
                write!(f, ":{port}")?;
            }
        }
        if !self.path.is_empty() {
            write!(f, "/{}", printable(&self.path))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// Whether data for this host stays on this machine.
#[cfg(any(feature = "durable", feature = "dynamodb", feature = "firestore", feature = "object", feature = "remote"))]
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn host(text: &str) -> Result<Host, String> {
    let shown = printable(text);
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']').ok_or_else(|| format!("the host `{shown}` has no `]`"))?;
            if name.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(format!("the host `{shown}` is not an IPv6 address"));
            }
            match rest {
                "" => (name, None),
                _ => (name, Some(rest.strip_prefix(':').ok_or_else(|| format!("the host `{shown}` has no port"))?)),
            }
        }
        None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
    };
    let port = match port {
        None => None,
        Some(port) => match port.parse::<u16>() {
            Ok(port) if port > 0 => Some(port),
            _ => return Err(format!("the port of the host `{shown}` is not a number from 1 to 65535")),
        },
    };
    let name = decode(name)?;
    if name.is_empty() {
        return Err(format!("the host `{shown}` has no name"));
    }
    Ok(Host { name, port })
}

fn decode(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| "a part is not valid UTF-8 when decoded")?;
    if decoded.chars().any(char::is_control) {
        return Err("a part has a control character when decoded".into());
    }
    Ok(decoded.into_owned())
}

/// The namespace if none is given.
const DEFAULT_NAMESPACE: &str = "default";
/// The namespace in which servers keep their own records.
const SERVER_NAMESPACE: &str = "leasehold-server";
/// The longest namespace, in bytes.
const MAX_NAMESPACE_BYTES: usize = 40;

/// One team's part of a store that several share: lower-case letters, digits and `-`, which every store supports.
///
/// Equal names in different namespaces are different records. It is not access
/// control: whoever can open the store can open every namespace of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Cow<'static, str>);

impl Namespace {
    /// Parses a namespace: 1 to 40 lower-case letters, digits and `-`.
    pub fn new(text: &str) -> Result<Self> {
        let refuse = |what: &str| {
            let form = "1 to 40 lower-case letters, digits and `-`, beginning with a letter or a digit";
            Err(Error::invalid("namespace", text, format!("{what}; allowed are {form}")))
        };
        if text.is_empty() {
            return refuse("it is empty");
        }
        if text.len() > MAX_NAMESPACE_BYTES {
            return refuse(&format!("it has {} bytes", text.len()));
        }
        if let Some(c) = text.chars().find(|c| !(c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-')) {
            return refuse(&format!("it has the character `{}`", c.escape_debug()));
        }
        if text.starts_with('-') {
            return refuse("it begins with `-`");
        }
        Ok(Namespace(Cow::Owned(text.to_owned())))
    }

    /// The namespace in which servers keep their own records, such as keys. No address and no key may name it.
    pub const fn server() -> Self {
        Namespace(Cow::Borrowed(SERVER_NAMESPACE))
    }

    /// Whether it is the servers' own namespace.
    pub fn is_server(&self) -> bool {
        self.0 == SERVER_NAMESPACE
    }

    /// The same namespace; an error if it is the servers' own, which nobody may use.
    pub fn to_use(self) -> Result<Self> {
        if self.is_server() {
            let error = Error::invalid("namespace", self, "it holds the servers' keys; use another namespace");
            return Err(error.with_remedy(Remedy::ManageKeys));
        }
        Ok(self)
    }

    /// The namespace as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the default namespace.
    pub fn is_default(&self) -> bool {
        self.0 == DEFAULT_NAMESPACE
    }

    /// The name of a shelf of this namespace, in stores without another
    /// separation of namespaces: `lease`, or `lease@team`.
    pub fn shelf(&self, shelf: Shelf) -> Cow<'static, str> {
        if self.is_default() {
            return Cow::Borrowed(shelf.as_str());
        }
        Cow::Owned(format!("{}@{self}", shelf.as_str()))
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Namespace(Cow::Borrowed(DEFAULT_NAMESPACE))
    }
}

impl FromStr for Namespace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Namespace::new(text)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, String> {
        let (scheme, rest) = text.split_once(':').unwrap();
        Address::parse(scheme, rest)
    }

    #[test]
    fn every_part_is_decoded() {
        let address = parse("postgres://me:p%40s@s@[::1]:5432,db-2/a%20b?x=1&y=%2F").unwrap();
        assert_eq!(address.user.as_deref(), Some("me"));
        assert_eq!(address.password.as_ref().unwrap().reveal(), "p@s@s");
        assert_eq!(address.hosts[0], Host { name: "::1".into(), port: Some(5432) });
        assert_eq!(address.hosts[1].authority(5433), "db-2:5433");
        assert_eq!(address.path, "a b");
        assert_eq!((address.option("x"), address.option("y"), address.option("z")), (Some("1"), Some("/"), None));
        assert_eq!(address.to_string(), "postgres://me:***@[::1]:5432,db-2/a b");
        assert!(!format!("{address:?}").contains("p@s"));
    }

    #[test]
    fn an_empty_authority_is_for_the_environment_to_fill() {
        let address = parse("postgres://").unwrap();
        assert_eq!((address.hosts.len(), address.path.as_str(), address.user), (0, "", None));
        assert!(parse("s3://bucket/a/b").unwrap().path == "a/b");
        assert!(parse("s3://bucket/a@b?endpoint=http://h@x").unwrap().path == "a@b");
        assert_eq!(parse("postgres://h:1/x?user=me@corp").unwrap().option("user"), Some("me@corp"));
        assert_eq!(parse("nats://token@h").unwrap().to_string(), "nats://***@h");
    }

    #[test]
    fn bad_addresses_say_what_is_wrong() {
        for (text, says) in [
            ("redis:x", "`//` is missing"),
            ("redis://h:0", "port of the host `h:0`"),
            ("redis://h:x", "port of the host `h:x`"),
            ("redis://h:70000", "1 to 65535"),
            ("redis://[::1", "no `]`"),
            ("redis://[x]", "not an IPv6 address"),
            ("redis://:6379", "has no name"),
            ("redis://h/%ff", "not valid UTF-8"),
            ("redis://h/%0a", "control character"),
            ("redis://h?x", "no `=`"),
            ("redis://h?x=1&x=2", "`x` is given twice"),
            ("redis://u:p/w@h", "write `/` as `%2F`"),
            ("redis://u:1/w@h", "write `/` as `%2F`"),
            ("redis://:p?w@h", "`?` as `%3F`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text} gave {error}");
        }
        let error = parse("redis://h?sslmod=x").unwrap().allow_options(&["sslmode"]).unwrap_err().to_string();
        assert!(error.contains("`sslmod` is not known; known are `sslmode`, `namespace`"), "{error}");
    }

    #[test]
    fn bad_namespaces_say_what_is_wrong() {
        for (text, says) in [
            ("", "it is empty"),
            ("Team", "the character `T`"),
            ("a/b", "the character `/`"),
            ("a@b", "the character `@`"),
            ("..", "the character `.`"),
            ("-a", "begins with `-`"),
            ("a\nb", "the character `\\n`"),
            (&"x".repeat(41), "41 bytes"),
        ] {
            let error = Namespace::new(text).unwrap_err().to_string();
            assert!(error.contains(says) && error.starts_with("invalid namespace `"), "{text:?} gave {error}");
        }
    }

    #[test]
    fn the_servers_own_namespace_is_nobodys_to_name() {
        let error = Namespace::server().to_use().unwrap_err();
        assert_eq!((error.kind(), error.remedy()), (Kind::Invalid, Some(&Remedy::ManageKeys)));
        assert_eq!(Namespace::new("leasehold-server").unwrap(), Namespace::server());
        assert!(Namespace::new("leasehold-servers").unwrap().to_use().is_ok());
    }

    #[test]
    fn each_namespace_has_shelves_of_its_own() {
        assert_eq!(Namespace::default().shelf(Shelf::Lease), "lease");
        assert_eq!(Namespace::new("default").unwrap(), Namespace::default());
        assert_eq!(Namespace::new("team-7").unwrap().shelf(Shelf::Lease), "lease@team-7");
    }
}
