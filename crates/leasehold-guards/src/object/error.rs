//! What the service's refusals and failures mean for a guarded object.
//!
//! Promise: of the driver's own words only the last cause is shown. Non-promise: whether a put without an answer was
//! applied is for the caller to find out.

use leasehold_core::{Error, Kind};

/// The driver's error in one line. Its own words contain addresses and bodies, so only the last cause is shown.
pub(super) fn failure(error: &object_store::Error, resource: &str, unknown: Kind) -> Error {
    if let object_store::Error::Generic { source, .. } = error
        && let Some(cause) = source.downcast_ref::<Error>()
    {
        // Nothing was sent: there are no credentials to send it with. The cause says whether to try again.
        return Error::new(cause.kind(), format!("cannot ask for resource=`{resource}`: {cause}"));
    }
    let (kind, what) = match error {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            (Kind::Unsupported, "the service refuses the credentials; they must allow to read and write the object")
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            (Kind::Unsupported, "the service cannot do it")
        }
        object_store::Error::NotFound { .. } => (Kind::Unsupported, "there is no such bucket; create it first"),
        // Unlike other server errors, this one is an answer: nothing was stored.
        _ if is_full(error) => {
            (Kind::Unavailable, "the server has no room, nothing was changed; make room there and try again")
        }
        _ => (unknown, "the service gave an unexpected answer"),
    };
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let why: Vec<String> = cause.to_string().split_whitespace().map(ToOwned::to_owned).collect();
    Error::new(kind, format!("{what}: resource=`{resource}`: {}", leasehold_core::printable(&why.join(" "))))
}

/// Whether the answer was 507. The driver tells it only in its message.
fn is_full(error: &object_store::Error) -> bool {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
    causes.into_iter().any(|cause| cause.to_string().contains("507 Insufficient Storage"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_that_are_missing_leave_nothing_unknown() {
        for kind in [Kind::Unsupported, Kind::Unavailable] {
            let source = Box::new(Error::new(kind, "cannot use the token in `/token`"));
            let driver = object_store::Error::Generic { store: "credentials", source };
            let error = failure(&driver, "s3://b/x", Kind::Indeterminate);
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains("cannot use the token in `/token`"), "{error}");
        }
    }
    /// As the driver prints the answer of MinIO, SeaweedFS or an appliance whose disk is full.
    #[test]
    fn a_full_server_has_changed_nothing() {
        let answered = |status: &str| {
            let said =
                format!("Error performing PUT http://h/b/x in 2ms - Server returned non-2xx status code: {status}: ");
            object_store::Error::Generic { store: "S3", source: said.into() }
        };
        let full = failure(&answered("507 Insufficient Storage"), "s3://b/x", Kind::Indeterminate);
        assert_eq!(full.kind(), Kind::Unavailable);
        let other = failure(&answered("500 Internal Server Error"), "s3://b/x", Kind::Indeterminate);
        assert_eq!(other.kind(), Kind::Indeterminate);
    }
}
