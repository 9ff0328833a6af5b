//! Requests to other services, in builds that can make them.

pub use leasehold_server::outbound::{Letter, WebhookSecret, send, webhook_headers};

use leasehold_core::{Error, Kind, Result};

/// Refuses what this build cannot do, before anything is begun.
pub fn check(field: &str) -> Result<()> {
    if cfg!(feature = "http") {
        return Ok(());
    }
    let message = format!(
        "`{field}` needs the feature `http`, and this build is without it; build with `--features http`, or let a command send \
         the request"
    );
    Err(Error::new(Kind::Unsupported, message))
}

#[cfg(all(test, not(feature = "http")))]
mod tests {
    #[test]
    fn a_build_without_requests_refuses_them_by_name() {
        let error = super::check("webhook").unwrap_err();
        assert_eq!(error.kind(), leasehold_core::Kind::Unsupported);
        assert!(error.to_string().starts_with("`webhook` needs the feature `http`"), "{error}");
    }
}
