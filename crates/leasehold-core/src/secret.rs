//! How an address that may contain a secret is shown, and where secrets are read from.
//!
//! Promise: these are shown as `***`, wherever in a text a URL is: its password, a user without a password where a
//! token may stand, and the value of a field whose name suggests a secret. So is a server's key, wherever it is.
//! Non-promise: another secret in a path, in a fragment or in a field with another name is not recognised.

use crate::error::{Error, Kind, Result};
use std::borrow::Cow;
use std::fmt;
use std::io::Read;

/// What is shown in place of a secret.
pub const HIDDEN: &str = "***";

/// Words in the names of fields whose values are hidden.
const SECRETS: [&str; 5] = ["pass", "pwd", "secret", "token", "key"];

/// What the schemes end with in whose URLs a user without a password may be a token.
const TOKEN_SCHEMES: [&str; 3] = ["http", "https", "leasehold"];

/// What a server's key begins with.
const KEY_BEGINS: &str = "lh_";
/// How much of a key may be shown: `lh_w_` and its id, which is no secret.
const KEY_SHOWN: usize = 13;

/// Text with the servers' keys in it hidden, wherever they are: only their ids are shown.
///
/// ```
/// use leasehold_core::secret::without_keys;
/// assert_eq!(without_keys("what is `lh_w_k3m7q2xahunter2`?"), "what is `lh_w_k3m7q2xa***`?");
/// ```
pub fn without_keys(text: &str) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(KEY_BEGINS) {
        let end = rest[at..]
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .map_or(rest.len(), |length| at + length);
        let key = &rest[at..end];
        // Whatever precedes it in the same word may be part of a mistyped one, and is shown: no key has it.
        shown.push_str(&rest[..at]);
        match key.get(..KEY_SHOWN).filter(|begin| key.len() > begin.len()) {
            Some(begin) => shown.extend([begin, HIDDEN]),
            None => shown.push_str(key),
        }
        rest = &rest[end..];
    }
    if shown.is_empty() {
        return Cow::Borrowed(text);
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// Text with the secrets in its URLs hidden, and servers' keys.
///
/// ```
/// use leasehold_core::secret::redacted;
/// assert_eq!(redacted("cannot reach https://joe:hunter2@host/x?a=b"), "cannot reach https://joe:***@host/x?a=b");
/// ```
pub fn redacted(text: &str) -> String {
    let text = &*without_keys(text);
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let scheme = rest[..at].rsplit(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))).next();
        let is_web = scheme.is_some_and(|scheme| TOKEN_SCHEMES.iter().any(|end| scheme.ends_with(end)));
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let is_end = |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '`');
        let (url, beyond) = after.split_at(after.find(is_end).unwrap_or(after.len()));
        let (authority, path) = url.split_at(url.find(['/', '?', '#']).unwrap_or(url.len()));
        match authority.rsplit_once('@') {
            Some((user, host)) => shown.push_str(&format!("{}@{host}", login(user, is_web))),
            None => shown.push_str(authority),
        }
        let (path, fields) = path.split_once('?').map_or((path, None), |(path, fields)| (path, Some(fields)));
        shown.push_str(path);
        if let Some(fields) = fields {
            shown.push('?');
            shown.push_str(&query(fields));
        }
        rest = beyond;
    }
    shown.push_str(rest);
    shown
}

/// The part before the `@`, with its secret hidden. `may_be_token`: a user without a password may be a token.
pub fn login(text: &str, may_be_token: bool) -> String {
    match text.split_once(':') {
        Some(("", _)) if may_be_token => HIDDEN.to_owned(),
        Some((user, _)) => format!("{user}:{HIDDEN}"),
        None if may_be_token && !text.is_empty() => HIDDEN.to_owned(),
        None => text.to_owned(),
    }
}

/// The fields after the `?`, with their secrets hidden.
pub fn query(text: &str) -> String {
    let show = |field: &str| match field.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={HIDDEN}"),
        None if is_secret(field) => format!("{field}={HIDDEN}"),
        _ => field.to_owned(),
    };
    text.split('&').map(show).collect::<Vec<_>>().join("&")
}

fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRETS.iter().any(|word| name.contains(word))
}

/// The address of a web service whose path is often a secret: only its host is shown.
///
/// ```
/// use leasehold_core::secret::WebUrl;
/// let url: WebUrl = "https://hc-ping.com/0c8983c9-9d73-446f-adb5-0641fdacc9d4".parse()?;
/// assert_eq!(url.to_string(), "https://hc-ping.com/***");
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct WebUrl(String);

impl WebUrl {
    /// The whole address. Send it, but never print it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The host, with its port if given: the only part that may be shown.
    pub fn host(&self) -> &str {
        let rest = self.0.split_once("://").map_or("", |(_, rest)| rest);
        &rest[..rest.find(['/', '?']).unwrap_or(rest.len())]
    }

    /// Its path, beginning with `/`, and what follows the `?`.
    pub fn path_and_query(&self) -> (&str, Option<&str>) {
        let rest = self.0.split_once("://").map_or("", |(_, rest)| rest);
        let path = rest.find(['/', '?']).map_or("/", |at| &rest[at..]);
        match path.split_once('?') {
            Some((path, query)) => (if path.is_empty() { "/" } else { path }, Some(query)),
            None => (path, None),
        }
    }

    /// The same service at another path and query.
    #[must_use]
    pub fn at(&self, path: &str, query: Option<&str>) -> Self {
        let (scheme, host) = (self.0.split_once("://").map_or("https", |(scheme, _)| scheme), self.host());
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        WebUrl(format!("{scheme}://{host}{path}{query}"))
    }
}

impl std::str::FromStr for WebUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = "use https://HOST/PATH or http://HOST/PATH, without a user, a space or a `#`, and with a port up to 65535 if any";
        // A text that is not a URL may be a secret in the wrong place.
        let wrong = || Error::invalid("url", HIDDEN, form);
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).ok_or_else(wrong)?;
        let host = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
        let is_plain = text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'#' | b'"' | b'<' | b'>' | b'\\'));
        if host.is_empty() || host.contains('@') || !is_plain {
            return Err(wrong());
        }
        // The colons of an IPv6 address are within brackets.
        let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
        if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return Err(wrong());
        }
        Ok(WebUrl(text.to_owned()))
    }
}

impl fmt::Display for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("https", ""));
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let hidden = if rest[end..].len() > 1 { HIDDEN } else { "" };
        write!(f, "{scheme}://{}/{hidden}", &rest[..end])
    }
}

impl fmt::Debug for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebUrl({self})")
    }
}

/// The largest file of a secret, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// A secret from the environment: the value of the variable `NAME`, or else the file
/// that [`in_file_of`] reads. An empty variable does not count. The variable comes
/// first, so that a process can pass a secret on to another, whatever it inherited.
pub fn variable(name: &str) -> Result<Option<String>> {
    match text_of(name)? {
        Some(found) => Ok(Some(found)),
        None => in_file_of(name),
    }
}

/// The text of the file that the variable `NAME_FILE` names, without the line
/// end; none if the variable is not set or the text is empty.
pub fn in_file_of(name: &str) -> Result<Option<String>> {
    let file = format!("{name}_FILE");
    let Some(path) = text_of(&file)? else { return Ok(None) };
    in_file(&path).map_err(|e| {
        let form = format!("{file} names a text file of at most {MAX_FILE_BYTES} bytes");
        Error::invalid("path of a secret", &path, form).with_source(e)
    })
}

fn text_of(variable: &str) -> Result<Option<String>> {
    match std::env::var(variable) {
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Error::new(Kind::Invalid, format!("environment variable {variable} is not text")))
        }
        text => Ok(text.ok().filter(|text| !text.is_empty())),
    }
}

fn in_file(path: &str) -> std::io::Result<Option<String>> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it is too long"));
    }
    let line = text.trim_end_matches(['\r', '\n']);
    Ok((!line.is_empty()).then(|| line.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_web_url_only_the_host_is_shown() {
        let url = |text: &str| text.parse::<WebUrl>();
        for (text, shown) in [
            ("https://hooks.slack.com/services/T0/B0/x", "https://hooks.slack.com/***"),
            ("http://127.0.0.1:8000?key=1", "http://127.0.0.1:8000/***"),
            ("https://host", "https://host/"),
            ("https://host/", "https://host/"),
        ] {
            assert_eq!(
                (url(text).unwrap().to_string(), format!("{:?}", url(text).unwrap())),
                (shown.into(), format!("WebUrl({shown})"))
            );
        }
        for text in [
            "",
            "hunter2",
            "ftp://host/x",
            "https://",
            "https:///x",
            "https://h:99999/x",
            "https://[::1]:x/",
            "https://u:hunter2@host/",
            "https://h/a b",
            "https://h/#x",
        ] {
            let error = url(text).unwrap_err().to_string();
            assert!(error.contains("use https://HOST/PATH") && !error.contains("hunter2"), "{error}");
        }
        let at = url("https://host:1/a?b=c").unwrap();
        assert_eq!((at.host(), at.path_and_query()), ("host:1", ("/a", Some("b=c"))));
        assert_eq!(at.at("/a/start", Some("b=c&rid=1")).expose(), "https://host:1/a/start?b=c&rid=1");
        assert_eq!(url("https://host?x").unwrap().path_and_query(), ("/", Some("x")));
    }

    #[test]
    fn secrets_are_not_shown_wherever_they_are() {
        for (text, shown) in [
            ("https://joe:hunter2@host/x", "https://joe:***@host/x"),
            ("https://hunter2@host/x", "https://***@host/x"),
            ("leasehold://hunter2@host/x", "leasehold://***@host/x"),
            ("lh_w_k3m7q2xahunter2 and lh_w_k3m7q2xa", "lh_w_k3m7q2xa*** and lh_w_k3m7q2xa"),
            ("x://lh_w_k3m7q2xahunter2/y?lh_", "x://lh_w_k3m7q2xa***/y?lh_"),
            ("https://:hunter2@host/x", "https://***@host/x"),
            ("do+https://hunter2@host", "do+https://***@host"),
            ("ssh://git@host/x", "ssh://git@host/x"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("http://u:hun@ter:2@h", "http://u:***@h"),
            ("fatal: 'ssh://a:b@h:22/y' and http://c:d@e", "fatal: 'ssh://a:***@h:22/y' and http://c:***@e"),
            ("s3://b/k?secret_key=x&region=eu", "s3://b/k?secret_key=***&region=eu"),
            ("foo://u:hunter2@h/x?y", "foo://u:***@h/x?y"),
            ("git@host:path", "git@host:path"),
            ("https://host/a@b?c", "https://host/a@b?c"),
            ("no url: a?token=b", "no url: a?token=b"),
        ] {
            assert_eq!(redacted(text), shown);
        }
    }

    #[test]
    fn a_file_gives_its_text_without_the_end_of_the_line() {
        let path = std::env::temp_dir().join(format!("leasehold-secret-{}", crate::nonce::Nonce::random()));
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            in_file(path.to_str().unwrap())
        };
        assert_eq!(of(b"lh_r_x\n").unwrap().as_deref(), Some("lh_r_x"));
        assert_eq!(of(b" a b \r\n").unwrap().as_deref(), Some(" a b "));
        assert_eq!(of(b"\n").unwrap(), None);
        assert!(of(&[b'x'; 70_000]).is_err() && of(&[0xff]).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(in_file(path.to_str().unwrap()).is_err());
    }
}
