//! `push`: to a git remote, unless a newer epoch has been there.

use super::tokens::overtaken;
use super::{admitted, token};
use crate::args::{Common, Push as Args};
use crate::exit::Exit;
use crate::interrupt::{Watch, exit_by};
use crate::{guards, output};
use leasehold::Result;
use leasehold::guard::Policy;
use leasehold::secret::redacted;
use leasehold_guards::GitGuard;
use leasehold_guards::git::{PushOptions, Refspec, default_push};

pub async fn push(common: &Common, args: &Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let mut refspecs: Vec<Refspec> = args.refspecs.iter().map(|text| text.parse()).collect::<Result<_>>()?;
    let namespace = guards::fence_namespace(args.fence_namespace.as_deref())?;
    let remote = match &args.remote {
        Some(remote) if !refspecs.is_empty() => remote.clone(),
        remote => {
            let (remote, refspec) = default_push(args.repo.clone(), remote.as_deref(), refspecs.is_empty()).await?;
            refspecs.extend(refspec);
            remote
        }
    };
    let policy = if args.once { Policy::OncePerEpoch } else { Policy::Reentrant };
    let mut guard = GitGuard::new(&remote, policy)?.with_namespace(namespace.unwrap_or_default());
    if let Some(folder) = &args.repo {
        guard = guard.in_repository(folder);
    }
    overtaken(common, &guard, &token).await?;
    let options = PushOptions { rebases: args.rebase.unwrap_or(0) };
    let pushing = guard.push(&token, &refspecs, options, async || overtaken(common, &guard, &token).await);
    let pushed = match Watch::begin()?.over(pushing).await {
        Ok(pushed) => pushed,
        Err(number) => {
            output::say(&format!(
                "told to end, and git was ended too; whether the push had landed by then: git ls-remote {}",
                redacted(&remote)
            ));
            return Ok(exit_by(number));
        }
    };
    let pushed = pushed.map(|pushed| {
        pushed.said.lines().for_each(|line| output::say(&format!("git: {line}")));
        pushed.high
    });
    admitted(common, &guard, &token, pushed).await
}
