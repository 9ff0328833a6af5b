//! How tokens are signed: with a private key of the issuer.
//!
//! Promise: an algorithm that is not listed here is refused before anything else is checked. `none` is no signature, and anyone who
//! can check an `HS256` can also make one, so neither is listed.

use ring::signature::{
    self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RsaParameters, VerificationAlgorithm,
};

/// An algorithm by which a token may be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    /// The algorithm of this name in the header of a token, or in a published key.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Algorithm::Rs256,
            "RS384" => Algorithm::Rs384,
            "RS512" => Algorithm::Rs512,
            "PS256" => Algorithm::Ps256,
            "PS384" => Algorithm::Ps384,
            "PS512" => Algorithm::Ps512,
            "ES256" => Algorithm::Es256,
            "ES384" => Algorithm::Es384,
            "EdDSA" | "Ed25519" => Algorithm::EdDsa,
            _ => return None,
        })
    }

    /// How ring checks it with an RSA key. Those of fewer than 2048 bits are refused.
    pub fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Algorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Algorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            Algorithm::Es256 | Algorithm::Es384 | Algorithm::EdDsa => return None,
        })
    }

    /// How ring checks it with a key on this curve.
    pub fn on(self, curve: Curve) -> Option<&'static dyn VerificationAlgorithm> {
        match (self, curve) {
            (Algorithm::Es256, Curve::P256) => Some(&ECDSA_P256_SHA256_FIXED),
            (Algorithm::Es384, Curve::P384) => Some(&ECDSA_P384_SHA384_FIXED),
            (Algorithm::EdDsa, Curve::Ed25519) => Some(&ED25519),
            _ => None,
        }
    }
}

/// The curve of a key that is not RSA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    P256,
    P384,
    Ed25519,
}
