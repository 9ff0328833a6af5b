//! Who may do what: keys, what each allows, and the one function that decides.
//!
//! - [`Verb`], [`Scope`]: what a key allows.
//! - [`Secret`]: a key as its bearer has it. It is shown once, and stored as a hash.
//! - [`Keys`]: the records of keys, in the server's own namespace: created, rotated, revoked, listed; exchanged ones are removed.
//! - [`KeyRing`]: the keys that a server has lately seen; from the text of a request to its [`Caller`].
//! - [`Caller::may`]: whether it may. Pure.
//!
//! Promise: nothing is allowed that the record of the key does not say, and what is said of a key by its record counts on every
//! server within [`ring::FRESH`] and the time of a read. Whether it has expired is judged by the store's clock. Non-promise:
//! whoever can open the store can write any record of it, also these.

mod base32;
mod caller;
mod keys;
mod record;
pub mod ring;
mod scope;
pub(crate) mod seal;
mod secret;
mod sweep;
#[cfg(test)]
mod tests;
mod verb;

pub use caller::{Account, Caller, Denied, Lack};
pub use keys::{Keys, Listed, NewKey, Rotation};
pub use record::{KeyRecord, Made, Origin, Revoked, State};
pub use ring::{KeyRing, Refused};
pub use scope::{Namespaces, Scope, check_patterns};
pub use secret::{KeyId, Secret};
pub use verb::{Verb, VerbSet};
