//! Hints from JetStream: a consumer that delivers every message stored for a key.
//!
//! Promise: a hint comes after the record can be read; a lost consumer or connection is replaced, with a hint, at most
//! once a second. Non-promise: several changes may give one hint.
//!
//! A plain subscription to the key's subject would hint when a write is *sent*, before it is stored or refused. It is
//! used only while there is no bucket for a consumer.

use super::connection::Connection;
use super::error::CallError;
use super::wire::{Consumer, NO_STREAM, new_consumer};
use super::{NatsStore, json};
use async_nats::{StatusCode, Subscriber};
use futures_util::StreamExt;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::store::Watch;
use leasehold_core::{Key, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// The interval of the server's signs of life.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Silence after which the subscription is replaced.
const SILENCE: Duration = Duration::from_secs(12);
/// The least time between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// About how long the first write takes, which creates the bucket.
const FIRST_WRITE: Duration = Duration::from_millis(20);

/// The source of hints.
enum Subscription {
    /// A consumer: its inbox, its connection and its name.
    Stored(Subscriber, Arc<Connection>, String),
    /// The key's own subject.
    Sent(Subscriber),
}

pub(super) async fn watch(store: &NatsStore, key: &Key) -> Result<Watch> {
    let subject = store.names.subject(key);
    let subscription = match establish(store, &subject).await {
        Ok(subscription) => Some(subscription),
        // Hints are optional, because waiters also poll.
        Err(CallError::Denied(_)) => return Ok(Watch::silent()),
        Err(_) => None,
    };
    let (sender, watch) = Watch::channel();
    tokio::spawn(follow(store.clone(), subject, subscription, sender));
    Ok(watch)
}

async fn establish(store: &NatsStore, subject: &str) -> Result<Subscription, CallError> {
    let connection = store.connection().await?;
    let stream = &store.names.stream;
    let inbox = connection.new_inbox();
    let told = connection.listen(inbox.clone()).await?;
    let heartbeat_ns = u64::try_from(HEARTBEAT.as_nanos()).unwrap_or(u64::MAX);
    let config = new_consumer(stream, subject, &inbox, heartbeat_ns);
    match connection.api::<Consumer>(&format!("CONSUMER.CREATE.{stream}"), json(&config)).await {
        Ok(consumer) => Ok(Subscription::Stored(told, connection, consumer.name)),
        Err(error) if error.is(NO_STREAM) => Ok(Subscription::Sent(connection.listen(subject.to_owned()).await?)),
        Err(error) => Err(error),
    }
}

/// Passes hints on until the receiver is gone.
async fn follow(store: NatsStore, subject: String, subscription: Option<Subscription>, sender: mpsc::Sender<()>) {
    let mut subscription = subscription;
    loop {
        let mut pause = Duration::ZERO;
        if let Some(subscription) = subscription.as_mut() {
            tokio::select! {
                () = sender.closed() => {}
                rest = listen(subscription, &sender) => pause = rest,
            }
        }
        if let Some(Subscription::Stored(_, connection, consumer)) = subscription.take() {
            // Otherwise the server would keep the consumer for a while.
            connection.tell(format!("$JS.API.CONSUMER.DELETE.{}.{consumer}", store.names.stream), Vec::new()).await;
        }
        let again = async {
            sleep(pause).await;
            let next = establish(&store, &subject).await;
            if next.is_err() {
                sleep(PAUSE).await;
            }
            next.ok()
        };
        subscription = tokio::select! {
            () = sender.closed() => return,
            subscription = again => subscription,
        };
        // Changes meanwhile gave no hint.
        if subscription.is_some() {
            let _ = sender.try_send(());
        }
    }
}

/// Passes hints on until this subscription ends; returns how long to wait before the next one.
async fn listen(subscription: &mut Subscription, sender: &mpsc::Sender<()>) -> Duration {
    let began = SystemClock.now();
    match subscription {
        Subscription::Stored(told, ..) => {
            while let Ok(Some(message)) = timeout(SILENCE, told.next()).await {
                let is_heartbeat = message.status == Some(StatusCode::IDLE_HEARTBEAT);
                if !is_heartbeat {
                    let _ = sender.try_send(());
                }
            }
            // A server that closes every connection at once gets some time.
            PAUSE.saturating_sub(SystemClock.now().saturating_since(began))
        }
        // A write to another key may create the bucket too, so this subscription is soon replaced.
        Subscription::Sent(told) => match timeout(PAUSE, told.next()).await {
            Ok(Some(_)) => FIRST_WRITE,
            Ok(None) => PAUSE,
            Err(_) => Duration::ZERO,
        },
    }
}
