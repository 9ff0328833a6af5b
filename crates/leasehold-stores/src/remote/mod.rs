//! A Leasehold server, for clients that must not have the store's password.
//!
//! Promise: a change is sent as its verb ([`leasehold_core::store::Verb`]), never as bytes: the server decides on the
//! record that it has, at its store's time, and writes what it decided. So a client can neither choose an epoch nor
//! write a record of a lease, an item or a fence. Lost answers, trust windows and waiting work as with a store.
//! Non-promise: counters, journals, kept output and definitions of jobs are sent whole; they decide nothing.
//!
//! `leasehold://host/namespace`, with several hosts separated by commas, tried in
//! turn; `leasehold+http` only to a loopback address. The key is in `LEASEHOLD_KEY`,
//! in the file that `LEASEHOLD_KEY_FILE` names, or the password in the URL.

mod config;
mod connection;
mod error;
mod exchange;
mod keys;

pub use exchange::{ExchangedKey, exchange};
pub use keys::RemoteKeys;

use crate::http::client::client;
use crate::phase::Phase;
use crate::url::Address;
use crate::url::Namespace;
use async_trait::async_trait;
use connection::Connection;
use error::refused;
use leasehold_core::holding;
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Remark, Store, Survey, Swap, Watch};
use leasehold_core::wire::{self, About, HEARTBEAT, HINT, PROTOCOL};
use leasehold_core::{Error, Key, Kind, LeaseName, Result, Shelf};
use reqwest::Method;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;

/// A watch without a sign of life for longer than this is dead.
const SILENCE: Duration = HEARTBEAT.saturating_mul(3);
/// The pause between two attempts to watch.
const PAUSE: Duration = Duration::from_secs(1);

/// The client of a server. Clones share their connections.
#[derive(Clone)]
pub struct RemoteStore {
    connection: Arc<Connection>,
    capabilities: Capabilities,
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteStore({}{})", self.connection.endpoints[0].base, self.connection.path)
    }
}

/// Refuses an address that cannot be a server's.
pub fn check(address: &Address) -> Result<()> {
    config::check(address)
}

/// Connects, and asks a server what it and its store can do.
pub async fn open(address: &Address, namespace: &Namespace) -> Result<RemoteStore> {
    check(address)?;
    let key = config::KeySource::find(address, |name| std::env::var(name).ok())?;
    let path = format!("/v1/ns/{namespace}");
    let connection = Connection::new(client(address)?, Some(key), config::endpoints(address), path);
    let about: About = connection.get("").await?;
    if let Some(what) = wire::disagreement(PROTOCOL, about.protocol) {
        let display_name = &connection.endpoints[connection.good()].display_name;
        return Err(Error::new(Kind::Unsupported, format!("{display_name}: {what}")));
    }
    Ok(RemoteStore { connection: Arc::new(connection), capabilities: about.capabilities() })
}

impl RemoteStore {
    /// Passes hints on until the stream ends.
    async fn listen(&self, index: usize, key: &Key, hints: &Sender<()>) -> Result<()> {
        let display_name = &self.connection.endpoints[index].display_name;
        let lost =
            |e: reqwest::Error| Error::unavailable(format!("the watch at {display_name} broke off"), e.without_url());
        let request = self.connection.request(index, Method::POST, "/records/watch").json(key);
        let mut stream = request.send().await.map_err(lost)?;
        if stream.status() != 200 {
            let status = stream.status().as_u16();
            let body = stream.bytes().await.unwrap_or_default();
            return Err(refused(display_name, status, &body, Phase::Reading));
        }
        while let Ok(part) = tokio::time::timeout(SILENCE, stream.chunk()).await {
            let Some(part) = part.map_err(lost)? else { break };
            if part.iter().any(|byte| HINT.contains(byte)) {
                let _ = hints.try_send(());
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Store for RemoteStore {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let held = match holding::claim().filter(|_| matches!(key.shelf, Shelf::Lease | Shelf::Item)) {
            Some(claim) => {
                let named = wire::HeldRecord { record: key.clone(), claim };
                let found: wire::HeldReading = self.connection.post("/records/recall", &named, Phase::Reading).await?;
                found.held
            }
            None => None,
        };
        let wire::Reading { value, now } = match held {
            Some(held) => held,
            None => self.connection.post("/records/read", key, Phase::Reading).await?,
        };
        Ok(Reading { value: value.map(wire::Value::versioned), now })
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities)?;
        let change = wire::Change::of(change)?;
        // Holders' requests have a path of their own: a busy server serves it before everything else.
        let address = if change.verb.needs_a_claim() { "/records/hold" } else { "/records/change" };
        let changed: wire::Changed = self.connection.post(address, &change, Phase::Writing).await?;
        Ok(changed.into())
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        let (after, skip, limit) = (range.after.cloned(), range.skip, range.limit);
        let mut listing = wire::Listing { shelf, after, continued_from: None, skip, limit };
        loop {
            let page: wire::Page = self.connection.post("/records/list", &listing, Phase::Reading).await?;
            // Names that the key may not see are left out, so a page may be empty before the end.
            if let (true, Some(last)) = (page.entries.is_empty() && page.more, page.continued_from) {
                (listing.continued_from, listing.skip) = (Some(last), 0);
                continue;
            }
            let entry = |(name, value): (LeaseName, wire::Value)| (name, value.versioned());
            let entries = page.entries.into_iter().map(entry).collect();
            // Not asked of the server: an older one does not know of it.
            return Ok(Page { entries, more: page.more, now: page.now }.until(range.until));
        }
    }

    /// A stream from a server. When it ends, it is opened again, at another server if there is one.
    async fn watch(&self, key: &Key) -> Result<Watch> {
        let (sender, watch) = Watch::channel();
        let (store, key) = (self.clone(), key.clone());
        tokio::spawn(async move {
            let _turn = tokio::select! {
                () = sender.closed() => return,
                turn = store.connection.watches.acquire() => turn,
            };
            let mut index = store.connection.good();
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    _ = store.listen(index, &key, &sender) => {}
                }
                index = (index + 1) % store.connection.endpoints.len();
                tokio::select! {
                    () = sender.closed() => return,
                    () = tokio::time::sleep(PAUSE) => {}
                }
                // Changes meanwhile gave no hint.
                let _ = sender.try_send(());
            }
        });
        Ok(watch)
    }

    async fn survey(&self) -> Result<Survey> {
        let about: About = self.connection.get("").await?;
        let remark = |setting: &str, found: String| Remark { setting: setting.into(), found, advice: None };
        let remarks = vec![
            remark("server", self.connection.endpoints[self.connection.good()].display_name.clone()),
            remark("protocol", about.protocol.to_string()),
            remark("store behind it", about.store),
            remark("its durability", about.durability),
        ];
        Ok(Survey { class: about.class, remarks })
    }
}
