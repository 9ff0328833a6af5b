//! The words of `proxy`, `mcp-gate` and `mcp`: guards at the boundary of a service or of an agent's tools.

use super::sized;
#[cfg(feature = "http")]
use super::within;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[cfg(feature = "http")]
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold proxy --listen 127.0.0.1:8080 --upstream http://127.0.0.1:9000 --resource billing-api
  leasehold run invoices --guard http://127.0.0.1:8080 -- sh -c \\
    'curl -fsS -X POST -H \"Leasehold-Token: $LEASEHOLD_TOKEN\" -d @invoice.json http://127.0.0.1:8080/invoices'

A request needs `Leasehold-Token`. One of an older epoch gets 412 and `Leasehold-Fenced: held=41 seen=42`. A newer epoch
waits for older requests in flight, at most as long as --drain. Run several proxies for one resource and one answers,
while the others stand by (503) until it is gone.")]
pub struct Proxy {
    /// Where to listen, such as 127.0.0.1:8080; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub listen: String,
    /// Where requests go: http:// or https://, fixed for good
    #[arg(long, value_name = "URL")]
    pub upstream: String,
    /// What is guarded: the name of the fence in the store
    #[arg(long, value_name = "NAME")]
    pub resource: String,
    /// Admit tokens of this lease only [default: that of the first token that the store confirms]
    #[arg(long, value_name = "LEASE")]
    pub lease: Option<String>,
    /// Admit tokens of this spool's items too: spool:/path/to/folder (repeatable)
    #[arg(long, value_name = "SPOOL")]
    pub spool: Vec<String>,
    /// Let GET, HEAD and OPTIONS pass without a token
    #[arg(long)]
    pub allow_safe: bool,
    /// Admit one request per epoch
    #[arg(long)]
    pub once_per_epoch: bool,
    /// Keep this many answers for clients that ask again with the same Idempotency-Key [default: 0]
    #[arg(long, value_name = "N", value_parser = within::<0, 100_000>, default_value_t = 0, hide_default_value = true)]
    pub replay: u32,
    /// How long an answer is kept
    #[arg(long, value_name = "DURATION", default_value = "10m", requires = "replay")]
    pub replay_age: String,
    /// How long a newer epoch waits for older requests before they are cut
    #[arg(long, value_name = "DURATION", default_value = "5s", allow_hyphen_values = true)]
    pub drain: String,
    /// The longest request body, such as 512KiB or 64MiB
    #[arg(long, value_name = "SIZE", value_parser = sized::<0, { u64::MAX }>, default_value = "64MiB")]
    pub max_body: u64,
    /// The longest request head
    #[arg(long, value_name = "SIZE", value_parser = sized::<8192, 1_048_576>, default_value = "64KiB")]
    pub max_head: u64,
    /// How many requests may be under way at once
    #[arg(long, value_name = "N", value_parser = within::<1, 1_000_000>, default_value_t = 1024)]
    pub max_requests: u32,
    /// How many connections may be open at once
    #[arg(long, value_name = "N", value_parser = within::<1, 1_000_000>, default_value_t = 4096)]
    pub max_connections: u32,
    /// How long a client may take to send a head, or between two pieces of a body
    #[arg(long, value_name = "DURATION", default_value = "30s", allow_hyphen_values = true)]
    pub client_timeout: String,
    /// How long the upstream may take to begin its answer; a request that was sent counts as in progress for as long
    #[arg(long, value_name = "DURATION", default_value = "30s", allow_hyphen_values = true)]
    pub upstream_timeout: String,
    /// Keep the high water in this folder too, so that a store which is restored from an old copy is noticed [default:
    /// LEASEHOLD_STATE, the setting `state`, or the user's state folder]
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_state")]
    pub state: Option<String>,
    /// Keep no files: then a store that went back in time is not noticed
    #[arg(long)]
    pub no_state: bool,
    /// How long after this proxy's death another may take over (1s to 24h)
    #[arg(long, value_name = "DURATION", default_value = "10s", allow_hyphen_values = true)]
    pub ttl: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold run agent -- my-agent          whose MCP settings start the server as:
  leasehold mcp-gate --guard repo -- npx -y @modelcontextprotocol/server-filesystem /srv/repo
  leasehold mcp-gate --guard repo --tool write_file --tool move_file -- npx -y ... /srv/repo

Everything passes untouched but `tools/call` of a holder that has lost its lease: that gets an error result with both
epochs. A gate is check-then-act: a call that has passed may still run when the lease is lost.")]
pub struct McpGate {
    /// What is guarded: the name of the fence in the store
    #[arg(long, value_name = "NAME")]
    pub guard: String,
    /// Gate this tool only (repeatable) [default: all]
    #[arg(long, value_name = "TOOL")]
    pub tool: Vec<String>,
    /// Keep the high water in this folder too, so that a store which is restored from an old copy is noticed [default:
    /// LEASEHOLD_STATE, the setting `state`, or the user's state folder]
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_state")]
    pub state: Option<String>,
    /// Keep no files: then a store that went back in time is not noticed
    #[arg(long)]
    pub no_state: bool,
    /// Ask the store before every gated call, instead of relying on the last heartbeat
    #[arg(long)]
    pub every_call: bool,
    /// The longest line from the client, such as 512KiB or 16MiB
    #[arg(long, value_name = "SIZE", value_parser = sized::<1024, 1_073_741_824>, default_value = "16MiB")]
    pub max_line: u64,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// The MCP server and its arguments
    #[arg(last = true, required = true, value_name = "SERVER")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold mcp                            speaks MCP on standard input and output
  claude mcp add leasehold -- leasehold mcp --store dir:/mnt/team/leases

Leases that a client with a session acquired are renewed until they are released, or standard input ends; then they are given
back. Clients of MCP 2026-07-28 have no session: they renew and release what they acquired, by its token.")]
pub struct Mcp {
    /// Write files below this folder only
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub root: PathBuf,
}
