//! The cryptography that every TLS connection of this process uses.

use std::sync::Once;

/// Chooses it, once. Drivers take the process's choice.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    // Fails only if somebody else chose first, which is as good.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}
