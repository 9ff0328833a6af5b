//! The `git` program: how it is started, and which versions will do.
//!
//! Promise: git's messages are in English. It finds the user's configuration, credentials and hooks, and is killed
//! when nobody waits for it any more. Non-promise: what git starts in turn (ssh, helpers) is left to end by itself.

use leasehold_core::secret::redacted;
use leasehold_core::{Error, Kind, Result, printable};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// The oldest git that refuses all of an atomic push when the remote would refuse a part.
pub(crate) const OLDEST: Version = Version(2, 25);
/// From here on `fetch` can leave FETCH_HEAD alone.
pub(crate) const QUIET_FETCH: Version = Version(2, 29);
/// From here on `reference-transaction` is not run for refs that are only repacked away.
pub(crate) const HOOKABLE: Version = Version(2, 36);

/// Variables that make git use another repository than the one that was named.
const REPOSITORY_VARIABLES: [&str; 8] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_PREFIX",
    "GIT_NAMESPACE",
];

/// The last line of a push that failed, whatever the reason.
pub(crate) const NOTHING_ELSE: &str = "error: failed to push some refs";
/// How messages of git, and of what it starts, begin.
const STARTS: [&str; 7] = ["error:", "fatal:", "warning:", "remote:", "hint:", "ssh:", "To "];

/// Major and minor version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32);

impl Version {
    /// This one, if it is new enough.
    pub(crate) fn at_least(self, oldest: Version) -> Result<Self> {
        let found = self;
        if found < oldest {
            let message = format!(
                "git {}.{} is too old: {}.{} or newer is needed, because older ones may apply a part of an \
                 atomic push; upgrade git",
                found.0, found.1, oldest.0, oldest.1
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        Ok(found)
    }

    /// The version that a command wrote into its trace.
    pub(crate) fn traced(said: &str) -> Option<Self> {
        let (_, rest) = said.split_once("\"exe\":\"")?;
        parse_version(&format!("git version {}", rest.split('"').next()?))
    }
}

/// `git` in a folder.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    folder: Option<PathBuf>,
}

/// How git ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) succeeded: bool,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    /// What it said, without passwords.
    pub(crate) said: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Answer {
            succeeded: output.status.success(),
            code: output.status.code(),
            said: redacted(&String::from_utf8_lossy(&output.stderr)),
            stdout: output.stdout,
        }
    }
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    /// What went wrong, for messages of one line.
    pub(crate) fn complaint(&self) -> String {
        let lines = self.telling_lines();
        let about = |word: &str| {
            let at = lines.iter().position(|line| line.contains(word))?;
            let first = lines[at].split_once(word).map_or(lines[at], |(_, rest)| rest.trim());
            // Git wraps long messages. A line with one of these starts is another message.
            let rest = lines[at + 1..].iter().take_while(|line| !STARTS.iter().any(|start| line.starts_with(start)));
            Some(plain(&[&[first], &rest.copied().collect::<Vec<_>>()[..]].concat().join(" ")))
        };
        // The remote's own words first, then git's.
        let found = about("remote: error:").or_else(|| about("fatal:")).or_else(|| about("error:"));
        let found = found.or_else(|| lines.last().map(|line| plain(line)));
        let ended =
            || format!("git ended with {}", self.code.map_or_else(|| "a signal".into(), |code| code.to_string()));
        found.or_else(|| self.said.contains(NOTHING_ELSE).then(|| plain(self.said.trim()))).unwrap_or_else(ended)
    }

    /// What git printed, without hints and without the line that only says that something failed.
    pub(crate) fn telling_lines(&self) -> Vec<&str> {
        let is_telling = |line: &&str| !line.is_empty() && !line.starts_with("hint:") && !line.contains(NOTHING_ELSE);
        self.said.lines().map(str::trim).filter(is_telling).collect()
    }
}

impl Git {
    /// Runs in this folder and ignores variables that name another repository; or in ours, with those variables.
    pub(crate) const fn new(folder: Option<PathBuf>) -> Self {
        Git { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.as_deref().unwrap_or(Path::new("."))
    }

    /// A command that has not been started.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new("git");
        command.args(args).env("LC_ALL", "C").env_remove("LANGUAGE").stdin(Stdio::null()).kill_on_drop(true);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
            REPOSITORY_VARIABLES.iter().for_each(|name| {
                command.env_remove(name);
            });
        }
        command
    }

    /// Runs it to its end, whatever that is.
    pub(crate) async fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Result<Answer> {
        self.finish(self.command(args)).await
    }

    pub(crate) async fn finish(&self, mut command: Command) -> Result<Answer> {
        command.output().await.map(Answer::from).map_err(|e| self.cannot_run(e))
    }

    /// Starts it; it reads what [`Git::feed`] gives it.
    pub(crate) fn start(&self, mut command: Command) -> Result<Child> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|e| self.cannot_run(e))
    }

    /// Gives a started git its input, and waits for its end.
    pub(crate) async fn feed(&self, mut child: Child, input: &str) -> Result<Answer> {
        if let Some(mut stdin) = child.stdin.take() {
            // A git that has ended already says why.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await.map(Answer::from).map_err(|e| self.cannot_run(e))
    }

    fn cannot_run(&self, error: std::io::Error) -> Error {
        match error.kind() {
            std::io::ErrorKind::NotFound if self.folder().is_dir() => {
                Error::new(Kind::Unsupported, "`git` is not on the PATH; install git 2.25 or newer")
            }
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                Error::invalid("repository", self.folder().display(), "there is no such folder")
            }
            _ => Error::unavailable("cannot run `git`", error),
        }
    }

    /// The version on the PATH, if it is new enough.
    pub(crate) async fn version(&self, oldest: Version) -> Result<Version> {
        let answer = self.run(["version"]).await?;
        let text = answer.text();
        let found = parse_version(&text).ok_or_else(|| {
            Error::new(Kind::Unsupported, format!("cannot read the version of git from `{}`", printable(&text)))
        })?;
        found.at_least(oldest)
    }
}

/// A foreign text as part of one line.
pub(crate) fn plain(text: &str) -> String {
    const MOST: usize = 300;
    text.chars().take(MOST).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn parse_version(text: &str) -> Option<Version> {
    let mut numbers = text.strip_prefix("git version ")?.split(['.', ' ', '-']);
    Some(Version(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_vendors_print_them() {
        for (text, version) in [
            ("git version 2.47.3", Some(Version(2, 47))),
            ("git version 2.39.3 (Apple Git-146)", Some(Version(2, 39))),
            ("git version 2.45.1.windows.1", Some(Version(2, 45))),
            ("git version 2.24.0-rc1", Some(Version(2, 24))),
            ("hg version 6", None),
            ("git version x.y", None),
        ] {
            assert_eq!(parse_version(text), version, "{text}");
        }
        assert_eq!(Version::traced(r#"{"event":"version","evt":"3","exe":"2.24.4"}"#), Some(Version(2, 24)));
        assert_eq!(Version::traced("fatal: no"), None);
        assert!(Version(2, 24) < OLDEST && Version(2, 25) >= OLDEST && Version(3, 0) > OLDEST);
    }
}
