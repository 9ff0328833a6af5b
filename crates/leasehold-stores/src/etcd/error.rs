//! Refusals of etcd, and what they mean for the caller.
//!
//! Promise: a write counts as certainly not applied only for refusals that etcd gives before a proposal or instead of
//! applying it. Everything else, known or new, leaves the write unknown.

use super::wire::ApiError;
use crate::http::Answer;
use crate::phase::Phase;
use leasehold_core::{Error, Kind, printable};

/// Why it was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The token is unknown, expired or from before a change of users: a new one may work.
    StaleToken,
    /// No token was sent, and one is needed.
    NoUser,
    /// Authentication is off: everybody may do everything.
    AuthIsOff,
    BadCredentials,
    NotPermitted,
    /// The database's quota is used up. The one write that used it up *was applied*.
    NoSpace,
    TooLarge,
    Busy,
    Corrupt,
    NotEtcd,
    /// No leader, a new leader, a timeout, or anything unknown.
    Trouble,
}

/// By the text of etcd 3.4's gateway. If a release words one differently, it
/// becomes `Trouble`, which claims nothing about a write.
const CAUSES: &[(&str, Cause)] = &[
    ("invalid auth token", Cause::StaleToken),
    ("revision in header is old", Cause::StaleToken),
    ("revision of auth store is old", Cause::StaleToken),
    ("user name is empty", Cause::NoUser),
    ("authentication is not enabled", Cause::AuthIsOff),
    ("authentication failed", Cause::BadCredentials),
    ("user name not found", Cause::BadCredentials),
    ("permission denied", Cause::NotPermitted),
    ("database space exceeded", Cause::NoSpace),
    ("request is too large", Cause::TooLarge),
    ("too many requests", Cause::Busy),
    ("corrupt cluster", Cause::Corrupt),
];

/// A refusal by one member.
#[derive(Debug)]
pub(super) struct CallError {
    pub(super) cause: Cause,
    endpoint: String,
    said: String,
}

impl CallError {
    /// From an answer whose status is not 200.
    pub(super) fn of(answer: &Answer, endpoint: &str) -> Self {
        match serde_json::from_slice::<ApiError>(&answer.body) {
            Ok(refused) if !refused.message.is_empty() => CallError::saying(&refused.message, endpoint),
            _ => {
                let gone = matches!(answer.status, 301..=308 | 404 | 405 | 501);
                let cause = if gone { Cause::NotEtcd } else { Cause::Trouble };
                CallError { cause, endpoint: endpoint.to_owned(), said: format!("status {}", answer.status) }
            }
        }
    }

    /// From the text of etcd's message.
    pub(super) fn saying(message: &str, endpoint: &str) -> Self {
        let cause = CAUSES.iter().find(|(text, _)| message.contains(text)).map_or(Cause::Trouble, |(_, cause)| *cause);
        CallError { cause, endpoint: endpoint.to_owned(), said: printable(message) }
    }

    /// Whether another member may succeed.
    pub(super) fn is_trouble(&self) -> bool {
        self.cause == Cause::Trouble
    }

    /// The one place where an etcd message becomes a kind.
    pub(super) fn to_error(&self, phase: Phase) -> Error {
        let (kind, advice) = match self.cause {
            Cause::StaleToken => (Kind::Unavailable, "the login does not last; try again"),
            Cause::NoUser => (
                Kind::Unsupported,
                "it wants a user; put one into the url as `user:password@`, or into ETCDCTL_USER and ETCDCTL_PASSWORD",
            ),
            Cause::AuthIsOff => (Kind::Unavailable, "authentication was just switched off; try again"),
            Cause::BadCredentials => {
                (Kind::Unsupported, "check the user and the password in the url, or ETCDCTL_USER and ETCDCTL_PASSWORD")
            }
            Cause::NotPermitted => (
                Kind::Unsupported,
                "grant the user's role `etcdctl role grant-permission ROLE readwrite --prefix=true /leasehold/`",
            ),
            // After a read that found nothing written.
            Cause::NoSpace => (
                phase.unanswered(),
                "its quota is used up; run `etcdctl compact`, `etcdctl defrag` and `etcdctl alarm disarm`, and set \
                 --auto-compaction-retention",
            ),
            Cause::TooLarge => (Kind::Invalid, "raise --max-request-bytes, or keep less in the record"),
            Cause::Busy => (Kind::Unavailable, "it is overloaded; try again"),
            Cause::Corrupt => (Kind::Corrupt, "a member's data differs; see `etcdctl alarm list`"),
            Cause::NotEtcd => {
                (Kind::Unsupported, "give the address of etcd's client port; its gateway needs --enable-grpc-gateway")
            }
            Cause::Trouble => (phase.unanswered(), "see that most members run and know a leader"),
        };
        Error::new(kind, format!("{} refused: {}; {advice}", self.endpoint, self.said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::Timestamp;

    fn refusal(status: u16, body: &str) -> CallError {
        let answer = Answer { status, now: Timestamp::from_millis(0), body: body.as_bytes().to_vec() };
        CallError::of(&answer, "etcd at h:1")
    }

    #[test]
    fn a_write_is_surely_not_applied_only_where_etcd_says_so() {
        use Kind::{Corrupt, Indeterminate, Invalid, Unavailable, Unsupported};
        for (message, reading, writing) in [
            ("etcdserver: leader changed", Unavailable, Indeterminate),
            ("etcdserver: request timed out", Unavailable, Indeterminate),
            ("etcdserver: request timed out, possibly due to previous leader failure", Unavailable, Indeterminate),
            ("etcdserver: no leader", Unavailable, Indeterminate),
            ("raft proposal dropped", Unavailable, Indeterminate),
            ("context canceled", Unavailable, Indeterminate),
            ("something new", Unavailable, Indeterminate),
            ("etcdserver: mvcc: database space exceeded", Unavailable, Indeterminate),
            ("etcdserver: too many requests", Unavailable, Unavailable),
            ("etcdserver: invalid auth token", Unavailable, Unavailable),
            ("etcdserver: user name is empty", Unsupported, Unsupported),
            ("etcdserver: authentication failed, invalid user ID or password", Unsupported, Unsupported),
            ("etcdserver: permission denied", Unsupported, Unsupported),
            ("etcdserver: request is too large", Invalid, Invalid),
            ("etcdserver: corrupt cluster", Corrupt, Corrupt),
        ] {
            let body = serde_json::json!({ "error": message, "message": message, "code": 2 }).to_string();
            let refusal = refusal(503, &body);
            assert_eq!(refusal.to_error(Phase::Reading).kind(), reading, "{message}");
            assert_eq!(refusal.to_error(Phase::Writing).kind(), writing, "{message}");
            let said = refusal.to_error(Phase::Writing).to_string();
            assert!(said.starts_with("etcd at h:1 refused: ") && said.contains(message), "{said}");
        }
    }

    #[test]
    fn an_answer_that_is_not_etcds_is_judged_by_its_status() {
        assert_eq!(refusal(404, "<html>").to_error(Phase::Writing).kind(), Kind::Unsupported);
        assert_eq!(refusal(502, "<html>").to_error(Phase::Writing).kind(), Kind::Indeterminate);
        assert_eq!(refusal(504, "{}").to_error(Phase::Reading).kind(), Kind::Unavailable);
        let said = refusal(503, "{\"message\":\"a\\nb\"}").to_error(Phase::Reading).to_string();
        assert!(!said.contains('\n'), "{said}");
    }
}
