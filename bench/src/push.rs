//! A fenced push of one commit that changes one file, beside a plain `git push` of such a one to the same remote.

use crate::measure::{Contestant, contest};
use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use anyhow::{Context, Result, bail};
use leasehold_testbed::{GitServer, git_http, git_ssh};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const DEMAND: Demand = Demand::AtMostTheTime(1.3);
/// Lease, epoch, lineage, nonce and sequence number of a token that nobody granted.
const TOKEN: &str = "job:1:00000000000000000000000000000001:00000000000000000000000000000001:0";

/// More turns than a contest has.
const COMMITS: usize = 2_100;

/// One who pushes a new commit every turn, from a repository of its own to a branch of its own.
struct Pusher {
    folder: PathBuf,
    branch: &'static str,
    /// Made beforehand; each turn pushes the next.
    commits: std::vec::IntoIter<String>,
    env: Vec<(&'static str, String)>,
}

impl Pusher {
    fn new(scratch: &Path, url: &str, branch: &'static str, env: Vec<(&'static str, String)>) -> Result<Self> {
        let mut pusher = Pusher { folder: scratch.join(branch), branch, commits: Vec::new().into_iter(), env };
        std::fs::create_dir(&pusher.folder)?;
        pusher.run("git", &["init", "-q", "-b", branch])?;
        pusher.run("git", &["remote", "add", "origin", url])?;
        let commit = |n: usize| {
            let (author, text) = (format!("b <b@localhost> {n} +0000"), format!("{branch} {n}\n"));
            let file = format!("M 644 inline file\ndata {}\n{text}", text.len());
            format!("commit refs/heads/{branch}\ncommitter {author}\ndata 1\nx\n{file}\n")
        };
        let stream: String = (0..COMMITS).map(commit).collect();
        std::fs::write(pusher.folder.join("stream"), stream)?;
        pusher.run("sh", &["-c", "git fast-import --quiet <stream"])?;
        let commits = pusher.run("git", &["rev-list", "--reverse", branch])?;
        pusher.commits = commits.lines().map(str::to_owned).collect::<Vec<_>>().into_iter();
        Ok(pusher)
    }

    /// The next commit, as a refspec.
    fn next(&mut self) -> Result<String> {
        let commit = self.commits.next().context("no commits are left")?;
        Ok(format!("{commit}:refs/heads/{}", self.branch))
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.args(words).current_dir(&self.folder).envs(self.env.iter().cloned());
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("LEASEHOLD_TOKEN", TOKEN).stdin(Stdio::null());
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "bench").env(format!("GIT_{who}_EMAIL"), "bench@localhost");
        }
        let output = command.output().with_context(|| format!("cannot run {program}"))?;
        if !output.status.success() {
            bail!("{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// Measures over file, ssh and http.
pub fn compare(scratch: &Scratch, leasehold: &Path, limit: Duration) -> Result<Vec<Row>> {
    let leasehold = leasehold.to_str().context("the path of the binary is not text")?;
    let mut rows = Vec::new();
    for (way, server) in [("file", None), ("ssh", Some(git_ssh())), ("http", Some(git_http()))] {
        rows.push(over(&scratch.folder(&format!("push-{way}"))?, leasehold, way, server.as_ref(), limit)?);
    }
    Ok(rows)
}

fn over(folder: &Path, leasehold: &str, way: &str, server: Option<&GitServer>, limit: Duration) -> Result<Row> {
    let bare = folder.join("remote.git");
    let made = Command::new("git").args(["init", "-q", "--bare"]).arg(&bare).status()?;
    if !made.success() {
        bail!("cannot make a remote");
    }
    // Housekeeping in the background would be charged to whoever comes next.
    Command::new("git").arg("-C").arg(&bare).args(["config", "receive.autogc", "false"]).status()?;
    let url = server.map_or_else(|| bare.display().to_string(), |server| server.url(&bare));
    let env = server.map(|server| server.env.clone()).unwrap_or_default();
    let mut ours = Pusher::new(folder, &url, "fenced", env.clone())?;
    let mut theirs = Pusher::new(folder, &url, "plain", env)?;
    let store = format!("dir:{}", folder.join("leases").display());
    let [fenced, plain] = contest(
        limit,
        [
            Contestant::new("leasehold push", 1, || {
                let refspec = ours.next()?;
                ours.run(leasehold, &["push", "origin", &refspec, "--store", &store]).map(drop)
            }),
            Contestant::new("git push", 1, || {
                let refspec = theirs.next()?;
                theirs.run("git", &["push", "-q", "origin", &refspec]).map(drop)
            }),
        ],
    )?;
    let what = format!("leasehold push, over {way} (process)");
    Ok(Row::new(what, "git push", Unit::Milliseconds, fenced, Some(plain), DEMAND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_one() {
        TOKEN.parse::<leasehold_core::Token>().unwrap();
    }
}
