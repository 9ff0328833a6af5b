//! Turns: calls that name the same lease or item are carried out in the order in which they came.
//!
//! Promise: a call begins when every earlier one of its lease has ended or was cancelled. Non-promise: nothing is said about
//! calls of different leases; they run at the same time.

use super::tools::text;
use leasehold_core::{LeaseName, Token};
use leasehold_system::sync::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use tokio::sync::watch;

/// Who is at which lease, or waits for it.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<LeaseName, Vec<watch::Receiver<()>>>>);

/// One call's turn, from when it was read until it is dropped.
pub struct Turn {
    before: Vec<watch::Receiver<()>>,
    _done: watch::Sender<()>,
}

impl Turns {
    /// Stands in line. To be called in the order in which calls come.
    pub fn stand(&self, arguments: &Value) -> Turn {
        let (done, over) = watch::channel(());
        let mut before = Vec::new();
        let mut lines = self.0.lock();
        lines.retain(|_, line| {
            line.retain(|call| call.has_changed().is_ok());
            !line.is_empty()
        });
        let named = text(arguments, "lease").and_then(|lease| lease.parse::<LeaseName>().ok());
        let token = text(arguments, "token").and_then(|token| token.parse::<Token>().ok()).map(|token| token.lease);
        let token = token.filter(|lease| named.as_ref() != Some(lease));
        for lease in named.into_iter().chain(token) {
            let line = lines.entry(lease).or_default();
            before.extend(line.iter().cloned());
            line.push(over.clone());
        }
        Turn { before, _done: done }
    }
}

impl Turn {
    /// Waits until it is this call's turn.
    pub async fn comes(&mut self) {
        for mut call in self.before.drain(..) {
            // Nothing is ever sent: it ends when the call drops its end.
            while call.changed().await.is_ok() {}
        }
    }
}
