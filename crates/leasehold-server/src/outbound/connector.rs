//! Connections to other services.

use hyper::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use leasehold_core::{Error, Kind, Result};
use std::sync::Arc;
use std::time::Duration;

/// The way to a server: plain, or encrypted with the system's certificate authorities.
pub(crate) fn connector(encrypted: bool, timeout: Duration) -> Result<HttpsConnector<HttpConnector>> {
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_nodelay(true);
    plain.set_connect_timeout(Some(timeout));
    let provider = rustls::crypto::ring::default_provider();
    let builder = HttpsConnectorBuilder::new();
    let unfit = |error: std::io::Error| {
        Error::new(Kind::Unsupported, "cannot set up TLS; check the system's certificate authorities")
            .with_source(error)
    };
    let builder = if encrypted {
        builder.with_provider_and_native_roots(provider).map_err(unfit)?
    } else {
        let roots = rustls::RootCertStore::empty();
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unfit(std::io::Error::other(error)))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        builder.with_tls_config(config)
    };
    Ok(builder.https_or_http().enable_http1().wrap_connector(plain))
}

/// Whether a URL's way is encrypted.
pub(crate) fn is_encrypted(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}
