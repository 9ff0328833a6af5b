//! TLS according to `sslmode`: whose certificate is trusted, and whether its name must match.

use leasehold_core::printable;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::path::Path;
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Whose certificate is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// `prefer`: any certificate. It protects against eavesdroppers, but not against an impostor.
    Anybody,
    /// `require`: any certificate, unless there is a file of authorities.
    AuthorityIfGiven,
    /// `verify-ca`
    Authority,
    /// `verify-full`
    AuthorityAndName,
}

/// The connector for this level of trust. The error says what is wrong with a file.
pub(super) fn connector(
    trust: Trust,
    root: Option<&Path>,
    own: Option<(&Path, &Path)>,
) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("tls cannot be set up: {e}"))?;
    let verifier: Arc<dyn ServerCertVerifier> = match (trust, root) {
        (Trust::Anybody, _) | (Trust::AuthorityIfGiven, None) => Arc::new(Lenient { provider, inner: None }),
        (Trust::Authority, None) => {
            return Err("sslmode `verify-ca` needs a file of authorities; name it with sslrootcert".into());
        }
        (Trust::AuthorityIfGiven | Trust::Authority, Some(root)) => {
            Arc::new(Lenient { provider: provider.clone(), inner: Some(strict(provider, Some(root))?) })
        }
        (Trust::AuthorityAndName, root) => strict(provider, root)?,
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable("key", key, &e))?;
            builder
                .with_client_auth_cert(chain, secret)
                .map_err(|e| format!("the client certificate {} cannot be used: {e}", certificate.display()))?
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(file).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    match found {
        Ok(found) if found.is_empty() => Err(format!("the file {} has no certificate in it", file.display())),
        Ok(found) => Ok(found),
        Err(e) => Err(unreadable("certificate", file, &e)),
    }
}

fn unreadable(what: &str, file: &Path, error: &dyn std::error::Error) -> String {
    format!("the {what} {} cannot be read: {}", file.display(), printable(&error.to_string()))
}

/// Trusts the authorities in the file, or this machine's if there is no file or it is called `system`.
fn strict(provider: Arc<CryptoProvider>, root: Option<&Path>) -> Result<Arc<WebPkiServerVerifier>, String> {
    let mut roots = RootCertStore::empty();
    match root.filter(|root| *root != Path::new("system")) {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|e| unreadable("authority", file, &e))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|e| format!("no authority to check the server's certificate with: {e}; name a file with sslrootcert"))
}

/// Accepts any name, and without authorities any certificate. The handshake must still be signed with that certificate.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    inner: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            // The name is checked last, after the chain.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
