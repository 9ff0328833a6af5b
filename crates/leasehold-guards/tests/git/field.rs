//! A remote, and the repositories of those who push to it.

use leasehold_testbed::{GitServer, git_http, git_jgit, git_ssh};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// How a remote keeps its refs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Files,
    Reftable,
}

/// How it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    File,
    Ssh,
    Http,
    /// The engine of Gerrit.
    Jgit,
}

pub struct Field {
    folder: TempDir,
    pub bare: PathBuf,
    pub url: String,
    pub env: Vec<(String, String)>,
    _server: Option<GitServer>,
}

impl Field {
    pub fn new(backend: Backend, way: Transport) -> Self {
        let folder = crate::common::scratch();
        let bare = folder.path().join("remote.git");
        let server = match way {
            Transport::File => None,
            Transport::Ssh => Some(git_ssh()),
            Transport::Http => Some(git_http()),
            Transport::Jgit => Some(git_jgit()),
        };
        let url = server.as_ref().map_or_else(|| bare.display().to_string(), |server| server.url(&bare));
        let mut env: Vec<(String, String)> = [
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_AUTHOR_NAME", "a"),
            ("GIT_AUTHOR_EMAIL", "a@localhost"),
            ("GIT_COMMITTER_NAME", "a"),
            ("GIT_COMMITTER_EMAIL", "a@localhost"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
        let own = server.as_ref().map(|server| server.env.clone()).unwrap_or_default();
        env.extend(own.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let field = Field { folder, bare, url, env, _server: server };
        field.found(backend);
        field
    }

    fn found(&self, backend: Backend) {
        let bare = self.bare.display().to_string();
        let format = match backend {
            Backend::Files => None,
            Backend::Reftable => Some("--ref-format=reftable"),
        };
        let words = ["init", "-q", "--bare", "-b", "main"].into_iter().chain(format).chain([bare.as_str()]);
        self.git(self.folder.path(), &words.collect::<Vec<_>>());
        // Strict about what it is given, and with nothing going on in the background.
        for (name, value) in [
            ("transfer.fsckObjects", "true"),
            ("gc.auto", "0"),
            ("maintenance.auto", "false"),
            ("receive.autogc", "false"),
        ] {
            self.git(&self.bare, &["config", name, value]);
        }
    }

    /// Runs git, which has to succeed.
    pub fn git(&self, folder: &Path, words: &[&str]) -> String {
        let output = self.command(folder, words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {words:?}: {said}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    pub fn command(&self, folder: &Path, words: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.args(words).current_dir(folder).envs(self.env.clone()).env("LC_ALL", "C");
        command
    }

    /// A repository of its own, as another machine would have it.
    pub fn repository(&self, name: &str) -> PathBuf {
        let at = self.folder.path().join(name);
        if !at.exists() {
            self.git(self.folder.path(), &["init", "-q", "-b", "main", name]);
            self.git(&at, &["remote", "add", "origin", &self.url]);
            self.git(&at, &["config", "gc.auto", "0"]);
        }
        at
    }

    /// A commit that says who wrote it.
    pub fn commit(&self, repository: &Path, epoch: u64, rival: u64) -> String {
        let tree = self.git(repository, &["hash-object", "-w", "-t", "tree", "/dev/null"]);
        self.git(repository, &["commit-tree", &tree, "-m", &format!("epoch {epoch} {rival}")])
    }

    /// Whose commit is on the remote's branch.
    pub fn author(&self) -> Option<(u64, u64)> {
        let output = self.command(&self.bare, &["log", "-1", "--format=%s", "refs/heads/main", "--"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut words = text.trim().strip_prefix("epoch ")?.split(' ');
        Some((words.next()?.parse().unwrap(), words.next()?.parse().unwrap()))
    }

    /// Sees that the remote is whole: a torn push would not be.
    pub fn fsck(&self) {
        self.git(&self.bare, &["fsck", "--strict", "--no-dangling"]);
    }
}

/// Whether the git at hand has this back end.
pub fn knows_reftable() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let words = ["init", "-q", "--bare", "--ref-format=reftable", "x.git"];
    Command::new("git").args(words).current_dir(folder.path()).output().unwrap().status.success()
}
