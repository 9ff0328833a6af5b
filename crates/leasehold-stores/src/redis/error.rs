//! The meaning of the driver's errors. This is the one place that names the driver's type.

use super::config::Node;
use crate::phase::Phase;
use ::redis::{ErrorKind, RedisError};
use leasehold_core::{Error, Kind};

/// What to do after an error.
#[derive(Debug)]
pub(super) enum CallError {
    /// The server does not know the script: it was not run.
    NoScript,
    /// Another node of the cluster has the keys: nothing was run.
    Moved(Node),
    /// Another node of the cluster is about to get the keys: nothing was run.
    Asked(Node),
    /// The connection is lost. The call may have been carried out.
    Closed(Error),
    /// No answer came in time. The call may have been carried out.
    Late(Error),
    /// The wrong server, or one that is not ready yet: nothing was run.
    Elsewhere(Error),
    /// The server refused, or its answer is unusable. Asking another server would not help.
    Refused(Error),
}

impl CallError {
    /// The error, if there is nothing else to try.
    pub(super) fn into_error(self, name: &str) -> Error {
        match self {
            CallError::Closed(error)
            | CallError::Late(error)
            | CallError::Elsewhere(error)
            | CallError::Refused(error) => error,
            CallError::NoScript => Error::new(Kind::Unavailable, format!("{name} keeps forgetting scripts; try again")),
            CallError::Moved(_) | CallError::Asked(_) => {
                Error::new(Kind::Unavailable, format!("the cluster at {name} keeps moving its slots; try again"))
            }
        }
    }
}

/// The message of a server that has as many clients as it allows.
const CROWDED: &str = "max number of clients";

/// Temporary states of the server. In each it answers without having run the script.
const PASSING: &[(&str, &str)] = &[
    ("LOADING", "is still loading its data; try again"),
    ("MASTERDOWN", "is a replica without a primary; try again after the failover"),
    ("CLUSTERDOWN", "belongs to a cluster that is down; see `redis-cli cluster info`"),
    ("TRYAGAIN", "is moving the slot; try again"),
    ("READONLY", "is a read-only replica; name the primary, or try again after the failover"),
    ("NOREPLICAS", "has too few good replicas (`min-replicas-to-write`); bring them back"),
    ("MISCONF", "cannot save to its disk and takes no writes; see its log"),
    ("OOM", "is out of memory (`maxmemory`); free some or raise it"),
    ("BUSY", "is busy with a long script; try again"),
    (CROWDED, "has too many clients (`maxclients`); try again"),
];

/// The states after which another server may be the right one.
const ELSEWHERE: &[&str] = &["LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY"];

/// Problems of the setup, which last until somebody fixes them.
const SET_UP: &[(&str, &str)] = &[
    ("NOAUTH", "wants a password; put it into the url or into REDISCLI_AUTH"),
    ("WRONGPASS", "does not know this user and password; fix the url or REDISCLI_AUTH"),
    ("invalid password", "does not know this password; fix the url or REDISCLI_AUTH"),
    ("NOPERM", "does not permit it to this user; docs/stores.md has the `ACL SETUSER` that does"),
    (
        "The user executing the script can't",
        "does not permit it to this user; docs/stores.md has the `ACL SETUSER` that does",
    ),
    ("without any password configured", "has no password for this user; take it out of the url"),
    ("DB index is out of range", "does not have this database; fix the number in the url"),
    ("SELECT is not allowed", "is a cluster node; add `mode=cluster`"),
    ("CertificateRequired", "wants a certificate of the client; name it with `cert=` and `key=`"),
    ("certificate", "has a certificate that is not trusted for this name; name its authority's file with `cacert=`"),
];

/// The driver's error as ours: it separates what was certainly not applied from what may have been.
pub(super) fn failed(error: RedisError, phase: Phase, name: &str) -> CallError {
    if let Some(node) = error.redirect_node().and_then(|(node, _)| parse_node(node)) {
        return if error.code() == Some("ASK") { CallError::Asked(node) } else { CallError::Moved(node) };
    }
    let code = error.code().unwrap_or_default().to_owned();
    if code == "NOSCRIPT" {
        return CallError::NoScript;
    }
    // Older servers wrap the error of a command in a script, so the words may be anywhere in the text.
    let text = format!("{code} {error}");
    let says = |(word, _): &&(&str, &str)| text.contains(word);
    // As text: the driver's error prints its own cause, which would be printed twice.
    let cause = error.to_string().replace('\n', " ");
    let made = |kind, what: &str| Error::new(kind, format!("{name} {what}")).with_source(cause.clone());
    // An error without a code is a failure of the connection, and a write may have been applied before.
    let is_unsent = !code.is_empty() || phase == Phase::Connecting;
    if let Some((_, what)) = SET_UP.iter().find(says).filter(|_| is_unsent) {
        return CallError::Refused(made(Kind::Unsupported, what));
    }
    if is_unsent && text.contains("WRONGTYPE") {
        let what = "has something else under leasehold's keys (`leasehold:{NAMESPACE}:*`); move it away";
        return CallError::Refused(made(Kind::Corrupt, what));
    }
    if !code.is_empty() {
        return match PASSING.iter().find(says) {
            Some((word, what)) if ELSEWHERE.contains(word) => CallError::Elsewhere(made(Kind::Unavailable, what)),
            // A waiter retries.
            Some((CROWDED, what)) => CallError::Refused(made(Kind::Contended, what)),
            Some((_, what)) => CallError::Refused(made(Kind::Unavailable, what)),
            None => CallError::Refused(made(Kind::Unsupported, "refused the call; leasehold needs Redis 6 or newer")),
        };
    }
    if error.kind() == ErrorKind::RESP3NotSupported {
        return CallError::Refused(made(Kind::Unsupported, "is too old; leasehold needs Redis 6 or newer"));
    }
    let ours = match phase {
        Phase::Connecting => made(Kind::Unavailable, "cannot be reached"),
        Phase::Reading | Phase::Preparing => made(Kind::Unavailable, "did not answer"),
        Phase::Writing => made(Kind::Indeterminate, "did not answer a write; it may be done"),
    };
    if error.is_timeout() { CallError::Late(ours) } else { CallError::Closed(ours) }
}

/// Parses `host:port`, where an IPv6 host has no brackets.
fn parse_node(text: &str) -> Option<Node> {
    let (host, port) = text.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(line: &str, phase: Phase) -> CallError {
        let answer = ::redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        failed(answer.extract_error().unwrap_err(), phase, "redis://h")
    }

    #[test]
    fn a_server_that_is_not_ready_surely_did_nothing() {
        for line in [
            "READONLY You can't write against a read only replica.",
            "ERR Error running script (call to f_0): @user_script:1: -READONLY You can't write against a read only replica.",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "CLUSTERDOWN The cluster is down",
            "CLUSTERDOWN Hash slot not served",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Errors writing to the AOF file: No space left on device",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "BUSY Redis is busy running a script.",
        ] {
            for phase in [Phase::Reading, Phase::Writing] {
                let error = judged(line, phase).into_error("redis://h");
                assert_eq!(error.kind(), Kind::Unavailable, "{line} gave {error}");
                assert!(error.to_string().starts_with("redis://h "), "{error}");
            }
        }
    }

    #[test]
    fn what_needs_a_person_is_known_by_its_first_word() {
        for (line, kind) in [
            ("NOAUTH Authentication required.", Kind::Unsupported),
            ("WRONGPASS invalid username-password pair or user is disabled.", Kind::Unsupported),
            ("NOPERM this user has no permissions to run the 'eval' command", Kind::Unsupported),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Kind::Corrupt),
        ] {
            for phase in [Phase::Reading, Phase::Writing] {
                assert_eq!(judged(line, phase).into_error("redis://h").kind(), kind, "{line}");
            }
        }
    }

    #[test]
    fn a_redirection_names_the_node() {
        assert!(
            matches!(judged("MOVED 5718 10.0.0.1:7000", Phase::Writing), CallError::Moved(node) if node == ("10.0.0.1".into(), 7000))
        );
        assert!(
            matches!(judged("ASK 5718 ::1:7000", Phase::Writing), CallError::Asked(node) if node == ("::1".into(), 7000))
        );
        assert!(matches!(judged("NOSCRIPT No matching script.", Phase::Writing), CallError::NoScript));
    }

    #[test]
    fn a_write_without_an_answer_is_unknown_whatever_the_words() {
        for what in ["broken pipe", "WRONGPASS", "invalid peer certificate", "WRONGTYPE", "READONLY"] {
            let error = || std::io::Error::new(std::io::ErrorKind::ConnectionReset, what).into();
            let kind = |phase| failed(error(), phase, "redis://h").into_error("redis://h").kind();
            assert_eq!(kind(Phase::Writing), Kind::Indeterminate, "{what}");
            assert_eq!(kind(Phase::Reading), Kind::Unavailable, "{what}");
        }
    }
}
