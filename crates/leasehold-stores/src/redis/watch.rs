//! The watches of each channel.

use ::redis::{PushInfo, PushKind, Value};
use leasehold_system::sync::Mutex;
use std::collections::HashMap;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

/// The watches of one store, by channel.
#[derive(Default)]
pub(super) struct Watchers {
    watches: Mutex<Watches>,
    /// Notified when a message comes for a channel that nobody watches.
    pub(super) unwanted: Notify,
}

#[derive(Default)]
struct Watches {
    by_channel: HashMap<String, Vec<Sender<()>>>,
    /// Whether a task maintains the connection.
    is_tended: bool,
}

/// What has to be done for a new watch.
pub(super) struct Added {
    /// This is the channel's first watch: the channel must be subscribed to.
    pub(super) is_first: bool,
    /// A task must be started that maintains the connection.
    pub(super) is_untended: bool,
}

impl Watchers {
    /// Adds a watch; returns what its caller has to do.
    pub(super) fn add(&self, channel: &str, sender: Sender<()>) -> Added {
        let mut watches = self.watches.lock();
        let senders = watches.by_channel.entry(channel.to_owned()).or_default();
        let is_first = senders.is_empty();
        senders.push(sender);
        Added { is_first, is_untended: !std::mem::replace(&mut watches.is_tended, true) }
    }

    /// Every channel that somebody watches.
    pub(super) fn channels(&self) -> Vec<String> {
        self.watches.lock().by_channel.keys().cloned().collect()
    }

    /// Removes dropped watches. Returns the channels that nobody watches now, and whether any watch is left. If none
    /// is, the task that maintains the connection must end.
    pub(super) fn prune(&self) -> (Vec<String>, bool) {
        let mut watches = self.watches.lock();
        let mut gone = Vec::new();
        watches.by_channel.retain(|channel, senders| {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                gone.push(channel.clone());
            }
            !senders.is_empty()
        });
        watches.is_tended = !watches.by_channel.is_empty();
        (gone, watches.is_tended)
    }

    /// Gives every watch a hint: something may have been missed.
    pub(super) fn hint_all(&self) {
        for sender in self.watches.lock().by_channel.values().flatten() {
            // If it is full, a hint is already pending.
            let _ = sender.try_send(());
        }
    }

    /// Handles a message that the server pushed.
    pub(super) fn pushed(&self, push: &PushInfo) {
        if push.kind != PushKind::Message {
            return;
        }
        let Some(Value::BulkString(channel)) = push.data.first() else { return };
        let Ok(channel) = std::str::from_utf8(channel) else { return };
        let watches = self.watches.lock();
        let Some(senders) = watches.by_channel.get(channel) else { return };
        for sender in senders {
            let _ = sender.try_send(());
        }
        if senders.iter().all(Sender::is_closed) {
            self.unwanted.notify_one();
        }
    }
}
