//! The words of `serve` and `key`.

use super::{Monitoring, sized, within};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold serve                                      on this machine only, on this user's own store
  leasehold serve --store postgres://db.internal/jobs --listen 0.0.0.0:7117 --tls-cert cert.pem --tls-key key.pem
  leasehold serve --path-prefix /leases                behind a proxy that has TLS and hands on /leases

The first server on a store without keys makes one key that may do everything, and prints it once, on standard error. Make
others with `leasehold key create`, then revoke it. Any number of servers may run on one store.

Clients name the server with --store leasehold://HOST/NAMESPACE (port 443, unless the URL names another), or on this machine
with leasehold+http://127.0.0.1/NAMESPACE (port 7117), and their key in LEASEHOLD_KEY, or in the file that LEASEHOLD_KEY_FILE
names.")]
pub struct Serve {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7117")]
    pub listen: String,
    /// The certificate to show, with those that lead to its authority, in PEM; it is reloaded when it changes
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Listen beyond this machine without TLS, although everybody between can read the keys
    #[arg(long, conflicts_with = "tls_cert")]
    pub insecure_listen: bool,
    /// What every path begins with, such as /leases, behind a proxy that passes paths on as they are
    #[arg(long, value_name = "PATH")]
    pub path_prefix: Option<String>,
    /// Write the first key to this new file, which only its owner can read, instead of printing it
    #[arg(long, value_name = "PATH")]
    pub bootstrap_key_file: Option<PathBuf>,
    /// The longest request body, such as 512KiB or 1MiB
    #[arg(long, value_name = "SIZE", value_parser = sized::<1024, 1_073_741_824>, default_value = "1MiB")]
    pub max_body: u64,
    /// The longest request head
    #[arg(long, value_name = "SIZE", value_parser = sized::<8192, 1_048_576>, default_value = "16KiB")]
    pub max_head: u64,
    /// How many connections may be open at once
    #[arg(long, value_name = "N", value_parser = within::<1, 1_000_000>, default_value_t = 16_384)]
    pub max_connections: u32,
    /// How many requests may be under way at once, without those that wait
    #[arg(long, value_name = "N", value_parser = within::<1, 1_000_000>, default_value_t = 256)]
    pub max_requests: u32,
    /// How many requests to renew, release, complete and tell progress may be under way in addition; no other requests count here
    #[arg(long, value_name = "N", value_parser = within::<1, 1_000_000>, default_value_t = 128)]
    pub max_holder_requests: u32,
    /// How many requests a second one key may make; to renew and the like, ten times as many besides
    #[arg(long, value_name = "N", value_parser = within::<1, 1_000_000>, default_value_t = 500)]
    pub max_rate: u32,
    /// How many requests of one key may wait at once, and its streams
    #[arg(long, value_name = "N", value_parser = within::<1, 1_000_000>, default_value_t = 10_000)]
    pub max_waiters: u32,
    /// How long a client may take to send a head, or a body
    #[arg(long, value_name = "DURATION", default_value = "10s", allow_hyphen_values = true)]
    pub client_timeout: String,
    /// How long a client may take to read a piece of its answer
    #[arg(long, value_name = "DURATION", default_value = "30s", allow_hyphen_values = true)]
    pub write_timeout: String,
    /// How long a connection may be idle
    #[arg(long, value_name = "DURATION", default_value = "90s", allow_hyphen_values = true)]
    pub idle_timeout: String,
    /// How long what is under way may take to end after SIGTERM
    #[arg(long, value_name = "DURATION", default_value = "10s", allow_hyphen_values = true)]
    pub grace: String,
    #[command(flatten)]
    pub monitoring: Monitoring,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold key create --namespace ci --name 'deploy/*' --allow read,hold --expires 30d --label 'CI runners'
  leasehold key ls
  leasehold key rotate k3m7q2xa --overlap 24h
  leasehold key revoke k3m7q2xa --why 'the laptop was stolen'

Keys are kept in the store, for every server on it. Where the store can be opened, these commands need no key. With
--store leasehold://HOST/NAMESPACE they ask the server, with a key that allows `admin`: in LEASEHOLD_KEY, or in the file
that LEASEHOLD_KEY_FILE names.")]
pub struct KeyArgs {
    #[command(subcommand)]
    pub verb: KeyVerb,
}

#[derive(Debug, Subcommand)]
pub enum KeyVerb {
    /// Make a key, and print it: it cannot be printed again
    #[command(
        after_help = "Examples:\n  leasehold key create --name 'deploy/*' --allow read,hold --expires 30d --label 'CI runners'\n  leasehold key create --namespace '*' --allow read --label dashboard"
    )]
    Create(KeyCreate),
    /// List keys: what each is for, whether it is valid, when it was last used
    #[command(after_help = "Examples:\n  leasehold key ls\n  leasehold key ls --json")]
    Ls,
    /// Replace a key by a new one for the same, and print that; the old one stays valid for a while
    #[command(after_help = "Examples:\n  leasehold key rotate k3m7q2xa --overlap 24h")]
    Rotate(KeyRotate),
    /// End a key, within seconds on every server
    #[command(after_help = "Examples:\n  leasehold key revoke k3m7q2xa --why 'the laptop was stolen'")]
    Revoke(KeyRevoke),
    /// Have the server make a key for a token of an OIDC issuer, and print it: CI runners and pods need no key of their own
    #[command(
        after_help = "Examples:\n  export LEASEHOLD_STORE=leasehold://leases.example.org/ci\n  export LEASEHOLD_KEY=$(leasehold key exchange --token-file /var/run/secrets/tokens/leasehold)\n  leasehold run deploy/web -- ./deploy.sh\n\nThe store is the server: --store leasehold://HOST/NAMESPACE. Its [[oidc]] settings say which tokens it takes, and for what."
    )]
    Exchange(KeyExchange),
}

#[derive(Debug, Args)]
pub struct KeyExchange {
    /// The file with the token; `-` is standard input [default: LEASEHOLD_OIDC_TOKEN, or the file that LEASEHOLD_OIDC_TOKEN_FILE
    /// names]
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct KeyCreate {
    /// The namespace that it is for; `*` is every one [default: the store's]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The leases, jobs and queues that it is for, such as 'team/*': `*` is any characters, `?` one (repeatable) [default: *]
    #[arg(long, value_name = "PATTERN")]
    pub name: Vec<String>,
    /// What it allows, separated by commas: read, hold, work, operate, admin
    #[arg(long, value_name = "VERBS")]
    pub allow: String,
    /// How long it is valid [default: for ever]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub expires: Option<String>,
    /// What people call it
    #[arg(long, value_name = "TEXT")]
    pub label: String,
    /// Who you are [default: user@host]
    #[arg(long, value_name = "TEXT")]
    pub by: Option<String>,
}

#[derive(Debug, Args)]
pub struct KeyRotate {
    /// The key's id, as `key ls` prints it
    pub id: String,
    /// How long the old key stays valid
    #[arg(long, value_name = "DURATION", default_value = "24h", allow_hyphen_values = true)]
    pub overlap: String,
    /// How long the new key is valid [default: as long as the old one did]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub expires: Option<String>,
    /// Who you are [default: user@host]
    #[arg(long, value_name = "TEXT")]
    pub by: Option<String>,
}

#[derive(Debug, Args)]
pub struct KeyRevoke {
    /// The key's id, as `key ls` prints it
    pub id: String,
    /// Why; it is kept in the record
    #[arg(long, value_name = "TEXT")]
    pub why: String,
    /// Who you are [default: user@host]
    #[arg(long, value_name = "TEXT")]
    pub by: Option<String>,
}
