//! URLs as they may be shown: without passwords, tokens and other secrets.
//!
//! Promise: no password of a store's URL is shown, escaped or not. Non-promise: a secret in a path or a host.

use super::DRIVERS;
use crate::url::{Namespace, is_token};
use leasehold_core::secret;

/// A text that is not a URL, without anything that may be a secret.
pub(crate) fn redacted_text(text: &str) -> String {
    let text = &*secret::without_keys(text);
    let is_path = |scheme| DRIVERS.iter().any(|driver| driver.is_path && driver.schemes.contains(&scheme));
    let Some((scheme, rest)) = text.split_once(':').filter(|(scheme, _)| !is_path(*scheme)) else {
        return text.to_owned();
    };
    let location = rest.trim_start_matches('/');
    let slashes = &rest[..rest.len() - location.len()];
    // The last `@` counts, wherever it is: a password that was not escaped may contain anything.
    let (login, location) = match location.rsplit_once('@') {
        Some((login, location)) => (format!("{}@", secret::login(login, true)), location),
        None => (String::new(), location),
    };
    let (location, query) =
        location.split_once('?').map_or((location, None), |(location, query)| (location, Some(query)));
    let fields = query.into_iter().flat_map(|query| query.split('&')).enumerate().map(|(at, field)| {
        let shown = match field.split_once('=') {
            Some(("namespace", value)) if Namespace::new(value).is_ok() => field.to_owned(),
            Some((name, _)) => format!("{name}=***"),
            None => "***".to_owned(),
        };
        format!("{}{shown}", if at == 0 { '?' } else { '&' })
    });
    format!("{scheme}:{slashes}{login}{location}{}", fields.collect::<String>())
}

/// The text with possible secrets hidden. The password in a store's URL may not have been encoded.
pub(super) fn redacted_url(text: &str) -> String {
    let text = &*secret::without_keys(text);
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
    use crate::StoreUrl;

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
            "redis://hunter2@h",
            "leasehold://hunter2@h/ci",
            "leasehold+http://hunter2@127.0.0.1:7117/ci",
            "leasehold+http://hunter2:@127.0.0.1:7117/ci",
            "leasehold+http://u:hunter2@127.0.0.1:7117/ci",
            "leasehold+http://hunter2@127.0.0.1:7117",
            "leasehold+http:hunter2@127.0.0.1:7117/ci",
            "leasehold+http://h:hunter2@127.0.0.1:x/ci",
            "http://hunter2@127.0.0.1:7117/ci",
            // A key is known as one wherever it is.
            "leasehold+http://lh_a_k3m7q2xahunter2/ci",
            "leasehold+http://lh_a_k3m7q2xahunter2127.0.0.1:7117/ci",
            "leasehold+http://127.0.0.1:7117/lh_a_k3m7q2xahunter2",
            "leasehold://h/ci?lh_a_k3m7q2xahunter2=1",
            "lh_a_k3m7q2xahunter2",
            "sqlite:/tmp/lh_a_k3m7q2xahunter2/",
        ] {
            let shown = match text.parse::<StoreUrl>() {
                Ok(url) => format!("{url} {url:?}"),
                Err(error) => error.to_string(),
            };
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        assert_eq!(redacted_url("postgres://u:p@db/x?a=b"), "postgres://u:***@db/x?a=b");
        for plain in ["dir:/mnt/a@b:c", "sqlite:///a:b@c", "s3://bucket/a@b", "etcds://h:1?cert=/a@b", "redis://h:1/0"]
        {
            assert_eq!(redacted_url(plain), plain);
        }
        assert_eq!(redacted_text("dir:/mnt/a@b:c?d=e"), "dir:/mnt/a@b:c?d=e");
        assert_eq!(redacted_text("redis://u:p@h:x/0?a=b"), "redis://u:***@h:x/0?a=***");
    }
}
