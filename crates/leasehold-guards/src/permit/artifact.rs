//! What the guards of files and folders have in common: a path, its permits, and the calls that only move the fence.
//!
//! Promise: the runtime is never blocked. Callers that may block use the methods that end in `_now`. Non-promise: how
//! the artifact is replaced is in the module of each guard.

use crate::blocking::guard_by_blocking_calls;
use crate::observe::file::FileStep;
use crate::permit::error::Scene;
use crate::permit::location::{ArtifactPath, shown};
use crate::permit::{Permits, adopt, fence};
use leasehold_core::guard::{HighWater, Policy};
use leasehold_core::observe::{Observed, Observer};
use leasehold_core::{Error, Kind, Result, Token, Who, Why};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A kind of artifact.
pub trait Artifact: Clone + fmt::Debug + Send + Sync + 'static {
    /// What resources of this kind are called: `file`, `folder`.
    const SCHEME: &'static str;

    /// Where it really is.
    fn locate(path: &Path, resource: &str) -> Result<ArtifactPath>;
}

/// Guards one file or folder by a permit directory beside it.
#[derive(Debug, Clone)]
pub struct ArtifactGuard<A> {
    path: PathBuf,
    pub(crate) resource: String,
    pub(crate) policy: Policy,
    pub(crate) artifact: A,
    steps: Observed<FileStep>,
}

impl<A: Artifact> ArtifactGuard<A> {
    pub(crate) fn of(artifact: A, path: PathBuf, policy: Policy) -> Result<Self> {
        let resource = format!("{}:{}", A::SCHEME, shown(&path));
        if policy == Policy::Ordered {
            let message =
                format!("resource=`{resource}` cannot order the writes of one tenure; use reentrant or once per epoch");
            return Err(Error::new(Kind::Unsupported, message));
        }
        Ok(ArtifactGuard { path, resource, policy, artifact, steps: Observed::NOBODY })
    }

    /// The same guard, watched at every step.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer<FileStep>>) -> Self {
        self.steps = Observed::by(observer);
        self
    }

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// [`Guard::seal`](leasehold_core::guard::Guard::seal) for callers that may block.
    pub fn seal_now(&self, token: &Token) -> Result<HighWater> {
        Permits::open(self.scene(), &self.locate()?, token)?.seal()
    }

    /// [`Adopt::adopt`](leasehold_core::guard::Adopt::adopt) for callers that may block.
    pub fn adopt_now(&self, from: &HighWater, token: &Token, by: &Who, why: &Why) -> Result<HighWater> {
        adopt::adopt(self.scene(), &self.locate()?, from, token, by, why)
    }

    /// [`Guard::high_water`](leasehold_core::guard::Guard::high_water) for callers that may block.
    pub fn high_water_now(&self) -> Result<Option<HighWater>> {
        fence::high_water(&self.scene(), &self.locate()?)
    }

    fn resource_now(&self) -> String {
        self.resource.clone()
    }

    pub(crate) fn locate(&self) -> Result<ArtifactPath> {
        A::locate(&self.path, &self.resource)
    }

    pub(crate) fn scene(&self) -> Scene<'_> {
        Scene { resource: &self.resource, steps: &self.steps }
    }
}

guard_by_blocking_calls!(ArtifactGuard<A>, A: Artifact);
