//! The fence on the remote: a ref, and the commit that it points at.
//!
//! Promise: it is read as the remote has it now, and fetched if it is not here yet. Non-promise: it may have moved
//! when the answer comes. The push compares.

use super::cache::Fence;
use super::commit::{FenceMessage, Oid};
use super::program::Git;
use super::site::{EMPTY_TREE, Site};
use crate::observe::git::{GitStep, reach};
use leasehold_core::observe::Observed;
use leasehold_core::{Error, Kind, Result};
use tokio::process::Child;

/// How often the fence is read if it moves meanwhile.
const TRIES: u32 = 24;

/// A `git commit-tree` that waits for its message. A push starts it while the settings are read, so that it costs no time
/// of its own.
#[derive(Debug)]
pub(super) struct CommitDraft(Child);

impl CommitDraft {
    /// For a repository with SHA-1 names and an author. [`make_commit`] does not use it elsewhere.
    pub(super) fn start(git: &Git) -> Result<Self> {
        CommitDraft::start_with(git, EMPTY_TREE, &[])
    }

    fn start_with(git: &Git, tree: &str, author: &[(String, &'static str)]) -> Result<Self> {
        let mut command = git.command(["commit-tree", tree, "-F", "-"]);
        command.envs(author.iter().map(|(name, value)| (name, value)));
        git.start(command).map(CommitDraft)
    }
}

/// Makes the commit that the fence will point at.
pub(super) async fn make_commit(
    site: &Site,
    resource: &str,
    fence_message: &FenceMessage,
    draft: Option<CommitDraft>,
) -> Result<Oid> {
    let draft = match draft.filter(|_| site.author.is_empty() && site.empty_tree == EMPTY_TREE) {
        Some(draft) => draft,
        None => CommitDraft::start_with(&site.git, site.empty_tree, &site.author)?,
    };
    let answer = site.git.feed(draft.0, &fence_message.message()).await?;
    Oid::parse(&answer.text()).filter(|_| answer.succeeded).ok_or_else(|| {
        Error::new(
            Kind::Unavailable,
            format!("cannot make the fence commit: resource=`{resource}`: {}", answer.complaint()),
        )
    })
}

/// Reads the fence as the remote has it now.
pub(super) async fn read_fence(
    site: &Site,
    resource: &str,
    fence: &str,
    steps: &Observed<GitStep>,
) -> Result<Option<Fence>> {
    for _ in 0..TRIES {
        reach(steps, GitStep::ReadFence, resource)?;
        let what = format!("the fence: resource=`{resource}`");
        // By its whole name: git matches from the end, so `x/refs/fence/job` would be found too.
        let Some(oid) = site.refs(&what, &[fence.to_owned()]).await?.remove(fence) else {
            // The first fence has to bring the empty tree: git knows it without having it, other servers may not.
            site.git.run(["hash-object", "-w", "-t", "tree", "--stdin"]).await?;
            return Ok(None);
        };
        if let Some(commit) = read_commit(site, &oid).await? {
            return Fence::read(oid, &commit, fence).map(Some);
        }
        let fetched = site.fetch(fence).await?;
        if !fetched.succeeded && !is_gone(&fetched.said) {
            return Err(Error::new(Kind::Unavailable, format!("cannot read {what}: {}", fetched.complaint())));
        }
        match read_commit(site, &oid).await? {
            Some(commit) => return Fence::read(oid, &commit, fence).map(Some),
            None if site.git.run(["cat-file", "-e", oid.as_str()]).await?.succeeded => {
                // Not a commit.
                return Fence::read(oid, "", fence).map(Some);
            }
            // It has moved on in between.
            None => {}
        }
    }
    let message =
        format!("gave up after {TRIES} tries: resource=`{resource}`: the fence moves faster than it can be read");
    Err(Error::new(Kind::Contended, message))
}

/// Whether a fetch found that the remote no longer has the ref. Git says so in its message only.
fn is_gone(said: &str) -> bool {
    said.contains("couldn't find remote ref")
}

/// A commit that is here already; none if it is not, or is no commit.
async fn read_commit(site: &Site, oid: &Oid) -> Result<Option<String>> {
    let mut command = site.git.command(["cat-file", "commit", oid.as_str()]);
    // In a partial clone git would fetch it.
    command.env("GIT_NO_LAZY_FETCH", "1");
    let answer = site.git.finish(command).await?;
    Ok(answer.succeeded.then(|| String::from_utf8_lossy(&answer.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As git prints it, with `LC_ALL=C`.
    #[test]
    fn a_ref_that_is_gone_is_told_from_a_remote_that_failed() {
        assert!(is_gone("fatal: couldn't find remote ref refs/fence/job\n"));
        assert!(!is_gone("fatal: Could not read from remote repository.\n"));
    }
}
