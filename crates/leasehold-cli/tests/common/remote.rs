//! A git remote, a clone of it, and whoever pushes there under a lease.

use super::{Done, Home, On};
use std::process::{Command, Stdio};

/// A home with a bare remote, a clone of it, and a held lease.
pub struct Remote {
    pub home: Home,
    pub token: String,
}

impl Remote {
    pub fn new() -> Self {
        let home = Home::new(On::Dir);
        let remote = Remote { token: String::new(), home };
        remote.git(".", &["init", "-q", "--bare", "-b", "main", "remote.git"]);
        remote.git(".", &["clone", "-q", "remote.git", "work"]);
        remote.git("work", &["config", "user.name", "a"]);
        remote.git("work", &["config", "user.email", "a@localhost"]);
        remote.commit("one");
        let token = remote.acquire("job");
        Remote { token, ..remote }
    }

    pub fn acquire(&self, lease: &str) -> String {
        self.home.done(&["acquire", lease, "--ttl", "24h"]).expect(0).stdout.trim().to_owned()
    }

    /// The lease goes on to somebody else.
    pub fn transfer(&self) -> String {
        self.home
            .done(&["hand-off", "job", "--to", "other", "--why", "test", "--ttl", "24h"])
            .expect(0)
            .stdout
            .trim()
            .into()
    }

    pub fn git_command(&self, folder: &str, words: &[&str]) -> Command {
        let mut command = Command::new("git");
        command
            .args(words)
            .current_dir(self.home.path(folder))
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("HOME", self.home.folder.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .stdin(Stdio::null());
        command
    }

    pub fn git(&self, folder: &str, words: &[&str]) -> String {
        let done = Done::from(self.git_command(folder, words).output().unwrap());
        assert_eq!(done.code, 0, "git {words:?}: {}", done.stderr);
        done.stdout.trim().to_owned()
    }

    pub fn commit(&self, message: &str) {
        self.git("work", &["commit", "-q", "--allow-empty", "-m", message]);
    }

    pub fn push(&self, token: &str, words: &[&str]) -> Done {
        let words = [&["push", "--token", token], words].concat();
        Done::from(self.home.leasehold(&words).current_dir(self.home.path("work")).output().unwrap())
    }

    /// What the remote has, to the last ref.
    pub fn refs(&self) -> String {
        self.git("remote.git", &["for-each-ref"])
    }

    pub fn subject(&self, name: &str) -> String {
        self.git("remote.git", &["log", "-1", "--format=%s", name])
    }
}
