//! Who may do what: keys, what each allows, and the one function that decides.
//!
//! - [`Verb`], [`Scope`]: what a key allows.
//! - [`Secret`]: the text of a key. It is shown once, and stored as a hash.
//! - [`Keys`]: the records of keys, in the server's own namespace: created, rotated, revoked, listed; exchanged ones are removed.
//! - [`KeyRing`]: the keys that a server has seen recently; from the text of a request to its [`Caller`].
//! - [`Caller::may`]: whether a caller may do something. Pure.
//!
//! Promise: nothing is allowed that the key's record does not allow, and a change of that record takes effect on every server
//! within [`ring::FRESH`] and the time of a read. The store's clock decides whether a key has expired. Non-promise: anyone who
//! can open the store can write any of its records, these included.

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
