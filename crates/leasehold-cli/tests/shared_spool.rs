//! A spool that two users share: what one of them adds, the other keeps alive, completes and puts back; and what one of
//! them may not touch stops nobody.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, Running, eventually};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Users and a group that need no entry in any list.
const ALICE: u32 = 12_001;
const BOB: u32 = 12_002;
const TEAM: u32 = 12_100;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A spool that a group shares, and the real binary as its members.
struct Team {
    home: Home,
    spool: String,
}

impl Team {
    /// None where the tests may not become other users: that takes root, as CI has it (or `sudo -E cargo test`).
    fn new() -> Option<Self> {
        let home = Home::new(On::Sqlite);
        let spool = format!("spool:{}", home.path("mail").display());
        let team = Team { home, spool };
        mode(team.home.folder.path(), 0o777);
        let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
        if !root || team.done(ALICE, &["--version"]).code != 0 {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot become another user: run the tests as root");
            println!(
                "skipped: cannot become another user; run the tests as root, and see that others may read target/"
            );
            return None;
        }
        let mail = team.home.path("mail");
        fs::create_dir(&mail).unwrap();
        chown(&mail, Some(ALICE), Some(TEAM)).unwrap();
        mode(&mail, 0o2770);
        Some(team)
    }

    /// With the most private of umasks: what is shared is the spool's to say.
    fn command(&self, user: u32, words: &[&str]) -> Command {
        let plain = self.home.leasehold(words);
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}"), format!("--groups={TEAM}")]);
        command.args(["sh", "-c", r#"umask 077; exec "$@""#, "sh"]).arg(plain.get_program()).args(plain.get_args());
        command.current_dir(self.home.folder.path()).env_clear().stdin(Stdio::null());
        for (key, value) in plain.get_envs().filter_map(|(key, value)| Some((key, value?))) {
            command.env(key, value);
        }
        command.env("HOME", "/");
        command
    }

    fn done(&self, user: u32, words: &[&str]) -> Done {
        Done::from(self.command(user, words).output().unwrap())
    }

    fn start(&self, user: u32, words: &[&str]) -> Running {
        self.command(user, words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap().into()
    }

    fn add(&self, user: u32, text: &str) -> String {
        self.done(user, &["queue", "add", &self.spool, "--text", text]).expect(0).stdout.trim().to_owned()
    }

    fn path(&self, below: &str) -> PathBuf {
        self.home.path("mail").join(below)
    }

    /// Puts a file there as a shell would, of this user and mode.
    fn put(&self, below: &str, user: u32, bits: u32) -> PathBuf {
        let (staged, path) = (self.home.path("staged"), self.path(below));
        fs::write(&staged, "by hand").unwrap();
        chown(&staged, Some(user), Some(TEAM)).unwrap();
        mode(&staged, bits);
        fs::rename(&staged, &path).unwrap();
        path
    }

    fn list(&self, state: &str) -> Vec<Value> {
        let listed = self.home.done(&["queue", "ls", &self.spool, "--state", state, "--json"]);
        serde_json::from_str(&listed.stdout).unwrap()
    }

    /// The one file in a worker's folder, and the sign of life beside it, if there is one.
    fn claimed(&self) -> Option<PathBuf> {
        let folders = fs::read_dir(self.path("claimed")).unwrap().flatten();
        let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
        files.map(|file| file.path()).find(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'))
    }
}

/// The change time.
fn changed_ms(path: &Path) -> Option<i64> {
    fs::symlink_metadata(path).ok().map(|m| m.ctime() * 1000 + m.ctime_nsec() / 1_000_000)
}

#[test]
fn a_worker_keeps_alive_what_another_user_added() {
    let Some(team) = Team::new() else { return };
    team.done(ALICE, &["queue", "ls", &team.spool]).expect(0);
    team.add(ALICE, "first");
    fs::remove_file(
        team.path("ready").join(fs::read_dir(team.path("ready")).unwrap().next().unwrap().unwrap().file_name()),
    )
    .unwrap();
    // Readable for the group, and for nobody else than its owner to change.
    team.put("ready/letter", ALICE, 0o440);
    let script = "cat; while ! test -e go; do sleep 0.05; done";
    let mut work =
        team.start(BOB, &["work", &team.spool, "--ttl", "2s", "--until-idle", "--no-prefix", "--", "sh", "-c", script]);
    eventually("it is claimed", || team.claimed().is_some());
    let file = team.claimed().unwrap();
    let sign = file.with_file_name(format!(".{}", file.file_name().unwrap().to_string_lossy()));
    let began = changed_ms(&file).unwrap();
    eventually("it was kept for more than its TTL", || {
        assert!(!work.is_over() && file.exists(), "the command was stopped");
        changed_ms(&sign).is_some_and(|at| at > began + 2_500)
    });
    let tended = team.done(ALICE, &["queue", "janitor", &team.spool]).expect(0);
    assert_eq!(tended.stdout, "nothing to do\n");
    team.home.touch("go");
    eventually("the worker ends", || work.is_over());
    assert_eq!(work.end().expect(0).stdout, "by hand");
    let done = team.list("done");
    assert_eq!((done.len(), &done[0]["epoch"], &done[0]["tried"]), (1, &1.into(), &0.into()), "{done:?}");
    assert!(!sign.exists(), "its sign of life was left behind");
}

#[test]
fn what_a_dead_worker_left_is_put_back_by_another_user() {
    let Some(team) = Team::new() else { return };
    team.add(ALICE, "letter");
    team.done(BOB, &["queue", "claim", &team.spool, "--ttl", "3s"]).expect(0);
    let work = ["work", &team.spool, "--items", "1", "--no-prefix", "--", "cat"];
    let done = team.done(ALICE, &work).expect(0);
    assert_eq!(done.stdout, "letter");
    assert_eq!(team.list("done")[0]["epoch"], 3);
}

#[test]
fn a_folder_that_is_closed_to_others_stops_only_what_is_in_it() {
    let Some(team) = Team::new() else { return };
    let kept = team.add(ALICE, "kept");
    team.done(BOB, &["queue", "claim", &team.spool, "--ttl", "3s"]).expect(0);
    let claimed = team.claimed().unwrap();
    let closed = claimed.parent().unwrap();
    mode(closed, 0o700);
    let expired = changed_ms(&claimed).unwrap() + 3_100;
    team.put("tmp/clock", ALICE, 0o600);
    eventually("it ran out", || {
        fs::write(team.path("tmp/clock"), "x").unwrap();
        changed_ms(&team.path("tmp/clock")).is_some_and(|now| now > expired)
    });
    team.add(ALICE, "a");
    team.add(BOB, "b");
    let done = team.done(ALICE, &["work", &team.spool, "--until-idle", "--no-prefix", "--", "cat"]).expect(0);
    assert_eq!(done.stdout, "ab");
    let name = closed.file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(done.stderr.matches(&name).count(), 1, "{}", done.stderr);
    let listed = team.done(ALICE, &["queue", "ls", &team.spool, "--json"]).expect(78);
    assert_eq!(serde_json::from_str::<Vec<Value>>(&listed.stdout).unwrap().len(), 2, "{listed:?}");
    assert!(listed.stderr.contains(&name), "{listed:?}");
    let shown = team.done(ALICE, &["queue", "show", &team.spool, &kept]).expect(78);
    assert!(shown.stderr.contains(&name), "it may well be in there: {shown:?}");
    let tended = team.done(ALICE, &["queue", "janitor", &team.spool]).expect(78);
    assert!(tended.stderr.contains(&name) && !tended.stdout.contains("back in line"), "{tended:?}");
    // Whoever may look into it puts it back, and then nobody is told of anything any more.
    let tended = team.done(BOB, &["queue", "janitor", &team.spool]).expect(0);
    assert!(tended.stdout.contains("put back in line, because the claim had expired: 1 item"), "{tended:?}");
    let again = team.done(ALICE, &["work", &team.spool, "--items", "1", "--no-prefix", "--", "cat"]).expect(0);
    assert_eq!(again.stdout, "kept");
}

#[test]
fn a_payload_that_the_worker_may_not_read_uses_up_its_attempts() {
    let Some(team) = Team::new() else { return };
    team.done(ALICE, &["queue", "add", &team.spool, "--text", "plain"]).expect(0);
    team.put("ready/0-0000000000007-k.secret.t0-1.e0", ALICE, 0o600);
    team.put("ready/0-0000000000008-k.again.t0-5.e0", ALICE, 0o600);
    let done = team.done(BOB, &["work", &team.spool, "--until-idle", "--no-prefix", "--", "cat"]).expect(0);
    assert_eq!(done.stdout, "plain");
    let dead = team.list("dead");
    assert_eq!((dead.len(), &dead[0]["id"], &dead[0]["tried"]), (1, &"k.secret".into(), &1.into()), "{dead:?}");
    let again = team.list("delayed");
    assert_eq!((again.len(), &again[0]["id"], &again[0]["tried"]), (1, &"k.again".into(), &1.into()), "{again:?}");
    let shown = team.home.done(&["queue", "show", &team.spool, "k.secret"]).expect(0).stdout;
    assert!(shown.contains("Permission denied"), "{shown}");
    // By hand too: an item that nobody can be given is not the first in line for ever.
    team.put("ready/0-0000000000009-k.claim.t0-2.e0", ALICE, 0o600);
    team.add(ALICE, "next");
    let claimed = team.done(BOB, &["queue", "claim", &team.spool, "--payload", "payload"]).expect(0);
    assert_eq!(team.home.read("payload"), "next", "{claimed:?}");
    assert!(claimed.stderr.contains("k.claim"), "{claimed:?}");
}

#[test]
fn in_a_sticky_folder_only_ones_own_files_are_claimed() {
    let Some(team) = Team::new() else { return };
    team.done(ALICE, &["queue", "add", &team.spool, "--text", "alice", "--priority", "9"]).expect(0);
    team.add(BOB, "bob");
    mode(&team.path("ready"), 0o3770);
    // The folder's owner may move everything in it.
    chown(team.path("ready"), Some(0), None).unwrap();
    mode(&team.path("ready"), 0o3770);
    let done = team.done(BOB, &["work", &team.spool, "--until-idle", "--no-prefix", "--", "cat"]).expect(0);
    assert_eq!(done.stdout, "bob");
    assert_eq!(done.stderr.matches("sticky").count(), 1, "{}", done.stderr);
    let sick = team.done(BOB, &["doctor", &team.spool]).expect(78);
    assert!(sick.stdout.contains("chmod -t"), "{sick:?}");
    mode(&team.path("ready"), 0o2770);
    assert_eq!(
        team.done(BOB, &["work", &team.spool, "--until-idle", "--no-prefix", "--", "cat"]).expect(0).stdout,
        "alice"
    );
}

#[test]
fn a_worker_without_a_right_that_it_needs_is_refused_before_it_claims() {
    let Some(team) = Team::new() else { return };
    team.add(ALICE, "letter");
    for folder in ["done", "notes", "claimed", "ready", "tmp"] {
        mode(&team.path(folder), 0o2750);
        chown(team.path(folder), Some(ALICE), None).unwrap();
        let refused = team.done(BOB, &["work", &team.spool, "--until-idle", "--", "touch", "ran"]).expect(78);
        let named = team.path(folder).display().to_string();
        assert!(refused.stderr.contains(&named) && refused.stderr.contains("doctor"), "{folder}: {refused:?}");
        assert!(!team.home.path("ran").exists());
        let sick = team.done(BOB, &["doctor", &team.spool]).expect(78);
        assert!(sick.stdout.lines().any(|row| row.starts_with("bad") && row.contains(&named)), "{folder}: {sick:?}");
        mode(&team.path(folder), 0o2770);
    }
    let ready = team.list("ready");
    assert_eq!((&ready[0]["epoch"], &ready[0]["tried"]), (&0.into(), &0.into()), "{ready:?}");
    assert_eq!(
        team.done(BOB, &["work", &team.spool, "--until-idle", "--no-prefix", "--", "cat"]).expect(0).stdout,
        "letter"
    );
}

#[test]
fn the_doctor_says_what_a_shared_spool_lacks_and_changes_nothing() {
    let Some(team) = Team::new() else { return };
    let typo = format!("{}-typo", team.spool);
    let missing = team.done(BOB, &["doctor", &typo]).expect(64);
    assert!(missing.stderr.contains("there is no spool"), "{missing:?}");
    // The folder that the page says to make, before its first use.
    let empty = team.done(BOB, &["doctor", &team.spool]).expect(0);
    assert!(empty.stdout.contains("the folder is empty") && empty.stdout.contains("group 12100"), "{empty:?}");
    mode(&team.path(""), 0o1770);
    let sick = team.done(BOB, &["doctor", &team.spool]).expect(78);
    assert!(sick.stdout.contains("as its owner or root, chmod g+s") && sick.stdout.contains("chmod -t"), "{sick:?}");
    mode(&team.path(""), 0o2770);
    assert!(fs::read_dir(team.path("")).unwrap().next().is_none(), "the doctor made something");
    team.add(ALICE, "letter");
    let rows = |done: &Done| -> Vec<String> { done.stdout.lines().map(str::to_owned).collect() };
    let sound = team.done(BOB, &["doctor", &team.spool]).expect(0);
    assert!(sound.stdout.contains("shared by group 12100"), "{sound:?}");
    let find =
        |sick: &Done, verdict: &str, what: &str| rows(sick).iter().any(|r| r.starts_with(verdict) && r.contains(what));
    // Without setgid what one member makes belongs to a group of their own.
    mode(&team.path("later"), 0o770);
    let sick = team.done(BOB, &["doctor", &team.spool]).expect(78);
    assert!(find(&sick, "bad", "chmod g+s"), "{sick:?}");
    mode(&team.path("later"), 0o2770);
    chown(team.path("keys"), None, Some(ALICE)).unwrap();
    mode(&team.path("keys"), 0o2777);
    let sick = team.done(BOB, &["doctor", &team.spool]).expect(78);
    assert!(find(&sick, "bad", "chgrp 12100"), "{sick:?}");
    chown(team.path("keys"), None, Some(TEAM)).unwrap();
    mode(&team.path("keys"), 0o2770);
    let payload = team.put("ready/secret", ALICE, 0o600);
    let sick = team.done(BOB, &["doctor", &team.spool, "--json"]).expect(78);
    let value: Value = serde_json::from_str(&sick.stdout).unwrap();
    let checks = value["checks"].as_array().unwrap();
    assert!(checks.iter().any(|c| c["verdict"] == "bad" && c["check"] == "payloads"), "{value}");
    fs::remove_file(payload).unwrap();
    let sound = team.done(BOB, &["doctor", &team.spool]).expect(0);
    assert!(fs::read_dir(team.path("tmp")).unwrap().next().is_none(), "the doctor left something: {sound:?}");
    assert_eq!(team.list("ready").len(), 1);
}

#[test]
fn a_purge_does_what_it_can_and_names_the_rest() {
    let Some(team) = Team::new() else { return };
    team.add(ALICE, "letter");
    mode(&team.path("failed"), 0o700);
    chown(team.path("failed"), Some(0), None).unwrap();
    let purged = team.done(BOB, &["queue", "purge", &team.spool, "--dead", "--yes", "--json"]).expect(78);
    let value: Value = serde_json::from_str(&purged.stdout).unwrap();
    assert_eq!((&value["purged"], &value["set_aside"]), (&0.into(), &1.into()), "{purged:?}");
    assert!(purged.stderr.contains("/mail/failed"), "{purged:?}");
    team.done(BOB, &["queue", "purge", &team.spool]).expect(0);
}

#[test]
fn a_spool_that_this_user_cannot_read_is_not_an_empty_one() {
    let Some(team) = Team::new() else { return };
    team.add(ALICE, "letter");
    let looks: [&[&str]; 4] = [
        &["queue", "ls", &team.spool],
        &["doctor", &team.spool],
        &["queue", "show", &team.spool, "k.x"],
        &["queue", "claim", &team.spool],
    ];
    for look in looks {
        let refused = Done::from(outsider(&team, look).output().unwrap()).expect(78);
        let says =
            ["cannot read spool `", "mode 2770, owner 12001, group 12100", "join group `12100`, or ask its owner"];
        assert!(says.iter().all(|says| refused.stderr.contains(says)), "{look:?}: {refused:?}");
    }
    // Whoever is in the group already is not told to join it.
    mode(&team.path(""), 0o2700);
    let refused = team.done(BOB, &["queue", "ls", &team.spool]).expect(78);
    assert!(refused.stderr.contains(": ask its owner") && !refused.stderr.contains("join"), "{refused:?}");
    mode(&team.path(""), 0o2770);
    mode(&team.path("ready"), 0o2700);
    chown(team.path("ready"), Some(0), None).unwrap();
    let sick = team.done(BOB, &["doctor", &team.spool]).expect(78);
    assert!(sick.stdout.contains("owner root, group 12100): as its owner or root, chmod g+rwx"), "{sick:?}");
}

/// The real binary as somebody who is not in the group.
fn outsider(team: &Team, words: &[&str]) -> Command {
    let inside = team.command(BOB, words);
    let mut command = Command::new("setpriv");
    let others = inside.get_args().map(|word| word.to_string_lossy().replace("--groups=12100", "--clear-groups"));
    command.args(others).current_dir(team.home.folder.path()).env_clear().stdin(Stdio::null());
    command.envs(inside.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command
}
