//! How to reach the server: the address, then the option file, then the environment, as with MySQL's own programs.
//!
//! From `~/.my.cnf` the section `[client]` is read: user, password, host, port, socket, ssl-mode, ssl-ca. From the
//! environment: `MYSQL_HOST`, `MYSQL_TCP_PORT`, `MYSQL_PWD`, and `USER` as the last resort for the user.

use crate::url::{Address, Secret};
use leasehold_core::{Error, Kind, Result};
use mysql_async::{OptsBuilder, PoolConstraints, PoolOpts, SslOpts};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const OPTIONS: &[&str] = &["socket", "ssl-ca", "ssl-mode"];
const DEFAULT_PORT: u16 = 3306;
/// The largest packet, in bytes: far larger than a record.
const PACKET: usize = 16 * 1024 * 1024;
/// After this long without use, the driver opens a new connection. Servers close theirs after 8 hours by default.
const IDLE_SECONDS: usize = 3600;
const KEEPALIVE: Duration = Duration::from_secs(30);
/// What is set on each connection. With the server's own defaults none of it is needed. It protects the contract where
/// defaults were changed, and makes a wait for another transaction end before our own timeout.
const SET_UP: &str = "SET SESSION autocommit = 1, innodb_lock_wait_timeout = 3; \
    SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";

/// How the connection is encrypted and the server authenticated, in MySQL's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SslMode {
    Disabled,
    /// Encrypted if the server supports it. No protection against an active attacker.
    Preferred,
    /// Encrypted; the certificate is not checked.
    Required,
    VerifyCa,
    VerifyIdentity,
}

impl SslMode {
    const ALL: [(&str, SslMode); 5] = [
        ("DISABLED", SslMode::Disabled),
        ("PREFERRED", SslMode::Preferred),
        ("REQUIRED", SslMode::Required),
        ("VERIFY_CA", SslMode::VerifyCa),
        ("VERIFY_IDENTITY", SslMode::VerifyIdentity),
    ];

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)).map(|(_, mode)| *mode)
    }
}

/// The environment and the option file of this process.
#[derive(Debug, Default)]
pub(super) struct Environment {
    variables: HashMap<&'static str, String>,
    option_file: Option<PathBuf>,
}

impl Environment {
    pub(super) fn of_this_process() -> Self {
        let names = ["MYSQL_HOST", "MYSQL_TCP_PORT", "MYSQL_PWD", "USER"];
        let set = names.into_iter().filter_map(|name| Some((name, std::env::var(name).ok()?)));
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        Environment { variables: set.collect(), option_file: home.map(|home| Path::new(&home).join(".my.cnf")) }
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).filter(|value| !value.is_empty()).cloned()
    }
}

/// How to reach the server.
#[derive(Debug)]
pub(super) struct Config {
    /// The server, for messages.
    pub(super) endpoint: String,
    user: Option<String>,
    password: Option<Secret>,
    host: String,
    port: u16,
    socket: Option<String>,
    database: String,
    ssl_mode: SslMode,
    ssl_ca: Option<PathBuf>,
}

/// Refuses an address, judged by its text alone.
pub(super) fn check(address: &Address) -> Result<()> {
    address.allow_options(OPTIONS)?;
    if address.hosts.len() > 1 {
        return Err(address.invalid("only one host can be named; put a proxy in front of several"));
    }
    if address.path.is_empty() || address.path.contains('/') {
        return Err(address.invalid("name one database: `mysql://user@host/database`"));
    }
    let mode = address.option("ssl-mode").map(|mode| (mode, SslMode::parse(mode)));
    if let Some((_, None)) = mode {
        let words: Vec<&str> = SslMode::ALL.iter().map(|(word, _)| *word).collect();
        return Err(address.invalid(format!("the option `ssl-mode` is one of {}", words.join(", "))));
    }
    if address.option("ssl-ca").is_some_and(|path| !Path::new(path).is_absolute()) {
        return Err(address.invalid("the option `ssl-ca` is an absolute path"));
    }
    match (address.option("socket"), mode) {
        (Some(path), _) if !Path::new(path).is_absolute() => {
            Err(address.invalid("the option `socket` is an absolute path"))
        }
        (Some(_), _) if !address.hosts.is_empty() => Err(address.invalid("give a host or the option `socket`")),
        (Some(_), Some((_, Some(mode)))) if !matches!(mode, SslMode::Disabled | SslMode::Preferred) => {
            Err(address.invalid("a socket is not encrypted: leave `ssl-mode` out"))
        }
        _ => Ok(()),
    }
}

impl Config {
    /// Combines the address with the environment and the option file.
    pub(super) fn gather(address: &Address, around: &Environment) -> Result<Self> {
        check(address)?;
        let file = around.option_file.as_deref().map(client_section).transpose()?.unwrap_or_default();
        let option = |name: &str| address.option(name).map(ToOwned::to_owned);
        let host = address.hosts.first().map(|host| host.name.clone());
        // A socket in the file is used only if no host is named.
        let socket = option("socket").or_else(|| {
            let is_meant = host.is_none() && !file.contains_key("host");
            file.get("socket").filter(|_| is_meant).cloned()
        });
        let given_port = address.hosts.first().and_then(|host| host.port);
        let port = match given_port {
            Some(port) => port,
            None => match file.get("port").cloned().or_else(|| around.variable("MYSQL_TCP_PORT")) {
                Some(text) => text.parse().map_err(|_| Error::invalid("port", text, "use a number from 1 to 65535"))?,
                None => DEFAULT_PORT,
            },
        };
        let ssl_ca = option("ssl-ca").or_else(|| file.get("ssl-ca").cloned()).map(PathBuf::from);
        let ssl_mode = match option("ssl-mode").or_else(|| file.get("ssl-mode").cloned()) {
            Some(word) => SslMode::parse(&word)
                .ok_or_else(|| Error::invalid("ssl-mode in ~/.my.cnf", word, "use DISABLED up to VERIFY_IDENTITY"))?,
            // As in MySQL's own programs: naming an authority means checking the certificate.
            None if ssl_ca.is_some() => SslMode::VerifyCa,
            None => SslMode::Preferred,
        };
        if let Some(path) = &ssl_ca {
            std::fs::metadata(path).map_err(|e| {
                let message = format!("cannot read the certificates `{}` of `ssl-ca`", path.display());
                Error::new(Kind::Unsupported, message).with_source(e)
            })?;
        }
        let host = host.or_else(|| file.get("host").cloned()).or_else(|| around.variable("MYSQL_HOST"));
        let password = file.get("password").cloned().or_else(|| around.variable("MYSQL_PWD")).map(Secret::new);
        let host = host.unwrap_or_else(|| "127.0.0.1".into());
        let user = address.user.clone().or_else(|| file.get("user").cloned()).or_else(|| around.variable("USER"));
        Ok(Config {
            endpoint: endpoint(address, user.as_deref(), &host, port, socket.as_deref()),
            user,
            password: address.password.clone().or(password),
            host,
            port,
            socket,
            database: address.path.clone(),
            ssl_mode,
            ssl_ca,
        })
    }

    /// Whether a server without TLS is accepted.
    pub(super) const fn may_be_plain(&self) -> bool {
        matches!(self.ssl_mode, SslMode::Preferred)
    }

    /// The driver's options; without TLS if the server has none and that is accepted.
    pub(super) fn options(&self, is_plain: bool) -> OptsBuilder {
        // One connection, not reset when it is returned: our statements leave no session state.
        let pool = PoolOpts::default()
            .with_constraints(PoolConstraints::new(1, 1).unwrap_or_default())
            .with_reset_connection(false);
        // No handler for LOCAL INFILE is set, so the driver refuses a server that asks for a file.
        OptsBuilder::default()
            .user(self.user.clone())
            .pass(self.password.as_ref().map(Secret::reveal))
            .ip_or_hostname(self.host.clone())
            .tcp_port(self.port)
            .socket(self.socket.clone())
            .db_name(Some(self.database.clone()))
            .ssl_opts(self.tls().filter(|_| !is_plain))
            .setup(vec![SET_UP])
            // Otherwise the driver would ask the server for each of these, or use a socket instead of the address.
            .prefer_socket(false)
            .max_allowed_packet(Some(PACKET))
            .wait_timeout(Some(IDLE_SECONDS))
            .tcp_keepalive(Some(KEEPALIVE))
            .pool_opts(pool)
    }

    fn tls(&self) -> Option<SslOpts> {
        if self.socket.is_some() || self.ssl_mode == SslMode::Disabled {
            return None;
        }
        crate::tls::install();
        // `VERIFY_CA` checks the name too: the driver cannot check the authority alone.
        let looks_at_certificate = matches!(self.ssl_mode, SslMode::VerifyCa | SslMode::VerifyIdentity);
        let options = SslOpts::default().with_danger_accept_invalid_certs(!looks_at_certificate);
        Some(match &self.ssl_ca {
            Some(path) => options.with_root_certs(vec![path.clone().into()]).with_disable_built_in_roots(true),
            None => options,
        })
    }
}

/// The server, for messages: the address with its defaults, without the password.
fn endpoint(address: &Address, user: Option<&str>, host: &str, port: u16, socket: Option<&str>) -> String {
    let user = user.map(|user| format!("{}@", leasehold_core::printable(user))).unwrap_or_default();
    let server = match socket {
        Some(socket) => leasehold_core::printable(socket),
        None if host.contains(':') => format!("[{host}]:{port}"),
        None => format!("{}:{port}", leasehold_core::printable(host)),
    };
    format!("{}://{user}{server}/{}", address.scheme, leasehold_core::printable(&address.path))
}

/// The fields of `[client]`; none if there is no file.
fn client_section(path: &Path) -> Result<HashMap<String, String>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(HashMap::new()),
        Err(e) => {
            let message = format!("cannot read the option file `{}`", path.display());
            return Err(Error::new(Kind::Unsupported, message).with_source(e));
        }
    };
    let (mut fields, mut is_client) = (HashMap::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            is_client = section.trim_end_matches(']').trim().eq_ignore_ascii_case("client");
            continue;
        }
        let Some((name, value)) = line.split_once('=').filter(|_| is_client && !line.starts_with(['#', ';'])) else {
            continue;
        };
        fields.insert(name.trim().replace('_', "-"), option_value(value.trim()));
    }
    Ok(fields)
}

/// A value from an option file: surrounding quotes are removed, escapes are resolved, and ` #` begins a comment.
fn option_value(text: &str) -> String {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    let bare = match quote {
        Some(quote) => text[1..].rsplit_once(quote).map_or(&text[1..], |(value, _)| value),
        None => text.split(" #").next().unwrap_or_default().trim_end(),
    };
    let (mut value, mut letters) = (String::new(), bare.chars());
    while let Some(letter) = letters.next() {
        match (letter, letters.clone().next()) {
            ('\\', Some(escaped @ ('\\' | '"' | '\''))) => value.push(escaped),
            ('\\', Some('s')) => value.push(' '),
            ('\\', Some('t')) => value.push('\t'),
            _ => {
                value.push(letter);
                continue;
            }
        }
        letters.next();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        let (scheme, rest) = text.split_once(':').unwrap();
        Address::parse(scheme, rest).unwrap()
    }

    fn around(variables: &[(&'static str, &str)], file: Option<PathBuf>) -> Environment {
        let variables = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Environment { variables, option_file: file }
    }

    #[test]
    fn addresses_that_cannot_be_meant_are_refused() {
        for (text, says) in [
            ("mysql://h", "name one database"),
            ("mysql://h/a/b", "name one database"),
            ("mysql://h,i/d", "only one host"),
            ("mysql://h/d?ssl=1", "`ssl` is not known"),
            ("mysql://h/d?ssl-mode=MAYBE", "DISABLED, PREFERRED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY"),
            ("mysql://h/d?ssl-ca=ca.pem", "absolute path"),
            ("mysql:///d?socket=s", "absolute path"),
            ("mysql://h/d?socket=/s", "a host or the option `socket`"),
            ("mysql:///d?socket=/s&ssl-mode=REQUIRED", "not encrypted"),
        ] {
            let error = check(&address(text)).unwrap_err();
            assert!(error.kind() == Kind::Invalid && error.to_string().contains(says), "{text} gave {error}");
        }
        check(&address("mariadb://u:p@h:1/d?ssl-mode=verify_ca&ssl-ca=/ca.pem")).unwrap();
    }

    #[test]
    fn the_address_comes_first_then_the_file_then_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my.cnf");
        std::fs::write(
            &path,
            "# comment\n[mysqld]\nuser=nobody\n[client]\nuser = filed\npassword=\"fi#le'd\\\\x\"\nport=3307 # so\n;host=x\n\
             [mysql]\nhost=elsewhere\n",
        )
        .unwrap();
        let environment = [("MYSQL_HOST", "env-host"), ("MYSQL_TCP_PORT", "1"), ("MYSQL_PWD", "env"), ("USER", "me")];

        let bare = around(&environment, None);
        let config = Config::gather(&address("mysql:///d"), &bare).unwrap();
        assert_eq!(config.endpoint, "mysql://me@env-host:1/d");
        assert_eq!(config.password.as_ref().unwrap().reveal(), "env");

        let filed = around(&environment, Some(path));
        let config = Config::gather(&address("mysql:///d"), &filed).unwrap();
        assert_eq!(config.endpoint, "mysql://filed@env-host:3307/d");
        assert_eq!(config.password.as_ref().unwrap().reveal(), "fi#le'd\\x");

        let config = Config::gather(&address("mysql://given:secret@[::1]:5/d"), &filed).unwrap();
        assert_eq!(config.endpoint, "mysql://given@[::1]:5/d");
        assert_eq!(config.password.as_ref().unwrap().reveal(), "secret");
        assert!(!format!("{config:?}").contains("secret"));

        let nothing = around(&[], Some(folder.path().join("none")));
        assert_eq!(Config::gather(&address("mysql:///d"), &nothing).unwrap().endpoint, "mysql://127.0.0.1:3306/d");
    }

    #[test]
    fn a_socket_of_the_file_is_for_those_who_name_no_host() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my.cnf");
        std::fs::write(&path, "[client]\nsocket=/run/s\nssl-mode=REQUIRED\n").unwrap();
        let filed = around(&[], Some(path));
        assert_eq!(Config::gather(&address("mysql:///d"), &filed).unwrap().endpoint, "mysql:///run/s/d");
        let config = Config::gather(&address("mysql://h/d"), &filed).unwrap();
        assert_eq!((config.socket.as_deref(), config.ssl_mode), (None, SslMode::Required));
    }

    #[test]
    fn who_names_an_authority_wants_it_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let text = format!("mysql://h/d?ssl-ca={}", path.display());
        let error = Config::gather(&address(&text), &around(&[], None)).unwrap_err();
        assert!(error.kind() == Kind::Unsupported && error.to_string().contains("ca.pem"), "{error}");
        std::fs::write(&path, "").unwrap();
        let config = Config::gather(&address(&text), &around(&[], None)).unwrap();
        assert_eq!(config.ssl_mode, SslMode::VerifyCa);
        assert!(!config.may_be_plain());
    }
}
