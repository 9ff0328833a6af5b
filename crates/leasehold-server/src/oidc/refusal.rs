//! Why a token is not exchanged.

use crate::api::values::Time;
use crate::serve::Problem;
use axum::http::StatusCode;
use leasehold_core::{Error, Timestamp};
use std::time::Duration;

/// Why a token is not exchanged. It contains nothing of the token's text.
#[derive(Debug)]
pub enum Refusal {
    /// This server has no rules.
    Off,
    /// The text is not a token; what is wrong with it.
    Malformed(&'static str),
    /// No issuer that this server trusts has made it for this server.
    Untrusted(String),
    /// The token has expired.
    Expired {
        /// When it expired, by its issuer.
        at: Timestamp,
        /// The time by the store's clock that it was compared with.
        now: Timestamp,
    },
    /// The token is not valid yet.
    Early {
        /// When it becomes valid, or when it was made, by its issuer.
        at: Timestamp,
        /// The time by the store's clock that it was compared with.
        now: Timestamp,
    },
    /// The token is valid, but no rule matches its claims.
    NoRule {
        /// The subject of the token.
        subject: String,
    },
    /// The issuer's keys cannot be fetched now.
    IssuerAway {
        /// What could not be fetched or read.
        what: String,
        /// When to come back.
        after: Duration,
    },
    /// Too many requests wait for the keys of this issuer.
    Crowded,
    /// This subject has asked too often.
    TooMany(Duration),
    /// The store failed. If a key was made, it was shown to nobody.
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
