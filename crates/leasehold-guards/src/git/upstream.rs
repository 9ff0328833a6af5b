//! Where `git push` without arguments would go.
//!
//! Promise: the branch's push remote and ref, from git's own settings. Non-promise: `push.default=matching` and a
//! remote's push refspecs name many refs at once, and are not supported.

use super::names::{Refspec, Remote};
use super::program::Git;
use leasehold_core::{Error, Kind, Remedy, Result};
use std::path::PathBuf;

/// The remote and the refspec for the current branch of the repository at `folder`, or of the one that we are in. A
/// remote that was named stays.
pub async fn default_push(
    folder: Option<PathBuf>,
    remote: Option<&str>,
    wants_refspec: bool,
) -> Result<(String, Option<Refspec>)> {
    let git = Git::new(folder);
    let given = remote.map(str::parse::<Remote>).transpose()?;
    let answer = git.run(["symbolic-ref", "--quiet", "HEAD"]).await?;
    let branch = answer.text();
    if branch.is_empty() && (wants_refspec || given.is_none()) {
        // 1 is "no branch"; anything else is no repository.
        let why = match answer.code {
            Some(1) => {
                "no branch is checked out; name a remote and what to push, such as `origin HEAD:main`".to_owned()
            }
            _ => answer.complaint(),
        };
        return Err(Error::new(Kind::Invalid, why));
    }
    let format = "--format=%(push:remotename)%00%(push:remoteref)%00%(upstream:remotename)%00%(upstream:remoteref)";
    let (about, mode) = tokio::join!(git.run(["for-each-ref", format, &branch]), git.run(["config", "push.default"]));
    let (about, mode) = (about?.text(), mode?.text());
    let fields: Vec<&str> = if branch.is_empty() { Vec::new() } else { about.split('\0').collect() };
    let field = |at: usize| fields.get(at).copied().filter(|field| !field.is_empty());
    let usual = field(0).or_else(|| field(2)).unwrap_or("origin");
    let remote = given.as_ref().map_or(usual, Remote::as_str).to_owned();
    if !wants_refspec {
        return Ok((remote, None));
    }
    let upstream = field(3).filter(|_| field(2) == Some(&*remote));
    let destination = match (field(1), mode.as_str(), upstream) {
        (Some(configured), ..) if field(0) == Some(&*remote) => Some(configured),
        (_, "current", _) => Some(branch.as_str()),
        (_, "upstream" | "tracking", upstream) => upstream,
        (_, "" | "simple", Some(upstream)) => Some(upstream).filter(|upstream| *upstream == branch),
        // Another remote than the usual one, or one that was named: the branch has the same name there.
        (_, "" | "simple", None) => Some(branch.as_str()).filter(|_| given.is_some() || field(2).is_some()),
        _ => None,
    };
    let destination = destination.ok_or_else(|| {
        let short = branch.trim_start_matches("refs/heads/");
        let message = format!("git's settings do not say where branch `{short}` is pushed to; name it");
        let remedy = Remedy::NameBranch { remote: remote.to_string(), branch: short.to_owned() };
        Error::new(Kind::Invalid, message).with_remedy(remedy)
    })?;
    Ok((remote, Some(format!("{branch}:{destination}").parse()?)))
}
