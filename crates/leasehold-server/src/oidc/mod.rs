//! Tokens of OIDC issuers (GitHub Actions, Kubernetes, Google, any), exchanged for short-lived keys by rules.
//!
//! - [`Rule`]: which tokens, and for what key.
//! - [`IssuerUrl`]: the issuer of the tokens. Its keys are fetched, and fetched again when they change.
//! - [`Exchange`]: from the text of a token to a key.
//!
//! Promise: a key is made for a token only if an issuer of the rules signed it, with a private key that it publishes now or did
//! [`issuer::KEPT`] ago at most, for the audience of a rule that all its claims match, and if it is valid now by the store's
//! clock. The key allows what that rule says, for as long as it says. The first rule that matches decides. Tokens that no rule
//! matches cause no request to the store and, beyond a bound, none to the issuer. Non-promise: a token can be exchanged more than
//! once while it is valid, and the key may outlast the token.

mod algorithm;
pub mod issuer;
mod jwt;
mod key_set;
mod refusal;
mod rule;

pub use issuer::IssuerUrl;
pub use jwt::MAX_TOKEN_BYTES;
pub use refusal::Refusal;
pub use rule::{Audience, Claims, LASTS, Lasts, Rule, Wanted, check_scope};

use crate::access::{KeyRecord, Keys, NewKey, Origin, Secret};
use crate::pace::Pace;
use issuer::Issuer;
use jwt::Jwt;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{Error, Kind, Label, LeaseName, Result, Who, breaks_a_line};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How far the issuer's clock may be ahead of the store's.
pub const LEEWAY: Duration = Duration::from_secs(60);
/// How many keys may be made for one subject: a hundred at once, then ten a second.
const MADE: Pace = Pace { every: Duration::from_millis(100), ahead: Duration::from_secs(10) };
/// How many subjects' rates are remembered before unused ones are forgotten.
const SUBJECTS: usize = 10_000;

/// The rules of a server, and what it knows about their issuers.
#[derive(Debug)]
pub struct Exchange {
    rules: Vec<Rule>,
    issuers: Vec<Arc<Issuer>>,
    clock: Arc<dyn Clock>,
    made: Mutex<HashMap<Origin, Moment>>,
    /// How far the last removal of expired keys has come.
    swept: Arc<tokio::sync::Mutex<Option<LeaseName>>>,
}

impl Default for Exchange {
    fn default() -> Self {
        Exchange {
            rules: Vec::new(),
            issuers: Vec::new(),
            clock: Arc::new(SystemClock),
            made: Mutex::default(),
            swept: Arc::default(),
        }
    }
}

impl Exchange {
    /// An exchange by these rules. Nothing is fetched yet.
    pub fn new(rules: Vec<Rule>) -> Result<Self> {
        Exchange::with_clock(rules, Arc::new(SystemClock))
    }

    /// The same, with another clock.
    pub fn with_clock(rules: Vec<Rule>, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut issuers: Vec<Arc<Issuer>> = Vec::new();
        for rule in &rules {
            check_scope(&rule.scope)?;
            match issuers.iter().find(|known| *known.url() == rule.issuer) {
                None => {
                    issuers.push(Arc::new(Issuer::new(rule.issuer.clone(), rule.jwks_file.clone(), clock.clone())));
                }
                Some(known) if known.file() == rule.jwks_file.as_deref() => {}
                Some(_) => {
                    let message = format!("the rules of issuer `{}` differ in `jwks_file`; use the same", rule.issuer);
                    return Err(Error::new(Kind::Invalid, message));
                }
            }
        }
        Ok(Exchange { rules, issuers, clock, ..Exchange::default() })
    }

    /// What is wrong with the files of keys that rules name, to be reported when a server starts. They are read again for each
    /// token that needs them, so a missing file keeps no server from starting.
    pub async fn missing_files(&self) -> Vec<String> {
        let checks = self.issuers.iter().filter(|issuer| issuer.file().is_some()).map(|issuer| issuer.check_file());
        futures_util::future::join_all(checks).await.into_iter().flatten().collect()
    }

    /// Makes a key for the bearer of this token.
    pub async fn exchange(&self, keys: &Keys, token: &str) -> Result<(Secret, KeyRecord), Refusal> {
        if self.rules.is_empty() {
            return Err(Refusal::Off);
        }
        let token = Jwt::parse(token)?;
        let claimed = token.issuer()?;
        let Some(issuer) = self.issuers.iter().find(|issuer| issuer.url().as_str() == claimed) else {
            return Err(Refusal::Untrusted("its issuer (`iss`) is not trusted by this server".into()));
        };
        issuer.check(&token).await?;
        let (rule, origin) = self.judge(issuer.url(), &token)?;
        self.check_time(keys, &token).await?;
        self.count(&origin)?;
        let wanted = NewKey {
            label: Label::lossy(&origin.subject, "exchanged"),
            scope: rule.scope.clone(),
            lasts: Some(rule.lasts.get()),
            not_after: None,
            by: Who::lossy(&format!("a token of {}", issuer.url().host()), "a token"),
        };
        let (secret, record) = keys.exchange(wanted, origin.clone()).await?;
        let (key, issuer, subject) = (record.id.as_str(), origin.issuer.as_str(), origin.subject.as_str());
        tracing::info!(key, issuer, subject, "made key {key} for a token of `{issuer}` about `{subject}`");
        self.sweep(keys);
        Ok((secret, record))
    }

    /// The first rule that matches a token whose signer is known.
    fn judge(&self, issuer: &IssuerUrl, token: &Jwt) -> Result<(&Rule, Origin), Refusal> {
        let subject: String = token.subject()?.chars().filter(|c| !breaks_a_line(*c)).collect();
        let mut rules = self.rules.iter().filter(|rule| rule.issuer == *issuer);
        let meant: Vec<&Rule> = rules.by_ref().filter(|rule| token.is_for(rule.audience.as_str())).collect();
        if meant.is_empty() {
            return Err(Refusal::Untrusted("it is meant for another audience (`aud`) than this server's".into()));
        }
        let Some(rule) = meant.into_iter().find(|rule| rule.claims.are_in(token.claims())) else {
            let issuer = issuer.as_str();
            tracing::info!(issuer, subject, "no rule is for a token of `{issuer}` about `{subject}`");
            return Err(Refusal::NoRule { subject });
        };
        Ok((rule, Origin { issuer: issuer.to_string(), subject }))
    }

    /// Checks that the token is valid now, by the store's clock.
    async fn check_time(&self, keys: &Keys, token: &Jwt) -> Result<(), Refusal> {
        let ends = token.time("exp")?.ok_or(Refusal::Malformed("it does not say when it expires (`exp`)"))?;
        let begins = [token.time("nbf")?, token.time("iat")?].into_iter().flatten().max();
        let now = keys.now().await?;
        if now >= ends {
            return Err(Refusal::Expired { at: ends, now });
        }
        match begins.filter(|begins| *begins > now.plus(LEEWAY)) {
            Some(at) => Err(Refusal::Early { at, now }),
            None => Ok(()),
        }
    }

    fn count(&self, origin: &Origin) -> Result<(), Refusal> {
        let now = self.clock.now();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.len() >= SUBJECTS {
            made.retain(|_, due| *due > now);
        }
        MADE.take(made.entry(origin.clone()).or_insert(now), now).map_err(Refusal::TooMany)
    }

    /// Removes some of the keys that have expired, in the background: nobody waits for it.
    fn sweep(&self, keys: &Keys) {
        let Ok(mut swept) = self.swept.clone().try_lock_owned() else { return };
        let keys = keys.clone();
        tokio::spawn(async move {
            match keys.sweep(swept.as_ref()).await {
                Ok(last) => *swept = last,
                Err(error) => tracing::debug!("keys that have expired were not removed: {error}"),
            }
        });
    }
}
