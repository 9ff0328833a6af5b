//! `git-hook`: what a git server runs so that nobody pushes around the fence.

use crate::args::{GitHook, GitHookInstall, GitHookRun, GitHookVerb};
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Kind, Result};
use leasehold_guards::git::{FenceNamespace, HookState, Hooks, Protection};
use std::io::Read;

/// More refs in one push than this fills are more than anybody pushes.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

pub async fn git_hook(args: &GitHook) -> Result<Exit> {
    match &args.verb {
        GitHookVerb::Install(args) => install(args).await,
        GitHookVerb::Run(args) => run(args).await,
    }
}

async fn install(args: &GitHookInstall) -> Result<Exit> {
    let protections: Vec<Protection> = args.protect.iter().map(|text| text.parse()).collect::<Result<_>>()?;
    let namespace: FenceNamespace = args.fence_namespace.as_deref().map(str::parse).transpose()?.unwrap_or_default();
    let program = std::env::current_exe()
        .map_err(|e| Error::new(Kind::Unsupported, "cannot tell where the leasehold program is").with_source(e))?;
    let hooks = Hooks::of(args.repo.clone());
    for hook in hooks.install(&program, &protections, &namespace).await? {
        let done = if hook.is_kept { "kept" } else { "installed" };
        let why = if hook.is_kept { ", which runs leasehold's" } else { "" };
        output::say(&format!("{done} `{}`{why}", hook.path.display()));
    }
    for protection in hooks.protections().await? {
        output::say(&format!("protected: {protection}"));
    }
    Ok(Exit::Done)
}

async fn run(args: &GitHookRun) -> Result<Exit> {
    let state: HookState = args.hook.parse()?;
    let mut input = String::new();
    let read = std::io::stdin().lock().take(MAX_BYTES).read_to_string(&mut input);
    read.map_err(|e| Error::new(Kind::Invalid, "cannot read what git gives the hook").with_source(e))?;
    // What was cut off could be what matters.
    if input.len() as u64 == MAX_BYTES {
        return Err(Error::new(Kind::Invalid, "refused: more refs in one push than a hook can judge"));
    }
    Hooks::of(None).run(state, &input).await.map(|()| Exit::Done)
}
