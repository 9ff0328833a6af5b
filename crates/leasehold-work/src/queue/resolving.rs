//! What an item's record says about a token.

use super::grant::ItemSnapshot;
use super::queue::Queue;
use leasehold_core::holding;
use leasehold_core::item::name::ItemName;
use leasehold_core::item::record::{How, Item, State};
use leasehold_core::relocation::Relocation;
use leasehold_core::{Epoch, Live, Resolved, Result, Token, TokenKind, TokenState};

impl Queue {
    /// Looks up the item that a token belongs to.
    pub async fn resolve(&self, token: &Token) -> Result<Resolved> {
        let name = ItemName::of(token)?;
        let location = format!("queue `{}` in store `{}`", name.queue, self.store().capabilities().name);
        let (epoch, state) = match holding::reading_for(Some(token.claim()), self.look(&name)).await? {
            Some(known) => (known.record.epoch, self.state_of(&known, token)),
            None => (Epoch::ZERO, TokenState::Missing),
        };
        Ok(Resolved { kind: TokenKind::Item, epoch, state, location })
    }

    fn state_of(&self, known: &ItemSnapshot, token: &Token) -> TokenState {
        let item = &known.record;
        if item.lineage != token.lineage {
            return TokenState::OtherLineage { seen: item.lineage };
        }
        match &item.relocation {
            // Evicted before it left: that token is over, however the migration ends.
            Some(Relocation::Moving { .. } | Relocation::Arriving { .. }) if token.epoch < item.epoch => {}
            Some(relocation) => return TokenState::Moved(relocation.clone()),
            None => {}
        }
        if token.epoch > item.epoch {
            return TokenState::NeverGranted;
        }
        if token.epoch < item.epoch {
            return TokenState::Superseded { by: succession(item, token.epoch) };
        }
        let ended = item.ended.filter(|ended| ended.epoch == token.epoch);
        match (&item.state, ended) {
            (State::Claimed(tenure), _) if tenure.holder.nonce() != token.nonce => TokenState::NeverGranted,
            (State::Claimed(tenure), _) => {
                let trust_until = known.trust(self.grain());
                if known.has_run_out() || self.clock().now() >= trust_until {
                    return TokenState::Expired;
                }
                TokenState::Live(Live { ttl: tenure.ttl, trust_until })
            }
            (State::Purged { .. }, _) => TokenState::Ended { how: "finished and purged" },
            (_, Some(ended)) if ended.nonce != token.nonce => TokenState::NeverGranted,
            (_, Some(ended)) => TokenState::Ended {
                how: match ended.how {
                    How::Completed => "completed",
                    How::Failed => "given up as failed",
                    How::Returned => "given back",
                },
            },
            // It expired and was put back in line; nobody has claimed it since.
            (State::Ready, None) => TokenState::Expired,
            (_, None) => TokenState::Ended { how: "given up because its claims expired too often," },
        }
    }
}

/// How the item moved on from an epoch, and its present state.
fn succession(item: &Item, held: Epoch) -> String {
    let next = item.history.iter().find(|event| event.epoch > held);
    let order = next.and_then(|event| {
        Some(format!("{} by {} ({}), ", event.what.as_str(), event.by.as_ref()?, event.why.as_ref()?))
    });
    let order = order.unwrap_or_default().replace('_', " ");
    match &item.state {
        State::Claimed(tenure) => format!("{order}now held by {}", tenure.holder),
        other => format!("{order}it is {} now", other.as_str()),
    }
}
