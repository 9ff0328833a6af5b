//! Hints by LISTEN and NOTIFY.
//!
//! Promise: while a watch lives, a swap of its key is hinted at, at once; after a cut everybody is hinted once, for
//! something may have been missed. Non-promise: behind a pooler there is no session to listen in. That is noticed, and
//! waiters poll.
//!
//! A notification takes a lock that all notifying commits of the cluster queue for, flush included: where every swap
//! notified, sixteen clients on sixteen leases were several times slower. So a listener holds, in its own session, a shared
//! advisory lock on the tag of each key it watches, and a swap notifies only if it cannot have that tag for the length of
//! its transaction. Nothing but hints depends on these locks. A listener that comes while a swap has the tag waits for it,
//! and reads what it wrote.

use super::direct::is_direct;
use super::failure::Doing;
use super::pool::{Connection, Pool};
use super::sql::{self, Tag};
use leasehold::Key;
use leasehold::store::Watch;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;

/// How often a lost session is looked for again, and watches that are gone are cleared away.
const TURN: Duration = Duration::from_secs(1);
/// How long a new watch waits until it is in force.
const SETTLING: Duration = Duration::from_secs(2);

/// The one listener of a handle. It runs while anybody watches.
pub(super) struct Listener {
    pool: Arc<Pool>,
    channel: String,
    shared: Mutex<Shared>,
    changed: Notify,
}

#[derive(Default)]
struct Shared {
    watched: HashMap<i64, Vec<Watcher>>,
    is_running: bool,
    is_pooled: bool,
}

struct Watcher {
    sender: mpsc::Sender<()>,
    /// Told when the watch is in force.
    settled: Option<oneshot::Sender<()>>,
}

/// Why a session ended.
enum Ended {
    /// Nobody watches.
    Unwanted,
    /// A pooler is in between.
    Pooled,
    Cut,
}

impl Listener {
    pub(super) fn new(pool: Arc<Pool>, channel: String) -> Self {
        Listener { pool, channel, shared: Mutex::default(), changed: Notify::new() }
    }

    /// What stands for a key in notifications.
    pub(super) fn tag(&self, key: &Key) -> Tag<'_> {
        Tag { number: sql::number(&self.channel, key), channel: &self.channel }
    }

    /// Whether a pooler was found in between, so that there are no hints.
    pub(super) fn is_pooled(&self) -> bool {
        self.shared().is_pooled
    }

    pub(super) async fn watch(self: Arc<Self>, key: &Key) -> Watch {
        let (sender, watch) = Watch::channel();
        let (settled, has_settled) = oneshot::channel();
        {
            let mut shared = self.shared();
            if shared.is_pooled {
                return Watch::silent();
            }
            let watchers = shared.watched.entry(self.tag(key).number).or_default();
            watchers.push(Watcher { sender, settled: Some(settled) });
            if !std::mem::replace(&mut shared.is_running, true) {
                tokio::spawn(self.clone().listen());
            }
        }
        self.changed.notify_one();
        match timeout(SETTLING, has_settled).await {
            Ok(Err(_)) => Watch::silent(),
            // A server that is slow or away: hints may begin later.
            Ok(Ok(())) | Err(_) => watch,
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tags that are watched. Where there are none the listener's life is over, and it must return.
    fn watched(&self) -> HashSet<i64> {
        let mut shared = self.shared();
        shared.watched.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.sender.is_closed());
            !watchers.is_empty()
        });
        shared.is_running = !shared.watched.is_empty();
        shared.watched.keys().copied().collect()
    }

    async fn listen(self: Arc<Self>) {
        loop {
            match self.session().await {
                Ended::Unwanted => return,
                Ended::Pooled => {
                    let mut shared = self.shared();
                    (shared.is_pooled, shared.is_running) = (true, false);
                    // The watches' ends go with them: nobody waits for a hint any more.
                    shared.watched.clear();
                    return;
                }
                Ended::Cut => sleep(TURN).await,
            }
            if self.watched().is_empty() {
                return;
            }
        }
    }

    /// One connection, from its beginning to its end.
    async fn session(&self) -> Ended {
        let (sender, mut notifications) = mpsc::unbounded_channel();
        let Ok(mut connection) = self.pool.connect(Some(&sender)).await else { return Ended::Cut };
        // The connection's own end is the last: with it the notifications end.
        drop(sender);
        match is_direct(&connection.client).await {
            Some(true) => {}
            Some(false) => return Ended::Pooled,
            None => return Ended::Cut,
        }
        let listen = format!("LISTEN \"{}\"", self.channel);
        if connection.run(Doing::Reading, &listen, &[], &self.pool.settings).await.is_err() {
            return Ended::Cut;
        }
        let mut held = HashSet::new();
        loop {
            let watched = self.watched();
            if watched.is_empty() {
                return Ended::Unwanted;
            }
            if self.hold(&mut connection, &mut held, watched).await.is_none() {
                return Ended::Cut;
            }
            tokio::select! {
                payload = notifications.recv() => match payload {
                    None => return Ended::Cut,
                    Some(payload) => self.hint(payload.parse().unwrap_or_default()),
                },
                () = self.changed.notified() => {}
                () = sleep(TURN) => {}
            }
        }
    }

    /// Takes the tags that are newly watched and lets go of those that are not any more.
    async fn hold(&self, connection: &mut Connection, held: &mut HashSet<i64>, watched: HashSet<i64>) -> Option<()> {
        let new: Vec<i64> = watched.difference(held).copied().collect();
        let old: Vec<i64> = held.difference(&watched).copied().collect();
        for (sql, tags) in [
            ("SELECT pg_advisory_lock_shared(tag) FROM unnest($1) tag", &new),
            ("SELECT pg_advisory_unlock_shared(tag) FROM unnest($1) tag", &old),
        ] {
            if !tags.is_empty() {
                let params: &super::Params<'_> = &[(tags, Type::INT8_ARRAY)];
                connection.run(Doing::Reading, sql, params, &self.pool.settings).await.ok()?;
            }
        }
        *held = watched;
        let mut shared = self.shared();
        for tag in held.iter() {
            for watcher in shared.watched.get_mut(tag).into_iter().flatten() {
                match watcher.settled.take() {
                    // Whoever watches reads afterwards.
                    Some(settled) => drop(settled.send(())),
                    // Newly held, but watched before: after a cut. Something may have been missed.
                    None if new.contains(tag) => drop(watcher.sender.try_send(())),
                    None => {}
                }
            }
        }
        Some(())
    }

    fn hint(&self, tag: i64) {
        for watcher in self.shared().watched.get(&tag).into_iter().flatten() {
            let _ = watcher.sender.try_send(());
        }
    }
}
