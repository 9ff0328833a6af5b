//! Store URLs, parsed once at the edge. This is the one place that knows every store.
//!
//! Promise: a parsed URL has an absolute path and can be passed to another process unchanged; its displayed form has no
//! password. Non-promise: a URL that parses may still not open.

use crate::url::{Address, Namespace, is_token};
use leasehold_core::store::Store;
use leasehold_core::{Error, Kind, Result, secret};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// The file in the state directory that `sqlite:` means.
const DEFAULT_FILE: &str = "leasehold.db";

/// The driver whose URL has the namespace in its path, like the server's own addresses.
const SERVER: &str = "remote";

/// One line per store.
const DRIVERS: &[Driver] = &[
    Driver { feature: "sqlite", schemes: &["sqlite"], form: "sqlite:/path/file.db", is_path: true },
    Driver { feature: "dir", schemes: &["dir"], form: "dir:/shared/folder", is_path: true },
    Driver { feature: "mysql", schemes: &["mysql", "mariadb"], form: "mysql://user@host/database", is_path: false },
    Driver { feature: "etcd", schemes: &["etcd", "etcds"], form: "etcd://host:2379", is_path: false },
    Driver {
        feature: "redis",
        schemes: &["redis", "rediss", "valkey", "valkeys"],
        form: "redis://host",
        is_path: false,
    },
    Driver { feature: "postgres", schemes: &["postgres", "postgresql"], form: "postgres://host/db", is_path: false },
    Driver { feature: "nats", schemes: &["nats", "tls", "nats+tls"], form: "nats://host:4222", is_path: false },
    Driver {
        feature: "object",
        schemes: &["s3", "gs", "az"],
        form: "s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix",
        is_path: false,
    },
    Driver { feature: "dynamodb", schemes: &["dynamodb"], form: "dynamodb://region/table", is_path: false },
    Driver { feature: "firestore", schemes: &["firestore"], form: "firestore://project/collection", is_path: false },
    Driver { feature: "durable", schemes: &["do+https", "do+http"], form: "do+https://host/path", is_path: false },
    Driver {
        feature: "remote",
        schemes: &["leasehold", "leasehold+http"],
        form: "leasehold://host/namespace",
        is_path: false,
    },
];

/// The store behind a URL's scheme.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Driver {
    /// The cargo feature, which is also the store's name.
    feature: &'static str,
    schemes: &'static [&'static str],
    /// An example for messages, or several, with backquotes between them.
    form: &'static str,
    /// Whether a path follows the scheme, instead of a network address.
    is_path: bool,
}

/// Where a store is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    driver: &'static Driver,
    location: Location,
    namespace: Namespace,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Location {
    // Always absolute and UTF-8, so that the text form is exact.
    Path(String),
    // The parsed address, and the URL's text without the namespace.
    Network(Box<Address>, String),
}

impl StoreUrl {
    /// The default store: a database in this user's state directory.
    pub fn user_default() -> Result<Self> {
        let state = leasehold_system::paths::state_dir().map_err(|e| {
            let message = format!("cannot tell where this user's own store is; give a store URL: {}", forms());
            Error::new(Kind::Invalid, message).with_source(e)
        })?;
        let location = Location::Path(text_of(state.join(DEFAULT_FILE), "sqlite:")?);
        Ok(StoreUrl { driver: &DRIVERS[0], location, namespace: Namespace::default() })
    }

    /// Parses a URL. A relative path is resolved against `base`, or against the working folder.
    pub fn parse_in(base: Option<&Path>, text: &str) -> Result<Self> {
        let refuse = |what: &str| refused(text, what);
        if text.chars().any(char::is_control) {
            return Err(refuse("it has a control character"));
        }
        let (scheme, rest) = text.split_once(':').ok_or_else(|| refuse("the scheme is missing"))?;
        let driver = DRIVERS
            .iter()
            .find(|driver| driver.schemes.contains(&scheme))
            .ok_or_else(|| refuse(&format!("`{}` is not a scheme", leasehold_core::printable(scheme))))?;
        if driver.is_path {
            return StoreUrl::parse_path(base, text, driver, rest);
        }
        let mut address = Address::parse(scheme, rest).map_err(|what| refuse(&what))?;
        if driver.feature == SERVER {
            return StoreUrl::parse_served(driver, address, text);
        }
        let namespace = address
            .take("namespace")
            .map_or_else(|| Ok(Namespace::default()), |name| name.parse().and_then(Namespace::to_use))?;
        check(driver, &address)?;
        Ok(StoreUrl { driver, location: Location::Network(Box::new(address), without_namespace(text)), namespace })
    }

    /// The last part of a server's path is the namespace. What precedes it is
    /// the prefix under which the server answers.
    fn parse_served(driver: &'static Driver, mut address: Address, text: &str) -> Result<Self> {
        let (place, query) = text.split_once('?').map_or((text, None), |(place, query)| (place, Some(query)));
        let path = address.path.trim_matches('/').to_owned();
        let (prefix, name) = path.rsplit_once('/').unwrap_or(("", &path));
        if address.option("namespace").is_some() || name.is_empty() {
            return Err(refused(text, "the namespace is the last part of the path"));
        }
        let namespace = name.parse().and_then(Namespace::to_use)?;
        let place = place.trim_end_matches('/').strip_suffix(name).unwrap_or(place).trim_end_matches('/');
        let given = query.map_or_else(|| place.to_owned(), |query| format!("{place}?{query}"));
        address.path = prefix.to_owned();
        check(driver, &address)?;
        Ok(StoreUrl { driver, location: Location::Network(Box::new(address), given), namespace })
    }

    fn parse_path(base: Option<&Path>, text: &str, driver: &'static Driver, rest: &str) -> Result<Self> {
        let refuse = |what: &str| refused(text, what);
        let (path, namespace) = match rest.split_once('?') {
            Some((path, query)) => match query.split_once('=') {
                Some(("namespace", namespace)) => (path, Namespace::new(namespace)?.to_use()?),
                _ => return Err(refuse("after `?` only `namespace=NAME` can stand")),
            },
            None => (rest, Namespace::default()),
        };
        match path {
            "" if driver.feature == "sqlite" => return Ok(StoreUrl { namespace, ..StoreUrl::user_default()? }),
            "" => return Err(refuse("the path is empty")),
            "~" => return Err(refuse("`~` is not expanded here")),
            _ if path.starts_with("~/") => return Err(refuse("`~` is not expanded here")),
            // Other tools write `/x` as `sqlite:///x`; in `sqlite://x`, `x` would be a host.
            _ if path.starts_with("//") && !path.starts_with("///") => {
                return Err(refuse("a path with `//` would name a host"));
            }
            _ => {}
        }
        let path = if path.starts_with("///") { &path[2..] } else { path };
        if driver.feature == "sqlite" && path.ends_with('/') {
            return Err(refuse("the path is a folder, not a file"));
        }
        let from_base = base.map_or_else(|| PathBuf::from(path), |base| base.join(path));
        let absolute =
            std::path::absolute(from_base).map_err(|e| refuse("the path cannot be resolved").with_source(e))?;
        Ok(StoreUrl { driver, location: Location::Path(text_of(absolute, text)?), namespace })
    }

    /// The complete URL, for another process's `LEASEHOLD_STORE`. It may contain a password: never show it.
    pub fn portable(&self) -> String {
        let mut text = match &self.location {
            Location::Path(path) => format!("{}:{path}", self.driver.schemes[0]),
            Location::Network(_, text) => text.clone(),
        };
        if self.driver.feature == SERVER {
            let at = text.find('?').unwrap_or(text.len());
            text.insert_str(at, &format!("/{}", self.namespace));
        } else if !self.namespace.is_default() {
            text.push(if text.contains('?') { '&' } else { '?' });
            text.push_str("namespace=");
            text.push_str(self.namespace.as_str());
        }
        text
    }

    /// The store's name, as in [`leasehold_core::Capabilities`].
    pub const fn scheme(&self) -> &'static str {
        self.driver.feature
    }

    /// The namespace that the URL names, or the default one.
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The same store, in another namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: Namespace) -> Self {
        StoreUrl { namespace, ..self.clone() }
    }

    /// A scratch part of this store: a namespace of its own. For a directory, which never forgets a name, it is a
    /// folder inside, which is also returned, so that the caller can remove it as a whole.
    pub fn scratch(&self, name: Namespace) -> (Self, Option<PathBuf>) {
        match &self.location {
            Location::Path(root) if self.driver.feature == "dir" => {
                let folder = format!("{root}/tmp/{name}");
                let url = StoreUrl { location: Location::Path(folder.clone()), ..self.clone() };
                (url.in_namespace(name), Some(PathBuf::from(folder)))
            }
            _ => (self.in_namespace(name), None),
        }
    }

    /// Whether opening would create a new store, so that a reader can avoid it. False if opening would fail, because
    /// its error says why. Opening a networked store creates nothing, so it is never missing.
    pub fn is_missing(&self) -> bool {
        let Some(path) = self.path() else { return false };
        let absent = path.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        let has_room = path.parent().is_some_and(Path::is_dir);
        if self.driver.feature == "sqlite" {
            return absent && (has_room || StoreUrl::user_default().is_ok_and(|own| own.location == self.location));
        }
        (absent && has_room) || std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
    }

    /// The address of a networked store.
    pub fn address(&self) -> Option<&Address> {
        match &self.location {
            Location::Path(_) => None,
            Location::Network(address, _) => Some(address),
        }
    }

    /// The path of a store that is a file or a folder.
    pub fn path(&self) -> Option<&Path> {
        match &self.location {
            Location::Path(path) => Some(Path::new(path)),
            Location::Network(..) => None,
        }
    }
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        StoreUrl::parse_in(None, text)
    }
}

/// For people, without secrets.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.portable()))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// Opens the store. A networked store is created by its first write, not here.
pub async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    let opened = match &url.location {
        Location::Path(path) => open_path(url.driver, Path::new(path), &url.namespace).await?,
        Location::Network(address, _) => open_networked(url.driver, address, &url.namespace).await?,
    };
    opened.ok_or_else(|| {
        let feature = url.driver.feature;
        let message =
            format!("no driver for `{url}`: rebuild with the cargo feature `full` (of the library: `{feature}`)");
        Error::new(Kind::Unsupported, message)
    })
}

#[allow(unused_variables, clippy::unused_async, reason = "a build without any such driver is allowed")]
async fn open_path(driver: &Driver, path: &Path, namespace: &Namespace) -> Result<Option<Arc<dyn Store>>> {
    Ok(match driver.feature {
        #[cfg(feature = "sqlite")]
        "sqlite" => Some(Arc::new(crate::sqlite::SqliteStore::open(path, namespace).await?)),
        #[cfg(feature = "dir")]
        "dir" => Some(Arc::new(crate::dir::DirStore::open(path, namespace).await?)),
        _ => None,
    })
}

/// Every networked store has `check` and `open` in its module.
macro_rules! networked {
    ($($feature:tt => $store:ident,)*) => {
        /// Refuses an address that the store could not use, before anything is
        /// opened. If its driver is missing, opening reports that.
        #[allow(unused_variables, clippy::match_single_binding, reason = "a build without any such driver is allowed")]
        fn check(driver: &Driver, address: &Address) -> Result<()> {
            match driver.feature {
                $(#[cfg(feature = $feature)] $feature => crate::$store::check(address),)*
                _ => Ok(()),
            }
        }

        #[allow(unused_variables, clippy::unused_async, reason = "a build without any such driver is allowed")]
        async fn open_networked(
            driver: &Driver,
            address: &Address,
            namespace: &Namespace,
        ) -> Result<Option<Arc<dyn Store>>> {
            Ok(match driver.feature {
                $(#[cfg(feature = $feature)] $feature => Some(Arc::new(crate::$store::open(address, namespace).await?)),)*
                _ => None,
            })
        }
    };
}

networked! {
    "mysql" => mysql,
    "etcd" => etcd,
    "redis" => redis,
    "postgres" => postgres,
    "nats" => nats,
    "object" => object,
    "dynamodb" => dynamodb,
    "firestore" => firestore,
    "durable" => durable,
    "remote" => remote,
}

/// The process that keeps others from writing to the store. Only SQLite has one: it allows one writer at a time, and a
/// writer that is stopped during its write blocks all others.
#[cfg(feature = "sqlite")]
pub fn blocker(url: &StoreUrl) -> Option<crate::sqlite::Blocker> {
    let path = url.path().filter(|_| url.driver.feature == "sqlite")?;
    crate::sqlite::blocker(path)
}

fn refused(text: &str, what: &str) -> Error {
    Error::invalid("store url", concealed(text), format!("{what}; use {}", forms()))
}

/// All forms of a URL, for messages.
fn forms() -> String {
    let mut forms = String::from("`sqlite:` (this user's own store)");
    for (index, driver) in DRIVERS.iter().enumerate() {
        let comma = if index + 1 == DRIVERS.len() { " or" } else { "," };
        forms.push_str(&format!("{comma} `{}`", driver.form));
    }
    forms
}

/// The text of a network address without its namespace, which is stored separately.
fn without_namespace(text: &str) -> String {
    let Some((rest, query)) = text.split_once('?') else { return text.to_owned() };
    let others: Vec<&str> = query.split('&').filter(|field| !field.starts_with("namespace=")).collect();
    if others.is_empty() { rest.to_owned() } else { format!("{rest}?{}", others.join("&")) }
}

fn text_of(path: PathBuf, given: &str) -> Result<String> {
    path.into_os_string().into_string().map_err(|path| {
        let what = format!("the folder `{}` is not valid UTF-8", path.to_string_lossy());
        refused(given, &what)
    })
}

/// A text that is not a URL, without anything that may be a secret.
pub(crate) fn concealed(text: &str) -> String {
    let is_path = |scheme| DRIVERS.iter().any(|driver| driver.is_path && driver.schemes.contains(&scheme));
    let Some((scheme, rest)) = text.split_once(':').filter(|(scheme, _)| !is_path(*scheme)) else {
        return text.to_owned();
    };
    let place = rest.trim_start_matches('/');
    let slashes = &rest[..rest.len() - place.len()];
    // The last `@` counts, wherever it is: a password that was not escaped may contain anything.
    let (login, place) = match place.rsplit_once('@') {
        Some((login, place)) => (format!("{}@", secret::login(login, true)), place),
        None => (String::new(), place),
    };
    let (place, query) = place.split_once('?').map_or((place, None), |(place, query)| (place, Some(query)));
    let fields = query.into_iter().flat_map(|query| query.split('&')).enumerate().map(|(at, field)| {
        let name = field.split_once('=').map(|(name, _)| format!("{name}=")).unwrap_or_default();
        format!("{}{name}***", if at == 0 { '?' } else { '&' })
    });
    format!("{scheme}:{slashes}{login}{place}{}", fields.collect::<String>())
}

/// The text with possible secrets hidden. The password in a store's URL may not have been encoded.
fn redacted(text: &str) -> String {
    let (mut shown, rest) = match text.split_once("://") {
        Some((scheme, rest)) => {
            let (user, rest) = rest.split_at(user_ends(rest));
            (format!("{scheme}://{}", secret::login(user, is_token(scheme))), rest)
        }
        None => (String::new(), text),
    };
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    shown.push_str(rest);
    if let Some(query) = query {
        shown.push('?');
        shown.push_str(&secret::query(query));
    }
    shown
}

/// Where the user and the password end, at an `@`: the last one of the authority, because a password may contain one.
/// If there is none, the password may contain a `/` or `?` that was not encoded, and the last `@` of all counts.
fn user_ends(rest: &str) -> usize {
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let authority = &rest[..end];
    if let Some(at) = authority.rfind('@') {
        return at;
    }
    let has_port = authority.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
    // After a host with a port, an `@` in an option does not end a password.
    let until = if has_port { rest.find('?').unwrap_or(rest.len()) } else { rest.len() };
    rest[..until].rfind('@').filter(|_| authority.contains(':')).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute_and_survive_their_text_form() {
        let here = std::env::current_dir().unwrap();
        for (text, path) in [
            ("sqlite:/var/lib/x.db", PathBuf::from("/var/lib/x.db")),
            ("sqlite:///var/lib/x.db", PathBuf::from("/var/lib/x.db")),
            ("sqlite:x.db", here.join("x.db")),
            ("dir:/mnt/shared", PathBuf::from("/mnt/shared")),
            ("dir:shared/a b", here.join("shared/a b")),
            ("dir:./x", here.join("x")),
            ("dir:./x?namespace=team", here.join("x")),
        ] {
            let url: StoreUrl = text.parse().unwrap();
            assert_eq!(url.path(), Some(&*path), "{text}");
            assert_eq!(url.portable().parse::<StoreUrl>().unwrap(), url, "{text}");
        }
    }

    #[test]
    fn wrong_urls_name_the_field_the_value_and_the_allowed_forms() {
        for (text, says) in [
            ("", "the scheme is missing"),
            ("/tmp/x", "the scheme is missing"),
            ("dir:", "the path is empty"),
            ("dir:~/x", "`~` is not expanded"),
            ("sqlite:~", "`~` is not expanded"),
            ("sqlite:/tmp/", "a folder, not a file"),
            ("sqlite://host/x", "would name a host"),
            ("DIR:/x", "`DIR` is not a scheme"),
            ("ftp:/x", "`ftp` is not a scheme"),
            ("dir:/a\nb", "control character"),
            ("dir:/a?team=x", "only `namespace=NAME`"),
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            let message = error.to_string();
            assert!(message.starts_with("invalid store url `") && message.contains(says), "{text:?} gave {message}");
            assert!(message.contains("dir:/shared/folder") && !message.contains('\n'), "{text:?} gave {message}");
        }
    }

    #[test]
    fn a_store_is_missing_only_where_opening_would_make_one() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().display();
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        std::fs::create_dir_all(folder.path().join("lived/in")).unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        for (text, is_missing) in [
            (format!("sqlite:{here}/new.db"), true),
            (format!("sqlite:{here}/no/new.db"), false),
            (format!("sqlite:{here}/file"), false),
            (format!("sqlite:{here}/file/below"), false),
            (format!("dir:{here}/new"), true),
            (format!("dir:{here}/empty"), true),
            (format!("dir:{here}/lived"), false),
            (format!("dir:{here}/no/new"), false),
            (format!("dir:{here}/file"), false),
        ] {
            assert_eq!(text.parse::<StoreUrl>().unwrap().is_missing(), is_missing, "{text}");
        }
    }

    /// Not in a build with every driver: `cargo xtask test --quick` runs it.
    #[cfg(not(feature = "redis"))]
    #[tokio::test]
    async fn a_lean_build_says_which_feature_is_missing() {
        let url = "redis://u:hunter2@h/0".parse::<StoreUrl>().unwrap();
        let error = open(&url).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert_eq!(
            error.to_string(),
            "no driver for `redis://u:***@h/0`: rebuild with the cargo feature `full` (of the library: `redis`)"
        );
    }

    #[test]
    fn a_password_is_never_shown() {
        for text in [
            "postgres://u:hunter2@db/x",
            "postgres://u:hun@hunter2@db/x?sslmode=require",
            "redis://:hunter2@h",
            "redis://h/0?PASSWORD=hunter2&a=b",
            "http://h?api_key=hunter2",
            "nats://hunter2@h",
            "tls://hunter2@h?replicas=9",
            "postgres://u:hunter2/x@db/x",
            "postgres://u:12/hunter2@db/x",
            "postgres://u:hunter2?x@db/x",
            "postgres://u:x?hunter2@db/x",
            "nats://hunter2@h/path",
            "do+https://hunter2@h",
            // A password that is not escaped, and texts that are not even URLs.
            "postgres://u:hun/hunter2@db/x",
            "postgres://u:/hunter2@db/x",
            "postgres://u:1/hunter2@db/x",
            "redis://:hun?hunter2@h",
            "redis://:hunter2@h:x",
            "redis://h?auth=hunter2&x",
            "redis://h?hunter2",
            "redis:u:hunter2@h",
            "redis:/:hunter2@h",
            "u:hunter2@h",
        ] {
            let shown = match text.parse::<StoreUrl>() {
                Ok(url) => format!("{url} {url:?}"),
                Err(error) => error.to_string(),
            };
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        assert_eq!(redacted("postgres://u:p@db/x?a=b"), "postgres://u:***@db/x?a=b");
        for plain in ["dir:/mnt/a@b:c", "sqlite:///a:b@c", "s3://bucket/a@b", "etcds://h:1?cert=/a@b", "redis://h:1/0"]
        {
            assert_eq!(redacted(plain), plain);
        }
        assert_eq!(concealed("dir:/mnt/a@b:c?d=e"), "dir:/mnt/a@b:c?d=e");
        assert_eq!(concealed("redis://u:p@h:x/0?a=b"), "redis://u:***@h:x/0?a=***");
    }
}
