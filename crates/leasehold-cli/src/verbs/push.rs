//! `push`: to a git remote, unless a newer epoch has been there.

use super::guarded::{self, Expired, admitted, overtaken};
use crate::args::Push as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::interrupt::{Interruption, Watch, exit_by};
use crate::patience::Patience;
use crate::{guards, output};
use leasehold_core::observe::Observer;
use leasehold_core::secret::redacted;
use leasehold_core::{Error, Kind, Result};
use leasehold_guards::git::{PushOptions, Refspec, default_push};
use leasehold_guards::{GitGuard, GitStep};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A large push over a slow line takes its time.
const TIMEOUT: Duration = Duration::from_secs(600);

pub async fn push(context: &Context, args: &Args) -> Result<Exit> {
    let token = context.token(args.token.as_deref())?;
    let mut refspecs: Vec<Refspec> = args.refspecs.iter().map(|text| text.parse()).collect::<Result<_>>()?;
    let namespace = guards::fence_namespace(&args.fence_namespace)?;
    let patience = Patience::from_flag(args.timeout.as_deref(), TIMEOUT, "the store")?;
    let remote = match &args.remote {
        Some(remote) if !refspecs.is_empty() => remote.clone(),
        remote => {
            let (remote, refspec) = default_push(args.repo.clone(), remote.as_deref(), refspecs.is_empty()).await?;
            refspecs.extend(refspec);
            remote
        }
    };
    let mut guard = GitGuard::new(&remote, guarded::policy(args.once))?.with_namespace(namespace.unwrap_or_default());
    if let Some(folder) = &args.repo {
        guard = guard.in_repository(folder);
    }
    let steps =
        Arc::new(Progress { resource: redacted(&remote), patience: patience.clone(), is_sent: AtomicBool::new(false) });
    let guard = guard.with_observer(steps.clone());
    let options = PushOptions { rebases: args.rebase.unwrap_or(0) };
    let expired = Expired::of(args.strict);
    let pushing = guard.push(&token, &refspecs, options, async || overtaken(context, &guard, &token, expired).await);
    let pushed = match Watch::begin()?.run(&patience, pushing).await {
        Ok(pushed) => pushed,
        Err(cut) => {
            let look = format!("git ls-remote {}", redacted(&remote));
            let is_sent = steps.is_sent.load(Ordering::SeqCst);
            let outcome = if is_sent {
                format!("to see whether the push landed: {look}")
            } else {
                "nothing had been pushed".to_owned()
            };
            match cut {
                Interruption::Signal(number) => {
                    output::say(&format!("stopped by a signal, and git was stopped too; {outcome}"));
                    return Ok(exit_by(number));
                }
                Interruption::TimedOut => {
                    let kind = if is_sent { Kind::Indeterminate } else { Kind::Unavailable };
                    let why = patience.gave_up(kind);
                    return Err(Error::new(kind, format!("{why}; git was stopped; {outcome}")));
                }
            }
        }
    };
    let pushed = pushed.map(|pushed| {
        pushed.said.lines().for_each(|line| output::say(&format!("git: {line}")));
        pushed.high
    });
    admitted(context, &guard, &token, pushed).await
}

/// Reports how far a push has come.
#[derive(Debug)]
struct Progress {
    resource: String,
    patience: Patience,
    is_sent: AtomicBool,
}

impl Observer<GitStep> for Progress {
    fn reach(&self, step: GitStep) -> std::io::Result<()> {
        match step {
            GitStep::ReadFence => self.patience.at(format!("`git:{}` to show its fence", self.resource)),
            GitStep::Push => {
                self.is_sent.store(true, Ordering::SeqCst);
                self.patience.at(format!("`git:{}` to take the push", self.resource));
            }
            _ => {}
        }
        Ok(())
    }
}
