//! Store URLs, parsed once at the edge.
//!
//! Promise: a parsed URL has an absolute path and can be passed to another process unchanged; its displayed form has no
//! password. Non-promise: a URL that parses may still not open.

use super::redacted::{redacted_text, redacted_url};
use super::{DRIVERS, Driver, check, forms};
use crate::url::{Address, Namespace};
use leasehold_core::{Error, Kind, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The file in the state directory that `sqlite:` means.
const DEFAULT_FILE: &str = "leasehold.db";

/// What a server's addresses have in front of the namespace, and its store URL has not.
const API: &str = "/v1/ns";

/// The driver whose URL has the namespace in its path, like the server's own addresses.
const SERVER: &str = "remote";

/// Where a store is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    pub(super) driver: &'static Driver,
    pub(super) location: Location,
    pub(super) namespace: Namespace,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Location {
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
        if let Some(server) = server_meant(scheme, rest) {
            let server = redacted_text(&server);
            return Err(not_so(text, &format!("a Leasehold server is written `{server}`")));
        }
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
        let (base, query) = text.split_once('?').map_or((text, None), |(base, query)| (base, Some(query)));
        let path = address.path.trim_matches('/').to_owned();
        let (prefix, name) = path.rsplit_once('/').unwrap_or(("", &path));
        if let Some(meant) = without_api(base) {
            let what = format!("the store's URL has no `{API}`; write `{}`", redacted_text(&meant));
            return Err(not_so(text, &what));
        }
        let asked = address.option("namespace");
        if asked.is_some() || name.is_empty() {
            let above = base.trim_end_matches('/');
            let above = if asked.is_some() { above.strip_suffix(name).unwrap_or(above) } else { above };
            let meant = asked.and_then(|name| Namespace::new(name).ok()).unwrap_or_default();
            let base = redacted_text(above.trim_end_matches('/'));
            let what = format!("the namespace is the last part of the path, as in `{base}/{meant}`");
            return Err(not_so(text, &what));
        }
        let namespace = name.parse().and_then(Namespace::to_use)?;
        let base = base.trim_end_matches('/').strip_suffix(name).unwrap_or(base).trim_end_matches('/');
        let given = query.map_or_else(|| base.to_owned(), |query| format!("{base}?{query}"));
        address.path = prefix.to_owned();
        check(driver, &address)?;
        Ok(StoreUrl { driver, location: Location::Network(Box::new(address), given), namespace })
    }

    fn parse_path(base: Option<&Path>, text: &str, driver: &'static Driver, rest: &str) -> Result<Self> {
        let refuse = |what: &str| refused(text, what);
        let (path, namespace) = match rest.split_once('?') {
            Some((path, query)) => match query.split_once('=') {
                Some(("namespace", namespace)) => (path, Namespace::new(namespace)?.to_use()?),
                _ => return Err(refuse("after `?` only `namespace=NAME` is allowed")),
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
        f.write_str(&redacted_url(&self.portable()))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

fn refused(text: &str, what: &str) -> Error {
    not_so(text, &format!("{what}; use {}", forms()))
}

/// The same where it is known what was meant, so that the other forms are no help.
fn not_so(text: &str, what: &str) -> Error {
    Error::invalid("store url", redacted_text(text), what)
}

/// The server's URL that somebody means who writes the address of its page or of its API.
fn server_meant(scheme: &str, rest: &str) -> Option<String> {
    let scheme = match scheme {
        "https" => "leasehold",
        "http" => "leasehold+http",
        _ => return None,
    };
    let base = rest.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let meant = format!("{scheme}:{base}");
    let meant = without_api(&meant).unwrap_or(meant);
    let has_path = meant.split_once("://").is_some_and(|(_, base)| base.contains('/'));
    Some(if has_path { meant } else { format!("{meant}/{}", Namespace::default()) })
}

/// A server's URL without the part of the path that only the API has.
fn without_api(base: &str) -> Option<String> {
    let base = base.trim_end_matches('/');
    let (before, after) = base.split_once(API)?;
    (after.is_empty() || after.starts_with('/')).then(|| {
        let after = if after.is_empty() { "/default" } else { after };
        format!("{before}{after}")
    })
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
    fn the_address_of_a_servers_page_or_api_is_answered_with_its_store_url() {
        let not = |text: &str| text.parse::<StoreUrl>().unwrap_err().to_string();
        for (text, meant) in [
            ("http://127.0.0.1:7117", "leasehold+http://127.0.0.1:7117/default"),
            ("http://127.0.0.1:7117/default/", "leasehold+http://127.0.0.1:7117/default"),
            ("https://leases.example.org/v1/ns/team", "leasehold://leases.example.org/team"),
            ("https://:lh_w_secret@leases.example.org/team?ca=/x", "leasehold://***@leases.example.org/team"),
        ] {
            let message = not(text);
            let (says, _) = meant.split_once("***").unwrap_or((meant, ""));
            assert!(message.contains(&format!("a Leasehold server is written `{says}")), "{text} gave {message}");
            assert!(!message.contains("sqlite:") && !message.contains("secret"), "{text} gave {message}");
        }
        if cfg!(feature = "remote") {
            for (text, says) in [
                ("leasehold://a/v1/ns/team", "has no `/v1/ns`; write `leasehold://a/team`"),
                ("leasehold://a/x/v1/ns/team/", "has no `/v1/ns`; write `leasehold://a/x/team`"),
                ("leasehold+http://127.0.0.1:7117", "as in `leasehold+http://127.0.0.1:7117/default`"),
                ("leasehold://a/", "as in `leasehold://a/default`"),
                ("leasehold://a/ci?namespace=team", "`leasehold://a/ci?namespace=team`: the"),
                ("leasehold://a/ci?namespace=team", "as in `leasehold://a/team`"),
                ("leasehold://a:1/x/ci?namespace=team", "as in `leasehold://a:1/x/team`"),
                ("leasehold://a:1?namespace=team", "as in `leasehold://a:1/team`"),
            ] {
                let message = not(text);
                assert!(message.contains(says) && !message.contains("sqlite:"), "{text} gave {message}");
            }
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
}
