//! The words of the verbs that write through a guard, and of those that try one or give one away.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold sql sqlite:app.db --init                       the fence table, once
  leasehold sql postgres://db/app --init --protect orders  and nobody writes to orders without a token
  leasehold run daily -- leasehold sql postgres://db/app -f daily.sql
  leasehold sql mysql://app@db/app -c 'UPDATE totals SET n = n + 1' --json

All statements run in one transaction, together with the check of the token. A stale token changes nothing.")]
pub struct Sql {
    /// The database: sqlite:PATH, postgres://host/db, mysql://user@host/database
    pub url: String,
    /// Run this SQL (may be repeated)
    #[arg(short = 'c', long = "command", value_name = "SQL", conflicts_with = "file", allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// Run the SQL in this file, `-` for standard input (may be repeated)
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// Set up the fence: may be done any number of times
    #[arg(long, conflicts_with_all = ["command", "file"])]
    pub init: bool,
    /// With --init: only print the statements
    #[arg(long, requires = "init", conflicts_with_all = ["command", "file", "column"])]
    pub print: bool,
    /// With --init: refuse writes to this table from transactions without a token (may be repeated)
    #[arg(long, value_name = "TABLE", requires = "init", conflicts_with_all = ["command", "file", "column"])]
    pub protect: Vec<String>,
    /// With --init: take that back (may be repeated)
    #[arg(long, value_name = "TABLE", requires = "init", conflicts_with_all = ["command", "file", "column"])]
    pub unprotect: Vec<String>,
    /// What the fence is for, where several leases share a database [default: database]
    #[arg(long, value_name = "NAME")]
    pub resource: Option<String>,
    /// Admit one transaction per epoch
    #[arg(long, conflicts_with = "seq")]
    pub once: bool,
    /// Admit only with a larger number than the last: a delayed retry cannot land after a later write
    #[arg(long, value_name = "N")]
    pub seq: Option<u64>,
    /// Print the condition for a table that has a fencing column of its own, and do nothing
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["init", "command", "file"])]
    pub column: Option<String>,
    /// Refuse a token that has expired (exit code 12), also while nobody newer has come and its write would count
    #[arg(long)]
    pub strict: bool,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold put report.json s3://bucket/report.json
  ./report | leasehold put - gs://bucket/report.json
  leasehold put model.bin s3://bucket/model.bin --salt none

S3 computes the ETag from the content, so the same content has the same ETag. For text and JSON a line of blanks at the end
makes every body unique (--salt blank, the default there). For other contents on S3 choose --salt none: then a stale put can
land while the content is byte for byte what its writer last saw. Azure and Google need no salt.")]
pub struct Put {
    /// The file to put, `-` for standard input; at most 64 MiB
    pub file: PathBuf,
    /// Where: s3://bucket/key, gs://bucket/key or az://container/key
    pub url: String,
    /// The content type [default: by the key's ending]
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
    /// On S3: `blank` to end every body with a unique line of blanks, `none` to leave it as it is
    #[arg(long, value_name = "HOW")]
    pub salt: Option<String>,
    /// Admit one put per epoch
    #[arg(long)]
    pub once: bool,
    /// Refuse a token that has expired (exit code 12), also while nobody newer has come and its write would count
    #[arg(long)]
    pub strict: bool,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold drill file:/mnt/team/out.json
  leasehold drill git:origin
  leasehold drill postgres://db/app
  leasehold drill s3://bucket/report.json

It works in a scratch name beside the resource, and removes what it made: files, refs, rows, the fence table if there was none,
objects. Exit code 78 means that a stale write got through. A `leasehold proxy`, an MCP gate and a published folder cannot be
drilled on.")]
pub struct Drill {
    /// The resource: file:PATH, git:REMOTE, a database or an object in a bucket
    pub guard: String,
    /// Where the fences on a git remote are, as for `push` [default: LEASEHOLD_FENCE_NAMESPACE, or refs/fence]
    #[arg(long, value_name = "REFS")]
    pub fence_namespace: Option<String>,
    /// Give up after this long, and remove what was made [default: 5m]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ./report | leasehold write out.json
  leasehold write out.json --from /tmp/new.json")]
pub struct Write {
    /// The file to write
    pub file: PathBuf,
    /// Read from this file instead of standard input
    #[arg(long, value_name = "PATH")]
    pub from: Option<PathBuf>,
    /// Admit one write per epoch
    #[arg(long)]
    pub once: bool,
    /// Refuse a token that has expired (exit code 12), also while nobody newer has come and its write would count
    #[arg(long)]
    pub strict: bool,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold publish ./build /srv/www/site

A folder is published whole, or its files are written one by one with `leasehold write`: one that holds fences of its own
is refused, and so is a write inside of a published one.")]
pub struct Publish {
    /// The folder to publish; it is copied
    pub folder: PathBuf,
    /// What readers see: absent at first, or a folder, or what an earlier publish made
    pub target: PathBuf,
    /// How many earlier generations to keep
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub keep: usize,
    /// Refuse a token that has expired (exit code 12), also while nobody newer has come and its write would count
    #[arg(long)]
    pub strict: bool,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  token=$(leasehold acquire report-v2) && leasehold adopt file:out.json --token \"$token\" --why 'report-v2 replaces report'

A resource belongs to the lease that wrote there first; every other lease is refused, also one of the same name in another
store or namespace. If a store was lost and created again, do not adopt: heal the lease with `leasehold advance --lineage`.")]
pub struct Adopt {
    /// What to give away, as --guard names it: file:PATH, folder:PATH, git:REMOTE, a database, an object in a
    /// bucket; or http:NAME of `proxy --resource NAME`, mcp:NAME of `mcp-gate --guard NAME`
    pub resource: String,
    /// Why; it is kept with the fence
    #[arg(long, value_name = "TEXT", required = true)]
    pub why: String,
    /// Who you are [default: user@host]
    #[arg(long, value_name = "TEXT")]
    pub by: Option<String>,
    /// A token of the lease that gets it [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold gate deploy-api -- curl -fsS -X POST https://deploy.example/start

A gate is check-then-act: the lease may be lost after the check. Where the resource can check a token itself, use a
guard that does (`leasehold write`, `leasehold publish`).")]
pub struct Gate {
    /// What is being written to, for messages
    pub resource: String,
    /// Stay until the command has ended, then print how long the window was and whether the lease was lost in it
    #[arg(long)]
    pub measure: bool,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
