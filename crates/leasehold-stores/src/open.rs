//! Store URLs, parsed once at the edge, and the one place that knows every store.
//!
//! Promise: a URL that parsed has an absolute path and can be handed to another process as it is; what is shown to
//! people has no password in it. Non-promise: that it parsed does not mean that the store can be opened.

use leasehold::store::Store;
use leasehold::{Error, Kind, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

const FORMS: &str = "use `sqlite:` (this user's own store), `sqlite:/path/file.db` or `dir:/shared/folder`";
/// The file in the state directory that `sqlite:` stands for.
const DEFAULT_FILE: &str = "leasehold.db";

/// Where a store is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    driver: Driver,
    // Always absolute and UTF-8, so that the text form is exact.
    path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Driver {
    Sqlite,
    Dir,
}

impl Driver {
    const ALL: [Driver; 2] = [Driver::Sqlite, Driver::Dir];

    /// The URL's scheme, which is also the name of the cargo feature.
    const fn scheme(self) -> &'static str {
        match self {
            Driver::Sqlite => "sqlite",
            Driver::Dir => "dir",
        }
    }
}

impl StoreUrl {
    /// The store that is used when none is named: a database in this user's state directory.
    pub fn user_default() -> Result<Self> {
        let state = leasehold_system::paths::state_dir().map_err(|e| {
            let message = format!("cannot tell where this user's own store is; give a store URL: {FORMS}");
            Error::new(Kind::Invalid, message).with_source(e)
        })?;
        Ok(StoreUrl { driver: Driver::Sqlite, path: text_of(state.join(DEFAULT_FILE), "sqlite:")? })
    }

    /// Parses a URL whose relative path is meant from `base`, or from the working folder where that is none.
    pub fn parse_in(base: Option<&Path>, text: &str) -> Result<Self> {
        let refuse = |what: &str| Error::invalid("store url", redacted(text), format!("{what}; {FORMS}"));
        if text.chars().any(char::is_control) {
            return Err(refuse("it has a control character"));
        }
        let (scheme, path) = text.split_once(':').ok_or_else(|| refuse("the scheme is missing"))?;
        let driver = Driver::ALL
            .into_iter()
            .find(|driver| driver.scheme() == scheme)
            .ok_or_else(|| refuse(&format!("`{}` is not a scheme", leasehold::printable(scheme))))?;
        match path {
            "" if driver == Driver::Sqlite => return StoreUrl::user_default(),
            "" => return Err(refuse("the path is empty")),
            "~" => return Err(refuse("`~` is not expanded here")),
            _ if path.starts_with("~/") => return Err(refuse("`~` is not expanded here")),
            // `sqlite:///x` is how other tools write `/x`; `sqlite://x` would name a host.
            _ if path.starts_with("//") && !path.starts_with("///") => {
                return Err(refuse("a path with `//` would name a host"));
            }
            _ => {}
        }
        let path = if path.starts_with("///") { &path[2..] } else { path };
        if driver == Driver::Sqlite && path.ends_with('/') {
            return Err(refuse("the path is a folder, not a file"));
        }
        let from_base = base.map_or_else(|| PathBuf::from(path), |base| base.join(path));
        let absolute =
            std::path::absolute(from_base).map_err(|e| refuse("the path cannot be resolved").with_source(e))?;
        Ok(StoreUrl { driver, path: text_of(absolute, text)? })
    }

    /// The URL in full, for another process's `LEASEHOLD_STORE`. It may hold a password: never show it.
    pub fn portable(&self) -> String {
        format!("{}:{}", self.driver.scheme(), self.path)
    }

    /// The store's name, as in [`leasehold::Capabilities`].
    pub const fn scheme(&self) -> &'static str {
        self.driver.scheme()
    }

    /// Whether there is nothing yet where opening would make a new store, so that those who only look need make none.
    /// False where opening fails: it says why.
    pub fn is_missing(&self) -> bool {
        let path = self.path();
        let absent = path.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        let has_room = path.parent().is_some_and(Path::is_dir);
        match self.driver {
            Driver::Sqlite => absent && (has_room || StoreUrl::user_default().is_ok_and(|own| own == *self)),
            Driver::Dir => {
                (absent && has_room) || std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
            }
        }
    }

    /// The file or folder.
    pub fn path(&self) -> &Path {
        Path::new(&self.path)
    }
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        StoreUrl::parse_in(None, text)
    }
}

/// As people may see it.
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

/// Opens the store.
pub async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    let path = url.path().to_path_buf();
    match url.driver {
        #[cfg(feature = "sqlite")]
        Driver::Sqlite => Ok(Arc::new(crate::sqlite::SqliteStore::open(&path).await?)),
        #[cfg(feature = "dir")]
        Driver::Dir => Ok(Arc::new(crate::dir::DirStore::open(&path).await?)),
        #[allow(unreachable_patterns)]
        other => {
            let (url, feature) = (path.display(), other.scheme());
            let message = format!("no driver for `{feature}:{url}`: rebuild with the cargo feature `{feature}`");
            Err(Error::new(Kind::Unsupported, message))
        }
    }
}

fn text_of(path: PathBuf, given: &str) -> Result<String> {
    path.into_os_string().into_string().map_err(|path| {
        let what = format!("the folder `{}` is not valid UTF-8", path.to_string_lossy());
        Error::invalid("store url", redacted(given), format!("{what}; {FORMS}"))
    })
}

/// The text without what may be a password: the user part's, or a query field's whose name suggests one.
fn redacted(text: &str) -> String {
    let (rest, query) = text.split_once('?').map_or((text, None), |(rest, query)| (rest, Some(query)));
    let mut shown = match rest.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find('/').unwrap_or(rest.len());
            // The last `@` counts: a password may hold one.
            match rest[..end].rfind('@').map(|at| (&rest[..at], &rest[at..])) {
                Some((user, host)) => match user.split_once(':') {
                    Some((user, _)) => format!("{scheme}://{user}:***{host}"),
                    None => format!("{scheme}://{user}{host}"),
                },
                None => format!("{scheme}://{rest}"),
            }
        }
        None => rest.to_owned(),
    };
    for (index, field) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        shown.push(if index == 0 { '?' } else { '&' });
        let name = field.split('=').next().unwrap_or_default();
        let secret = ["pass", "pwd", "secret", "token", "key"].iter().any(|word| name.to_lowercase().contains(word));
        shown.push_str(if secret { name } else { field });
        if secret {
            shown.push_str("=***");
        }
    }
    shown
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
        ] {
            let url: StoreUrl = text.parse().unwrap();
            assert_eq!(url.path(), path, "{text}");
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

    #[test]
    fn a_password_is_never_shown() {
        for text in [
            "postgres://u:hunter2@db/x",
            "postgres://u:hun@hunter2@db/x?sslmode=require",
            "redis://:hunter2@h",
            "redis://h/0?PASSWORD=hunter2&a=b",
            "http://h?api_key=hunter2",
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert_eq!(redacted("postgres://u:p@db/x?a=b"), "postgres://u:***@db/x?a=b");
        assert_eq!(redacted("dir:/mnt/a@b:c"), "dir:/mnt/a@b:c");
    }
}
