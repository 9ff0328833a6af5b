//! What one client has: the store, and the leases that are kept for it.

use super::era::Era;
use super::turns::Turns;
use crate::context::{Context, QUEUE, Target, existing_spool, with_backlog};
use leasehold_core::{
    Ask, Coordinator, Drain, Error, Grant, Keeper, KeeperState, Kind, LeaseName, Outcome, Result, Token, TokenKind,
};
use leasehold_system::sync::Mutex;
use leasehold_work::{Backlog, Tokens};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long giving everything back may take when the store does not answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub struct Session {
    pub coordinator: Coordinator,
    pub context: Arc<Context>,
    /// Files are written below it.
    pub root: PathBuf,
    /// Whose turn it is.
    pub turns: Turns,
    /// The items that were claimed here, by token.
    pub items: Items,
    kept: Mutex<HashMap<LeaseName, HeldLease>>,
    /// What the run holds that this server is part of, if it is part of one.
    own: Option<Token>,
    /// What takes back leases that were asked for by calls that were cancelled.
    withdrawing: Mutex<JoinSet<()>>,
    /// Leases that were kept here and then released, until they are acquired again.
    released: Mutex<HashSet<LeaseName>>,
}

/// Claimed items: the queue of each token, and whether it was claimed in a session, with which it ends.
#[derive(Clone, Default)]
pub struct Items(Arc<Mutex<HashMap<Token, (String, Era)>>>);

impl Items {
    pub fn claimed(&self, token: Token, queue: String, era: Era) {
        self.0.lock().insert(token, (queue, era));
    }

    /// The queue that a token's item is of, as the claim named it.
    pub fn queue_of(&self, token: &Token) -> Option<String> {
        self.0.lock().get(token).map(|(queue, _)| queue.clone())
    }

    pub fn ended(&self, token: &Token) {
        self.0.lock().remove(token);
    }
}

struct HeldLease {
    token: Token,
    keeper: Keeper,
}

impl Session {
    pub fn new(context: Arc<Context>, coordinator: Coordinator, root: PathBuf) -> Self {
        let (turns, items, kept) = (Turns::default(), Items::default(), Mutex::default());
        let own = context.token(None).ok();
        Session {
            coordinator,
            context,
            root,
            turns,
            items,
            kept,
            own,
            withdrawing: Mutex::default(),
            released: Mutex::default(),
        }
    }

    /// Keeps a grant until it is released.
    pub fn keep(&self, grant: Grant) {
        let token = grant.token().clone();
        let keeper = Keeper::start(self.coordinator.clone(), grant);
        self.released.lock().remove(&token.lease);
        let mut kept = self.kept.lock();
        kept.insert(token.lease.clone(), HeldLease { token, keeper });
    }

    /// The token of a lease that is kept here, and its state.
    pub fn state(&self, lease: &LeaseName) -> Option<(Token, KeeperState)> {
        let kept = self.kept.lock();
        kept.get(lease).map(|kept| (kept.token.clone(), kept.keeper.state().borrow().clone()))
    }

    /// Who asks the holder of a lease that is kept here to finish, if anybody does.
    pub fn asked(&self, lease: &LeaseName) -> Option<Drain> {
        let kept = self.kept.lock();
        kept.get(lease).and_then(|kept| kept.keeper.asked().borrow().clone())
    }

    /// Takes back what a call asked for that is given up: it may be granted all the same.
    pub fn withdraw(&self, coordinator: &Coordinator, lease: &LeaseName, ask: &Ask) {
        let (coordinator, lease, ask) = (coordinator.clone(), lease.clone(), ask.clone());
        let mut withdrawing = self.withdrawing.lock();
        withdrawing.spawn(async move {
            let _ = coordinator.withdraw(&[lease], &ask).await;
        });
    }

    /// Remembers that a lease was released, so that doing so again is no failure.
    pub fn note_released(&self, lease: &LeaseName) {
        self.released.lock().insert(lease.clone());
    }

    pub fn was_released(&self, lease: &LeaseName) -> bool {
        self.released.lock().contains(lease)
    }

    /// Stops keeping a lease.
    pub async fn let_go(&self, lease: &LeaseName) -> Option<Grant> {
        let kept = self.kept.lock().remove(lease);
        match kept {
            Some(kept) => Some(kept.keeper.stop().await),
            None => None,
        }
    }

    /// The token of this lease, if the run holds it that this server is part of.
    pub fn of_the_run(&self, lease: &LeaseName) -> Option<&Token> {
        self.own.as_ref().filter(|own| own.lease == *lease)
    }

    /// The token that a call means: the one it gives, or that of a lease kept here, or of the run that this server is part of.
    pub fn token(&self, token: Option<&str>, lease: Option<&str>) -> Result<Token> {
        match (token, lease) {
            (Some(token), _) => token.parse(),
            (None, Some(lease)) => {
                let lease: LeaseName = lease.parse()?;
                let kept = self.state(&lease).map(|(token, _)| token);
                kept.or_else(|| self.of_the_run(&lease).cloned()).ok_or_else(|| {
                    let message = format!("this server did not acquire lease `{lease}`; acquire it, or give its token");
                    Error::new(Kind::Invalid, message)
                })
            }
            (None, None) => self.own.clone().ok_or_else(|| {
                Error::new(
                    Kind::Invalid,
                    "give `lease` (acquired here) or `token`; this server is part of no `leasehold run`",
                )
            }),
        }
    }

    /// The queue or spool that a name stands for, as the verb saw it, which ran in the root.
    fn target(&self, queue: &str) -> Result<Target> {
        Ok(match Target::parse(queue)? {
            Target::Spool(_) => Target::Spool(self.root.join(queue.trim_start_matches("spool:"))),
            target => target,
        })
    }

    /// The spool that a token's item is of, if it was claimed here or this server runs in `work`.
    pub fn spool_of(&self, token: &Token) -> Option<PathBuf> {
        let queue = self.items.queue_of(token).or_else(|| std::env::var(QUEUE).ok())?;
        match self.target(&queue) {
            Ok(Target::Spool(path)) => Some(path),
            _ => None,
        }
    }

    /// What finds the record of a token.
    pub fn tokens(&self, token: &Token) -> Result<Tokens> {
        let known = self.context.tokens(&self.coordinator)?;
        match self.spool_of(token).filter(|_| TokenKind::of(&token.lease) == TokenKind::SpoolFile) {
            Some(path) => Ok(known.with_spool(existing_spool(&path)?)),
            None => Ok(known),
        }
    }

    /// Gives an item back untried.
    async fn return_item(&self, queue: &str, token: &Token) -> Result<()> {
        let target = self.target(queue)?;
        with_backlog!(self.context.existing_queue(&target).await?, backlog => {
            Backlog::give_back(&backlog, &Backlog::by_token(&backlog, token).await?).await
        })
    }

    /// Releases everything that was acquired in a session, if the store answers.
    pub async fn give_back(&self) {
        let names: Vec<LeaseName> = self.kept.lock().keys().cloned().collect();
        let all = async {
            // Calls that were cancelled are dropped when the runtime comes to them.
            tokio::task::yield_now().await;
            let withdrawing = std::mem::take(&mut *self.withdrawing.lock());
            withdrawing.join_all().await;
            for name in names {
                if let Some(grant) = self.let_go(&name).await {
                    let _ = self.coordinator.release(&grant, Outcome::Failed).await;
                }
            }
            let items = std::mem::take(&mut *self.items.0.lock());
            for (token, (queue, _)) in items.into_iter().filter(|(_, (_, era))| *era == Era::Session) {
                // One that was lost, or ended by hand, is not ours to give back: that is no failure.
                let _ = self.return_item(&queue, &token).await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, all).await;
    }
}
