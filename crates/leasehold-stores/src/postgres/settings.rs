//! Where the server is and how to log in: from the store URL, the usual `PG*` variables and the files they name.
//!
//! Promise: what libpq's tools find, this finds too, in the same order (URL, environment, file, default). Non-promise:
//! service files and Kerberos.

use super::passfile;
use super::sql::Table;
use super::tls::{self, Trust};
use crate::address::{Address, Secret};
use leasehold::{Result, printable};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

const DEFAULT_PORT: u16 = 5432;
/// Where servers put their sockets, by the packagers' taste.
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

/// One server.
pub(super) struct Place {
    pub(super) config: Config,
    /// For messages.
    pub(super) shown: Arc<str>,
}

/// Everything that is needed to connect.
pub(super) struct Settings {
    pub(super) places: Vec<Place>,
    pub(super) tls: MakeRustlsConnect,
    pub(super) table: Table,
    pub(super) user: String,
    /// All servers, for messages.
    pub(super) shown: Arc<str>,
}

/// Refuses what can be refused without looking at the environment.
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

impl Settings {
    pub(super) fn read(address: &Address) -> Result<Self> {
        check(address)?;
        let from = |option: &str, variable: &str| {
            let given = address.option(option).map(ToOwned::to_owned);
            given.or_else(|| std::env::var(variable).ok()).filter(|value| !value.is_empty())
        };
        let read = || {
            let user = match address.user.clone().or_else(|| from("user", "PGUSER")) {
                Some(user) => user,
                None => own_name().ok_or("no user is given; name one in it or in PGUSER")?,
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
            let places = hosts.into_iter().map(|(host, port)| {
                let mut config = Config::new();
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
                    passfile::find(passfile.as_deref()?, name, port, &database, &user)
                });
                if let Some(found) = found {
                    config.password(found.reveal());
                }
                Place { config, shown: format!("postgres server `{}:{port}`", printable(&host)).into() }
            });
            let places: Vec<Place> = places.collect();
            let shown = places.iter().map(|place| &*place.shown).collect::<Vec<_>>().join(", ").into();
            let table = Table::parse(address.option("table"))?;
            Ok(Settings { places, tls, table, user, shown })
        };
        read().map_err(|what: String| address.invalid(what))
    }
}

/// Every server with its port: those in the URL, or in the environment, or the socket of this machine.
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

/// What an `sslmode` asks of the connection, and of the server's certificate.
fn mode_of(text: &str) -> Result<(SslMode, Trust), String> {
    match text {
        "disable" => Ok((SslMode::Disable, Trust::Anybody)),
        // `allow` would begin in the clear: the stricter neighbour does all that it does.
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

fn own_name() -> Option<String> {
    ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).filter(|name| !name.is_empty())
}

fn home(file: &str) -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(|home| Path::new(&home).join(file))
}
