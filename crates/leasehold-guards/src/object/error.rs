//! What the service's refusals and failures mean for a guarded object.
//!
//! Promise: nothing of the driver's own words gets out but the last cause. Non-promise: what became of a put without an answer is
//! for the caller to find out.

use leasehold_core::{Error, Kind};

/// The driver's error in one line. Its own words hold addresses and bodies, so only the last cause is told.
pub(super) fn failure(error: &object_store::Error, resource: &str, unknown: Kind) -> Error {
    let (kind, what) = match error {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            (Kind::Unsupported, "the service refuses the credentials; they must allow to read and write the object")
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            (Kind::Unsupported, "the service cannot do it")
        }
        object_store::Error::NotFound { .. } => (Kind::Unsupported, "there is no such bucket; create it first"),
        // An answer, unlike other failures of a server: it took nothing.
        _ if is_full(error) => {
            (Kind::Unavailable, "the server has no room, nothing was changed; make room there and try again")
        }
        _ => (unknown, "the service did not answer as it should"),
    };
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let why: Vec<String> = cause.to_string().split_whitespace().map(ToOwned::to_owned).collect();
    Error::new(kind, format!("{what}: resource=`{resource}`: {}", leasehold_core::printable(&why.join(" "))))
}

/// Whether the answer was 507, by the words of the driver, which has no other sign for it.
fn is_full(error: &object_store::Error) -> bool {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
    causes.into_iter().any(|cause| cause.to_string().contains("507 Insufficient Storage"))
}
