//! Wrong input, wrong state, wrong machine: each gets one clear line and its exit code, and changes nothing at all.

#![allow(clippy::unwrap_used)]

mod common;

use common::state::{State, changes, connect, find, state, tamper};
use common::{Done, Home, On};
use leasehold_testbed::SmallDisk;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const NONCE: &str = "00000000000000000000000000000007";

/// A home in which `held` is held, `out` and `site` are fenced by it, and `other` is held too.
struct Lived {
    home: Home,
    held: String,
    other: String,
}

impl Lived {
    fn new(on: On) -> Self {
        let home = Home::new(on);
        let take = |lease| home.done(&["acquire", lease, "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
        let (held, other) = (take("held"), take("other"));
        std::fs::write(home.path("text"), "old\n").unwrap();
        std::fs::create_dir(home.path("build")).unwrap();
        std::fs::write(home.path("build/page"), "old\n").unwrap();
        home.done(&["write", "out", "--from", "text", "--token", &held]).expect(0);
        home.done(&["publish", "build", "site", "--token", &held]).expect(0);
        Lived { home, held, other }
    }

    /// The words of a command line, with the tokens of this home.
    fn words(&self, line: &[&str]) -> Vec<String> {
        let path = self.home.folder.path().display().to_string();
        line.iter()
            .map(|word| {
                word.replace("{held}", &self.held)
                    .replace("{other}", &self.other)
                    .replace("{home}", &path)
                    .replace("{nonce}", NONCE)
                    .replace("{200}", &"x".repeat(200))
                    .replace("{500}", &"x".repeat(500))
                    .replace("{4096}", &"x".repeat(4096))
            })
            .collect()
    }

    fn done(&self, line: &[&str]) -> Done {
        let words = self.words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.home.done(&words)
    }
}

/// A folder in which nothing may change, and all that went wrong in it; a table is judged as a whole.
struct Watched<'a> {
    folder: &'a Path,
    before: State,
    faults: Vec<String>,
}

impl<'a> Watched<'a> {
    fn new(folder: &'a Path) -> Self {
        Watched { folder, before: state(folder), faults: Vec::new() }
    }

    /// One line for people (clap's own messages have more), no panic, no password, no data, and nothing changed.
    fn refused(&mut self, what: impl fmt::Debug, done: &Done, code: i32, says: &str) {
        // Verbs that run for long say the time and the level first.
        let timed = done.stderr.split_once(" error ").filter(|(time, _)| time.parse::<jiff::Timestamp>().is_ok());
        let own = timed.map_or(done.stderr.as_str(), |(_, line)| line).strip_prefix("leasehold: ");
        let mut wrong = Vec::new();
        for (fault, is_so) in [
            ("has another exit code", done.code != code),
            ("does not say why", !done.stderr.contains(says)),
            ("panicked", done.stderr.contains("panicked")),
            ("shows a password", done.stderr.contains("hunter2")),
            ("prints data", !done.stdout.is_empty()),
            ("takes more than a line", own.is_some() && done.stderr.lines().count() != 1),
            ("begins in upper case", own.is_some_and(|text| text.starts_with(char::is_uppercase))),
        ] {
            wrong.extend(is_so.then(|| fault.to_owned()));
        }
        let after = state(self.folder);
        wrong.extend(changes(&self.before, &after));
        self.before = after;
        if !wrong.is_empty() {
            self.faults.push(format!("{what:?} (to end with {code} and `{says}`): {wrong:?}, {done:?}"));
        }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.faults.is_empty(), "{} faults:\n{}", self.faults.len(), self.faults.join("\n"));
        }
    }
}

/// Command lines that are wrong whatever the store holds.
const LINES: &[(&[&str], i32, &str)] = &[
    // Names.
    (&["acquire", ""], 64, "invalid lease name ``: it is empty"),
    (&["acquire", "a b"], 64, "character ` ` at byte 1"),
    (&["acquire", ".."], 64, "segment `..` is not allowed"),
    (&["acquire", "."], 64, "segment `.` is not allowed"),
    (&["acquire", "a/../b"], 64, "segment `..` is not allowed"),
    (&["acquire", "/a"], 64, "it has an empty segment"),
    (&["acquire", "a/"], 64, "it has an empty segment"),
    (&["acquire", "a//b"], 64, "it has an empty segment"),
    (&["acquire", "{200}x"], 64, "it has 201 bytes"),
    (&["acquire", "a\nb"], 64, "character `\\n` at byte 1"),
    (&["acquire", "a\u{1b}[2Jb"], 64, "character `\\u{1b}` at byte 1"),
    (&["acquire", "café"], 64, "character `é` at byte 3"),
    (&["acquire", "a:b"], 64, "character `:` at byte 1"),
    (&["run", "a b", "--", "touch", "ran"], 64, "invalid lease name `a b`"),
    (&["run", "a", "--or", "b c", "--", "touch", "ran"], 64, "invalid lease name `b c`"),
    (&["run", "{200}", "--limit", "2", "--", "touch", "ran"], 64, "it has 207 bytes"),
    (&["show", ""], 64, "invalid lease name"),
    (&["history", "a b"], 64, "invalid lease name"),
    (&["advise", "a b"], 64, "invalid lease name"),
    (&["stats", "a b"], 64, "invalid lease name"),
    (&["revoke", "a b", "--why", "x"], 64, "invalid lease name"),
    (&["pause", "a b", "--why", "x"], 64, "invalid lease name"),
    (&["resume", "a b", "--why", "x"], 64, "invalid lease name"),
    (&["advance", "a b", "--past", "1", "--why", "x"], 64, "invalid lease name"),
    (&["hand-off", "a b", "--to", "y", "--why", "x"], 64, "invalid lease name"),
    // Durations, each with the flag that had it.
    (&["acquire", "a", "--wait", "5"], 64, "invalid duration `5`: a unit is missing"),
    (&["acquire", "a", "--wait", "5"], 64, "--wait"),
    (&["acquire", "a", "--wait=-5s"], 64, "a number is missing"),
    (&["acquire", "a", "--wait", "1.5h"], 64, "90s, 5m, 1h30m"),
    (&["acquire", "a", "--wait", "30m1h"], 64, "units go from large to small"),
    (&["acquire", "a", "--wait", "99999999999999999999s"], 64, "the number is too large"),
    (&["acquire", "a", "--wait", "999999999d"], 64, "longer than a thousand years"),
    (&["acquire", "a", "--wait", ""], 64, "it is empty"),
    (&["acquire", "a", "--wait", "5 m"], 64, "there are no spaces in it"),
    (&["acquire", "a", "--wait", "5é"], 64, "a unit is missing"),
    (&["run", "a", "--wait", "1w", "--", "touch", "ran"], 64, "`w` is not a unit"),
    (&["run", "a", "--retry-after", "x", "--", "touch", "ran"], 64, "--retry-after"),
    (&["run", "a", "--progress-timeout", "x", "--", "touch", "ran"], 64, "--progress-timeout"),
    (&["run", "a", "--max-runtime", "x", "--", "touch", "ran"], 64, "--max-runtime"),
    (&["run", "a", "--grace", "x", "--", "touch", "ran"], 64, "--grace"),
    // TTLs.
    (&["acquire", "a", "--ttl", "999ms"], 64, "invalid ttl `999ms`: use 1s to 24h"),
    (&["acquire", "a", "--ttl", "25h"], 64, "invalid ttl `1d1h`: use 1s to 24h"),
    (&["acquire", "a", "--ttl", "0s"], 64, "use 1s to 24h"),
    (&["acquire", "a", "--ttl", "90"], 64, "--ttl"),
    (&["run", "a", "--ttl", "25h", "--", "touch", "ran"], 64, "use 1s to 24h"),
    (&["hand-off", "held", "--to", "b", "--why", "x", "--ttl", "25h"], 64, "use 1s to 24h"),
    (&["run", "a", "--ttl", "3s", "--grace", "2s", "--", "touch", "ran"], 64, "with a ttl of 3s use at most 850ms"),
    (&["run", "a", "--grace", "999d", "--", "touch", "ran"], 64, "with a ttl of 1m30s use at most 28s"),
    // Store URLs.
    (&["ls", "--store", "ftp:/x"], 64, "`ftp` is not a scheme"),
    (&["ls", "--store", "ftp:/x"], 64, "use `sqlite:`"),
    (&["ls", "--store", "/tmp/x"], 64, "the scheme is missing"),
    (&["ls", "--store", ""], 64, "the scheme is missing"),
    (&["ls", "--store", "dir:"], 64, "the path is empty"),
    (&["ls", "--store", "dir:~/x"], 64, "`~` is not expanded here"),
    (&["ls", "--store", "sqlite:~"], 64, "`~` is not expanded here"),
    (&["ls", "--store", "sqlite://host/x.db"], 64, "would name a host"),
    (&["ls", "--store", "sqlite:{home}/"], 64, "a folder, not a file"),
    (&["ls", "--store", "dir:/a\nb"], 64, "control character"),
    (&["acquire", "a", "--store", "dir:{home}/no/such"], 64, "create the folder {home}/no first"),
    (&["ls", "--store", "dir:{home}/no/such"], 64, "create the folder {home}/no first"),
    (&["acquire", "a", "--store", "sqlite:{home}/no/such.db"], 64, "create it first"),
    (&["ls", "--store", "sqlite:{home}/no/such.db"], 64, "create it first"),
    (&["ls", "--store", "redis://user:hunter2@host:0"], 64, "redis://user:***@host:0"),
    (&["ls", "--store", "postgres://host:0/db?password=hunter2"], 64, "password=***"),
    // Tokens.
    (&["renew"], 64, "no token: run this inside `leasehold run`, or give --token"),
    (&["release"], 64, "no token"),
    (&["progress"], 64, "no token"),
    (&["write", "new"], 64, "no token"),
    (&["publish", ".", "new"], 64, "no token"),
    (&["gate", "deploy", "--", "touch", "ran"], 64, "no token"),
    (&["renew", "--token", ""], 64, "it has 1 of 5 parts"),
    (&["renew", "--token", "held:1"], 64, "it has 2 of 5 parts; use LEASE:EPOCH:LINEAGE:NONCE:SEQ"),
    (&["renew", "--token", "he ld:1:{nonce}:{nonce}:0"], 64, "the lease name is not one"),
    (&["renew", "--token", "held:one:{nonce}:{nonce}:0"], 64, "the epoch is not a whole number"),
    (&["renew", "--token", "held:9007199254740992:{nonce}:{nonce}:0"], 64, "the epoch is not a whole number"),
    (&["renew", "--token", "held:0:{nonce}:{nonce}:0"], 64, "no grant has epoch 0"),
    (&["renew", "--token", "held:1:{nonce}:7:0"], 64, "the nonce is not 32 hexadecimal digits"),
    (&["renew", "--token", "held:1:{nonce}:{nonce}:x"], 64, "the sequence is not a whole number"),
    (&["renew", "--token", "held:1:{nonce}:{nonce}:0:0"], 64, "it has 6 of 5 parts"),
    (
        &["run", "a", "--token", "b:1:{nonce}:{nonce}:0", "--", "touch", "ran"],
        64,
        "it belongs to another lease than `a`",
    ),
    (&["run", "a", "--token", "b", "--", "touch", "ran"], 64, "it has 1 of 5 parts"),
    (&["run", "a", "--token", "a:1:{nonce}:{nonce}:0", "--ttl", "5s", "--", "touch", "ran"], 64, "cannot be used with"),
    // What goes with what.
    (&["run", "a"], 64, "COMMAND"),
    (&["run", "a", "--"], 64, "COMMAND"),
    (&["run"], 64, "NAME"),
    (&["gate", "a", "--token", "a:1:{nonce}:{nonce}:0"], 64, "COMMAND"),
    (&["run", "a", "--limit", "0", "--", "touch", "ran"], 64, "use 1 to 1000"),
    (&["run", "a", "--limit", "1001", "--", "touch", "ran"], 64, "use 1 to 1000"),
    (&["run", "a", "--limit", "two", "--", "touch", "ran"], 64, "use 1 to 1000"),
    (&["run", "a", "--limit", "2", "--guard", "file:new", "--", "touch", "ran"], 64, "cannot be used with"),
    (&["run", "a", "--or", "b", "--guard", "file:new", "--", "touch", "ran"], 64, "--guard and --or"),
    (&["run", "a", "--or", "b", "--limit", "2", "--", "touch", "ran"], 64, "cannot be used with"),
    (&["run", "a", "--wait", "5s", "--retry-after", "5s", "--", "touch", "ran"], 64, "cannot be used with"),
    (&["run", "a", "--progress-output", "--", "touch", "ran"], 64, "--progress-timeout"),
    (&["run", "a", "--guard", "new", "--", "touch", "ran"], 64, "invalid guard `new`: use file:PATH"),
    (&["run", "a", "--guard", "file:", "--", "touch", "ran"], 64, "invalid guard `file:`: use file:PATH"),
    (&["run", "a", "--guard", "ftp:x", "--", "touch", "ran"], 64, "invalid guard `ftp:x`: use file:PATH"),
    (&["run", "a", "--guard", "file:.", "--", "touch", "ran"], 64, "is a folder"),
    (&["run", "a", "--guard", "file:no/such", "--", "touch", "ran"], 64, "does not exist; create it first"),
    (&["run", "a", "--held-exit-code", "256", "--", "touch", "ran"], 64, "invalid exit code `256`"),
    (&["run", "a", "--held-exit-code", "-1", "--", "touch", "ran"], 64, "--held-exit-code"),
    (&["run", "a", "--label", "", "--", "touch", "ran"], 64, "invalid label ``: it is empty"),
    (
        &["run", "a", "--label", "{200}", "--", "touch", "ran"],
        64,
        "it has 200 bytes; use one printable line of at most 64",
    ),
    (&["acquire", "a", "--label", "a\u{1b}[2J"], 64, "control character"),
    (&["stats", "--prometheus", "--json"], 64, "cannot be used with"),
    (&["stats", "--prometheus", "job"], 64, "cannot be used with"),
    (&["stats", "--prometheus", "--metrics-leases", "a b"], 64, "invalid name pattern `a b`"),
    (
        &["work", "letters", "--metrics", "9464", "--", "true"],
        64,
        "invalid address `9464`: use an IP address and a port",
    ),
    (&["work", "letters", "--metrics", "box:9464", "--", "true"], 64, "invalid address `box:9464`"),
    // Operators.
    (&["revoke", "held"], 64, "--why"),
    (&["revoke", "held", "--why", ""], 64, "invalid --why ``: it is empty"),
    (&["revoke", "held", "--why", "   "], 64, "invalid --why `   `: it is empty"),
    (&["revoke", "held", "--why", "{500}x"], 64, "it has 501 bytes; use one printable line of at most 500"),
    (&["revoke", "held", "--why", "a\nb"], 64, "control character"),
    (&["revoke", "held", "--why", "x", "--by", ""], 64, "invalid --by ``: it is empty"),
    (&["pause", "held", "--why", ""], 64, "invalid --why"),
    (&["resume", "held", "--why", ""], 64, "invalid --why"),
    (&["advance", "held", "--past", "9", "--why", ""], 64, "invalid --why"),
    (&["advance", "held", "--why", "x"], 64, "--past"),
    (&["advance", "held", "--past", "x", "--why", "x"], 64, "use a whole number up to 9007199254740991"),
    (&["advance", "held", "--past=-1", "--why", "x"], 64, "use a whole number up to"),
    (&["advance", "held", "--past", "9007199254740992", "--why", "x"], 64, "9007199254740991"),
    (&["advance", "held", "--past", "9007199254740991", "--why", "x"], 64, "cannot be moved that far"),
    (&["advance", "held", "--past", "9007199254740989", "--force", "--why", "x"], 64, "cannot be moved that far"),
    (
        &["advance", "held", "--past", "1000002", "--why", "x"],
        64,
        "a jump of more than 1000000 is most likely a typing error",
    ),
    (&["advance", "held", "--past", "7", "--lineage", "abc", "--why", "x"], 64, "--lineage"),
    (&["acquire", "queue/mail/k.7"], 64, "names that begin with `queue/` are items of queues"),
    (&["run", "spool/k.7", "--", "touch", "ran"], 64, "names that begin with `spool/` are items of spools"),
    (&["run", "queue", "--limit", "2", "--", "touch", "ran"], 64, "names that begin with `queue/`"),
    (&["hand-off", "queue/mail/k.7", "--to", "b", "--why", "x"], 64, "names that begin with `queue/`"),
    (&["revoke", "queue/mail/k.7", "--why", "x"], 64, "names that begin with `queue/`"),
    (&["pause", "spool/k.7", "--why", "x"], 64, "names that begin with `spool/`"),
    (&["advance", "queue/mail/k.7", "--past", "3", "--why", "x"], 64, "names that begin with `queue/`"),
    (&["rewind", "held", "--why", ""], 64, "invalid --why"),
    (&["rewind", "a b", "--why", "x"], 64, "invalid lease name"),
    (&["rewind", "queue/mail/k.7", "--why", "x"], 64, "names that begin with `queue/`"),
    (&["hand-off", "held", "--why", "x"], 64, "--to"),
    (&["hand-off", "held", "--why", "x", "--to", ""], 64, "invalid --to ``: it is empty"),
    (&["hand-off", "held", "--to", "b", "--why", ""], 64, "invalid --why"),
    // Progress.
    (&["progress", "{200}x", "--token", "held:1:{nonce}:{nonce}:0"], 64, "it has 201 bytes"),
    (&["progress", "", "--token", "held:1:{nonce}:{nonce}:0"], 64, "invalid marker ``: it is empty"),
    (
        &["progress", "--checkpoint", "{4096}x", "--token", "held:1:{nonce}:{nonce}:0"],
        64,
        "it has 4097 bytes; use at most 4096",
    ),
    // Files and folders.
    (&["write", ".", "--token", "{held}"], 64, "leasehold publish"),
    (&["write", "no/such", "--token", "{held}"], 64, "does not exist; create it first"),
    (&["write", "", "--token", "{held}"], 64, "a value is required for '<FILE>'"),
    (&["write", "new", "--from", "missing", "--token", "{held}"], 64, "cannot read --from `missing`"),
    (&["write", "new", "--from", ".", "--token", "{held}"], 64, "it is a folder; use `leasehold publish`"),
    (&["write", "/dev/null", "--token", "{held}"], 64, "neither a file nor a folder"),
    (&["publish", "missing", "new", "--token", "{held}"], 64, "cannot read the folder `missing`"),
    (&["publish", "/usr", "no/such", "--token", "{held}"], 64, "create it first"),
    (&["publish", ".", "new", "--token", "{held}"], 64, "itself"),
    (&["doctor", "--folder", "missing"], 64, "it is not a folder"),
    // Never held.
    (&["show", "nobody"], 64, "nobody has ever held a lease `nobody`; `leasehold ls`"),
    (&["history", "nobody"], 64, "nobody has ever held a lease `nobody`"),
    (&["advise", "nobody"], 64, "nobody has ever held a lease `nobody`"),
    (&["revoke", "nobody", "--why", "x"], 64, "nobody has ever held a lease `nobody`"),
    // Words.
    (&[], 64, "Usage"),
    (&["steal", "held"], 64, "unrecognized subcommand"),
    (&["ls", "--colour"], 64, "unexpected argument"),
    (&["ls", "a", "b"], 64, "unexpected argument"),
    (&["show"], 64, "NAME"),
    (&["completions", "tcl"], 64, "invalid value"),
    (&["acquire", "a", "--ttl", "5s", "--ttl", "6s"], 64, "cannot be used multiple times"),
];

/// Command lines that are wrong for what the home holds.
const LIVED: &[(&[&str], i32, &str)] = &[
    (&["renew", "--token", "nobody:1:{nonce}:{nonce}:0"], 64, "`nobody:1` was never granted by"),
    (&["release", "--token", "nobody:1:{nonce}:{nonce}:0"], 64, "`nobody:1` was never granted by"),
    (&["progress", "x", "--token", "nobody:1:{nonce}:{nonce}:0"], 64, "`nobody:1` was never granted by"),
    (&["run", "nobody", "--token", "nobody:1:{nonce}:{nonce}:0", "--", "touch", "ran"], 64, "was never granted by"),
    (
        &["gate", "deploy", "--token", "nobody:1:{nonce}:{nonce}:0", "--", "touch", "ran"],
        64,
        "gate closed: resource=`deploy`",
    ),
    (&["renew", "--token", "held:7:{nonce}:{nonce}:0"], 64, "not this lease"),
    (&["release", "--token", "held:1:{nonce}:{nonce}:0"], 64, "nothing was changed"),
    (&["progress", "x", "--token", "held:1:{nonce}:{nonce}:0"], 64, "not this lease"),
    (&["run", "other", "--token", "{held}", "--", "touch", "ran"], 64, "it belongs to another lease than `other`"),
    (
        &["write", "out", "--from", "text", "--token", "{other}"],
        64,
        "is fenced by lease `held`, the token is of `other`",
    ),
    (&["publish", "build", "site", "--token", "{other}"], 64, "is fenced by lease `held`, the token is of `other`"),
    (&["write", "out", "--from", "text", "--token", "held:1:{nonce}:{nonce}:0"], 64, "not this lease"),
    (&["write", "site", "--from", "text", "--token", "{held}"], 64, "leasehold publish"),
    (&["write", "build", "--from", "text", "--token", "{held}"], 64, "leasehold publish"),
    (&["publish", "text", "site", "--token", "{held}"], 64, "use a folder; single files are for `leasehold write`"),
    (&["publish", "build", "text", "--token", "{held}"], 64, "text"),
    (&["publish", "build", "build/inner", "--token", "{held}"], 64, "it is or holds"),
    (&["run", "other", "--guard", "file:out", "--", "touch", "ran"], 64, "is fenced by lease `held`"),
    (&["publish", "text", "new", "--token", "{held}"], 64, "use a folder; single files are for `leasehold write`"),
    (&["gate", "deploy", "--token", "held:7:{nonce}:{nonce}:0", "--", "touch", "ran"], 64, "of lineage {nonce}"),
    (
        &["gate", "deploy", "--token", "held:1:{nonce}:{nonce}:0", "--", "touch", "ran"],
        64,
        "gate closed: resource=`deploy`",
    ),
    (&["doctor", "--folder", "text"], 64, "it is not a folder"),
    (&["ls", "--store", "dir:{home}/text"], 64, "give a folder"),
    (&["ls", "--store", "dir:{home}/text/below"], 64, "give a folder"),
    (&["ls", "--store", "dir:{home}/build"], 64, "is not a leasehold store and holds `page`"),
    (&["ls", "--store", "sqlite:{home}/build"], 64, "is not a file; give `sqlite:/path/file.db`"),
    (&["ls", "--store", "sqlite:{home}/text"], 65, "is not a leasehold database; it was left as it is"),
];

#[test]
fn a_wrong_command_line_is_refused_and_changes_nothing() {
    for on in [On::Sqlite, On::Dir] {
        let lived = Lived::new(on);
        let mut watched = Watched::new(lived.home.folder.path());
        for (line, code, says) in LINES.iter().chain(LIVED) {
            watched.refused((line, on), &lived.done(line), *code, &lived.words(&[says])[0]);
        }
    }
}

#[test]
fn the_same_lines_make_no_store_where_there_is_none() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let lived =
            Lived { held: format!("held:1:{NONCE}:{NONCE}:0"), other: format!("other:1:{NONCE}:{NONCE}:0"), home };
        let mut watched = Watched::new(lived.home.folder.path());
        assert!(watched.before.is_empty());
        for (line, code, says) in LINES {
            if *says == "cannot be moved that far" {
                continue; // An order about a lease that nobody held yet may well be its first record.
            }
            watched.refused((line, on), &lived.done(line), *code, &lived.words(&[says])[0]);
        }
        for line in [
            &["renew", "--token", "{held}"][..],
            &["release", "--token", "{held}"],
            &["progress", "--token", "{held}"],
            &["gate", "x", "--token", "{held}", "--", "touch", "ran"],
            &["run", "held", "--token", "{held}", "--", "touch", "ran"],
        ] {
            watched.refused((line, on), &lived.done(line), 69, "is this the store that the token came from?");
        }
    }
}

#[test]
fn words_that_are_not_text_are_refused() {
    let home = Home::new(On::Sqlite);
    let mut watched = Watched::new(home.folder.path());
    let bad = OsStr::from_bytes(b"a\xff");
    for line in [vec![OsStr::new("acquire"), bad], vec![bad], vec![OsStr::new("ls"), OsStr::new("--store"), bad]] {
        let done = Done::from(home.leasehold(&[]).args(&line).output().unwrap());
        watched.refused(line, &done, 64, "");
    }
    for variable in ["LEASEHOLD_STORE", "LEASEHOLD_TTL", "LEASEHOLD_LABEL", "LEASEHOLD_GRACE", "LEASEHOLD_TOKEN"] {
        let verb = if variable == "LEASEHOLD_TOKEN" { "renew" } else { "config" };
        let done = Done::from(home.leasehold(&[verb]).env(variable, bad).output().unwrap());
        watched.refused(variable, &done, 64, &format!("{variable} is not text"));
    }
}

#[test]
fn a_wrong_variable_is_named() {
    let lived = Lived::new(On::Sqlite);
    let mut watched = Watched::new(lived.home.folder.path());
    for (variable, value, line, says) in [
        ("LEASEHOLD_STORE", "ftp:/x", &["ls"][..], "`ftp` is not a scheme"),
        ("LEASEHOLD_STORE", "redis://u:hunter2@h:0", &["ls"], "redis://u:***@h:0"),
        ("LEASEHOLD_TTL", "5", &["acquire", "a"], "a unit is missing"),
        ("LEASEHOLD_TTL", "25h", &["ls"], "use 1s to 24h"),
        ("LEASEHOLD_LABEL", "a\tb", &["acquire", "a"], "control character"),
        ("LEASEHOLD_GRACE", "x", &["run", "a", "--", "touch", "ran"], "a number is missing"),
        ("LEASEHOLD_GRACE", "1h", &["run", "a", "--", "touch", "ran"], "with a ttl of 1m30s use at most 28s"),
        ("LEASEHOLD_HELD_EXIT_CODE", "256", &["run", "a", "--", "touch", "ran"], "from 0 to 255"),
        ("LEASEHOLD_HELD_EXIT_CODE", "no", &["config"], "from 0 to 255"),
        ("LEASEHOLD_TOKEN", "held", &["renew"], "it has 1 of 5 parts"),
        ("LEASEHOLD_TOKEN", "held:0:00000000000000000000000000000000:x:0", &["write", "new"], "the nonce is not"),
    ] {
        let done = Done::from(lived.home.leasehold(line).env(variable, value).output().unwrap());
        watched.refused(variable, &done, 64, says);
        watched.refused(variable, &done, 64, variable);
    }
}

#[test]
fn wrong_settings_are_named_with_file_and_line() {
    for (text, line, says) in [
        ("store = \n", 1, ""),
        ("ttl = \"5m\"\nlabel = \"x\"\nstore \"sqlite:\"\n", 3, ""),
        ("ttl = \"5m\"\n\ncolour = \"red\"\n", 3, "unknown field `colour`"),
        ("ttl = \"5m\"\nheld_exit_code = 256\n", 2, "256"),
        ("\nheld_exit_code = \"9\"\n", 2, "write the number without quotes: held_exit_code = 9"),
        ("[[jobs]]\nname = \"x\"\n", 1, "unknown field `jobs`; write [[job]]"),
        ("stroe = \"sqlite:x\"\n", 1, "unknown field `stroe`; did you mean `store`?"),
        ("ttl = \"5m\"\nmetrics_leases = \"a*\"\n", 2, "write it in square brackets: metrics_leases = [\"a*\"]"),
        ("ttl = 90\n", 1, "has no unit"),
        ("label = \"é\"\nttl = é\n", 2, ""),
        ("ttl = \"1s\"\nttl = \"2s\"\n", 2, "duplicate key"),
        ("[run]\nttl = \"5m\"\n", 1, "unknown field `run`"),
    ] {
        let home = Home::new(On::Sqlite);
        std::fs::write(home.path("leasehold.toml"), text).unwrap();
        let mut watched = Watched::new(home.folder.path());
        let done = home.done(&["acquire", "a"]);
        watched.refused(text, &done, 64, &format!("leasehold.toml`, line {line}: "));
        watched.refused(text, &done, 64, says);
    }
    for (text, says) in [
        ("ttl = \"25h\"\n", "setting `ttl`, from file"),
        ("store = \"ftp:/x\"\n", "setting `store`, from file"),
        ("grace = \"\"\n", "setting `grace`, from file"),
        ("label = \"\"\n", "setting `label`, from file"),
    ] {
        let home = Home::new(On::Sqlite);
        std::fs::write(home.path("leasehold.toml"), text).unwrap();
        let mut watched = Watched::new(home.folder.path());
        let mut command = home.leasehold(&["acquire", "a"]);
        let done = Done::from(command.env_remove("LEASEHOLD_STORE").output().unwrap());
        watched.refused(text, &done, 64, says);
    }
    let home = Home::new(On::Sqlite);
    std::fs::write(home.path("leasehold.toml"), b"label = \"\xff\"\n").unwrap();
    Watched::new(home.folder.path()).refused("not UTF-8", &home.done(&["ls"]), 78, "cannot read settings");
}

#[test]
fn a_damaged_record_is_refused_and_left_as_it_is() {
    let flip = |bytes: &mut Vec<u8>| {
        let at = find(bytes, b"\"epoch\"") + 8;
        bytes[at] ^= 1;
    };
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() / 2);
    let empty = |bytes: &mut Vec<u8>| bytes.clear();
    let newer = |bytes: &mut Vec<u8>| {
        let at = find(bytes, b" v1 ") + 2;
        bytes[at] = b'2';
    };
    type Damage<'a> = (&'a str, &'a dyn Fn(&mut Vec<u8>), i32, &'a str);
    let damages: [Damage<'_>; 4] = [
        ("a flipped byte", &flip, 65, "left as it is"),
        ("half a record", &cut, 65, "left as it is"),
        ("an empty record", &empty, 65, "left as it is"),
        ("a newer record", &newer, 78, "has format 2, this leasehold knows up to 1"),
    ];
    for on in [On::Sqlite, On::Dir] {
        for (what, damage, code, says) in damages {
            let lived = Lived::new(on);
            tamper(&lived.home, "held", damage);
            let mut watched = Watched::new(lived.home.folder.path());
            for line in [
                &["acquire", "held"][..],
                &["run", "held", "--", "touch", "ran"],
                &["renew", "--token", "{held}"],
                &["release", "--token", "{held}"],
                &["progress", "x", "--token", "{held}"],
                &["gate", "deploy", "--token", "{held}", "--", "touch", "ran"],
                &["show", "held"],
                &["history", "held"],
                &["advise", "held"],
                &["revoke", "held", "--why", "x"],
                &["pause", "held", "--why", "x"],
                &["advance", "held", "--past", "9", "--why", "x"],
                &["hand-off", "held", "--to", "b", "--why", "x"],
            ] {
                let done = lived.done(line);
                watched.refused((what, line, on), &done, code, says);
                watched.refused((what, line, on), &done, code, "held");
            }
            drop(watched);
            // The others go on.
            lived.done(&["renew", "--token", "{other}"]).expect(0);
        }
    }
}

#[test]
fn a_newer_or_foreign_store_is_refused() {
    let newer = Lived::new(On::Dir);
    std::fs::write(newer.home.path("leases/leasehold-store"), "leasehold directory store, format 2\n").unwrap();
    let mut watched = Watched::new(newer.home.folder.path());
    for line in [&["ls"][..], &["acquire", "a"], &["renew", "--token", "{held}"]] {
        watched.refused(line, &newer.done(line), 78, "a newer leasehold wrote it");
    }

    for (sql, code, says) in [
        ("PRAGMA user_version = 2", 78, "has format 2, this leasehold knows up to 1; upgrade leasehold"),
        ("PRAGMA application_id = 7", 64, "another program's database"),
        ("PRAGMA user_version = -1", 64, "another program's database"),
    ] {
        let lived = Lived::new(On::Sqlite);
        connect(&lived.home.path("leases.db")).unwrap().execute_batch(sql).unwrap();
        let mut watched = Watched::new(lived.home.folder.path());
        for line in [&["ls"][..], &["acquire", "a"], &["renew", "--token", "{held}"]] {
            watched.refused((sql, line), &lived.done(line), code, says);
        }
    }

    for cut in [0.5, 0.02] {
        let lived = Lived::new(On::Sqlite);
        let path = lived.home.path("leases.db");
        connect(&path).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate((bytes.len() as f64 * cut) as usize);
        for beside in ["leases.db-wal", "leases.db-shm"] {
            let _ = std::fs::remove_file(lived.home.path(beside));
        }
        std::fs::write(&path, &bytes).unwrap();
        for line in [&["acquire", "held"][..], &["show", "held"], &["ls"]] {
            let done = lived.done(line).expect(65);
            assert!(done.stderr.contains("leases.db") && done.stderr.contains("left as it is"), "{done:?}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "{line:?} changed a damaged file");
        }
    }
}

/// The command as a user without any rights.
fn as_nobody(command: &Command) -> Command {
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(command.get_program());
    nobody.args(command.get_args()).current_dir("/").env_clear();
    for (key, value) in command.get_envs().filter_map(|(k, v)| Some((k, v?))) {
        nobody.env(key, value);
    }
    // Somebody's settings that may not be read are an error of their own.
    nobody.env("HOME", "/");
    nobody
}

#[test]
fn a_folder_of_somebody_else_is_refused() {
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if !root || as_nobody(&Home::new(On::Dir).leasehold(&["--version"])).output().map_or(true, |o| !o.status.success())
    {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot become another user");
        println!("skipped: cannot become another user");
        return;
    }
    for on in [On::Sqlite, On::Dir] {
        let lived = Lived::new(on);
        let folder = lived.home.folder.path();
        for mode in [0o700, 0o755] {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
            let mut watched = Watched::new(folder);
            for line in [&["acquire", "a"][..], &["run", "a", "--", "true"], &["renew", "--token", &lived.held]] {
                let done = Done::from(as_nobody(&lived.home.leasehold(line)).output().unwrap());
                watched.refused((line, on, mode), &done, 78, "leases");
            }
        }
        // The folder may be read, and a directory store looked at.
        if on == On::Dir {
            Done::from(as_nobody(&lived.home.leasehold(&["show", "held"])).output().unwrap()).expect(0);
        }
        let mut fresh = lived.home.leasehold(&["acquire", "a"]);
        fresh.env("LEASEHOLD_STORE", format!("{}-new", lived.home.store));
        let mut watched = Watched::new(folder);
        watched.refused("a new store", &Done::from(as_nobody(&fresh).output().unwrap()), 78, "leases");
    }
}

#[test]
fn a_read_only_disk_is_refused() {
    let Some(disk) = SmallDisk::mount("2m") else { return };
    for scheme in ["sqlite", "dir"] {
        let mut home = Home::new(On::Dir);
        let path = format!("{}/leases.{}", disk.path().display(), if scheme == "dir" { "d" } else { "db" });
        home.store = format!("{scheme}:{path}");
        let token = home.done(&["acquire", "held", "--ttl", "24h"]).expect(0).stdout;
        disk.remount("ro");
        for line in [&["acquire", "a"][..], &["renew", "--token", token.trim()], &["run", "a", "--", "touch", "ran"]] {
            let done = home.done(line).expect(78);
            assert!(done.stderr.contains(&path), "{done:?}");
            assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
        }
        let file = disk.path().join("out").display().to_string();
        let done = home.done(&["write", &file, "--token", token.trim()]);
        assert!([69, 78].contains(&done.code) && done.stderr.contains("out"), "{done:?}");
        disk.remount("rw");
        assert!(!home.path("ran").exists() && !disk.path().join("out").exists());
        home.done(&["renew", "--token", token.trim()]).expect(0);
        assert_eq!(home.show("held")["epoch"], 1);
    }
}

#[test]
fn a_full_disk_leaves_no_empty_file_in_the_way_of_the_next_try() {
    let Some(disk) = SmallDisk::mount("512k") else { return };
    let home = Home::new(On::Dir);
    let user = disk.path().join("user");
    std::fs::create_dir_all(user.join(".config/systemd/user")).unwrap();
    let file = disk.path().join("leasehold.toml").display().to_string();
    std::fs::write(home.path("leasehold.toml"), "[[job]]\nname = 'a'\nevery = '1h'\ncommand = 'true'\n").unwrap();
    let install = || {
        let mut command = home.leasehold(&["schedule", "install", "--kind", "systemd"]);
        Done::from(command.env("HOME", &user).output().unwrap())
    };
    let unit = user.join(".config/systemd/user/leasehold.service");
    let names =
        || std::fs::read_dir(disk.path()).unwrap().count() + std::fs::read_dir(unit.parent().unwrap()).unwrap().count();
    fill(&disk.path().join("ballast"));
    let before = names();
    assert!(home.done(&["init", &file]).expect(78).stderr.contains("cannot write"));
    assert!(install().expect(78).stderr.contains("cannot write"));
    assert_eq!(names(), before, "something of it is left");
    std::fs::remove_file(disk.path().join("ballast")).unwrap();
    home.done(&["init", &file]).expect(0);
    install().expect(0);
    assert!(std::fs::read_to_string(&unit).unwrap().contains("ExecStart="));
}

#[test]
fn a_full_disk_is_reported_and_changes_nothing() {
    for scheme in ["sqlite", "dir"] {
        let Some(disk) = SmallDisk::mount("512k") else { return };
        let mut home = Home::new(On::Dir);
        let path = format!("{}/leases.{}", disk.path().display(), if scheme == "dir" { "d" } else { "db" });
        home.store = format!("{scheme}:{path}");
        let token = home.done(&["acquire", "held", "--ttl", "24h"]).expect(0).stdout;
        fill(&disk.path().join("ballast"));
        let done = (0..200)
            .map(|n| home.done(&["acquire", &format!("n{n}")]))
            .find(|done| done.code != 0)
            .expect("a full disk takes no end of leases");
        assert_eq!(done.code, 69, "{done:?}");
        assert!(done.stderr.contains("no space"), "{done:?}");
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
        let file = disk.path().join("out").display().to_string();
        let text = home.path("text");
        std::fs::write(&text, "x".repeat(64 * 1024)).unwrap();
        let written = home.done(&["write", &file, "--from", text.to_str().unwrap(), "--token", token.trim()]);
        assert_eq!(written.code, 69, "{written:?}");
        assert!(!Path::new(&file).exists());
        std::fs::remove_file(disk.path().join("ballast")).unwrap();
        home.done(&["renew", "--token", token.trim()]).expect(0);
        home.done(&["write", &file, "--from", text.to_str().unwrap(), "--token", token.trim()]).expect(0);
        assert_eq!(home.show("held")["epoch"], 1);
    }
}

/// Takes all the room there is, but for what is taken by the file itself.
fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
}

#[test]
fn without_a_home_the_default_store_says_what_to_give() {
    let home = Home::new(On::Sqlite);
    let mut watched = Watched::new(home.folder.path());
    for line in [&["ls"][..], &["acquire", "a"], &["config"], &["ls", "--store", "sqlite:"]] {
        for value in [None, Some(""), Some("relative")] {
            let mut command = home.leasehold(line);
            command.env_remove("LEASEHOLD_STORE").env_remove("HOME");
            if let Some(value) = value {
                command.env("HOME", value);
            }
            let done = Done::from(command.output().unwrap());
            let (code, remedy) =
                if line.contains(&"--store") { (64, "give a store URL") } else { (78, "give --store") };
            watched.refused((line, value), &done, code, remedy);
            watched.refused((line, value), &done, code, "HOME");
        }
    }
}

#[test]
fn a_message_stays_one_line_whatever_a_path_holds() {
    let home = Home::new(On::Sqlite);
    let token = format!("held:1:{NONCE}:{NONCE}:0");
    for line in [
        &["write", "no\n\u{1b}[2Jsuch/x", "--token", &token][..],
        &["write", "x", "--from", "mis\nsing", "--token", &token],
        &["doctor", "--folder", "mis\nsing"],
        &["gate", "a\nb", "--token", "x", "--", "true"],
    ] {
        let done = home.done(line).expect(64);
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
        assert!(!done.stderr.contains('\u{1b}'), "{done:?}");
    }
    let done = home.done(&["run", "a", "--", "no\nsuch\u{1b}[2J"]).expect(127);
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    assert!(!done.stderr.contains('\u{1b}'), "{done:?}");
}
