//! Where the server is and how to log in: from the store URL, the usual `PG*` variables and the files they name.
//!
//! Promise: it finds the same settings as libpq's tools, in the same order
//! (URL, environment, file, default). Non-promise: service files and Kerberos.

use super::statements::Table;
use super::tls::{self, Trust};
use crate::url::{Address, Secret};
use leasehold_core::{Result, printable};
use leasehold_system::accounts;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

const DEFAULT_PORT: u16 = 5432;
/// Where servers put their sockets, depending on the package.
const SOCKETS: &[&str] = &["/run/postgresql", "/var/run/postgresql", "/tmp"];
const KEEPALIVE: Duration = Duration::from_secs(20);

const OPTIONS: &[&str] = &[
    "dbname",
    "host",
    "passfile",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "table",
    "target_session_attrs",
    "user",
];

/// How to connect to one server.
pub(super) struct Server {
    pub(super) config: tokio_postgres::Config,
    /// The server's name in messages.
    pub(super) shown: Arc<str>,
}

/// Everything that is needed to connect.
pub(super) struct Config {
    pub(super) servers: Vec<Server>,
    pub(super) tls: MakeRustlsConnect,
    pub(super) table: Table,
    pub(super) user: String,
    /// The names of all servers in messages.
    pub(super) shown: Arc<str>,
}

/// Refuses an address that cannot be used, without reading the environment.
pub(super) fn check(address: &Address) -> Result<()> {
    address.allow_options(OPTIONS)?;
    Table::parse(address.option("table")).map_err(|what| address.invalid(what))?;
    match address.option("target_session_attrs") {
        None | Some("any" | "primary" | "read-write") => {}
        Some(other) => {
            let what = format!("target_session_attrs `{}` is not `primary`: only a primary is read", printable(other));
            return Err(address.invalid(what));
        }
    }
    if let Some(mode) = address.option("sslmode") {
        mode_of(mode).map_err(|what| address.invalid(what))?;
    }
    ports(address.option("port")).map_err(|what| address.invalid(what))?;
    if !address.hosts.is_empty() && address.option("host").is_some() {
        return Err(address.invalid("the host is given twice"));
    }
    Ok(())
}

impl Config {
    /// Reads the environment through `variable`.
    pub(super) fn read(address: &Address, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        check(address)?;
        let from = |option: &str, name: &str| {
            let given = address.option(option).map(ToOwned::to_owned);
            given.or_else(|| variable(name)).filter(|value| !value.is_empty())
        };
        let home =
            |file: &str| variable("HOME").filter(|home| !home.is_empty()).map(|home| Path::new(&home).join(file));
        let read = || {
            let user = match address.user.clone().or_else(|| from("user", "PGUSER")) {
                Some(user) => user,
                None => from("user", "USER").or_else(|| variable("LOGNAME")).unwrap_or_else(accounts::own),
            };
            let path = Some(address.path.clone()).filter(|path| !path.is_empty());
            let database = path.or_else(|| from("dbname", "PGDATABASE")).unwrap_or_else(|| user.clone());
            let password = address.password.clone().or_else(|| from("password", "PGPASSWORD").map(Secret::new));
            let passfile = from("passfile", "PGPASSFILE").map(PathBuf::from).or_else(|| home(".pgpass"));
            let (mode, trust) = mode_of(from("sslmode", "PGSSLMODE").as_deref().unwrap_or("prefer"))?;
            let root = from("sslrootcert", "PGSSLROOTCERT").map(PathBuf::from);
            let root = root.or_else(|| home(".postgresql/root.crt").filter(|file| file.is_file()));
            let own = |option, variable, file: &str| {
                from(option, variable).map(PathBuf::from).or_else(|| home(file).filter(|file| file.is_file()))
            };
            let certificate = own("sslcert", "PGSSLCERT", ".postgresql/postgresql.crt");
            let key = own("sslkey", "PGSSLKEY", ".postgresql/postgresql.key");
            let tls = tls::connector(trust, root.as_deref(), certificate.as_deref().zip(key.as_deref()))?;
            let hosts = hosts(address, from("host", "PGHOST"), from("port", "PGPORT"))?;
            let servers = hosts.into_iter().map(|(host, port)| {
                let mut config = tokio_postgres::Config::new();
                config.user(&user).dbname(&database).port(port).application_name("leasehold");
                config.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE).keepalives_retries(2);
                let is_socket = host.starts_with('/');
                if is_socket {
                    config.host_path(&host)
                } else {
                    config.host(&host)
                };
                config.ssl_mode(if is_socket { SslMode::Disable } else { mode });
                let found = password.clone().or_else(|| {
                    let name = if is_socket { "localhost" } else { &host };
                    password_in(passfile.as_deref()?, name, port, &database, &user)
                });
                if let Some(found) = found {
                    config.password(found.reveal());
                }
                Server { config, shown: format!("postgres server `{}:{port}`", printable(&host)).into() }
            });
            let servers: Vec<Server> = servers.collect();
            let shown = servers.iter().map(|server| &*server.shown).collect::<Vec<_>>().join(", ").into();
            let table = Table::parse(address.option("table"))?;
            Ok(Config { servers, tls, table, user, shown })
        };
        read().map_err(|what: String| address.invalid(what))
    }
}

/// Every server with its port: from the URL, or the environment, or this machine's socket.
fn hosts(address: &Address, host: Option<String>, port: Option<String>) -> Result<Vec<(String, u16)>, String> {
    let ports = ports(port.as_deref())?;
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
    if !address.hosts.is_empty() {
        let hosts = address.hosts.iter().enumerate();
        return Ok(hosts.map(|(at, host)| (host.name.clone(), host.port.unwrap_or(port(at)))).collect());
    }
    if let Some(hosts) = host {
        return Ok(hosts.split(',').enumerate().map(|(at, host)| (host.to_owned(), port(at))).collect());
    }
    let has_socket = |folder: &&&str| Path::new(folder).join(format!(".s.PGSQL.{}", port(0))).exists();
    let host = SOCKETS.iter().find(has_socket).copied().unwrap_or("localhost");
    Ok(vec![(host.to_owned(), port(0))])
}

fn ports(text: Option<&str>) -> Result<Vec<u16>, String> {
    let parse = |port: &str| match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("the port `{}` is not a number from 1 to 65535", printable(port))),
    };
    text.map_or_else(|| Ok(Vec::new()), |text| text.split(',').map(parse).collect())
}

/// What an `sslmode` requires of the connection, and of the server's certificate.
fn mode_of(text: &str) -> Result<(SslMode, Trust), String> {
    match text {
        "disable" => Ok((SslMode::Disable, Trust::Anybody)),
        // `allow` would begin unencrypted, so it is treated as `prefer`.
        "allow" | "prefer" => Ok((SslMode::Prefer, Trust::Anybody)),
        "require" => Ok((SslMode::Require, Trust::AuthorityIfGiven)),
        "verify-ca" => Ok((SslMode::Require, Trust::Authority)),
        "verify-full" => Ok((SslMode::Require, Trust::AuthorityAndName)),
        other => {
            let known = "`disable`, `prefer`, `require`, `verify-ca` or `verify-full`";
            Err(format!("sslmode `{}` is not {known}", printable(other)))
        }
    }
}

/// The password in the first matching line of a password file: `host:port:database:user:password`, with `*` for any
/// value. As with libpq, a file that others can read is ignored.
fn password_in(file: &Path, host: &str, port: u16, database: &str, user: &str) -> Option<Secret> {
    let about = std::fs::metadata(file).ok()?;
    if !about.is_file() || about.permissions().mode() & 0o077 != 0 {
        return None;
    }
    let text = std::fs::read_to_string(file).ok()?;
    let wanted = [host, &port.to_string(), database, user];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let (password, places) = fields.split_last()?;
        let fits = places.len() == wanted.len()
            && places.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
        fits.then(|| Secret::new(password.as_str()))
    })
}

/// The fields of a line; `\` escapes the next character. Colons in the fifth field belong to it.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        let count = fields.len();
        if c == ':' && count < 5 {
            fields.push(String::new());
            continue;
        }
        let plain = if c == '\\' { characters.next().unwrap_or(c) } else { c };
        if let Some(field) = fields.last_mut() {
            field.push(plain);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::Kind;
    use tokio_postgres::config::Host;

    fn read(url: &str, variables: &[(&str, &str)]) -> Result<Config> {
        let (scheme, rest) = url.split_once(':').unwrap();
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Config::read(&Address::parse(scheme, rest).unwrap(), |name| {
            variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        })
    }

    fn refusal(url: &str, variables: &[(&str, &str)]) -> String {
        let Err(error) = read(url, variables) else { panic!("{url} was taken") };
        assert_eq!(error.kind(), Kind::Invalid);
        error.to_string()
    }

    #[test]
    fn the_url_comes_before_the_environment() {
        let variables = [
            ("PGHOST", "a,b"),
            ("PGPORT", "1,2"),
            ("PGUSER", "me"),
            ("PGDATABASE", "db"),
            ("PGPASSWORD", "secret"),
            ("PGSSLMODE", "require"),
        ];
        let found = read("postgres://", &variables).unwrap();
        let config = &found.servers[1].config;
        assert_eq!(
            (found.servers.len(), config.get_hosts(), config.get_ports()),
            (2, &[Host::Tcp("b".into())][..], &[2][..])
        );
        assert_eq!((config.get_user(), config.get_dbname()), (Some("me"), Some("db")));
        assert_eq!((config.get_password(), config.get_ssl_mode()), (Some(&b"secret"[..]), SslMode::Require));
        let found = read("postgresql://you:p@h:7/x?sslmode=disable", &variables).unwrap();
        let config = &found.servers[0].config;
        assert_eq!((config.get_hosts(), config.get_ports()), (&[Host::Tcp("h".into())][..], &[7][..]));
        assert_eq!((config.get_user(), config.get_dbname()), (Some("you"), Some("x")));
        assert_eq!((config.get_password(), config.get_ssl_mode()), (Some(&b"p"[..]), SslMode::Disable));
        assert_eq!(&*found.shown, "postgres server `h:7`");
    }

    #[test]
    fn a_path_is_a_socket_and_the_user_names_the_database() {
        let found = read("postgres://?host=/run/x&sslmode=require", &[("USER", "me")]).unwrap();
        let config = &found.servers[0].config;
        assert_eq!(config.get_hosts(), &[Host::Unix("/run/x".into())]);
        assert_eq!(
            (config.get_user(), config.get_dbname(), config.get_ssl_mode()),
            (Some("me"), Some("me"), SslMode::Disable)
        );
    }

    #[test]
    fn the_password_file_is_found_at_home_or_where_named() {
        let home = tempfile::tempdir().unwrap();
        for (name, password) in [(".pgpass", "at-home"), ("other", "named")] {
            let file = home.path().join(name);
            std::fs::write(&file, format!("h:5432:me:me:{password}\nlocalhost:5432:me:me:socket\n")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let (at_home, other) = (home.path().display().to_string(), home.path().join("other").display().to_string());
        let password = |url: &str, variables: &[(&str, &str)]| {
            read(url, variables).unwrap().servers[0]
                .config
                .get_password()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let me = ("USER", "me");
        assert_eq!(password("postgres://h", &[me, ("HOME", &at_home)]).as_deref(), Some("at-home"));
        assert_eq!(
            password("postgres://h", &[me, ("HOME", &at_home), ("PGPASSFILE", &other)]).as_deref(),
            Some("named")
        );
        assert_eq!(password("postgres://?host=/run/x", &[me, ("HOME", &at_home)]).as_deref(), Some("socket"));
        assert_eq!(password("postgres://elsewhere", &[me, ("HOME", &at_home)]), None);
    }

    #[test]
    fn without_a_user_it_is_the_account_as_for_libpq() {
        let found = read("postgres://h", &[]).unwrap();
        assert_eq!(found.user, accounts::own());
        assert_eq!(read("postgres://h", &[("LOGNAME", "me")]).unwrap().user, "me");
    }

    #[test]
    fn what_cannot_be_used_is_refused_in_words() {
        let me = [("USER", "me")];
        assert!(refusal("postgres://h?sslmode=maybe", &me).contains("sslmode `maybe` is not `disable`"));
        assert!(refusal("postgres://h", &[("USER", "me"), ("PGSSLMODE", "maybe")]).contains("sslmode `maybe`"));
        assert!(refusal("postgres://h?sslmode=verify-ca", &me).contains("name it with sslrootcert"));
        assert!(refusal("postgres://h?sslmode=verify-ca&sslrootcert=/none", &me).contains("/none cannot be read"));
        assert!(refusal("postgres://h?target_session_attrs=standby", &me).contains("only a primary is read"));
        assert!(refusal("postgres://h?host=x", &me).contains("the host is given twice"));
        assert!(refusal("postgres://?port=x", &me).contains("the port `x`"));
        assert!(refusal("postgres://h?table=A", &me).contains("is not `table` or `schema.table`"));
        assert!(refusal("postgres://u:hunter2@h?tabel=a", &me).contains("`tabel` is not known"));
        assert!(!refusal("postgres://u:hunter2@h?tabel=a", &me).contains("hunter2"));
    }

    #[test]
    fn the_first_line_that_fits_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pass");
        let lines = "# a note\ndb:5432:*:other:no\nd\\:b:*:x:me:a\\:b:c\\\\d\ndb:5432:*:me:first\n*:*:*:me:second\n";
        std::fs::write(&file, lines).unwrap();
        let find = |host, port, database, user| {
            password_in(&file, host, port, database, user).map(|secret| secret.reveal().to_owned())
        };
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(find("db", 5432, "x", "me"), None, "others can read it");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find("db", 5432, "x", "me").as_deref(), Some("first"));
        assert_eq!(find("db", 5433, "x", "me").as_deref(), Some("second"));
        assert_eq!(find("d:b", 1, "x", "me").as_deref(), Some("a:b:c\\d"));
        assert_eq!(find("db", 5432, "x", "nobody"), None);
    }
}
