//! An issuer: where its keys are, and what is known about them.
//!
//! Promise: keys are fetched over TLS, or from this machine, from a document that names this issuer, of bounded size and within
//! [`PATIENCE`]; no redirect is followed. They are fetched again after [`FRESH`], and when a token names an unknown key, so a new
//! key is accepted at once. They are used for at most [`KEPT`], so a withdrawn key stops being accepted. However many tokens with
//! made-up keys are sent, the issuer is asked no more often than `ASKED` says. Non-promise: while the issuer is away, a key that it
//! withdrew is accepted until then.

use super::jwt::Jwt;
use super::key_set::{KeySet, SignatureCheck};
use super::refusal::Refusal;
use crate::outbound;
use crate::pace::Pace;
use leasehold_core::clock::{Clock, Moment};
use leasehold_core::secret::WebUrl;
use leasehold_core::{Error, Result, format_duration, printable};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// How old keys may be before they are fetched again.
pub const FRESH: Duration = Duration::from_secs(60);
/// How old they may be if they cannot be fetched.
pub const KEPT: Duration = Duration::from_secs(600);
/// How long a whole fetch may take.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How often they are fetched: four times at once, then every 10 s.
const ASKED: Pace = Pace { every: Duration::from_secs(10), ahead: Duration::from_secs(30) };
/// The longest document of an issuer.
const MAX_BYTES: usize = 256 * 1024;
/// How many requests may wait for the keys of one issuer.
const WAITING: usize = 64;
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// The address of an issuer, exactly as its tokens have it in `iss`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct IssuerUrl(String);

impl IssuerUrl {
    /// The URL as text, as tokens have it in `iss`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its machine, and its port if it has one.
    pub fn host(&self) -> &str {
        host(&self.0)
    }
}

impl FromStr for IssuerUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = "use https://HOST or https://HOST/PATH, as its tokens have it in `iss`, without a user, a `?` or a `#`; http:// \
                    only for this machine";
        let is_whole = text.parse::<WebUrl>().is_ok() && !text.contains('?');
        match is_whole && is_safe(text) {
            true => Ok(IssuerUrl(text.to_owned())),
            false => Err(Error::invalid("issuer", printable(text), form)),
        }
    }
}

impl fmt::Display for IssuerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    &rest[..rest.find(['/', '?']).unwrap_or(rest.len())]
}

/// Whether nobody on the way can change what is fetched.
fn is_safe(url: &str) -> bool {
    let host = host(url);
    let name = host.strip_prefix('[').and_then(|rest| rest.split(']').next());
    let name = name.unwrap_or_else(|| host.split(':').next().unwrap_or_default());
    let is_here = name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    url.starts_with("https://") || url.starts_with("http://") && is_here
}

/// An issuer, and what is known about its keys.
#[derive(Debug)]
pub struct Issuer {
    url: IssuerUrl,
    file: Option<PathBuf>,
    clock: Arc<dyn Clock>,
    known: Mutex<Known>,
    /// Locked while they are fetched, so that they are fetched once for all who wait.
    fetching: Arc<tokio::sync::Mutex<()>>,
    waiting: Semaphore,
}

#[derive(Debug)]
struct Known {
    keys: Option<(Arc<KeySet>, Moment)>,
    /// Why they could not be fetched the last time, and when.
    failed: Option<(String, Moment)>,
    due: Moment,
}

impl Issuer {
    /// An issuer whose keys have not been fetched yet.
    pub fn new(url: IssuerUrl, file: Option<PathBuf>, clock: Arc<dyn Clock>) -> Self {
        let known = Mutex::new(Known { keys: None, failed: None, due: clock.now() });
        let (fetching, waiting) = (Arc::default(), Semaphore::new(WAITING));
        Issuer { url, file, clock, known, fetching, waiting }
    }

    /// The URL that identifies this issuer.
    pub const fn url(&self) -> &IssuerUrl {
        &self.url
    }

    /// Whether the keys of a token's issuer are to be read from this file.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// What is wrong with its file of keys.
    pub(super) async fn check_file(&self) -> Option<String> {
        let bytes = match read(self.file()?).await {
            Ok(bytes) => bytes,
            Err(what) => {
                return Some(format!("{what}; until they can be read, no token of `{}` is accepted", self.url));
            }
        };
        let what = KeySet::parse(&bytes).err()?;
        let place = self.file()?.display();
        Some(format!("`{place}` has no keys: {what}; until it has, no token of `{}` is accepted", self.url))
    }

    /// Checks that this issuer signed a token.
    pub async fn check(self: &Arc<Self>, token: &Jwt) -> Result<(), Refusal> {
        let came = self.clock.now();
        let (keys, at) = match self.known_within(FRESH) {
            Some(known) => known,
            None => match self.fetch(came).await {
                Ok(fetched) => fetched,
                // The issuer is away: its earlier keys stay in use for a while.
                Err(refusal) => self.known_within(KEPT).ok_or(refusal)?,
            },
        };
        let found = match keys.check(token) {
            // The key may be newer than the ones that we know.
            SignatureCheck::Missing if at <= came => match self.fetch(came).await {
                Ok((keys, _)) => keys.check(token),
                Err(_) if token.key_id().is_none() => SignatureCheck::Forged,
                Err(refusal) => return Err(refusal),
            },
            found => found,
        };
        let issuer = &self.url;
        match found {
            SignatureCheck::Signed => Ok(()),
            SignatureCheck::Forged => Err(Refusal::Untrusted(format!("its signature is not that of `{issuer}`"))),
            SignatureCheck::Missing => {
                let what = format!("`{issuer}` publishes no key that it could be signed with");
                Err(Refusal::Untrusted(what))
            }
        }
    }

    fn known_within(&self, age: Duration) -> Option<(Arc<KeySet>, Moment)> {
        let now = self.clock.now();
        self.known().keys.clone().filter(|(_, at)| now.saturating_since(*at) < age)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys as they were published at that time, or later.
    async fn fetch(self: &Arc<Self>, came: Moment) -> Result<(Arc<KeySet>, Moment), Refusal> {
        let _waiting = self.waiting.try_acquire().map_err(|_| Refusal::Crowded)?;
        let fetching = self.fetching.clone().lock_owned().await;
        let now = self.clock.now();
        {
            let mut known = self.known();
            // Another request has fetched them meanwhile, or has tried to.
            if let Some(fetched) = known.keys.as_ref().filter(|(_, at)| *at > came) {
                return Ok(fetched.clone());
            }
            if let Some((what, _)) = known.failed.as_ref().filter(|(_, at)| *at > came) {
                return Err(away(what.clone(), ASKED.every));
            }
            if let Err(after) = ASKED.take(&mut known.due, now) {
                let issuer = &self.url;
                let what = match &known.failed {
                    Some((what, _)) => what.clone(),
                    None => {
                        format!("the keys of `{issuer}` were fetched too often lately, and this one was not among them")
                    }
                };
                return Err(away(what, after));
            }
        }
        // In a separate task, so that a client that disconnects does not cause another fetch.
        let issuer = self.clone();
        let fetched = tokio::spawn(async move {
            let fetched = issuer.fetch_now().await;
            let at = issuer.clock.now();
            let mut known = issuer.known();
            let fetched = match fetched {
                Ok(keys) => {
                    let keys = Arc::new(keys);
                    (known.keys, known.failed) = (Some((keys.clone(), at)), None);
                    Ok((keys, at))
                }
                Err(what) => {
                    tracing::warn!(issuer = issuer.url.as_str(), "the keys of an issuer cannot be fetched: {what}");
                    // The path of a file, and what is wrong with it, only go to the log, because anyone can ask without a key.
                    let what = match &issuer.file {
                        Some(_) => format!("this server cannot read its keys of `{}`; its log says more", issuer.url),
                        None => what,
                    };
                    known.failed = Some((what.clone(), at));
                    Err(away(what, ASKED.every))
                }
            };
            drop(known);
            drop(fetching);
            fetched
        });
        fetched.await.unwrap_or_else(|_| Err(away("this server is ending".to_owned(), ASKED.every)))
    }

    async fn fetch_now(&self) -> Result<KeySet, String> {
        let issuer = &self.url;
        let fetched = match &self.file {
            Some(file) => read(file).await,
            None => match tokio::time::timeout(PATIENCE, self.download()).await {
                Ok(fetched) => fetched,
                Err(_) => Err(format!("`{issuer}` did not answer within {}", format_duration(PATIENCE))),
            },
        };
        KeySet::parse(&fetched?).map_err(|what| format!("what `{issuer}` publishes are no keys: {what}"))
    }

    /// The document of keys that the issuer's own description names.
    async fn download(&self) -> Result<Vec<u8>, String> {
        #[derive(Deserialize)]
        struct Description {
            issuer: String,
            jwks_uri: String,
        }
        let issuer = &self.url;
        let wrong = |what: &str| format!("the description of `{issuer}` {what}");
        let description = get(&format!("{}{DISCOVERY}", issuer.as_str().trim_end_matches('/'))).await?;
        let description: Description =
            serde_json::from_slice(&description).map_err(|_| wrong("is no JSON with `issuer` and `jwks_uri`"))?;
        if description.issuer != issuer.as_str() {
            let said: String = printable(&description.issuer).chars().take(200).collect();
            return Err(wrong(&format!("says that it is of `{said}`: use that as `issuer` if it is meant")));
        }
        let is_from_here = issuer.as_str().starts_with("http://");
        let uri = description.jwks_uri;
        if !is_safe(&uri) || (uri.starts_with("http://") && !is_from_here) {
            return Err(wrong("names keys that are not at https://"));
        }
        get(&uri).await
    }
}

async fn get(url: &str) -> Result<Vec<u8>, String> {
    let url: WebUrl = url.parse().map_err(|error: Error| error.to_string())?;
    outbound::fetch(&url, PATIENCE, MAX_BYTES).await.map_err(|error| error.to_string())
}

/// The same from a file.
async fn read(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let to_read = path.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        // A pipe or a device would have no end.
        let about = std::fs::metadata(&to_read)?;
        if !about.is_file() || about.len() > MAX_BYTES as u64 {
            return Err(std::io::Error::other(format!("it is not a plain file of at most {MAX_BYTES} bytes")));
        }
        let mut bytes = Vec::new();
        std::fs::File::open(&to_read)?.take(MAX_BYTES as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let cannot = |e: std::io::Error| format!("cannot read the keys in `{}`: {e}", path.display());
    reading.await.map_err(std::io::Error::other).and_then(|read| read).map_err(cannot)
}

fn away(what: String, after: Duration) -> Refusal {
    Refusal::IssuerAway { what, after }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_is_reached_over_tls_or_on_this_machine() {
        for good in [
            "https://token.actions.githubusercontent.com",
            "https://example.org/realms/a/",
            "http://127.0.0.1:8080",
            "http://localhost/x",
            "http://[::1]:1",
        ] {
            assert_eq!(good.parse::<IssuerUrl>().unwrap().as_str(), good);
        }
        for wrong in [
            "",
            "example.org",
            "http://example.org",
            "http://127.0.0.1.example.org",
            "http://localhost.example.org",
            "http://localhost@example.org",
            "https://",
            "https://user@example.org",
            "https://example.org?x",
            "https://example.org#x",
            "ftp://localhost",
            "https://a b",
        ] {
            let error = wrong.parse::<IssuerUrl>().unwrap_err().to_string();
            assert!(error.contains("https://HOST"), "{wrong}: {error}");
        }
    }
}
