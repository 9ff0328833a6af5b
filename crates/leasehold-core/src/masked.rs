//! Records as they are shown to those who may look at them and not act: under other nonces.
//!
//! Promise: no nonce of a grant is left, in whatever part of the record, also of one that is over: some guards still take it for
//! the holder's. What was the same nonce is the same afterwards, if the mask is a function, so a history still fits together.
//! Non-promise: the marks of orders that granted nothing, such as a pause, keep theirs.

use crate::holder::HolderId;
use crate::item::record::{Ended, Item, State};
use crate::lease::record::{Ownership, Tenure};
use crate::lease::transfer::Transfer;
use crate::nonce::Nonce;
use std::sync::Arc;

/// What a nonce is shown as.
pub type Mask = fn(Nonce) -> Nonce;

fn holder(mut holder: HolderId, mask: Mask) -> HolderId {
    holder.nonce = mask(holder.nonce);
    holder
}

fn tenure(mut tenure: Tenure, mask: Mask) -> Tenure {
    tenure.holder = holder(tenure.holder, mask);
    tenure
}

/// A transfer under this mask.
pub(crate) fn transfer(transfer: &Transfer, mask: Mask) -> Transfer {
    let other = |id: &HolderId| holder(id.clone(), mask);
    Transfer {
        nonce: mask(transfer.nonce),
        from: transfer.from.as_ref().map(other),
        to: transfer.to.as_ref().map(other),
        ..transfer.clone()
    }
}

impl Ownership {
    /// The record under this mask.
    pub fn masked(self, mask: Mask) -> Self {
        let transfers = self.transfers.iter().map(|it| Arc::new(transfer(it, mask))).collect();
        Ownership { tenure: self.tenure.map(|it| tenure(it, mask)), transfers, ..self }
    }
}

impl Item {
    /// The record under this mask.
    pub fn masked(self, mask: Mask) -> Self {
        let state = match self.state {
            State::Claimed(claim) => State::Claimed(tenure(claim, mask)),
            other => other,
        };
        let ended = self.ended.map(|ended| Ended { nonce: mask(ended.nonce), ..ended });
        Item { state, ended, ordered: self.ordered.map(mask), ..self }
    }
}
