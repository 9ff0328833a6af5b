//! A lease that is held, and renewed in the background.
//!
//! Promise: [`Tenure::lost`] resolves before anybody else can be granted the lease, if this process is running. Non-promise: a
//! process that is not running learns nothing; that is what guards are for.

#[cfg(feature = "work")]
use leasehold_core::Slot;
use leasehold_core::clock::{Clock, Moment};
use leasehold_core::guard::Guard;
use leasehold_core::lease::protocol::{Refusal, Report};
use leasehold_core::{
    Checkpoint, Coordinator, Drain, Epoch, Error, Grant, Keeper, KeeperState, Kind, Line, Loss, Outcome, ProgressGate,
    Released, Result, Token,
};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The pause between two attempts to reach a store that is away.
const RETRY: Duration = Duration::from_millis(250);

/// A lease that is held. When it is dropped, it is no longer renewed and expires after its TTL: nobody else is granted it
/// before then. [`Held::release`] frees it at once.
///
/// A guard takes `&held` where it expects a token.
#[derive(Debug)]
#[must_use = "dropped, it is no longer renewed, and runs out after its TTL"]
pub struct Held {
    tenure: Tenure,
    keeper: Keeper,
}

/// The time from one grant of a lease to its end, as the work sees it. It can be cloned and passed on. A clone does not keep
/// the lease: the [`Held`] or the run that it came from does.
///
/// A guard takes `&tenure` where it expects a token.
#[derive(Debug, Clone)]
pub struct Tenure {
    coordinator: Coordinator,
    token: Token,
    checkpoint: Option<Checkpoint>,
    #[cfg(feature = "work")]
    slot: Option<Slot>,
    reported: Reported,
    state: watch::Receiver<KeeperState>,
    asked: watch::Receiver<Option<Drain>>,
}

/// When progress was last reported here.
type Reported = Arc<Mutex<Option<Moment>>>;

impl Held {
    /// Starts renewing a grant, for as long as there is progress if a limit is given.
    pub(crate) fn keep(coordinator: Coordinator, grant: Grant, stalls_after: Option<Duration>) -> Self {
        let token = grant.token().clone();
        let record = grant.record();
        let checkpoint = record.progress.as_ref().and_then(|progress| progress.checkpoint.clone());
        #[cfg(feature = "work")]
        let slot = record.slot.filter(|mark| mark.epoch == token.epoch).map(|mark| mark.slot);
        let reported = Reported::default();
        let evidence = reported.clone();
        let gate = stalls_after.map(|timeout| ProgressGate {
            timeout,
            evidence: Arc::new(move || *evidence.lock().unwrap_or_else(PoisonError::into_inner)),
        });
        let keeper = Keeper::start_gated(coordinator.clone(), grant, gate);
        let (state, asked) = (keeper.state(), keeper.asked());
        let tenure = Tenure {
            coordinator,
            token,
            checkpoint,
            #[cfg(feature = "work")]
            slot,
            reported,
            state,
            asked,
        };
        Held { tenure, keeper }
    }

    /// What the work receives.
    pub(crate) fn tenure(&self) -> Tenure {
        self.tenure.clone()
    }

    /// Releases the lease, and says how the work went. While the store is away, it retries for as long as the lease lasts.
    ///
    /// # Errors
    /// [`Kind::Lost`] if it was already lost; then nothing was changed. Otherwise the store's last error; the lease expires by
    /// itself.
    pub async fn release(self, outcome: Outcome) -> Result<()> {
        let token = self.token.clone();
        if let KeeperState::Lost(loss @ Loss::OutOfTime(_)) = &*self.state.borrow() {
            // Somebody else may have it by now, and the store may not answer for long.
            return Err(Error::new(Kind::Lost, format!("lease `{}` was lost: {loss}", token.lease)));
        }
        match self.end(outcome).await? {
            Released::Now | Released::Already(_) => Ok(()),
            Released::Lost(refusal) => {
                let message = format!("lease `{}` was lost before it was released: {refusal}", token.lease);
                let error = Error::new(Kind::Lost, message);
                Err(match refusal {
                    Refusal::Lost { seen, holder, last } => {
                        let reason = last.map(|transfer| transfer.reason);
                        error.with_epochs(token.epoch, seen).with_holder(holder).with_reason(reason)
                    }
                    _ => error,
                })
            }
        }
    }

    /// Stops renewing, and releases for as long as the grant is trusted.
    pub(crate) async fn end(self, outcome: Outcome) -> Result<Released> {
        let Held { tenure: Tenure { coordinator, .. }, keeper } = self;
        let grant = keeper.stop().await;
        let mut releasing = coordinator.releasing(&grant, outcome);
        let mut patience = Patience::new(coordinator.clock(), grant.trust_until());
        loop {
            if let Some(answer) = patience.attempt(releasing.attempt()).await {
                return answer;
            }
        }
    }

    /// Seals each guard. If one fails, no work has begun, and the lease is given back.
    pub(crate) async fn seal(self, guards: &[&dyn Guard]) -> Result<Result<Self, Loss>> {
        let sealing = async {
            for guard in guards {
                guard.seal(&self.token).await?;
            }
            Ok(())
        };
        let sealed = tokio::select! {
            biased;
            loss = self.lost() => return Ok(Err(loss)),
            sealed = sealing => sealed,
        };
        match sealed {
            Ok(()) => Ok(Ok(self)),
            Err(error) => {
                // Best effort: a lease that cannot be released expires.
                let _ = self.end(Outcome::NotStarted).await;
                Err(error)
            }
        }
    }
}

impl Tenure {
    /// The proof to show to guards, and to pass on to others who work under this lease.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The number of this acquisition: larger than every one before it.
    pub fn epoch(&self) -> Epoch {
        self.token.epoch
    }

    /// The latest checkpoint that an earlier holder left.
    pub fn previous_checkpoint(&self) -> Option<&str> {
        self.checkpoint.as_ref().map(Checkpoint::as_str)
    }

    /// The slot that this run is for, as RFC 3339 in UTC; none if it belongs to no schedule.
    #[cfg(feature = "work")]
    pub fn slot(&self) -> Option<String> {
        self.slot.map(leasehold_work::schedule::slot_text)
    }

    /// A key that is the same for each attempt at this work: the slot's key, or this acquisition's if there is no slot.
    #[cfg(feature = "work")]
    pub fn idempotency_key(&self) -> String {
        match self.slot {
            Some(slot) => leasehold_work::schedule::idempotency_key(&self.token.lease, slot),
            None => self.token.to_string(),
        }
    }

    /// Reports how far the work has come: one line of at most 200 bytes.
    ///
    /// # Errors
    /// [`Kind::Lost`] if the lease was already lost.
    pub async fn progress(&self, marker: &str) -> Result<()> {
        let report = Report { marker: Some(Line::named("progress", marker)?), checkpoint: None };
        self.report(report).await
    }

    /// Stores what the next holder needs to continue from here: any text of at most 4096 bytes. It counts as progress.
    ///
    /// # Errors
    /// [`Kind::Lost`] if the lease was already lost.
    pub async fn checkpoint(&self, text: &str) -> Result<()> {
        let report = Report { marker: None, checkpoint: Some(Checkpoint::new(text)?) };
        self.report(report).await
    }

    async fn report(&self, report: Report) -> Result<()> {
        self.coordinator.checkpoint_by_token(&self.token, report).await?;
        *self.reported.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.coordinator.clock().now());
        Ok(())
    }

    /// Resolves when an operator asks the holder to finish (`leasehold revoke --drain`). Finish the work by the time in the
    /// request: then the lease is taken away. Until then it is renewed. Never resolves if nobody asks.
    ///
    /// ```no_run
    /// # async fn step() -> bool { true }
    /// # #[tokio::main] async fn main() -> Result<(), leasehold::Error> {
    /// let held = leasehold::connect("sqlite:").await?.lease("nightly").acquire().await?;
    /// let outcome = loop {
    ///     tokio::select! {
    ///         biased;
    ///         asked = held.asked_to_finish() => { eprintln!("{asked}"); break leasehold::Outcome::Drained }
    ///         is_done = step() => if is_done { break leasehold::Outcome::Succeeded },
    ///     }
    /// };
    /// held.release(outcome).await
    /// # }
    /// ```
    pub async fn asked_to_finish(&self) -> Drain {
        leasehold_core::asked_to_finish(&self.asked).await
    }

    /// Resolves when the lease is lost: stop the work then. Until then nobody else can have been granted it.
    pub async fn lost(&self) -> Loss {
        lost(&self.state).await
    }
}

/// Waits until the keeper has lost the lease; returns how.
pub(crate) async fn lost(state: &watch::Receiver<KeeperState>) -> Loss {
    let mut state = state.clone();
    loop {
        if let KeeperState::Lost(loss) = &*state.borrow_and_update() {
            return loss.clone();
        }
        if state.changed().await.is_err() {
            return Loss::OutOfTime("it is no longer renewed".into());
        }
    }
}

impl Deref for Held {
    type Target = Tenure;

    fn deref(&self) -> &Tenure {
        &self.tenure
    }
}

impl AsRef<Token> for Held {
    fn as_ref(&self) -> &Token {
        &self.token
    }
}

impl AsRef<Token> for Tenure {
    fn as_ref(&self) -> &Token {
        &self.token
    }
}

/// Retries a call while the store is away, for as long as the grant is trusted.
pub(crate) struct Patience {
    clock: Arc<dyn Clock>,
    until: Moment,
    said: Option<Error>,
}

impl Patience {
    pub(crate) fn new(clock: &Arc<dyn Clock>, until: Moment) -> Self {
        Patience { clock: clock.clone(), until, said: None }
    }

    /// The result of this attempt; none if it is worth trying again.
    pub(crate) async fn attempt<T>(&mut self, attempt: impl Future<Output = Result<T>>) -> Option<Result<T>> {
        let silent = || Error::new(Kind::Indeterminate, "the store did not answer while the lease lasted");
        tokio::select! {
            biased;
            tried = attempt => match tried {
                Err(error) if error.is_retryable() || error.kind() == Kind::Indeterminate => self.said = Some(error),
                answered => return Some(answered),
            },
            () = self.clock.sleep_until(self.until) => return Some(Err(self.said.take().unwrap_or_else(silent))),
        }
        self.clock.sleep_until((self.clock.now() + RETRY).min(self.until)).await;
        None
    }
}
