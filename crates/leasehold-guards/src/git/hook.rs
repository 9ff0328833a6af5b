//! The hooks of a server that enforce the fence for every pusher.
//!
//! Promise: no transaction changes a protected ref unless the same transaction moves its lease's fence forward. That
//! is decided while git holds the locks of both, so there is no window, whatever the pusher's git asked for.
//! Non-promise: nobody is stopped who can write the repository's files or turn its hooks off.

use super::commit::{FenceMessage, Oid};
use super::names::{FenceNamespace, Refspec};
use super::program::{Git, HOOKABLE};
use crate::succession::{self, Former, MAX_FORMER_BYTES};
use leasehold_core::guard;
use leasehold_core::{Error, Kind, LeaseName, Remedy, Result};
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A hook with this line is ours.
const MARK: &str = "# leasehold git-hook";

/// How the leases of `leasehold drill` begin. They are made for one drill, and their fences are removed after it.
pub const SCRATCH: &str = "leasehold-drill-";

/// A ref, or all below a folder of refs, that only the holder of a lease may change: `refs/heads/main=daily-publish`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protection {
    pattern: String,
    lease: LeaseName,
}

impl Protection {
    fn covers(&self, name: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(folder) => name.starts_with(folder),
            None => name == self.pattern,
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.lease)
    }
}

impl FromStr for Protection {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |what: &str| {
            Error::invalid(
                "protection",
                text,
                format!("{what}; use REF=LEASE, such as refs/heads/main=daily or refs/heads/release/*=daily"),
            )
        };
        let (pattern, lease) = text.rsplit_once('=').ok_or_else(|| refuse("it has no `=`"))?;
        let lease = lease.parse().map_err(|_| refuse("the lease name is not one"))?;
        let plain = pattern.strip_suffix("/*").unwrap_or(pattern);
        let is_ref = plain.starts_with("refs/") && format!("x:{plain}").parse::<Refspec>().is_ok();
        if !is_ref {
            return Err(refuse("the ref is not a full name"));
        }
        Ok(Protection { pattern: pattern.to_owned(), lease })
    }
}

leasehold_system::words! {
    /// Which hook runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum HookState {
        /// `pre-receive`: refuses early, with a message that reaches the pusher. Enforces nothing by itself.
        PreReceive = "pre-receive",
        /// `reference-transaction` in its state `prepared`: the refs are locked, and nothing is changed yet.
        Transaction = "reference-transaction",
    }
}

impl FromStr for HookState {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = HookState::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| Error::invalid("hook", text, "use pre-receive or reference-transaction"))
    }
}

/// The hooks of one repository.
#[derive(Debug)]
pub struct Hooks {
    git: Git,
}

/// A hook that is in force after an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledHook {
    /// Where it is, in the hooks folder of the repository.
    pub path: PathBuf,
    /// Whether it is somebody else's, runs ours, and was left as it is.
    pub is_kept: bool,
}

/// One line of a hook's input.
struct Change {
    name: String,
    old: Option<Oid>,
    new: Option<Oid>,
}

impl Hooks {
    /// The hooks of the repository at this folder, or of the one that we are in.
    pub const fn of(folder: Option<PathBuf>) -> Self {
        Hooks { git: Git::new(folder) }
    }

    /// Installs both, and saves in git's settings what is protected. They call `program`. Somebody else's hook stays,
    /// if it runs ours.
    pub async fn install(
        &self,
        program: &Path,
        protections: &[Protection],
        namespace: &FenceNamespace,
    ) -> Result<Vec<InstalledHook>> {
        self.git.version(HOOKABLE).await?;
        if let Some(bad) =
            protections.iter().find(|protection| namespace.covers(protection.pattern.trim_end_matches("/*")))
        {
            return Err(Error::invalid("protection", bad, "fences are protected in any case; name branches or tags"));
        }
        let folder = self.hooks_folder().await?;
        let mut hooks = Vec::new();
        for state in HookState::ALL {
            let path = folder.join(state.as_str());
            let is_kept = is_kept(&path, state)?;
            hooks.push((state, InstalledHook { path, is_kept }));
        }
        self.configure(protections, namespace).await?;
        for (state, InstalledHook { path, .. }) in hooks.iter().filter(|(_, hook)| !hook.is_kept) {
            write_hook(path, &script(*state, program))
                .map_err(|e| Error::unavailable(format!("cannot write the hook `{}`", path.display()), e))?;
        }
        Ok(hooks.into_iter().map(|(_, hook)| hook).collect())
    }

    async fn hooks_folder(&self) -> Result<PathBuf> {
        let answer =
            self.git.run(["rev-parse", "--is-bare-repository", "--absolute-git-dir", "--git-path", "hooks"]).await?;
        if !answer.succeeded {
            return Err(Error::invalid("repository", self.git.folder().display(), answer.complaint()));
        }
        let text = answer.text();
        let lines: Vec<&str> = text.lines().collect();
        let [bare, git_folder, hooks] = lines[..] else {
            return Err(Error::new(Kind::Unsupported, "cannot find out where git has the hooks"));
        };
        if bare != "true" {
            let why = "it is not bare: hooks there would refuse local work, not pushes; name the server's repository";
            return Err(Error::invalid("repository", self.git.folder().display(), why));
        }
        let hooks = self.git.folder().join(hooks);
        fs::create_dir_all(&hooks).map_err(|e| Error::unavailable(format!("cannot make `{}`", hooks.display()), e))?;
        let (real, within) = (hooks.canonicalize(), Path::new(git_folder).canonicalize());
        match (real, within) {
            (Ok(real), Ok(within)) if real.starts_with(&within) => Ok(real),
            _ => {
                let message = format!(
                    "the hooks of this repository are elsewhere (core.hooksPath: `{}`), perhaps shared with others; \
                     install them there by hand, see docs/guards/git.md",
                    hooks.display()
                );
                Err(Error::new(Kind::Unsupported, message))
            }
        }
    }

    async fn configure(&self, protections: &[Protection], namespace: &FenceNamespace) -> Result<()> {
        let (known, _) = self.settings().await?.unwrap_or_default();
        let mut commands = Vec::new();
        for protection in protections.iter().filter(|new| !known.contains(new)) {
            if let Some(other) = known.iter().find(|other| other.pattern == protection.pattern) {
                let way =
                    format!("it is protected as `{other}` already; `git config --unset leasehold.protect` it first");
                return Err(Error::invalid("protection", protection, way));
            }
            commands.push(vec!["config".into(), "--add".into(), "leasehold.protect".into(), protection.to_string()]);
        }
        commands.push(vec!["config".into(), "leasehold.fenceNamespace".into(), namespace.to_string()]);
        for command in commands {
            let answer = self.git.run(&command).await?;
            if !answer.succeeded {
                let message = format!("cannot write the repository's settings: {}", answer.complaint());
                return Err(Error::new(Kind::Unavailable, message));
            }
        }
        Ok(())
    }

    /// Decides on the changes that git gave the hook on its standard input.
    ///
    /// # Errors
    /// If the change must not be made; the message is for the pusher.
    pub async fn run(&self, state: HookState, input: &str) -> Result<()> {
        let (protections, namespace) = self.settings().await?.ok_or_else(|| {
            let message = "refused: leasehold's hook runs here, but nothing says what it protects; the owner of this \
                           repository has to set it up";
            Error::new(Kind::Unsupported, message).with_remedy(Remedy::InstallHook)
        })?;
        if state == HookState::PreReceive && input.trim().is_empty() {
            let message = "refused: the pre-receive hook got no input; a hook that reads it before \
                           leasehold's has to pass it on";
            return Err(Error::new(Kind::Unsupported, message));
        }
        let mut changes: Vec<Change> = input.lines().filter_map(parse_change).collect();
        changes.retain(|change| {
            change.name.starts_with(&format!("{namespace}/")) || protections.iter().any(|p| p.covers(&change.name))
        });
        if changes.is_empty() {
            return Ok(());
        }
        if state == HookState::Transaction {
            // A transaction need not say what the old value is. The refs are locked, so it is read.
            let current = self.current(&changes).await?;
            for change in &mut changes {
                change.old = current.get(&change.name).cloned();
            }
        }
        // Repacking writes every ref again, unchanged.
        changes.retain(|change| change.old != change.new);
        if state == HookState::Transaction && input.lines().count() == 1 && self.is_repacked(&changes).await? {
            return Ok(());
        }
        let mut moved = HashMap::new();
        for change in changes.iter().filter(|change| change.name.starts_with(&format!("{namespace}/"))) {
            if self.is_scratch(change, &namespace, &protections).await? {
                continue;
            }
            let lease = self.forward(change, &namespace).await?;
            moved.insert(lease.0, lease.1);
        }
        for change in &changes {
            for protection in protections.iter().filter(|protection| protection.covers(&change.name)) {
                if moved.get(&protection.lease) != Some(&true) {
                    let message = format!(
                        "refused: ref `{}` is fenced by lease `{}`, and this push does not move its fence in the same \
                         transaction",
                        change.name, protection.lease
                    );
                    return Err(Error::new(Kind::Fenced, message).with_remedy(Remedy::PushThroughTheGuard));
                }
            }
        }
        Ok(())
    }

    /// Whether this removes the fence of a drill, which guards nothing that stays.
    async fn is_scratch(
        &self,
        change: &Change,
        namespace: &FenceNamespace,
        protections: &[Protection],
    ) -> Result<bool> {
        let (Some(old), None) = (&change.old, &change.new) else { return Ok(false) };
        let Ok(FenceMessage { high, .. }) = self.fence_message(old, &change.name).await else { return Ok(false) };
        let is_used = protections.iter().any(|protection| protection.lease == high.lease);
        let is_scratch = high.lease.as_str().starts_with(SCRATCH) && !is_used;
        Ok(is_scratch && namespace.fence_of(&high.lease)? == change.name)
    }

    /// Refuses to remove a fence or to move it back. Gives its lease, and whether it counts as a write.
    async fn forward(&self, change: &Change, namespace: &FenceNamespace) -> Result<(LeaseName, bool)> {
        let resource = format!("git:{}", change.name);
        let Some(new) = &change.new else {
            return Err(Error::new(Kind::Fenced, format!("refused: fence `{}` is never deleted", change.name)));
        };
        let FenceMessage { high: new, adopted, former, .. } = self.fence_message(new, &change.name).await?;
        if namespace.fence_of(&new.lease)? != change.name {
            let message = format!("refused: `{}` is not the fence of lease `{}`", change.name, new.lease);
            return Err(Error::new(Kind::Invalid, message));
        }
        let old = match &change.old {
            Some(oid) => Some(self.fence_message(oid, &change.name).await?),
            None => None,
        };
        let known = old.as_ref().map(|old| old.former.clone()).unwrap_or_default();
        let old = old.map(|old| old.high);
        let (seq, token) = (new.seq, new.token());
        // An operator who saw this fence gave it to another lease of this name.
        if let (Some(adopted), Some(old)) = (&adopted, &old)
            && succession::adopt(&resource, Some(old), old, &token).is_ok_and(|next| next == new)
            && adopted.from == old.token()
        {
            forgets_nothing(&resource, &known.given(&resource, old, &token, MAX_FORMER_BYTES)?, &former)?;
            return Ok((token.lease, false));
        }
        let sealed = guard::seal(old.as_ref(), &token).map_err(|why| why.into_error(&resource))?;
        forgets_nothing(&resource, &known, &former)?;
        // Within a tenure the count rises with every push of branches. It stays the same if only the fence moves.
        if seq < sealed.seq {
            let why = guard::Rejection::Replayed { held: seq, seen: sealed.seq };
            return Err(why.into_error(&resource));
        }
        Ok((token.lease, seq > sealed.seq))
    }

    /// Whether a deletion only removes the loose copy of a ref that was packed with the same value. In a real deletion
    /// of a packed ref, git has locked the packed refs by now.
    async fn is_repacked(&self, changes: &[Change]) -> Result<bool> {
        let [Change { name, old: Some(old), new: None }] = changes else { return Ok(false) };
        let answer = self.git.run(["rev-parse", "--git-path", "packed-refs"]).await?;
        let path = self.git.folder().join(answer.text());
        let packed = fs::read_to_string(&path).unwrap_or_default();
        let is_packed = packed.lines().any(|line| line.split_once(' ') == Some((old.as_str(), name)));
        Ok(answer.succeeded && is_packed && !path.with_file_name("packed-refs.lock").exists())
    }

    async fn fence_message(&self, oid: &Oid, fence: &str) -> Result<FenceMessage> {
        let answer = self.git.run(["cat-file", "commit", oid.as_str()]).await?;
        let commit = if answer.succeeded { answer.text() } else { String::new() };
        FenceMessage::read(&commit, fence)
    }

    /// What is protected here.
    pub async fn protections(&self) -> Result<Vec<Protection>> {
        Ok(self.settings().await?.unwrap_or_default().0)
    }

    /// None if none of our settings is set here.
    async fn settings(&self) -> Result<Option<(Vec<Protection>, FenceNamespace)>> {
        let answer = self.git.run(["config", "--null", "--get-regexp", r"^leasehold\."]).await?;
        // 1: there is none.
        if !answer.succeeded && answer.code != Some(1) {
            let message = format!("cannot read the repository's settings: {}", answer.complaint());
            return Err(Error::new(Kind::Unavailable, message));
        }
        let text = answer.text();
        let (mut protections, mut namespace, mut is_set) = (Vec::new(), FenceNamespace::default(), false);
        for (key, value) in text.split('\0').filter_map(|entry| entry.split_once('\n')) {
            match key {
                "leasehold.protect" => protections.push(value.parse()?),
                "leasehold.fencenamespace" => namespace = value.parse()?,
                _ => continue,
            }
            is_set = true;
        }
        Ok(is_set.then_some((protections, namespace)))
    }

    async fn current(&self, changes: &[Change]) -> Result<HashMap<String, Oid>> {
        let words = ["for-each-ref", "--format=%(objectname) %(refname)"];
        let answer = self.git.run(words.into_iter().chain(changes.iter().map(|change| change.name.as_str()))).await?;
        if !answer.succeeded {
            return Err(Error::new(Kind::Unavailable, format!("cannot read the refs: {}", answer.complaint())));
        }
        let text = answer.text();
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.filter_map(|(oid, name)| Some((name.to_owned(), Oid::parse(oid)?))).collect())
    }
}

fn parse_change(line: &str) -> Option<Change> {
    let mut words = line.splitn(3, ' ');
    let (old, new, name) = (words.next()?, words.next()?, words.next()?);
    // `ref:...` is a symbolic ref: what was there is as good as deleted.
    let oid = |word: &str| Oid::parse(word).filter(|oid| !oid.is_null());
    Some(Change { name: name.to_owned(), old: oid(old), new: oid(new) })
}

fn script(state: HookState, program: &Path) -> String {
    let quoted = program.display().to_string().replace('\'', r"'\''");
    let only = if state == HookState::Transaction { "[ \"$1\" = prepared ] || exit 0\n" } else { "" };
    format!(
        "#!/bin/sh\n{MARK}: refuses pushes that do not move the fence of a protected ref.\n{only}exec '{quoted}' git-hook run {}\n",
        state.as_str()
    )
}

/// Whether there is somebody else's hook that runs ours. Refuses one that does not.
fn is_kept(path: &Path, state: HookState) -> Result<bool> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(false);
    }
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    if text.contains(MARK) {
        return Ok(false);
    }
    let refuse = |message: String| Err(Error::new(Kind::Unsupported, message));
    if !text.lines().any(|line| runs_ours(line, state)) {
        return refuse(format!(
            "there is a hook at `{}` already, and it is not leasehold's: let it end with the line `exec leasehold \
             git-hook run {}`, or move it away",
            path.display(),
            state.as_str()
        ));
    }
    // Git ignores such a hook and prints only a hint.
    if fs::metadata(path).map_or(0, |stat| stat.permissions().mode()) & 0o111 == 0 {
        return refuse(format!(
            "the hook at `{0}` cannot be executed, so git does not run it: chmod +x {0}",
            path.display()
        ));
    }
    Ok(true)
}

/// Whether this line of a script runs our hook of this name.
fn runs_ours(line: &str, state: HookState) -> bool {
    let words: Vec<&str> = line.split_whitespace().map(|word| word.trim_end_matches(';')).collect();
    let call = ["git-hook", "run", state.as_str()];
    !line.trim_start().starts_with('#') && words.windows(call.len()).any(|found| found == call)
}

fn write_hook(path: &Path, text: &str) -> std::io::Result<()> {
    let staged = path.with_extension("leasehold-new");
    fs::write(&staged, text)?;
    fs::set_permissions(&staged, fs::Permissions::from_mode(0o755))?;
    fs::rename(&staged, path)
}

/// Refuses a fence that does not name the leases that had it before.
fn forgets_nothing(resource: &str, expected: &Former, said: &Former) -> Result<()> {
    if expected == said {
        return Ok(());
    }
    let message = format!("refused: resource=`{resource}`: the pushed fence forgets leases that had it before");
    Err(Error::new(Kind::Fenced, message))
}
