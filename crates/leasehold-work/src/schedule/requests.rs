//! Requests for runs of jobs. What a job runs is in a file on its machines and not in the store. So someone who has
//! only the store, or only a key for a server, makes a request, and a scheduler that has the job carries it out.
//!
//! Promise: if several schedulers read a request, only one runs the job, because the lease
//! is acquired only at the epoch that was seen when the request was made, and in its time
//! ([`RunRequest`]). The lease's own record shows what became of a request, so that need
//! not be stored. Non-promise: it does not ensure that a scheduler with the job is running.

use leasehold_core::cell::{Fate, MAX_ATTEMPTS};
use leasehold_core::document::{Document, Edit};
use leasehold_core::hints::{self, Opening};
use leasehold_core::lease::protocol::RunRequest;
use leasehold_core::{
    Coordinator, Epoch, Error, Key, Kind, LeaseName, Nonce, Ownership, Reason, Result, Shelf, Timestamp, Transfer, Who,
    Why, codec,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const KIND: &str = "requests";
const NAME: &str = "requests";
/// How long a request may be taken up.
pub const TAKEN_UP_WITHIN: Duration = Duration::from_secs(300);
/// How long a request is remembered, so that its sender can see what became of it, and can repeat it.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// The most requests of a namespace. Those that are over make room for others.
pub const MOST: usize = 64;

/// A request for a run, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requested {
    /// Identifies the request: the same for each attempt to make it.
    pub id: Nonce,
    /// The job to run.
    pub job: LeaseName,
    /// The epoch of its lease when the request was made. Another epoch makes it void.
    pub epoch: Epoch,
    /// Who asks for it.
    pub by: Who,
    /// The operator's reason.
    pub why: Why,
    /// When it was made, in store time.
    pub at: Timestamp,
    /// When it expires, in store time.
    pub until: Timestamp,
}

/// A request to be made.
#[derive(Debug, Clone)]
pub struct NewRequest {
    /// See [`Requested::id`].
    pub id: Nonce,
    /// The job to run.
    pub job: LeaseName,
    /// The epoch of its lease that was seen. Another epoch makes the request void.
    pub epoch: Epoch,
    /// Who asks for it.
    pub by: Who,
    /// The operator's reason.
    pub why: Why,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestState {
    /// No scheduler has taken it up yet.
    Waiting,
    /// A scheduler has taken it up, and this tenure began.
    TakenUp(Box<Transfer>),
    /// The lease moved on first: nothing was run for the request.
    Overtaken,
    /// Not taken up in its time: nothing was run for it.
    Expired,
    /// The lease's record no longer shows it.
    NoLongerKnown,
}

impl RequestState {
    /// The word in JSON and output.
    pub const fn as_str(&self) -> &'static str {
        match self {
            RequestState::Waiting => "waiting",
            RequestState::TakenUp(_) => "taken_up",
            RequestState::Overtaken => "overtaken",
            RequestState::Expired => "expired",
            RequestState::NoLongerKnown => "no_longer_known",
        }
    }
}

impl Requested {
    /// The condition of an acquisition that carries it out. The transfer is signed with it.
    pub fn condition(&self) -> RunRequest {
        RunRequest { by: self.by.clone(), why: self.why.clone(), expected: self.epoch, until: self.until }
    }

    /// What became of it, according to the record of the job's lease.
    pub fn state(&self, record: &Ownership, now: Timestamp) -> RequestState {
        if record.epoch == self.epoch {
            return if now < self.until { RequestState::Waiting } else { RequestState::Expired };
        }
        let next = record.transfers.iter().find(|transfer| Some(transfer.epoch) == self.epoch.next());
        match next {
            Some(next) if self.is_behind(next) => RequestState::TakenUp(Box::new((**next).clone())),
            Some(_) => RequestState::Overtaken,
            None => RequestState::NoLongerKnown,
        }
    }

    fn is_behind(&self, transfer: &Transfer) -> bool {
        transfer.reason == Reason::Triggered
            && (self.at..self.until).contains(&transfer.at)
            && transfer.by.as_ref() == Some(&self.by)
            && transfer.why.as_ref() == Some(&self.why)
    }
}

/// Why a request was not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotRequested {
    /// An equal request was made before, and still waits.
    Waiting(Box<Requested>),
    /// Too many requests wait already.
    Full,
}

/// The record with the requests of a namespace, the newest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Requests {
    requests: Vec<Requested>,
}

impl Requests {
    fn find(&self, id: Nonce) -> Option<&Requested> {
        self.requests.iter().find(|request| request.id == id)
    }

    /// The record with a new request.
    fn with(&self, new: &NewRequest, now: Timestamp) -> Result<Self, NotRequested> {
        let is_same = |old: &&Requested| old.job == new.job && old.epoch == new.epoch && now < old.until;
        if let Some(waiting) = self.requests.iter().find(is_same) {
            return Err(NotRequested::Waiting(Box::new(waiting.clone())));
        }
        let mut requests = self.requests.clone();
        requests.retain(|old| now < old.at.plus(REMEMBERED));
        if requests.len() >= MOST {
            // A request is over by its time, or by a later one for the same job, whose lease had moved on by then.
            let newest =
                |old: &Requested| requests.iter().filter(|other| other.job == old.job).map(|other| other.epoch).max();
            let is_over = |old: &Requested| now >= old.until || newest(old) > Some(old.epoch);
            let over = requests.iter().position(is_over).ok_or(NotRequested::Full)?;
            requests.remove(over);
        }
        let NewRequest { id, job, epoch, by, why } = new.clone();
        requests.push(Requested { id, job, epoch, by, why, at: now, until: now.plus(TAKEN_UP_WITHIN) });
        Ok(Requests { requests })
    }
}

/// The requests of a namespace.
#[derive(Debug, Clone)]
pub struct RunRequests {
    coordinator: Coordinator,
}

impl RunRequests {
    /// The requests in this store.
    pub fn new(coordinator: Coordinator) -> Self {
        RunRequests { coordinator }
    }

    /// All requests that are remembered, the newest last, and the store's time.
    pub async fn all(&self) -> Result<(Vec<Requested>, Timestamp)> {
        let seen = self.document()?.look(self.coordinator.clock().now()).await?;
        Ok((seen.record.requests, seen.anchor.now))
    }

    /// The latest request for a job, if one is remembered.
    pub async fn latest(&self, job: &LeaseName) -> Result<Option<Requested>> {
        Ok(self.all().await?.0.into_iter().rfind(|request| request.job == *job))
    }

    /// The request with this id, if it is remembered.
    pub async fn find(&self, id: Nonce) -> Result<Option<Requested>> {
        Ok(self.all().await?.0.into_iter().find(|request| request.id == id))
    }

    /// Makes a request. If it was made before, nothing changes, and it is returned as stored.
    pub async fn make(&self, new: &NewRequest) -> Result<Result<Requested, NotRequested>> {
        let decide = |before: &Requests, now: Timestamp| match before.find(new.id) {
            Some(_) => Ok(None),
            None => Ok(before.with(new, now).ok()),
        };
        let fate = |seen: &Requests| if seen.find(new.id).is_some() { Fate::Applied } else { Fate::NotApplied };
        let edit = Edit { decide: &decide, fate: &fate, attempts: MAX_ATTEMPTS };
        let before = self.document()?.change(self.coordinator.clock().as_ref(), &edit).await?;
        if let Some(known) = before.record.find(new.id) {
            return Ok(Ok(known.clone()));
        }
        match before.record.with(new, before.anchor.now) {
            Ok(after) => after.find(new.id).cloned().map(Ok).ok_or_else(|| {
                Error::new(Kind::Corrupt, format!("the request for a run of `{}` is not where it was put", new.job))
            }),
            Err(not) => Ok(Err(not)),
        }
    }

    /// Hints when there may be a new one.
    pub fn watch(&self) -> Opening {
        match key() {
            Ok(key) => hints::watch(self.coordinator.store().clone(), key),
            Err(_) => Box::pin(std::future::ready(None)),
        }
    }

    fn document(&self) -> Result<Document<'_, Requests>> {
        let what = "the requests for runs".to_owned();
        Ok(Document::new(self.coordinator.store().as_ref(), key()?, KIND, what).unless_moved())
    }
}

/// The key of the record with the requests.
pub fn key() -> Result<Key> {
    Ok(Key::new(Shelf::Request, &LeaseName::new(NAME)?))
}

/// The record's bytes with only the requests for jobs that `is_shown` accepts.
pub fn only(bytes: &[u8], name: &str, is_shown: impl Fn(&LeaseName) -> bool) -> Result<Vec<u8>> {
    let mut record: Requests = codec::decode(KIND, bytes, name)?;
    record.requests.retain(|request| is_shown(&request.job));
    codec::encode(KIND, &record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Acquired, Ask, HolderId, MemoryStore, Outcome, Ttl};
    use std::sync::Arc;

    fn new(job: &str, id: u128) -> NewRequest {
        let (by, why) = ("ann".parse().unwrap(), "again".parse().unwrap());
        NewRequest { id: Nonce::from_u128(id), job: job.parse().unwrap(), epoch: Epoch::ZERO, by, why }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + seconds * 1_000)
    }

    #[test]
    fn requests_that_are_over_make_room_and_those_that_wait_do_not() {
        let mut requests = Requests::default();
        for number in 0..MOST {
            requests = requests.with(&new(&format!("job-{number}"), number as u128), at(0)).unwrap();
        }
        assert_eq!(requests.with(&new("one-more", 999), at(299)), Err(NotRequested::Full));
        let after = requests.with(&new("one-more", 999), at(300)).unwrap();
        assert_eq!(after.requests.len(), MOST);
        assert!(after.find(Nonce::from_u128(0)).is_none() && after.find(Nonce::from_u128(1)).is_some());
        // A job that is requested again and again does not crowd out others:
        // requests that its lease has left behind are over.
        let often =
            |number: usize| NewRequest { epoch: Epoch::new(number as u64).unwrap(), ..new("often", number as u128) };
        let full = (1..=MOST).fold(Requests::default(), |all, number| all.with(&often(number), at(0)).unwrap());
        let other = full.with(&new("other", 999), at(1)).unwrap();
        assert!(other.find(Nonce::from_u128(1)).is_none() && other.find(Nonce::from_u128(MOST as u128)).is_some());
        let later = after.with(&new("and-one", 1_000), at(3_600)).unwrap();
        assert_eq!(later.requests.len(), 2, "what is an hour old is forgotten");
        assert!(codec::encode(KIND, &after).is_ok());
    }

    #[test]
    fn a_full_record_of_the_longest_requests_can_be_stored() {
        let longest = |number: usize| NewRequest {
            job: format!("{:0>200}", number).parse().unwrap(),
            by: Who::lossy(&"w".repeat(10_000), "w"),
            why: Why::lossy(&"é".repeat(10_000), "w"),
            ..new("x", number as u128)
        };
        let full = (0..MOST).fold(Requests::default(), |all, number| all.with(&longest(number), at(0)).unwrap());
        assert!(codec::encode(KIND, &full).is_ok());
    }

    #[tokio::test]
    async fn a_request_is_made_once_and_tells_what_became_of_it() {
        let coordinator = Coordinator::new(Arc::new(MemoryStore::default()));
        let requests = RunRequests::new(coordinator.clone());
        let first = requests.make(&new("tick", 1)).await.unwrap().unwrap();
        assert_eq!(requests.make(&new("tick", 1)).await.unwrap().unwrap(), first, "the same attempt");
        let second = requests.make(&new("tick", 2)).await.unwrap();
        assert_eq!(second, Err(NotRequested::Waiting(Box::new(first.clone()))));
        let seen = coordinator.inspect(&first.job).await.unwrap();
        assert_eq!(first.state(&seen.record, seen.now), RequestState::Waiting);
        assert_eq!(first.state(&seen.record, first.until), RequestState::Expired);
        let ask = Ask { requested: Some(first.condition()), ..Ask::new(HolderId::new(None), Ttl::MIN) };
        let Acquired::Granted(grant) = coordinator.acquire(&first.job, &ask).await.unwrap() else { panic!() };
        coordinator.release(&grant, Outcome::Succeeded).await.unwrap();
        let seen = coordinator.inspect(&first.job).await.unwrap();
        let RequestState::TakenUp(transfer) = first.state(&seen.record, seen.now) else { panic!() };
        assert_eq!((transfer.epoch.get(), transfer.outcome), (1, Some(Outcome::Succeeded)));
        // Another request that was made at the same epoch is overtaken.
        let other = Requested { why: "other".parse().unwrap(), ..first };
        assert_eq!(other.state(&seen.record, seen.now), RequestState::Overtaken);
    }

    #[test]
    fn each_sees_the_requests_for_its_own_jobs() {
        let both = Requests::default().with(&new("mine", 1), at(0)).unwrap().with(&new("other", 2), at(0)).unwrap();
        let bytes = codec::encode(KIND, &both).unwrap();
        let shown = only(&bytes, NAME, |job| job.as_str() == "mine").unwrap();
        let shown: Requests = codec::decode(KIND, &shown, NAME).unwrap();
        assert_eq!(shown.requests, both.requests[..1]);
    }
}
