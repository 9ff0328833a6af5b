//! The git guard: pushes to a remote, and only for the newest holder.
//!
//! Promise: every push moves the fence `refs/fence/<lease>` together with the branches, atomically and from an
//! explicit expected value. The remote itself compares, so a stale push changes nothing, wherever it was paused, and
//! the remote needs no code of ours. Non-promise: a push without the guard is not stopped (for that there is a hook),
//! and two leases that push to one branch do not fence each other.

mod branches;
mod cache;
mod commit;
mod fence_ref;
mod hook;
mod names;
mod program;
mod push;
mod rebase;
mod report;
mod site;
mod trace;
mod upstream;

pub use hook::{HookState, Hooks, InstalledHook, Protection, SCRATCH};
pub use names::{FenceNamespace, Refspec, Remote};
pub use upstream::default_push;

use crate::observe::git::GitStep;
use crate::succession;
use async_trait::async_trait;
use cache::Note;
use commit::Adopted;
use fence_ref::CommitDraft;
use leasehold_core::guard::{Adopt, Guard, HighWater, Policy, Strength};
use leasehold_core::observe::{Observed, Observer};
use leasehold_core::{Error, Kind, LeaseName, Result, Token, Who, Why};
use leasehold_system::sync::Mutex;
use program::Git;
use push::{Failure, FencedPush};
use site::Site;
use std::path::PathBuf;
use std::sync::Arc;

/// Guards what one lease pushes to one remote.
#[derive(Debug, Clone)]
pub struct GitGuard {
    git: Git,
    remote: Remote,
    namespace: FenceNamespace,
    policy: Policy,
    /// The lease whose fence is read: set by the caller, or that of the last token.
    lease: Arc<Mutex<Option<LeaseName>>>,
    steps: Observed<GitStep>,
}

/// A push that landed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// What the fence says now.
    pub high: HighWater,
    /// What git and the remote's hooks printed, for people.
    pub said: String,
}

/// How a push is done.
#[derive(Debug, Clone, Copy, Default)]
pub struct PushOptions {
    /// How often to rebase onto what others have pushed meanwhile, and try again.
    pub rebases: u32,
}

impl GitGuard {
    /// A guard for a remote of the repository that we are in: the name of a remote, a URL or a path.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if that is no remote; [`Kind::Unsupported`] for [`Policy::Ordered`].
    pub fn new(remote: &str, policy: Policy) -> Result<Self> {
        let remote: Remote = remote.parse()?;
        if policy == Policy::Ordered {
            let message = format!(
                "resource=`git:{remote}` cannot order the writes of one tenure; use reentrant or once per epoch"
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        Ok(GitGuard {
            git: Git::new(None),
            remote,
            namespace: FenceNamespace::default(),
            policy,
            lease: Arc::default(),
            steps: Observed::NOBODY,
        })
    }

    /// Uses the repository at this folder, not the one that we are in.
    #[must_use]
    pub fn in_repository(mut self, folder: impl Into<PathBuf>) -> Self {
        self.git = Git::new(Some(folder.into()));
        self
    }

    /// Uses another namespace for the fences, for forges that refuse `refs/fence`.
    #[must_use]
    pub fn with_namespace(mut self, namespace: FenceNamespace) -> Self {
        self.namespace = namespace;
        self
    }

    /// Sets the lease whose fence [`Guard::high_water`] reads before any token was seen.
    #[must_use]
    pub fn of_lease(self, lease: LeaseName) -> Self {
        self.remember(&lease);
        self
    }

    /// The same guard, watched at every step.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer<GitStep>>) -> Self {
        self.steps = Observed::by(observer);
        self
    }

    /// Pushes; all refs land, or none. `still_held` is asked before the first push and around every rebase, and its error
    /// ends the attempts.
    ///
    /// # Errors
    /// [`Kind::Fenced`] if a newer epoch was there, [`Kind::Regressed`] if another grant of this very epoch was;
    /// [`Kind::Contended`] if a branch has commits that ours does not; [`Kind::Indeterminate`] if no answer came and the
    /// remote cannot be asked what became of it.
    pub async fn push(
        &self,
        token: &impl AsRef<Token>,
        refspecs: &[Refspec],
        options: PushOptions,
        still_held: impl AsyncFn() -> Result<()>,
    ) -> Result<Pushed> {
        let token = token.as_ref();
        if refspecs.is_empty() {
            return Err(Error::new(Kind::Invalid, "nothing to push: name a branch"));
        }
        if let Some(refspec) = refspecs.iter().find(|refspec| refspec.touches(&self.namespace)) {
            let why = format!("the refs below `{}` are fences; only the guard moves them", self.namespace);
            return Err(Error::invalid("refspec", refspec, why));
        }
        self.remember(&token.lease);
        // At the same time, because each of them starts a process or asks a store.
        let (site, (draft, held)) = tokio::join!(Site::find(&self.git, &self.remote), async {
            (CommitDraft::start(&self.git).ok(), still_held().await)
        });
        held?;
        let site = site?;
        let fenced = self.fenced_push(&site, token, draft)?;
        let mut rebases = 0;
        loop {
            match fenced.push(refspecs).await {
                Err(Failure::Behind { error, .. }) if options.rebases == 0 => return Err(error),
                Err(Failure::Behind { error, .. }) if rebases == options.rebases => {
                    let message = format!("gave up after {rebases} rebases: others keep pushing");
                    return Err(Error::new(Kind::Contended, message).with_source(error));
                }
                Err(Failure::Behind { names, .. }) => {
                    still_held().await?;
                    rebase::onto_theirs(&site, refspecs, &names).await?;
                    still_held().await?;
                    rebases += 1;
                }
                Err(Failure::Final(error)) => return Err(error),
                Ok(pushed) => return Ok(pushed),
            }
        }
    }

    async fn arrive(&self, token: &Token) -> Result<Site> {
        self.remember(&token.lease);
        Site::find(&self.git, &self.remote).await
    }

    fn fenced_push<'a>(
        &'a self,
        site: &'a Site,
        token: &'a Token,
        draft: Option<CommitDraft>,
    ) -> Result<FencedPush<'a>> {
        let fence = self.namespace.fence_of(&token.lease)?;
        let note = Note::new(&site.folder, &site.shown(), &fence);
        let (resource, policy, steps, draft) = (self.resource(), self.policy, &self.steps, Mutex::new(draft));
        Ok(FencedPush { site, resource, fence, token, policy, steps, note, draft })
    }

    fn remember(&self, lease: &LeaseName) {
        *self.lease.lock() = Some(lease.clone());
    }
}

#[async_trait]
impl Guard for GitGuard {
    fn resource(&self) -> String {
        format!("git:{}", self.remote)
    }

    fn strength(&self) -> Strength {
        Strength::Atomic
    }

    async fn seal(&self, token: &Token) -> Result<HighWater> {
        let site = self.arrive(token).await?;
        self.fenced_push(&site, token, None)?.seal().await
    }

    /// Every lease has its own fence on a remote. Before the guard knows a lease, only the remote's name is checked,
    /// and there is no high water.
    async fn high_water(&self) -> Result<Option<HighWater>> {
        let lease = self.lease.lock().clone();
        let site = Site::find(&self.git, &self.remote).await?;
        let Some(lease) = lease else { return Ok(None) };
        let fence = self.namespace.fence_of(&lease)?;
        Ok(fence_ref::read_fence(&site, &self.resource(), &fence, &self.steps).await?.map(|fence| fence.high))
    }
}

#[async_trait]
impl Adopt for GitGuard {
    /// Only from another lease of the same name. Leases of different names have their own fences, and no branch
    /// belongs to one of them.
    async fn adopt(&self, from: &HighWater, token: &Token, by: &Who, why: &Why) -> Result<HighWater> {
        if from.lease != token.lease {
            let message = format!(
                "nothing to adopt: on resource=`{}` every lease has a fence of its own, and no branch belongs to one of them. \
                 Stop the jobs of lease `{}`, then push with `{}`. Where hooks protect the branch, change `git config \
                 leasehold.protect` on the server",
                self.resource(),
                from.lease,
                token.lease
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        succession::adopt(&self.resource(), Some(from), from, token)?;
        let site = self.arrive(token).await?;
        let adopted = Adopted { from: from.token(), note: format!("by {by}: {why}") };
        self.fenced_push(&site, token, None)?.adopt(from, adopted).await
    }
}
