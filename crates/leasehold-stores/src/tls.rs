//! The cryptography that every TLS connection of this process uses.

use std::sync::Once;

/// Installs it, once. Drivers use the provider of the process.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    // Fails only if one is already installed, which is fine.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}
