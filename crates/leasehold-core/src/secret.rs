//! How an address that may contain a secret is shown.
//!
//! Promise: shown as `***` are the password of a URL, a user without a password where a token may stand, and the value of a
//! field whose name suggests a secret, wherever in a text the URL is. Non-promise: a secret in a path, in a fragment or in a
//! field with another name is not recognised.

/// What a secret looks like.
pub const HIDDEN: &str = "***";

/// Words in the names of fields whose values are not shown.
const SECRETS: [&str; 5] = ["pass", "pwd", "secret", "token", "key"];

/// Text without the secrets of the URLs in it.
///
/// ```
/// use leasehold_core::secret::redacted;
/// assert_eq!(redacted("cannot reach https://joe:hunter2@host/x?a=b"), "cannot reach https://joe:***@host/x?a=b");
/// ```
pub fn redacted(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let scheme = rest[..at].rsplit(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))).next();
        let is_web = scheme.is_some_and(|scheme| scheme.ends_with("http") || scheme.ends_with("https"));
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

/// The part before the `@`. `may_be_token`: what stands there alone may be a token, not a name.
pub fn login(text: &str, may_be_token: bool) -> String {
    match text.split_once(':') {
        Some(("", _)) if may_be_token => HIDDEN.to_owned(),
        Some((user, _)) => format!("{user}:{HIDDEN}"),
        None if may_be_token && !text.is_empty() => HIDDEN.to_owned(),
        None => text.to_owned(),
    }
}

/// The fields after the `?`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown_wherever_they_are() {
        for (text, shown) in [
            ("https://joe:hunter2@host/x", "https://joe:***@host/x"),
            ("https://hunter2@host/x", "https://***@host/x"),
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
}
