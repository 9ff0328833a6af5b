//! The certificate, which may be replaced while the server runs.
//!
//! Promise: a new pair is used for new connections within [`LOOK`] and the time it takes to read. If the files do not match, or
//! cannot be read, the old pair stays in use; that is logged once, and the files are checked again. A separate thread reads them,
//! so a file system that hangs delays nobody.

use super::settings::TlsFiles;
use leasehold_core::{Error, Kind, Result};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::oneshot;

/// How often the files are looked at.
pub const LOOK: Duration = Duration::from_secs(2);

/// The longest file that is read.
const MAX_BYTES: u64 = 1024 * 1024;

/// How long that may take before it is logged that the files cannot be read.
const READING: Duration = Duration::from_secs(10);

/// Identifies a version of a file: device, inode, size, and the time of its last change to the nanosecond.
type Stamp = [(u64, u64, u64, i64, i64); 2];

/// The certificate in force.
#[derive(Debug)]
pub struct Certificate {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl Certificate {
    /// Reads and checks the certificate and its key.
    pub fn read(files: &TlsFiles) -> Result<Self> {
        let config = RwLock::new(load(files)?);
        Ok(Certificate { files: files.clone(), config })
    }

    /// What new connections are made with.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks for new files while it is polled.
    pub async fn follow(&self) {
        let mut known = None;
        let mut told = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(ReloadedTls { stamp, config }) = self.look(known).await else { continue };
            match config {
                Ok(config) => {
                    *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                    if known.is_some() || told.is_some() {
                        tracing::info!("the TLS certificate was reloaded from {}", self.files.certificate.display());
                    }
                    (known, told) = (stamp, None);
                }
                Err(error) if told != Some(stamp) => {
                    told = Some(stamp);
                    tracing::warn!("the new TLS certificate is not used, the old one stays in force: {error}");
                }
                Err(_) => {}
            }
        }
    }

    /// The files as they are now, unless they are unchanged. Not read on tokio's threads, because shutting down waits for those.
    async fn look(&self, known: Option<Stamp>) -> Option<ReloadedTls> {
        let (answer, mut answered) = oneshot::channel();
        let files = self.files.clone();
        let looking = move || drop(answer.send(look(&files, known)));
        if let Err(error) = std::thread::Builder::new().name("tls-files".into()).spawn(looking) {
            tracing::warn!("the TLS certificate cannot be looked at: {error}");
            return None;
        }
        match tokio::time::timeout(READING, &mut answered).await {
            Ok(found) => found.ok()?,
            Err(_) => {
                tracing::warn!(
                    "the TLS certificate cannot be read now, the old one stays in force: its files do not answer"
                );
                answered.await.ok()?
            }
        }
    }
}

/// What was found that is new.
struct ReloadedTls {
    stamp: Option<Stamp>,
    config: Result<Arc<ServerConfig>>,
}

fn look(files: &TlsFiles, known: Option<Stamp>) -> Option<ReloadedTls> {
    let found = stamp(files).ok();
    if found.is_some() && found == known {
        return None;
    }
    let config = load(files);
    // Replaced again while it was read: the next look decides.
    (config.is_err() || stamp(files).ok() == found).then_some(ReloadedTls { stamp: found, config })
}

fn stamp(files: &TlsFiles) -> std::io::Result<Stamp> {
    let of = |path: &Path| -> std::io::Result<_> {
        let found = path.metadata()?;
        Ok((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    };
    Ok([of(&files.certificate)?, of(&files.key)?])
}

fn load(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let unfit = |path: &Path, what: &str| Error::invalid("TLS file", path.display(), what);
    let read = |path: &Path| {
        let unread = |e: std::io::Error| unfit(path, "it cannot be read").with_source(e);
        // To open a pipe waits for its other end.
        let found = path.metadata().map_err(unread)?;
        if !found.is_file() {
            return Err(unfit(path, "it is not a regular file"));
        }
        if found.len() > MAX_BYTES {
            return Err(unfit(path, "it has more than 1 MiB, and no certificate or key has"));
        }
        std::fs::read(path).map_err(unread)
    };
    let pem = read(&files.certificate)?;
    let chain = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| unfit(&files.certificate, "it is no PEM").with_source(e))?;
    if chain.is_empty() {
        return Err(unfit(&files.certificate, "it has no certificate in PEM"));
    }
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        .map_err(|e| unfit(&files.key, "it has no private key in PEM").with_source(e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::new(Kind::Unsupported, "cannot set up TLS").with_source(e))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|e| {
            let what = format!("it does not fit the certificate in {}", files.certificate.display());
            unfit(&files.key, &what).with_source(e)
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
