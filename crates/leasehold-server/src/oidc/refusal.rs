//! Why a token is not exchanged.

use crate::api::values::Time;
use crate::serve::Problem;
use axum::http::StatusCode;
use leasehold_core::{Error, Timestamp};
use std::time::Duration;

/// Why a token is not exchanged. Nothing of its text is in here.
#[derive(Debug)]
pub enum Refusal {
    /// This server has no rules.
    Off,
    /// It is no token.
    Malformed(&'static str),
    /// Nobody whom this server trusts has made it for this server.
    Untrusted(String),
    /// Its time is over.
    Expired {
        /// Since when, by its issuer.
        at: Timestamp,
        /// The store's time.
        now: Timestamp,
    },
    /// Its time has not come.
    Early {
        /// From when on it counts, or when it was made, by its issuer.
        at: Timestamp,
        /// The store's time.
        now: Timestamp,
    },
    /// It is in order, and no rule is for what it says.
    NoRule {
        /// Whom it is about.
        subject: String,
    },
    /// The issuer's keys cannot be had now.
    IssuerAway {
        /// What failed.
        what: String,
        /// When to come back.
        after: Duration,
    },
    /// Too many wait for the keys of this issuer.
    Crowded,
    /// This subject asks too often.
    TooMany(Duration),
    /// The store failed. A key that was perhaps made was shown to nobody.
    Store(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Store(error)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let text = |time: Timestamp| Time::from(time).at;
        let denied = |kind, detail: String| Problem::new(StatusCode::UNAUTHORIZED, kind, detail);
        match refusal {
            Refusal::Off => Problem::not_found("this server exchanges no tokens: its settings have no [[oidc]]"),
            Refusal::Malformed(what) => denied("token_malformed", format!("what was sent is not a JWT: {what}")),
            Refusal::Untrusted(what) => denied("token_untrusted", format!("the token is not accepted: {what}")),
            Refusal::Expired { at, now } => {
                let detail = format!("the token has expired at {}, and it is {}; get a new one", text(at), text(now));
                denied("token_expired", detail)
            }
            Refusal::Early { at, now } => {
                let detail =
                    format!("the token counts from {} on, and it is {}: is a clock wrong?", text(at), text(now));
                denied("token_early", detail)
            }
            Refusal::NoRule { subject } => {
                let detail = format!("no rule of this server is for what this token says; its subject is `{subject}`");
                Problem::new(StatusCode::FORBIDDEN, "no_rule", detail)
            }
            Refusal::IssuerAway { what, after } => {
                let detail = format!("the token cannot be checked now: {what}; nothing was done");
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "issuer_unavailable", detail).retry_after(after)
            }
            Refusal::Crowded => Problem::overloaded("too many wait for the keys of this issuer; nothing was done"),
            Refusal::TooMany(after) => {
                Problem::too_many("too many keys were made for this subject lately").retry_after(after)
            }
            Refusal::Store(error) => Problem::away(&error),
        }
    }
}
