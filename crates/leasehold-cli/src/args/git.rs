//! The words of `push` and `git-hook`.

use super::within;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold run report --guard git:origin -- sh -c './report && git commit -qam report && leasehold push'
  leasehold push origin HEAD:main --rebase
  leasehold push origin main v1.2 --once

The push moves the ref refs/fence/LEASE on the remote too, in the same atomic push; a run whose lease has gone to another
meanwhile finds it moved, and nothing of its push is applied. The remote needs no code of leasehold's.")]
pub struct Push {
    /// The remote: a name, a URL or a path [default: as `git push` has it for the current branch]
    pub remote: Option<String>,
    /// What to push: BRANCH, SOURCE:BRANCH, +SOURCE:BRANCH to overwrite, :BRANCH to delete [default: the current branch]
    pub refspecs: Vec<String>,
    /// The repository [default: the one around the current folder]
    #[arg(long, value_name = "DIR")]
    pub repo: Option<PathBuf>,
    /// When others have pushed meanwhile: rebase onto theirs and try again, up to this many times (5 if no number is given)
    #[arg(long, value_name = "TIMES", num_args = 0..=1, default_missing_value = "5", require_equals = true,
          value_parser = within::<1, 100>)]
    pub rebase: Option<u32>,
    /// Where on the remote the fences are, if it does not take refs/fence: refs/heads/NAME or refs/tags/NAME [default:
    /// LEASEHOLD_FENCE_NAMESPACE, or refs/fence]
    #[arg(long, value_name = "REFS")]
    pub fence_namespace: Option<String>,
    /// Admit one push per epoch
    #[arg(long)]
    pub once: bool,
    /// Give up after this long: exit code 69 if nothing was pushed, 70 if that is unknown [default: 10m]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<String>,
    /// Refuse a token that has expired (exit code 12), also while nobody newer has come and its write would count
    #[arg(long)]
    pub strict: bool,
    /// The token [default: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
pub struct GitHook {
    #[command(subcommand)]
    pub verb: GitHookVerb,
}

#[derive(Debug, Subcommand)]
pub enum GitHookVerb {
    /// Install the hooks in a server's bare repository
    Install(GitHookInstall),
    /// What the hooks call; reads what git gives them
    Run(GitHookRun),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold git-hook install --repo /srv/git/site.git --protect refs/heads/main=daily-publish
  leasehold git-hook install --protect 'refs/heads/release/*=release'")]
pub struct GitHookInstall {
    /// The bare repository [default: the one around the current folder]
    #[arg(long, value_name = "DIR")]
    pub repo: Option<PathBuf>,
    /// A ref, or all below one (`refs/heads/release/*`), that only pushes fenced by this lease may change (repeatable)
    #[arg(long, value_name = "REF=LEASE", required = true)]
    pub protect: Vec<String>,
    /// Where the fences are, if not in refs/fence
    #[arg(long, value_name = "REFS")]
    pub fence_namespace: Option<String>,
}

#[derive(Debug, Args)]
pub struct GitHookRun {
    /// Which hook it is: pre-receive or reference-transaction
    pub hook: String,
}
