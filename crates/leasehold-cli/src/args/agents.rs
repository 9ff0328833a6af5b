//! The words of `hook` and `agents`: what the hosts of agents are set up with.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// A host whose hooks are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HookHost {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
    /// Gemini CLI
    Gemini,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads the host's event on standard input and answers in the host's own JSON within 2 s. Before a tool call it asks the store
whether the session still holds its lease, and denies the call if it does not, or if that cannot be determined. While the store cannot
be reached, the lease is trusted for as long as its last renewal says. After a tool call it reports progress, which counts for
`run --progress-timeout`.

A hook is advisory: a host may ignore it. `mcp-gate` enforces tools, and guards enforce writes.

Examples:
  leasehold agents print claude                          the settings that run this hook
  leasehold run task-7 -- claude -p \"$(cat task.md)\"     the session that it guards
  leasehold hook claude --tools 'Bash' --tools 'mcp__*'  guard these tools only")]
pub struct Hook {
    /// The host that runs it
    #[arg(value_enum)]
    pub host: HookHost,
    /// Guard only tools with such a name; `*` stands for any characters (repeatable) [default: all]
    #[arg(long, value_name = "PATTERN")]
    pub tools: Vec<String>,
    /// Let sessions pass that were not started under a lease
    #[arg(long)]
    pub allow_unleased: bool,
}

/// What can be set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Host {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
    /// Gemini CLI
    Gemini,
    /// Cursor
    Cursor,
    /// VS Code
    Vscode,
    /// An agent that cron starts
    Crontab,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leasehold agents print claude\n  leasehold agents install codex --dry-run")]
pub struct Agents {
    #[command(subcommand)]
    pub verb: AgentsVerb,
}

#[derive(Debug, Subcommand)]
pub enum AgentsVerb {
    /// Print what a host's settings need
    #[command(after_help = "Examples:\n  leasehold agents print claude\n  leasehold agents print crontab")]
    Print(AgentsPrint),
    /// Merge it into the host's settings, after showing the difference
    #[command(
        after_help = "What is there stays as it is, comments too; a setting that says something else is left as it is and reported. Other files \
                      are not touched.\n\nExamples:\n  leasehold agents install claude --dry-run\n  \
                      leasehold agents install codex --yes"
    )]
    Install(AgentsInstall),
}

#[derive(Debug, Args)]
pub struct AgentsPrint {
    /// The host
    #[arg(value_enum)]
    pub host: Host,
    #[command(flatten)]
    pub hook: HookFlags,
}

#[derive(Debug, Args)]
pub struct AgentsInstall {
    /// The host
    #[arg(value_enum)]
    pub host: Host,
    #[command(flatten)]
    pub hook: HookFlags,
    /// The project's folder
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub project: PathBuf,
    /// Only show the difference
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct HookFlags {
    /// Let the host's sessions pass that were not started under a lease
    #[arg(long)]
    pub allow_unleased: bool,
}
