//! Hints by LISTEN and NOTIFY.
//!
//! Promise: while a watch exists, a swap of its key gives a hint at once. After a lost
//! connection every watch gets a hint, because something may have been missed. Non-promise:
//! behind a pooler there is no session in which to listen. That is detected, and waiters poll.
//!
//! A notification takes a lock for which all notifying commits of the cluster queue, flush included:
//! when every swap notified, sixteen clients on sixteen leases were several times slower. So a
//! listener takes, in its own session, a shared advisory lock on the tag of each key it watches, and
//! a swap notifies only if it cannot lock that tag for its transaction. Only hints depend on these
//! locks. A listener that comes while a swap has the tag waits for it, and reads what it wrote.

use super::connection::Connections;
use super::direct::is_direct;
use super::statements::{self, Tag};
use crate::phase::Phase;
use leasehold_core::Key;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::store::Watch;
use leasehold_system::sync::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;

/// The interval at which a lost session is reopened, and dropped watches are removed.
const TURN: Duration = Duration::from_secs(1);
/// The longest such pause: a server may have no room for another client.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// How long a session is kept open after the last watch, so that repeated waits do not reconnect.
const LINGER: Duration = Duration::from_secs(5);
/// How long a new watch may take to become active.
const SETTLING: Duration = Duration::from_secs(2);

/// Everything that a handle watches. One task listens, while anything is watched.
pub(super) struct Watchers {
    connections: Arc<Connections>,
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

/// What a session listens for.
#[derive(Default)]
struct Audience {
    held: HashSet<i64>,
    is_listening: bool,
}

struct Watcher {
    sender: mpsc::Sender<()>,
    /// Notified when the watch is active.
    settled: Option<oneshot::Sender<()>>,
}

/// Why a session ended.
enum Ended {
    /// Nothing is watched any more.
    Unwanted,
    /// A pooler is in between.
    Pooled,
    Cut,
}

impl Watchers {
    pub(super) fn new(connections: Arc<Connections>, channel: String) -> Self {
        Watchers { connections, channel, shared: Mutex::default(), changed: Notify::new() }
    }

    /// The number that identifies a key in notifications, and its channel.
    pub(super) fn tag(&self, key: &Key) -> Tag<'_> {
        Tag { number: statements::number(&self.channel, key), channel: &self.channel }
    }

    /// Whether a pooler was detected in between, so that there are no hints.
    pub(super) fn is_pooled(&self) -> bool {
        self.shared.lock().is_pooled
    }

    pub(super) async fn watch(self: Arc<Self>, key: &Key) -> Watch {
        let (sender, watch) = Watch::channel();
        let (settled, has_settled) = oneshot::channel();
        {
            let mut shared = self.shared.lock();
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
            // The server is slow or unreachable: hints may begin later.
            Ok(Ok(())) | Err(_) => watch,
        }
    }

    /// The tags that are watched. If there are none and the listener may end, it is marked as ended and must return.
    fn watched(&self, may_end: bool) -> HashSet<i64> {
        let mut shared = self.shared.lock();
        shared.watched.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.sender.is_closed());
            !watchers.is_empty()
        });
        shared.is_running = !(may_end && shared.watched.is_empty());
        shared.watched.keys().copied().collect()
    }

    async fn listen(self: Arc<Self>) {
        let mut pause = TURN;
        loop {
            match self.session(&mut pause).await {
                Ended::Unwanted => return,
                Ended::Pooled => {
                    let mut shared = self.shared.lock();
                    (shared.is_pooled, shared.is_running) = (true, false);
                    // Drops the senders, which ends the watches.
                    shared.watched.clear();
                    return;
                }
                Ended::Cut => {
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
            if self.watched(true).is_empty() {
                return;
            }
        }
    }

    /// Uses one connection, from its beginning to its end. It belongs to the pool, and calls use it meanwhile.
    async fn session(&self, pause: &mut Duration) -> Ended {
        let connection = match self.connections.take_idle() {
            Some(connection) => connection,
            None => match self.connections.connect().await {
                Ok(connection) => connection,
                Err(_) => return Ended::Cut,
            },
        };
        *pause = TURN;
        match is_direct(&connection.client).await {
            Some(true) => {}
            Some(false) => {
                self.connections.keep(connection);
                return Ended::Pooled;
            }
            None => return Ended::Cut,
        }
        let mut connection = connection;
        let Some(mut notifications) = connection.notices.take() else { return Ended::Cut };
        *self.connections.session.lock().await = Some(connection);
        let ended = self.attend(&mut notifications).await;
        if let Some(mut connection) = self.connections.session.lock().await.take()
            && let Ended::Unwanted = ended
        {
            // The connection no longer listens.
            connection.notices = Some(notifications);
            self.connections.keep(connection);
        }
        ended
    }

    /// Listens until nothing is watched or the connection is lost.
    async fn attend(&self, notifications: &mut mpsc::UnboundedReceiver<String>) -> Ended {
        let mut audience = Audience::default();
        let mut idle_since: Option<Moment> = None;
        let mut is_changed = true;
        loop {
            if is_changed {
                let now = SystemClock.now();
                let may_end = idle_since.is_some_and(|since| now.saturating_since(since) >= LINGER);
                let watched = self.watched(may_end);
                idle_since = watched.is_empty().then(|| idle_since.unwrap_or(now));
                if watched.is_empty() && may_end {
                    return Ended::Unwanted;
                }
                if self.hold(&mut audience, watched).await.is_none() {
                    return Ended::Cut;
                }
            }
            is_changed = tokio::select! {
                payload = notifications.recv() => match payload {
                    None => return Ended::Cut,
                    Some(payload) => !self.hint(payload.parse().unwrap_or_default()),
                },
                () = self.changed.notified() => true,
                () = sleep(TURN) => true,
            };
        }
    }

    /// Locks tags that are newly watched, and unlocks those that are no longer watched. Listens while there are any.
    async fn hold(&self, audience: &mut Audience, watched: HashSet<i64>) -> Option<()> {
        let Audience { held, is_listening } = audience;
        let new: Vec<i64> = watched.difference(held).copied().collect();
        let old: Vec<i64> = held.difference(&watched).copied().collect();
        // If nothing changed, the connection stays free for calls.
        if *is_listening == watched.is_empty() || !new.is_empty() || !old.is_empty() {
            let mut session = self.connections.session.lock().await;
            // Dropped if this fails.
            let mut connection = session.take()?;
            let config = &self.connections.config;
            if *is_listening == watched.is_empty() {
                let verb = if *is_listening { "UNLISTEN" } else { "LISTEN" };
                let sql = format!("{verb} \"{}\"", self.channel);
                connection.run(Phase::Reading, &sql, &[], config).await.ok()?;
                *is_listening = !*is_listening;
            }
            for (sql, tags) in [
                ("SELECT pg_advisory_lock_shared(tag) FROM unnest($1) tag", &new),
                ("SELECT pg_advisory_unlock_shared(tag) FROM unnest($1) tag", &old),
            ] {
                if !tags.is_empty() {
                    let params: &super::Params<'_> = &[(tags, Type::INT8_ARRAY)];
                    connection.run(Phase::Reading, sql, params, config).await.ok()?;
                }
            }
            *session = Some(connection);
        }
        *held = watched;
        let mut shared = self.shared.lock();
        for tag in held.iter() {
            for watcher in shared.watched.get_mut(tag).into_iter().flatten() {
                match watcher.settled.take() {
                    // The watcher reads after this.
                    Some(settled) => drop(settled.send(())),
                    // Newly locked, but watched before: the connection was lost
                    // in between, and something may have been missed.
                    None if new.contains(tag) => drop(watcher.sender.try_send(())),
                    None => {}
                }
            }
        }
        Some(())
    }

    /// Gives the hint of this handle's own swap. The session that made it may
    /// be the only listener, and then no notification is sent.
    pub(super) fn echo(&self, key: &Key) {
        if !self.hint(self.tag(key).number) {
            // Nothing watches the tag any more: the listener unlocks it.
            self.changed.notify_one();
        }
    }

    /// Passes a hint on; returns whether there was a watch for it.
    fn hint(&self, tag: i64) -> bool {
        let shared = self.shared.lock();
        let watchers = || shared.watched.get(&tag).into_iter().flatten();
        for watcher in watchers() {
            let _ = watcher.sender.try_send(());
        }
        watchers().any(|watcher| !watcher.sender.is_closed())
    }
}
