//! How many requests are served at once, and from whom.
//!
//! Promise: requests of holders (to renew, release, complete, report progress) have permits of their own, which no other requests
//! can take, and a rate of their own, so that a flood of acquisitions costs no holder its lease. A key that often claims to hold
//! what it does not hold is served like any other, until it has stopped for a second. A refused client is told when to come back.
//! Non-promise: fairness between keys beyond their rates.

use super::problem::Problem;
use super::settings::Limits;
use crate::access::Account;
use crate::pace::Pace;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The last segments of routes by which holders keep what they have.
const HOLDERS: [&str; 8] = ["hold", "renew", "release", "progress", "checkpoint", "complete", "fail", "give-back"];
/// The last segment of the route by which they read what they hold.
const HOLDERS_READ: &str = "recall";
/// One in this many of a key's requests may be served as a holder's although the key held nothing.
const UNFOUNDED_SHARE: u32 = 10;
/// How long a request may wait for a permit.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a holder's request may wait for one.
const HOLDER_PATIENCE: Duration = Duration::from_secs(5);
/// How many requests may wait for each permit.
const WAITING: usize = 4;
/// Holders may send this many times as many requests as others.
const HOLDER_RATE: u32 = 10;
/// A burst may have one second's worth of requests.
const AHEAD: Duration = Duration::from_secs(1);
/// How many accounts' rates are remembered before those that are not in use are forgotten.
const RATES: usize = 10_000;

/// How urgent a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// It renews, reports on, or ends what somebody holds.
    Holder,
    /// It acquires something new, or reads.
    Other,
}

/// What a request does with something that its sender claims to hold. Whether that is true, only the record tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// The request reads it.
    ToRead,
    /// The request renews it, reports on it, or ends it.
    ToChange,
}

impl Claimed {
    /// What a request by this route claims; none if its sender need not hold anything.
    pub fn of(route: &str) -> Option<Self> {
        match route.rsplit('/').next().unwrap_or_default() {
            HOLDERS_READ => Some(Claimed::ToRead),
            last if HOLDERS.contains(&last) => Some(Claimed::ToChange),
            _ => None,
        }
    }
}

/// A permit to be served.
#[derive(Debug)]
pub struct AdmissionPermit(
    #[allow(dead_code, reason = "it is held, and given back when it is dropped")] OwnedSemaphorePermit,
);

/// The requests that a server is serving, and the rates of its clients.
#[derive(Debug)]
pub struct Admission {
    others: Arc<Semaphore>,
    holders: Arc<Semaphore>,
    queued: AtomicUsize,
    most_queued: usize,
    rate: u32,
    rates: Mutex<HashMap<Account, Rates>>,
    waiters: Mutex<HashMap<Account, usize>>,
    most_waiters: usize,
}

/// The times at which an account's requests so far would have been due, at its rate.
#[derive(Debug, Clone, Copy)]
struct Rates {
    holder: Moment,
    other: Moment,
    /// Requests to read what was not held.
    unfounded_reads: Moment,
    /// Requests to change it. Counted separately, so that a client that often reads what it lost still keeps what it holds.
    unfounded_changes: Moment,
}

impl Rates {
    fn says_something(&self, now: Moment) -> bool {
        [self.holder, self.other, self.unfounded_reads, self.unfounded_changes].into_iter().any(|due| due > now)
    }

    const fn unfounded(&mut self, claimed: Claimed) -> &mut Moment {
        match claimed {
            Claimed::ToRead => &mut self.unfounded_reads,
            Claimed::ToChange => &mut self.unfounded_changes,
        }
    }
}

impl Admission {
    pub fn new(limits: &Limits) -> Self {
        Admission {
            others: Arc::new(Semaphore::new(limits.requests)),
            holders: Arc::new(Semaphore::new(limits.holder_requests)),
            queued: AtomicUsize::new(0),
            most_queued: limits.requests.saturating_mul(WAITING),
            rate: limits.rate,
            rates: Mutex::default(),
            waiters: Mutex::default(),
            most_waiters: limits.waiters,
        }
    }

    /// Waits briefly for a permit.
    pub async fn admit(&self, urgency: Urgency) -> Result<AdmissionPermit, Problem> {
        if urgency == Urgency::Holder {
            for permits in [&self.holders, &self.others] {
                if let Ok(permit) = permits.clone().try_acquire_owned() {
                    return Ok(AdmissionPermit(permit));
                }
            }
            return wait(&self.holders, HOLDER_PATIENCE).await;
        }
        if let Ok(permit) = self.others.clone().try_acquire_owned() {
            return Ok(AdmissionPermit(permit));
        }
        let queued = Queued::join(&self.queued);
        if queued.before >= self.most_queued {
            return Err(overloaded());
        }
        wait(&self.others, PATIENCE).await
    }

    /// How urgent a request by this route is. A sender that has often claimed what it does not hold is no longer believed.
    pub fn urgency(&self, route: &str, account: &Account) -> Urgency {
        Claimed::of(route).map_or(Urgency::Other, |claimed| self.urgency_of(claimed, account))
    }

    /// The same for a request that claims this.
    pub fn urgency_of(&self, claimed: Claimed, account: &Account) -> Urgency {
        self.urgency_at(claimed, account, SystemClock.now())
    }

    fn urgency_at(&self, claimed: Claimed, account: &Account, now: Moment) -> Urgency {
        let mut all = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let is_believed =
            all.get_mut(account).is_none_or(|rates| rates.unfounded(claimed).saturating_since(now) <= AHEAD);
        if is_believed { Urgency::Holder } else { Urgency::Other }
    }

    /// Counts a request in which the account falsely claimed to hold something.
    pub fn count_unfounded(&self, account: &Account, claimed: Claimed) {
        self.count_unfounded_at(account, claimed, SystemClock.now());
    }

    fn count_unfounded_at(&self, account: &Account, claimed: Claimed, now: Moment) {
        let mut all = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let due = rates_of(&mut all, account, now).unfounded(claimed);
        let every = Duration::from_secs(1) / (self.rate / UNFOUNDED_SHARE).max(1);
        // Requests that are not believed count too, but no more than are soon forgotten.
        *due = ((*due).max(now) + every).min(now + AHEAD * 2);
    }

    /// Counts a request, and refuses it if there were too many recently.
    pub fn count(&self, account: &Account, urgency: Urgency) -> Result<(), Problem> {
        self.count_at(account, urgency, SystemClock.now())
    }

    fn count_at(&self, account: &Account, urgency: Urgency, now: Moment) -> Result<(), Problem> {
        let rate = if urgency == Urgency::Holder { self.rate.saturating_mul(HOLDER_RATE) } else { self.rate };
        let mut all = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = rates_of(&mut all, account, now);
        let due = if urgency == Urgency::Holder { &mut rates.holder } else { &mut rates.other };
        let pace = Pace { every: Duration::from_secs(1) / rate.max(1), ahead: AHEAD };
        pace.take(due, now).map_err(|after| {
            Problem::too_many(format!("{account} asks more than {rate} times a second")).retry_after(after)
        })
    }

    /// Counts a request that waits, or a stream; it is over when what is returned is dropped.
    pub fn begin_waiting(self: &Arc<Self>, account: &Account) -> Result<Waits, Problem> {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiters.entry(account.clone()).or_default();
        if *count >= self.most_waiters {
            let detail = format!("{count} requests of {account} wait already; {} may", self.most_waiters);
            return Err(Problem::too_many(detail));
        }
        *count += 1;
        Ok(Waits { admission: self.clone(), account: account.clone() })
    }

    /// How many requests wait.
    pub fn waiters(&self) -> usize {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

/// A request that waits.
#[derive(Debug)]
pub struct Waits {
    admission: Arc<Admission>,
    account: Account,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut waiters = self.admission.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = waiters.get_mut(&self.account) {
            *count -= 1;
            if *count == 0 {
                waiters.remove(&self.account);
            }
        }
    }
}

/// A place among those that wait for a permit.
struct Queued<'a> {
    all: &'a AtomicUsize,
    before: usize,
}

impl<'a> Queued<'a> {
    fn join(all: &'a AtomicUsize) -> Self {
        Queued { all, before: all.fetch_add(1, Ordering::AcqRel) }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The rates of an account. Unused ones are forgotten first.
fn rates_of<'a>(all: &'a mut HashMap<Account, Rates>, account: &Account, now: Moment) -> &'a mut Rates {
    if all.len() >= RATES {
        all.retain(|_, rates| rates.says_something(now));
    }
    let none = Rates { holder: now, other: now, unfounded_reads: now, unfounded_changes: now };
    all.entry(account.clone()).or_insert(none)
}

async fn wait(permits: &Arc<Semaphore>, patience: Duration) -> Result<AdmissionPermit, Problem> {
    match tokio::time::timeout(patience, permits.clone().acquire_owned()).await {
        Ok(Ok(permit)) => Ok(AdmissionPermit(permit)),
        _ => Err(overloaded()),
    }
}

fn overloaded() -> Problem {
    Problem::overloaded("the server has too many requests under way; nothing was done")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> Arc<Admission> {
        Arc::new(Admission::new(&Limits { requests: 2, holder_requests: 1, rate: 2, waiters: 2, ..Limits::default() }))
    }

    fn key() -> Account {
        Account::Key("k3m7q2xa".parse().unwrap())
    }

    fn another() -> Account {
        Account::Key("aaaaaaaa".parse().unwrap())
    }

    #[test]
    fn routes_of_holders_are_recognized_by_their_last_word() {
        for (route, claimed) in [
            ("/v1/ns/{namespace}/records/recall", Some(Claimed::ToRead)),
            ("/v1/ns/{namespace}/leases/{name}/renew", Some(Claimed::ToChange)),
            ("/v1/ns/{namespace}/leases/{name}/acquire", None),
            ("/v1/ns/{namespace}/renew/{name}", None),
        ] {
            assert_eq!(Claimed::of(route), claimed, "{route}");
        }
    }

    #[tokio::test]
    async fn a_flood_leaves_the_permits_of_holders_free() {
        let admission = admission();
        let flood = [admission.admit(Urgency::Other).await.unwrap(), admission.admit(Urgency::Other).await.unwrap()];
        let refused = admission.admit(Urgency::Other).await.unwrap_err();
        assert_eq!(refused.kind(), "overloaded");
        let holder = admission.admit(Urgency::Holder).await.unwrap();
        // The permit of a holder is given back to holders only.
        drop(holder);
        assert!(admission.admit(Urgency::Other).await.is_err());
        assert!(admission.admit(Urgency::Holder).await.is_ok());
        drop(flood);
        assert!(admission.admit(Urgency::Other).await.is_ok());
    }

    #[tokio::test]
    async fn no_more_wait_for_a_permit_than_can_be_served_soon() {
        let admission = admission();
        let _held = [admission.admit(Urgency::Other).await.unwrap(), admission.admit(Urgency::Other).await.unwrap()];
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let admission = admission.clone();
                tokio::spawn(async move { admission.admit(Urgency::Other).await.is_ok() })
            })
            .collect();
        while admission.queued.load(Ordering::Acquire) < 8 {
            tokio::task::yield_now().await;
        }
        // The ninth is told at once, while the clock stands still.
        let before = tokio::time::timeout(Duration::ZERO, admission.admit(Urgency::Other)).await;
        assert!(before.expect("it is answered at once").is_err());
        for waiter in waiting {
            assert!(!waiter.await.unwrap());
        }
        assert_eq!(admission.queued.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_keys_rate_is_bounded_and_holders_have_another() {
        let (admission, start) = (admission(), Moment::from_nanos(1_000_000_000));
        let served = |at: Duration, urgency| {
            (0..100).take_while(|_| admission.count_at(&key(), urgency, start + at).is_ok()).count()
        };
        assert_eq!(served(Duration::ZERO, Urgency::Other), 3);
        assert_eq!(served(Duration::ZERO, Urgency::Holder), 21);
        assert_eq!(served(Duration::from_secs(1), Urgency::Other), 2);
        assert_eq!(served(Duration::from_secs(1), Urgency::Holder), 20);
        admission.count_at(&another(), Urgency::Other, start).unwrap();
    }

    #[test]
    fn whoever_often_claims_what_it_does_not_hold_is_no_longer_served_as_a_holder() {
        let limits = Limits { rate: 100, ..Limits::default() };
        let (admission, start) = (Admission::new(&limits), Moment::from_nanos(1_000_000_000));
        let one = |key: &str| Account::Key(key.parse().unwrap());
        let (read, change) = (Claimed::ToRead, Claimed::ToChange);
        for (one, claimed, other) in [(one("bbbbbbbb"), read, change), (one("cccccccc"), change, read)] {
            let urgency = |account: &Account, at| admission.urgency_at(claimed, account, at);
            for _ in 0..11 {
                assert_eq!(urgency(&one, start), Urgency::Holder);
                admission.count_unfounded_at(&one, claimed, start);
            }
            assert_eq!(urgency(&one, start), Urgency::Other);
            assert_eq!(urgency(&another(), start), Urgency::Holder);
            assert_eq!(
                admission.urgency_at(other, &one, start),
                Urgency::Holder,
                "reads and changes are counted apart"
            );
            // However often it goes on, a second later it is believed again.
            (0..1_000).for_each(|_| admission.count_unfounded_at(&one, claimed, start));
            assert_eq!(urgency(&one, start + AHEAD), Urgency::Holder);
        }
    }

    #[test]
    fn waiters_are_counted_by_key_and_given_back() {
        let admission = admission();
        let waits = [admission.begin_waiting(&key()).unwrap(), admission.begin_waiting(&key()).unwrap()];
        assert_eq!(admission.begin_waiting(&key()).unwrap_err().kind(), "too_many_requests");
        let _other = admission.begin_waiting(&another()).unwrap();
        assert_eq!(admission.waiters(), 3);
        drop(waits);
        assert_eq!(admission.waiters(), 1);
        assert_eq!(admission.waiters.lock().unwrap().len(), 1);
    }
}
