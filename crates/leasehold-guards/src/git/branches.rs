//! Whether a remote's branches have what a push without an answer would have put there.
//!
//! Promise: a branch has it if it points at what was pushed, or at a descendant. Non-promise: a branch that others
//! have overwritten since counts as missing, because nobody can know. So does one whose source has moved here
//! meanwhile.

use super::commit::Oid;
use super::names::Refspec;
use super::site::Site;
use leasehold_core::{Error, Kind, Result};
use std::collections::HashMap;
use std::time::Duration;

/// A push may be half done when the branches are read: how often, and how far apart, they are read.
const LOOKS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(50);

/// The first branch that does not have what was pushed to it, if there is one.
pub(super) async fn first_missing(site: &Site, refspecs: &[Refspec]) -> Result<Option<String>> {
    let mut wanted = Vec::new();
    for refspec in refspecs {
        wanted.push((names(site, refspec).await?, pushed(site, refspec).await?));
    }
    let mut missing = None;
    for attempt in 0..LOOKS {
        tokio::time::sleep(PAUSE * attempt).await;
        let tips =
            site.refs("the branches", &wanted.iter().flat_map(|(names, _)| names.clone()).collect::<Vec<_>>()).await?;
        missing = None;
        for (names, oid) in &wanted {
            if !has(site, &tips, names, oid.as_ref()).await? {
                missing = names.first().cloned();
                break;
            }
        }
        if missing.is_none() {
            break;
        }
    }
    Ok(missing)
}

/// The full names that a short destination may have on the remote.
async fn names(site: &Site, refspec: &Refspec) -> Result<Vec<String>> {
    let name = refspec.destination();
    if name.starts_with("refs/") {
        return Ok(vec![name.to_owned()]);
    }
    let name = if matches!(name, "HEAD" | "@") {
        site.git.run(["rev-parse", "--symbolic-full-name", "HEAD"]).await?.text()
    } else {
        name.to_owned()
    };
    Ok(["refs/heads/", "refs/tags/", "refs/"]
        .map(|start| format!("{start}{}", name.trim_start_matches(start)))
        .to_vec())
}

/// What was pushed; none for a deletion.
async fn pushed(site: &Site, refspec: &Refspec) -> Result<Option<Oid>> {
    if refspec.source().is_empty() {
        return Ok(None);
    }
    let answer = site.git.run(["rev-parse", "--verify", "--quiet", "--end-of-options", refspec.source()]).await?;
    let unreadable = || Error::new(Kind::Unavailable, format!("cannot resolve `{}`", refspec.source()));
    Oid::parse(answer.text().trim()).map(Some).ok_or_else(unreadable)
}

async fn has(site: &Site, tips: &HashMap<String, Oid>, names: &[String], oid: Option<&Oid>) -> Result<bool> {
    let Some(oid) = oid else { return Ok(!names.iter().any(|name| tips.contains_key(name))) };
    for (name, tip) in names.iter().filter_map(|name| tips.get_key_value(name)) {
        if tip == oid {
            return Ok(true);
        }
        site.fetch(name).await?;
        if site.git.run(["merge-base", "--is-ancestor", oid.as_str(), tip.as_str()]).await?.succeeded {
            return Ok(true);
        }
    }
    Ok(false)
}
