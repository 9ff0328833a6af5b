//! The model: every interleaving of a few clients, an operator, a store and its guards, within stated bounds.
//!
//! Promise: what is explored is the crate's own `protocol::decide`, `guard::seal` and `guard::admit`, called as they
//! are; requests and replies may be lost, late, doubled or out of order, the store may be restored from an old copy,
//! and the clock may say "before the deadline" or "after it" at every single look, even backwards. Every promise of
//! `docs/guarantees.md` is an `always` property with a `sometimes` twin that shows that its case was met, and every
//! seeded bug must be caught by the promise that is named for it.
//! Non-promise: bounds are bounds. A configuration says how many clients, acquisitions, losses and orders it has, and
//! nothing is claimed beyond them; liveness is not modelled, and neither are real stores.

mod actions;
mod archive;
mod ask;
mod check;
mod config;
mod model;
mod mutants;
mod narrate;
mod promises;
mod resource;
mod rules;
mod world;

pub use check::{Failure, Report, check, check_mutant, replay};
pub use config::{Config, ci, long, small};
pub use model::LeaseModel;
pub use mutants::Mutant;
pub use promises::{Promise, Row, Sighting};
