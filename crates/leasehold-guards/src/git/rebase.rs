//! Rebases the current branch onto what others have pushed meanwhile.
//!
//! Promise: only the current branch is rebased, and a rebase that fails is undone. Non-promise: conflicts are not
//! resolved; they are for people.

use super::names::Refspec;
use super::site::Site;
use leasehold_core::{Error, Kind, Nonce, Result};

/// Rebases the current branch onto what the remote has for these refs.
pub(super) async fn onto_theirs(site: &Site, refspecs: &[Refspec], names: &[String]) -> Result<()> {
    let git = &site.git;
    let branch = git.run(["symbolic-ref", "--quiet", "HEAD"]).await?.text();
    for name in names {
        let short = branch.strip_prefix("refs/heads/").unwrap_or_default();
        let is_current = |source: &str| ["HEAD", "@", short, &branch].contains(&source);
        let is_ours = |refspec: &&Refspec| {
            let destination = refspec.destination();
            let destination = if destination == "HEAD" || destination == "@" { short } else { destination };
            destination == name
                || format!("refs/heads/{destination}") == *name
                || format!("refs/{destination}") == *name
        };
        if branch.is_empty() || !refspecs.iter().find(is_ours).is_some_and(|refspec| is_current(refspec.source())) {
            let message = format!(
                "cannot rebase: `{name}` has new commits, and what is pushed there is not the current branch; rebase it \
                 yourself"
            );
            return Err(Error::new(Kind::Contended, message));
        }
        rebase(site, name).await?;
    }
    Ok(())
}

async fn rebase(site: &Site, name: &str) -> Result<()> {
    let git = &site.git;
    // A ref of our own: FETCH_HEAD may be somebody else's a moment later.
    let theirs = format!("refs/leasehold/theirs-{}", Nonce::random());
    let fetched = git
        .run([
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-recurse-submodules",
            "--",
            site.address(),
            &format!("+{name}:{theirs}"),
        ])
        .await?;
    if !fetched.succeeded {
        let message = format!("cannot fetch `{name}` to rebase onto it: {}", fetched.complaint());
        return Err(Error::new(Kind::Unavailable, message));
    }
    let rebased = git.run(["rebase", "--quiet", &theirs]).await;
    let is_stuck = !rebased.as_ref().is_ok_and(|answer| answer.succeeded);
    if is_stuck {
        // If it did not start, there is nothing to undo, and this failure does not matter.
        let _ = git.run(["rebase", "--abort"]).await;
    }
    let _ = git.run(["update-ref", "-d", &theirs]).await;
    let rebased = rebased?;
    if is_stuck {
        let message = format!(
            "cannot rebase onto what others pushed to `{name}`: {}; your branch is as it was",
            rebased.complaint()
        );
        return Err(Error::new(Kind::Contended, message));
    }
    Ok(())
}
