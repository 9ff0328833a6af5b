//! How a server listens, and how much it serves at once.

use leasehold_core::{Error, Result};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How a server listens.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The certificate that it shows; without one it speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Whether other machines may be served without TLS.
    pub exposure: Exposure,
    /// What every path begins with.
    pub prefix: Option<PathPrefix>,
    /// How much it serves at once.
    pub limits: Limits,
}

impl Settings {
    /// Refuses to send keys unencrypted over a network, unless that was requested explicitly.
    pub fn check(&self) -> Result<()> {
        let is_private = self.listen.ip().is_loopback() || self.tls.is_some() || self.exposure == Exposure::Insecure;
        if is_private {
            return Ok(());
        }
        let form = "other machines can reach it, and without TLS everybody between them can read the keys; give --tls-cert and \
                    --tls-key, or listen on 127.0.0.1 behind a proxy that has TLS, or say --insecure-listen";
        Err(Error::invalid("address to listen on", self.listen, form))
    }
}

/// Whether other machines may be served without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// Only with TLS.
    Secure,
    /// Also without TLS, because the operator asked for it explicitly.
    Insecure,
}

/// A certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate, with the intermediate ones up to its authority.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

/// What every path begins with, behind a proxy that hands on the paths below one of its own: `/leases`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPrefix(String);

impl PathPrefix {
    /// The prefix as text: begins with `/`, and does not end with one.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PathPrefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_fit = |segment: &str| {
            !segment.is_empty() && segment.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '~'))
        };
        match text.strip_prefix('/') {
            Some(rest) if rest.split('/').all(is_fit) => Ok(PathPrefix(text.to_owned())),
            _ => {
                let form =
                    "use segments of A-Z a-z 0-9 - _ ~, each after a `/`, and no `/` at the end, such as /leases";
                Err(Error::invalid("path prefix", text, form))
            }
        }
    }
}

impl fmt::Display for PathPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How much a server serves at once.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The longest body of a request, in bytes.
    pub body: usize,
    /// Bytes of bodies at once, besides those of holders and strangers, of requests that are being read or served.
    pub bodies: usize,
    /// The same for holders. Others cannot use these.
    pub holder_bodies: usize,
    /// The same for those whose key is not known yet.
    pub stranger_bodies: usize,
    /// The longest head of a request, in bytes; at least 8192.
    pub head: usize,
    /// The most connections that may be open at once.
    pub connections: usize,
    /// Requests served at once, besides those that wait and those of holders.
    pub requests: usize,
    /// Requests of holders served at once: to renew, release and report progress. Others cannot use these.
    pub holder_requests: usize,
    /// Requests per second of one key. Holders have ten times as many, counted separately.
    pub rate: u32,
    /// Requests of one key that wait at once, and its streams.
    pub waiters: usize,
    /// How long a client may take to send a head, or a body.
    pub client: Duration,
    /// How long a client may take to read a piece of an answer.
    pub reader: Duration,
    /// How long a connection may be idle.
    pub idle: Duration,
    /// How long requests under way may take to end when the server shuts down.
    pub grace: Duration,
    /// The span over which clients come back after a server shuts down, so that they do not all come at once.
    pub spread: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body: 1024 * 1024,
            bodies: 64 * 1024 * 1024,
            holder_bodies: 16 * 1024 * 1024,
            stranger_bodies: 16 * 1024 * 1024,
            head: 16 * 1024,
            connections: 16_384,
            requests: 256,
            holder_requests: 128,
            rate: 500,
            waiters: 10_000,
            client: Duration::from_secs(10),
            reader: Duration::from_secs(30),
            idle: Duration::from_secs(90),
            grace: Duration::from_secs(10),
            spread: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(listen: &str) -> Settings {
        let listen = listen.parse().unwrap();
        Settings { listen, tls: None, exposure: Exposure::Secure, prefix: None, limits: Limits::default() }
    }

    #[test]
    fn nobody_listens_beyond_this_machine_without_tls_by_mistake() {
        for loopback in ["127.0.0.1:80", "127.9.9.9:0", "[::1]:80"] {
            settings(loopback).check().unwrap();
        }
        let files = TlsFiles { certificate: "c".into(), key: "k".into() };
        for open in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "[::ffff:127.0.0.1]:80"] {
            let error = settings(open).check().unwrap_err().to_string();
            assert!(error.contains("--tls-cert") && error.contains("--insecure-listen"), "{error}");
            Settings { tls: Some(files.clone()), ..settings(open) }.check().unwrap();
            Settings { exposure: Exposure::Insecure, ..settings(open) }.check().unwrap();
        }
    }

    #[test]
    fn a_prefix_is_a_plain_path() {
        for good in ["/a", "/leases/v2", "/A-_~9"] {
            assert_eq!(good.parse::<PathPrefix>().unwrap().as_str(), good);
        }
        for wrong in ["", "/", "a", "/a/", "//a", "/a//b", "/../a", "/a b", "/{x}", "/%41", "/é"] {
            assert!(wrong.parse::<PathPrefix>().is_err(), "{wrong}");
        }
    }
}
