//! What the clients do: acquire, renew, release and forget leases; add, claim, complete and forget items. Each notes what it
//! was told.

use super::check::{Answer, Completion, Log, Tenure};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::store::Store;
use leasehold_core::{Acquired, Ask, Coordinator, Error, Grant, HolderId, Kind, Outcome, Released, Result, Ttl};
use leasehold_work::queue::{Attempts, Claimer, FollowUp, ItemGrant, NewItem, Payload, Queue};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// How many leases so many clients want: few enough to be fought for, and enough that each client gets one now and then.
pub const fn leases_of(clients: u64) -> u64 {
    if clients > 40 { clients / 8 } else { 5 }
}

/// The queue that they work on.
pub const QUEUE: &str = "work";
/// How many items each client adds.
const ITEMS: u64 = 4;
/// No holder is done within this, and it is soon over when a holder dies.
const TTL: Duration = Duration::from_secs(3);
/// What an item may go through before it is given up: nobody fails it, so each try that is not cut short succeeds.
const ATTEMPTS: Attempts = Attempts { most: 1000, backoff_ms: 100 };
const PAUSE: Duration = Duration::from_millis(100);

/// What a run has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Anything may happen.
    Storm,
    /// Everything is well: what was begun is ended.
    Calm,
}

/// One client.
pub struct Client {
    pub number: u64,
    leases: Coordinator,
    queue: Queue,
    claimer: Claimer,
    log: Arc<Mutex<Log>>,
    random: Random,
    added: u64,
    wanted: u64,
}

impl Client {
    /// `wanted` is how many leases the clients want.
    pub fn new(number: u64, store: Arc<dyn Store>, seed: u64, log: Arc<Mutex<Log>>, wanted: u64) -> Self {
        let queue = Queue::new(store.clone(), QUEUE.parse().unwrap());
        let claimer = Claimer::new(queue.clone(), None, Ttl::new(TTL).unwrap()).unwrap();
        let random = Random(seed.wrapping_add(number << 32));
        Client { number, leases: Coordinator::new(store), queue, claimer, log, random, added: 0, wanted }
    }

    /// Until the run is calm, and every item is done.
    pub async fn run(mut self, mut phase: watch::Receiver<Phase>) {
        while *phase.borrow_and_update() == Phase::Storm {
            match self.random.below(4) {
                0 if self.added < ITEMS => self.add().await,
                1 => self.work().await,
                _ => self.hold().await,
            }
        }
        while self.added < ITEMS {
            self.add().await;
        }
        loop {
            match self.queue.is_finished().await {
                Ok(true) => return,
                Ok(false) => self.work().await,
                Err(error) => self.excuse("look", error).await,
            }
        }
    }

    /// An error that a fault explains is waited out; any other is noted.
    async fn excuse(&self, verb: &str, error: Error) {
        if !matches!(error.kind(), Kind::Unavailable | Kind::Indeterminate | Kind::Contended) {
            let text = format!("client {} at {verb}: {:?}: {error}", self.number, error.kind());
            self.log.lock().unwrap().odd.push(text);
        }
        tokio::time::sleep(PAUSE).await;
    }

    fn lost_early(&self, verb: &str, grant: &Grant, what: &str) {
        let text = format!("client {} at {verb} of {}: {what}", self.number, grant.token());
        self.log.lock().unwrap().lost_early.push(text);
    }

    /// One tenure: some renewals, and then a release, or silence, or a late return.
    async fn hold(&mut self) {
        let lease = format!("lease-{}", self.random.below(self.wanted)).parse().unwrap();
        let ask = Ask::new(HolderId::new(None), Ttl::new(TTL).unwrap());
        let wait = Duration::from_millis(self.random.below(2000));
        let mut grant = match self.leases.acquire_within(&[lease], &ask, wait).await {
            Ok(Acquired::Granted(grant)) => *grant,
            Ok(Acquired::Refused { .. }) => return,
            Err(error) => return self.excuse("acquire", error).await,
        };
        let from = SystemClock.now();
        for _ in 0..self.random.below(4) {
            self.pause(400).await;
            let trusted = grant.trust_until();
            if SystemClock.now() >= trusted {
                return self.note(&grant, from, trusted);
            }
            match self.leases.renew(&mut grant, None).await {
                Ok(()) => {}
                Err(error) if error.kind() == Kind::Lost => {
                    let told = SystemClock.now();
                    // A renewal that was carried out and answered late moves the grant on, to a window that is over: the
                    // network took it, and no server.
                    if told < trusted.min(grant.trust_until()) {
                        self.lost_early("renewal", &grant, &error.to_string());
                    }
                    return self.note(&grant, from, trusted.min(told));
                }
                Err(error) => self.excuse("renew", error).await,
            }
        }
        match self.random.below(10) {
            0 => self.note(&grant, from, grant.trust_until()),
            1 => self.come_back_late(grant, from).await,
            _ => self.release(&grant, from).await,
        }
    }

    async fn release(&mut self, grant: &Grant, from: Moment) {
        let (sent, trusted) = (SystemClock.now(), grant.trust_until());
        self.note(grant, from, sent.min(trusted));
        match self.leases.release(grant, Outcome::Succeeded).await {
            Ok(Released::Lost(refusal)) if SystemClock.now() < trusted => {
                self.lost_early("release", grant, &format!("{refusal:?}"));
            }
            Ok(_) => {}
            Err(error) => self.excuse("release", error).await,
        }
    }

    /// A holder that was stopped for longer than it may trust itself: whatever it is told, it holds nothing, or a renewal says
    /// until when.
    async fn come_back_late(&mut self, mut grant: Grant, from: Moment) {
        self.note(&grant, from, grant.trust_until());
        SystemClock.sleep_until(grant.trust_until() + PAUSE).await;
        let asked = SystemClock.now();
        if self.leases.renew(&mut grant, None).await.is_ok() {
            self.note(&grant, asked, grant.trust_until());
        }
    }

    fn note(&self, grant: &Grant, from: Moment, until: Moment) {
        let token = grant.token();
        let (lease, epoch, nonce) = (token.lease.to_string(), token.epoch.get(), token.nonce.to_string());
        self.log.lock().unwrap().tenures.push(Tenure { lease, epoch, nonce, from, until: until.max(from) });
    }

    /// Adds an item under a key of its own: trying again adds no second one.
    async fn add(&mut self) {
        let key = format!("c{}-{}", self.number, self.added);
        let new = NewItem { key: Some(key.parse().unwrap()), attempts: ATTEMPTS, ..NewItem::default() };
        match self.queue.add(new).await {
            Ok(added) => {
                let id = added.name().id.to_string();
                self.log.lock().unwrap().added.extend([follower(&id), id]);
                self.added += 1;
            }
            Err(error) => self.excuse("add", error).await,
        }
    }

    /// Claims an item, if there is one, and completes it, or forgets it, or comes back late.
    async fn work(&mut self) {
        let wait = Duration::from_millis(self.random.below(500));
        let mut grant = match self.claimer.next_within(wait).await {
            Ok(Some(grant)) => grant,
            Ok(None) => return,
            Err(error) => return self.excuse("claim", error).await,
        };
        match self.random.below(10) {
            0 => return,
            1 => SystemClock.sleep_until(grant.trust_until() + PAUSE).await,
            2..5 => match self.queue.renew(&mut grant).await {
                Ok(()) => self.pause(500).await,
                Err(error) if error.kind() == Kind::Lost => {}
                Err(error) => self.excuse("renew item", error).await,
            },
            _ => {}
        }
        // What was surely not applied is tried once more.
        if self.complete(&grant).await == Answer::NotApplied {
            self.complete(&grant).await;
        }
    }

    async fn complete(&mut self, grant: &ItemGrant) -> Answer {
        let (id, nonce) = (grant.name().id.to_string(), grant.token().nonce.to_string());
        let follow_ups = if id.ends_with("-next") { Vec::new() } else { vec![self.follow_up(&id)] };
        let trusted = grant.trust_until();
        let answer = match self.queue.complete(grant, Some(Payload::result(nonce.as_str()).unwrap()), follow_ups).await
        {
            Ok(_) => Answer::Accepted,
            Err(error) if matches!(error.kind(), Kind::Fenced | Kind::Lost) => {
                if SystemClock.now() < trusted {
                    let text = format!("client {} completes {id}: {error}", self.number);
                    self.log.lock().unwrap().lost_early.push(text);
                }
                Answer::Fenced
            }
            Err(error) => {
                let is_sure = matches!(error.kind(), Kind::Unavailable | Kind::Contended);
                self.excuse("complete", error).await;
                if is_sure { Answer::NotApplied } else { Answer::Unknown }
            }
        };
        self.log.lock().unwrap().completions.push(Completion { item: id, nonce, answer });
        answer
    }

    fn follow_up(&self, id: &str) -> FollowUp {
        FollowUp {
            name: self.queue.item(follower(id).parse().unwrap()),
            payload: Payload::new("next").unwrap(),
            priority: Default::default(),
            delay_ms: 0,
            attempts: ATTEMPTS,
        }
    }

    async fn pause(&mut self, most_ms: u64) {
        tokio::time::sleep(Duration::from_millis(self.random.below(most_ms))).await;
    }
}

/// What the completion of an item adds.
fn follower(id: &str) -> String {
    format!("{id}-next")
}

/// Acquires a lease of its own, however bad the network is.
pub async fn acquired(leases: &Coordinator, name: &str, ttl: Duration) -> Result<Grant> {
    // One nonce for all attempts: what was granted without an answer is found again.
    let mut ask = Ask::new(HolderId::new(None), Ttl::new(ttl)?);
    loop {
        match leases.acquire(&name.parse()?, &ask).await {
            Ok(Acquired::Granted(grant)) => return Ok(*grant),
            Ok(Acquired::Refused { .. }) => tokio::time::sleep(PAUSE).await,
            Err(error) if error.is_retryable() || error.kind() == Kind::Indeterminate => {}
            // On a busy machine the answer may come when its time is over: nobody has held it yet.
            Err(error) if error.kind() == Kind::Lost => ask = Ask::new(HolderId::new(None), Ttl::new(ttl)?),
            Err(error) => return Err(error),
        }
    }
}

/// Numbers that look random (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
