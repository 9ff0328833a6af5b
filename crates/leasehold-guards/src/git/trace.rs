//! Git's own trace of a push: whether it began to send anything.
//!
//! Promise: if the trace shows no pack, nothing was applied, because the fence's new commit is in the pack. In doubt
//! there was one. The trace has the remote's password in it, so nobody else can read it, and it is removed.
//! Non-promise: if the user has set `GIT_TRACE`, the trace is theirs, and every push counts as begun.

use leasehold_system::scratch::Scratch;
use std::path::Path;

/// The trace of one push.
#[derive(Debug, Default)]
pub(super) struct Trace(Option<Scratch>);

impl Trace {
    pub(super) fn new() -> Self {
        let is_taken = std::env::var_os("GIT_TRACE").is_some();
        Trace(if is_taken { None } else { Scratch::new().ok() })
    }

    /// Where git writes it.
    pub(super) fn path(&self) -> Option<&Path> {
        self.0.as_ref().map(Scratch::path)
    }

    pub(super) fn shows_a_pack(&self) -> bool {
        // Git writes at least that it was started.
        let text = self.0.as_ref().and_then(|file| file.read().ok()).filter(|text| !text.is_empty());
        text.is_none_or(|text| String::from_utf8_lossy(&text).contains(" pack-objects "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_pack_is_seen_and_in_doubt_there_was_one() {
        assert!(Trace::default().shows_a_pack(), "the user has the trace");
        let trace = Trace(Some(Scratch::new().unwrap()));
        assert!(trace.shows_a_pack(), "git wrote nothing at all");
        let mut git = std::fs::OpenOptions::new().append(true).open(trace.path().unwrap()).unwrap();
        git.write_all(b"trace: built-in: git push\n").unwrap();
        assert!(!trace.shows_a_pack());
        git.write_all(b"trace: run_command: git pack-objects --all\n").unwrap();
        assert!(trace.shows_a_pack());
    }
}
