//! Where a server is, and with which key: from the URL, and otherwise from the environment.
//!
//! Promise: a key is sent over TLS, or to this machine, and nowhere else. Non-promise: it makes no connection.

use crate::http::client::CA;
use crate::url::{Address, Host, Secret, is_loopback};
use leasehold_core::{Error, Kind, Result, printable};
use std::sync::{PoisonError, RwLock};

/// The scheme without TLS.
const PLAIN: &str = "leasehold+http";
/// Where `leasehold serve` listens on this machine, unless told otherwise. Beyond it, servers are reached by HTTPS's own port.
pub(super) const PORT: u16 = 7117;
const KEY: &str = "LEASEHOLD_KEY";
const KEY_FILE: &str = "LEASEHOLD_KEY_FILE";
/// The largest file of a key, in bytes.
const MAX_KEY_BYTES: u64 = 4096;

/// One server of the URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// `https://host:port/prefix`
    pub(super) base: String,
    /// Its name in messages.
    pub(super) display_name: String,
    /// Whether its port was given in the URL.
    pub(super) has_port: bool,
}

/// Refuses an address that cannot be a server's.
pub(super) fn check(address: &Address) -> Result<()> {
    address.allow_options(&[CA])?;
    if address.hosts.is_empty() {
        return Err(address.invalid("name a host, as in leasehold://leases.example.org/team"));
    }
    if address.user.is_some() {
        return Err(address.invalid(format!("there is no user; the key is the password, or in {KEY} or {KEY_FILE}")));
    }
    if address.scheme == PLAIN && address.hosts.iter().any(|host| !is_loopback(&host.name)) {
        return Err(address.invalid("the key would be sent in the clear; use leasehold://, which has TLS"));
    }
    Ok(())
}

/// The servers, in the order in which they are tried.
pub(super) fn endpoints(address: &Address) -> Vec<Endpoint> {
    let (scheme, port) = if address.scheme == PLAIN { ("http", PORT) } else { ("https", 443) };
    let prefix = address.path.trim_matches('/');
    let endpoint = |host: &Host| {
        let authority = host.authority(port);
        let base = format!("{scheme}://{authority}/{prefix}").trim_end_matches('/').to_owned();
        Endpoint {
            base,
            display_name: format!("the server at {}", printable(&authority)),
            has_port: host.port.is_some(),
        }
    };
    address.hosts.iter().map(endpoint).collect()
}

/// A key, and the file that it was read from. If a key is rotated, or lasts
/// only minutes, the new one is written to the same file.
#[derive(Debug)]
pub(super) struct KeySource {
    key: RwLock<Secret>,
    file: Option<String>,
}

impl KeySource {
    /// From the URL, or from the environment, or from the file that the environment names.
    pub(super) fn find(address: &Address, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let given = |text: String| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        if let Some(key) = &address.password {
            return Ok(KeySource { key: RwLock::new(key.clone()), file: None });
        }
        let (found, file) = match (variable(KEY).and_then(given), variable(KEY_FILE).and_then(given)) {
            (Some(_), Some(_)) => {
                let message = format!("both {KEY} and {KEY_FILE} are set; unset one of them");
                return Err(Error::new(Kind::Invalid, message));
            }
            (Some(key), None) => (Some(key), None),
            (None, Some(path)) => (given(key_in(&path)?), Some(path)),
            (None, None) => (None, None),
        };
        let key = found.map(Secret::new).ok_or_else(|| {
            let message = format!("no key for {address}; set {KEY}, or {KEY_FILE} to a file that has it");
            Error::new(Kind::Unsupported, message)
        })?;
        Ok(KeySource { key: RwLock::new(key), file })
    }

    /// The key as it was last read.
    pub(super) fn key(&self) -> Secret {
        self.key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the file again, because this key was refused. Returns whether the key has changed.
    pub(super) fn is_replaced(&self, refused: &Secret) -> bool {
        let now = self.file.as_deref().and_then(|file| key_in(file).ok());
        if let Some(now) = now.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()) {
            *self.key.write().unwrap_or_else(PoisonError::into_inner) = Secret::new(now);
        }
        self.key().reveal() != refused.reveal()
    }
}

fn key_in(path: &str) -> Result<String> {
    use std::io::Read;
    let refuse = |what: &str| {
        let message = format!("cannot use the key in `{}` (from {KEY_FILE}): {what}", printable(path));
        Error::new(Kind::Unsupported, message)
    };
    // A pipe or a device would never end.
    let about = std::fs::metadata(path).map_err(|e| refuse("the file cannot be read").with_source(e))?;
    if !about.is_file() || about.len() > MAX_KEY_BYTES {
        return Err(refuse("it is not a small file"));
    }
    let (mut text, file) = (String::new(), std::fs::File::open(path));
    let read = file.and_then(|file| file.take(MAX_KEY_BYTES).read_to_string(&mut text));
    read.map_err(|e| refuse("the file cannot be read as text").with_source(e))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        let (scheme, rest) = text.split_once(':').unwrap();
        Address::parse(scheme, rest).unwrap()
    }

    #[test]
    fn addresses_that_cannot_work_are_refused() {
        for (text, says) in [
            ("leasehold://", "name a host"),
            ("leasehold://me:k@a", "there is no user"),
            ("leasehold+http://example.org", "in the clear"),
            ("leasehold+http://127.0.0.1,example.org", "in the clear"),
            ("leasehold://a?x=1", "`x` is not known"),
        ] {
            let error = check(&address(text)).unwrap_err();
            assert!(error.kind() == Kind::Invalid && error.to_string().contains(says), "{text} gave {error}");
        }
        for text in ["leasehold://a,b:8443", "leasehold://:k@a?ca=/x", "leasehold+http://localhost:1,[::1]:2"] {
            check(&address(text)).unwrap();
        }
    }

    #[test]
    fn servers_are_tried_in_the_order_of_the_url() {
        let bases: Vec<String> =
            endpoints(&address("leasehold://a,b:8443/x/y/")).into_iter().map(|endpoint| endpoint.base).collect();
        assert_eq!(bases, ["https://a:443/x/y", "https://b:8443/x/y"]);
        assert_eq!(endpoints(&address("leasehold+http://127.0.0.1:7"))[0].base, "http://127.0.0.1:7");
        // Where `leasehold serve` listens unless told otherwise.
        assert_eq!(endpoints(&address("leasehold+http://localhost"))[0].base, "http://localhost:7117");
    }

    #[test]
    fn the_key_comes_from_the_url_then_from_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, "lh_w_file\n").unwrap();
        let file = file.to_str().unwrap().to_owned();
        let key = |text: &str, variables: &[(&str, &str)]| {
            let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            KeySource::find(&address(text), variable).map(|source| source.key().reveal().to_owned())
        };
        assert_eq!(key("leasehold://:lh_w_url@a", &[(KEY, "x")]).unwrap(), "lh_w_url");
        assert_eq!(key("leasehold://a", &[(KEY, " lh_w_env\n")]).unwrap(), "lh_w_env");
        assert_eq!(key("leasehold://a", &[(KEY_FILE, &file)]).unwrap(), "lh_w_file");
        assert_eq!(key("leasehold://a", &[(KEY, "x"), (KEY_FILE, &file)]).unwrap_err().kind(), Kind::Invalid);
        for wrong in ["", "/nowhere/key", "/dev/zero"] {
            assert_eq!(key("leasehold://a", &[(KEY_FILE, wrong)]).unwrap_err().kind(), Kind::Unsupported, "{wrong}");
        }
    }

    #[test]
    fn a_key_that_is_refused_is_read_again_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, "lh_w_old").unwrap();
        let path = file.to_str().unwrap().to_owned();
        let source =
            KeySource::find(&address("leasehold://a"), |name| (name == KEY_FILE).then(|| path.clone())).unwrap();
        let old = source.key();
        assert!(!source.is_replaced(&old), "it is still the same");
        std::fs::write(&file, "lh_w_new\n").unwrap();
        assert!(source.is_replaced(&old));
        assert_eq!(source.key().reveal(), "lh_w_new");
        // Another call was refused with the old key, too: it is sent again as well.
        assert!(source.is_replaced(&old));
        std::fs::remove_file(&file).unwrap();
        assert!(!source.is_replaced(&source.key()), "a file that is gone leaves the key as it was");
        let given = KeySource::find(&address("leasehold://a"), |name| (name == KEY).then(|| "x".into())).unwrap();
        assert!(!given.is_replaced(&given.key()));
    }
}
