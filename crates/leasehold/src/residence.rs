//! Whether a whole namespace lives here: one small record, by which a migration excludes others and keeps new names from
//! coming up behind it.
//!
//! Promise: two migrations of one namespace, or into one, never run at once; the mark turns from *moving* to *moved* in one
//! swap, which is the moment from which a migration can no longer be given up. Non-promise: it says nothing about a single
//! lease: its own record does.

use crate::codec;
use crate::error::{Error, Kind, Result};
use crate::name::{Key, LeaseName, Shelf};
use crate::nonce::Nonce;
use crate::relocation::{Relocated, Relocation, Step, elsewhere, relocate};
use crate::store::{Revision, Store, Swap};
use serde::{Deserialize, Serialize};

const KIND: &str = "namespace";
const NAME: &str = "namespace";
/// How often the mark is tried when others keep writing it.
const MAX_ATTEMPTS: usize = 8;

/// The record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residence {
    /// Set when the namespace is on its way to another store, or has gone there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Relocation>,
    /// Set while another store's records come in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arriving: Option<Relocation>,
    /// New for each write, so that no two are alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<Nonce>,
}

impl Residence {
    /// Refuses a name that would come up in a namespace which is leaving or has left.
    pub fn check(&self, what: &str) -> Result<()> {
        self.leaving.as_ref().map_or(Ok(()), |state| Err(elsewhere(what, state)))
    }

    /// What the beginning of a departure makes of it; an error if another migration is in the way.
    fn leave(&self, step: &Step, migration: Nonce) -> Result<Option<Residence>> {
        match relocate(self.leaving.as_ref(), step, migration) {
            Relocated::To(leaving) => Ok(Some(Residence { leaving, ..self.clone() })),
            Relocated::Already => Ok(None),
            Relocated::No => Err(in_the_way("FROM", self.leaving.as_ref())),
        }
    }

    /// What an arrival makes of it. A namespace that had left may come home.
    fn arrive(&self, state: &Relocation) -> Result<Option<Residence>> {
        match (&self.arriving, &self.leaving) {
            (Some(known), _) if known == state => Ok(None),
            (Some(other), _) => Err(in_the_way("TO", Some(other))),
            (None, Some(leaving @ Relocation::Moving { .. })) => Err(in_the_way("TO", Some(leaving))),
            (None, _) => Ok(Some(Residence { arriving: Some(state.clone()), ..self.clone() })),
        }
    }
}

fn in_the_way(which: &str, state: Option<&Relocation>) -> Error {
    let message = match state {
        Some(state @ Relocation::Moved { .. }) => {
            format!("{which} has {state} already; nothing was changed. Its leases live there now")
        }
        Some(state) => format!(
            "another migration is under way: {which} is {state}; nothing was changed. Run that `leasehold migrate` again to \
             finish it, or with --abort to give it up"
        ),
        None => format!("{which} is not being moved; nothing was changed"),
    };
    Error::new(Kind::Invalid, message)
}

/// The one key that it has.
fn key() -> Result<Key> {
    Ok(Key::new(Shelf::Namespace, &LeaseName::new(NAME)?))
}

/// Reads it. A namespace that nobody ever moved has the default.
pub async fn look(store: &dyn Store) -> Result<Residence> {
    Ok(read(store).await?.0)
}

async fn read(store: &dyn Store) -> Result<(Residence, Option<Revision>)> {
    Ok(match store.read(&key()?).await?.value {
        None => (Residence::default(), None),
        Some(value) => (codec::decode(KIND, &value.bytes, NAME)?, Some(value.revision)),
    })
}

/// Makes a step of a departure: [`Step::Leave`], [`Step::Stay`] or [`Step::Depart`].
pub async fn leave(store: &dyn Store, step: &Step, migration: Nonce) -> Result<()> {
    change(store, |seen| seen.leave(step, migration)).await
}

/// Says that records come in; refused while another migration is under way here.
pub async fn arrive(store: &dyn Store, state: &Relocation) -> Result<()> {
    change(store, |seen| seen.arrive(state)).await
}

/// Ends an arrival. `came` says whether the namespace lives here from now on, whatever it had left for before.
pub async fn arrived(store: &dyn Store, migration: Nonce, came: Came) -> Result<()> {
    change(store, |seen| {
        let is_ours = seen.arriving.as_ref().is_some_and(|state| state.migration() == migration);
        let leaving = if came == Came::ToStay { None } else { seen.leaving.clone() };
        Ok(is_ours.then_some(Residence { arriving: None, leaving, tag: None }))
    })
    .await
}

/// How an arrival ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// It lives here now.
    ToStay,
    /// The migration was given up.
    GivenUp,
}

/// Decides on what is there and swaps the answer in. Every step may be made again, so a write without an answer is.
async fn change(store: &dyn Store, decide: impl Fn(&Residence) -> Result<Option<Residence>>) -> Result<()> {
    let mut unanswered = None;
    for _ in 0..MAX_ATTEMPTS {
        let (seen, revision) = read(store).await.map_err(|error| unanswered.take().unwrap_or(error))?;
        // What is there already may be visible and not yet durable: it is written once more, and that is answered.
        let next = Residence { tag: Some(Nonce::random()), ..decide(&seen)?.unwrap_or(seen) };
        match store.swap(&key()?, revision.as_ref(), &codec::encode(KIND, &next)?).await {
            Ok(Swap::Done { .. }) => return Ok(()),
            Ok(Swap::Mismatch) => {}
            Err(error) if error.kind() == Kind::Indeterminate => unanswered = Some(error),
            Err(error) => return Err(unanswered.unwrap_or(error)),
        }
    }
    Err(unanswered.unwrap_or_else(|| Error::new(Kind::Contended, "the namespace's mark keeps changing; try again")))
}
