//! The scratch resource of a drill, beside the user's own, and the processes that write to it.

use crate::interrupt::Stop;
use crate::targets;
use leasehold_core::guard::{Guard, Policy};
use leasehold_core::{Error, Kind, LeaseName, Result, Token};
use leasehold_guards::git::{FenceNamespace, SCRATCH};
use leasehold_guards::{FileGuard, GitGuard};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// What can be drilled on.
const FORMS: &str = "file:PATH, git:REMOTE, sqlite:PATH, postgres://host/db, mysql://user@host/database, \
                     s3://bucket/key, gs://bucket/key or az://container/key";
/// More than a pipe holds twice over: once it is taken, the writer is in the middle of its payload.
const PADDING_BYTES: usize = 256 * 1024;
const POLL: Duration = Duration::from_millis(10);

/// What a writer under this token writes.
pub fn text(token: &Token) -> String {
    format!("written under epoch {}", token.epoch)
}

/// A scratch resource of the kind that is drilled.
pub struct Target {
    kind: Resource,
    /// Gone with the drill: repositories to push from, and where no store is.
    scratch: PathBuf,
    /// Whether nothing more is to be started.
    stop: Option<Stop>,
}

enum Resource {
    File(PathBuf),
    Git { remote: String, branch: String, namespace: FenceNamespace },
    Sql { url: String, resource: String, made: Made },
    Object(String),
}

/// What a drill made in a database besides its own row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    /// Not even that was found out.
    NotYet,
    Nothing,
    /// The fence table.
    Table,
    /// The database itself: a file.
    File,
}

impl Target {
    /// The scratch resource beside the one that `text` names.
    pub fn parse(text: &str, number: &str, namespace: FenceNamespace) -> Result<Self> {
        let name = format!("{SCRATCH}{number}");
        let kind = match text.split_once(':') {
            Some(("file", path)) if Path::new(path).file_name().is_some() => {
                let path = Path::new(path);
                let mut file: OsString = path.file_name().unwrap_or_default().to_owned();
                file.push(format!(".{name}"));
                Resource::File(path.with_file_name(file))
            }
            Some(("git", remote)) if !remote.is_empty() => {
                GitGuard::new(remote, Policy::Reentrant)?;
                Resource::Git { remote: url_of(remote)?, branch: format!("refs/heads/{name}"), namespace }
            }
            Some((scheme, _)) if targets::SQL.contains(&scheme) => {
                Resource::Sql { url: text.to_owned(), resource: name.clone(), made: Made::NotYet }
            }
            Some((scheme, _)) if targets::OBJECT.contains(&scheme) => {
                let (target, options) =
                    text.split_once('?').map_or((text, String::new()), |(p, o)| (p, format!("?{o}")));
                Resource::Object(format!("{target}.{name}.txt{options}"))
            }
            Some(("http" | "https", _)) => {
                let why = format!("a proxy is not drilled, because it refuses by itself; use {FORMS}");
                return Err(Error::invalid("guard", text, why));
            }
            _ => return Err(Error::invalid("guard", text, format!("use {FORMS}"))),
        };
        Ok(Target { kind, scratch: std::env::temp_dir().join(name), stop: None })
    }

    /// From now on no writer is started after `stop` is set.
    pub fn stop_when(&mut self, stop: Stop) {
        self.stop = Some(stop);
    }

    /// The guard of the scratch resource.
    pub fn guard(&self) -> Result<Arc<dyn Guard>> {
        Ok(match &self.kind {
            Resource::File(path) => Arc::new(FileGuard::new(path, Policy::Reentrant)?),
            Resource::Git { remote, namespace, .. } => {
                let guard = GitGuard::new(remote, Policy::Reentrant)?.with_namespace(namespace.clone());
                Arc::new(guard.in_repository(self.repository(Role::Holder)))
            }
            Resource::Sql { url, resource, .. } => {
                targets::database(url, Some(resource), Policy::Reentrant)? as Arc<dyn Guard>
            }
            Resource::Object(url) => targets::object_guard(url)?,
        })
    }

    /// What has to be there before.
    pub async fn prepare(&mut self) -> Result<()> {
        let folder = std::fs::create_dir(&self.scratch);
        folder.map_err(|e| Error::unavailable(format!("cannot make `{}`", self.scratch.display()), e))?;
        match &mut self.kind {
            Resource::File(_) | Resource::Object(_) => Ok(()),
            Resource::Sql { url, made, resource } => {
                let file = file_of(url).filter(|path| !path.exists());
                let is_new = || async {
                    let found = targets::database(url, Some(resource), Policy::Reentrant)?.high_water().await;
                    Ok::<_, Error>(found.is_err_and(|e| e.kind() == Kind::Unsupported))
                };
                *made = match file {
                    Some(_) => Made::File,
                    None if is_new().await? => Made::Table,
                    None => Made::Nothing,
                };
                let mut init = leasehold(&["sql", "--init"])?;
                output_of(init.arg(url)).map(drop)
            }
            Resource::Git { .. } => {
                for role in [Role::Holder, Role::Zombie] {
                    output_of(Command::new("git").arg("init").arg("-q").arg(self.repository(role)))?;
                }
                self.hold_pushes_of_the_zombie()
            }
        }
    }

    /// What a reader finds; none where we have no verb to read with.
    pub fn read(&self) -> Result<Option<String>> {
        match &self.kind {
            Resource::File(path) => std::fs::read_to_string(path)
                .map(Some)
                .map_err(|e| Error::unavailable(format!("cannot read `{}`", path.display()), e)),
            Resource::Git { remote, branch, .. } => {
                output_of(self.git(Role::Holder).args(["fetch", "-q", "--no-tags", remote, branch]))?;
                output_of(self.git(Role::Holder).args(["log", "-1", "--format=%s", "FETCH_HEAD"])).map(Some)
            }
            Resource::Sql { .. } | Resource::Object(_) => Ok(None),
        }
    }

    /// Removes what the drill made, as far as possible.
    pub async fn clean(&self, lease: &LeaseName) -> Result<()> {
        let cleaned = match &self.kind {
            Resource::File(path) => clean_file(path),
            Resource::Git { remote, branch, namespace } => {
                namespace.fence_of(lease).and_then(|fence| self.clean_remote(remote, branch, &fence))
            }
            Resource::Sql { url, made: Made::File, .. } => file_of(url).map_or(Ok(()), |path| clean_database(&path)),
            Resource::Sql { made: Made::NotYet, .. } => Ok(()),
            Resource::Sql { url, resource, made } => {
                targets::database(url, Some(resource), Policy::Reentrant)?.remove(*made == Made::Table).await
            }
            Resource::Object(url) => targets::remove_object(url).await,
        };
        let removed = gone(std::fs::remove_dir_all(&self.scratch));
        cleaned.and(removed.map_err(|e| Error::unavailable(format!("cannot remove `{}`", self.scratch.display()), e)))
    }

    fn clean_remote(&self, remote: &str, branch: &str, fence: &str) -> Result<()> {
        if !self.repository(Role::Holder).exists() {
            // Nothing could be pushed yet.
            return Ok(());
        }
        let refs = output_of(self.git(Role::Holder).args(["ls-remote", remote]))?;
        let ours = refs.lines().filter_map(|line| line.split_once('\t')).map(|(_, name)| name);
        let ours = ours.filter(|found| *found == branch || *found == fence);
        let gone: Vec<String> = ours.map(|name| format!(":{name}")).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let removed = output_of(self.git(Role::Holder).args(["push", "-q", "--no-verify", remote]).args(&gone));
        removed.map(drop).map_err(|e| {
            let left = gone.iter().map(|spec| &spec[1..]).collect::<Vec<_>>().join("`, `");
            let message = format!(
                "the drill is over, but the remote did not let it remove its refs `{left}`; whoever runs the remote \
                 removes each with `git -c core.hooksPath=/dev/null update-ref -d REF`"
            );
            Error::new(Kind::Unavailable, message).with_source(e)
        })
    }

    fn repository(&self, role: Role) -> PathBuf {
        self.scratch.join(match role {
            Role::Holder => "holder",
            Role::Zombie => "zombie",
        })
    }

    fn git(&self, role: Role) -> Command {
        let mut git = Command::new("git");
        git.arg("-C").arg(self.repository(role));
        git.args(["-c", "user.name=leasehold", "-c", "user.email=drill@leasehold.invalid"]);
        git
    }

    fn held(&self) -> PathBuf {
        self.scratch.join("held")
    }

    fn reached(&self) -> PathBuf {
        self.scratch.join("reached")
    }

    /// git runs this hook when it knows the remote's refs, before it sends anything.
    fn hold_pushes_of_the_zombie(&self) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let hooks = self.repository(Role::Zombie).join(".git/hooks");
        let script = format!(
            "#!/bin/sh\n: >'{}'\nwhile [ -e '{}' ]; do sleep 0.05; done\n",
            self.reached().display(),
            self.held().display()
        );
        let write = || {
            std::fs::write(self.held(), "")?;
            std::fs::create_dir_all(&hooks)?;
            std::fs::write(hooks.join("pre-push"), script)?;
            std::fs::set_permissions(hooks.join("pre-push"), PermissionsExt::from_mode(0o755))
        };
        write().map_err(|e| Error::unavailable("cannot write a hook for the drill", e))
    }
}

/// For people: without a password, and without the path of a scratch folder.
impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            Resource::File(path) => write!(f, "file:{}", path.display()),
            Resource::Git { branch, .. } => write!(f, "{branch} of the remote"),
            Resource::Sql { resource, .. } => write!(f, "{resource} in the database"),
            Resource::Object(url) => f.write_str(&shown(url)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Holder,
    Zombie,
}

/// The address of a remote that is known by a name here.
fn url_of(remote: &str) -> Result<String> {
    if let Ok(url) = output_of(Command::new("git").args(["remote", "get-url", "--", remote])) {
        return Ok(from_its_repository(url.trim_end()));
    }
    let path = Path::new(remote);
    match path.canonicalize() {
        Ok(path) => Ok(path.to_string_lossy().into_owned()),
        Err(_) => Ok(remote.to_owned()),
    }
}

/// Git takes the relative path of a remote from the top of the repository; a drill pushes from elsewhere.
fn from_its_repository(url: &str) -> String {
    // `host:path` is an address, `./host:path` is not; `name::rest` is for a helper.
    let is_address = url.find(':').is_some_and(|colon| !url[..colon].contains('/'));
    if is_address || Path::new(url).is_absolute() {
        return url.to_owned();
    }
    let ask = |word: &str| output_of(Command::new("git").args(["rev-parse", word])).ok();
    let top = ask("--show-toplevel").or_else(|| ask("--absolute-git-dir")).unwrap_or_default();
    let path = Path::new(top.trim_end_matches('\n')).join(url);
    path.canonicalize().unwrap_or(path).to_string_lossy().into_owned()
}

/// Both the login and the options may hold a key.
fn shown(url: &str) -> String {
    leasehold_core::secret::redacted(url.split('?').next().unwrap_or_default())
}

/// What is not there, because it had not come to that, is as good as removed.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    removed.or_else(|e| if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

fn clean_file(path: &Path) -> Result<()> {
    let mut fence: OsString = ".".into();
    fence.push(path.file_name().unwrap_or_default());
    fence.push(".fence");
    let (file, fence) = (std::fs::remove_file(path), std::fs::remove_dir_all(path.with_file_name(fence)));
    gone(file)
        .and(gone(fence))
        .map_err(|e| Error::unavailable(format!("cannot remove `{}` and its fence", path.display()), e))
}

/// The file of a database that is one.
fn file_of(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?.split(['?', '#']).next()?;
    Some(PathBuf::from(path))
}

/// Removes a database that was not there before, with what SQLite keeps beside it.
fn clean_database(path: &Path) -> Result<()> {
    for ending in ["", "-wal", "-shm", "-journal"] {
        let mut file = path.as_os_str().to_owned();
        file.push(ending);
        gone(std::fs::remove_file(&file))
            .map_err(|e| Error::unavailable(format!("cannot remove `{}`", path.display()), e))?;
    }
    Ok(())
}

fn leasehold(args: &[&str]) -> Result<Command> {
    let program = std::env::current_exe().map_err(|e| Error::unavailable("cannot find leasehold itself", e))?;
    let mut command = Command::new(program);
    command.args(args);
    Ok(command)
}

fn output_of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| Error::unavailable(format!("cannot run `{program}`"), e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(Kind::Unavailable, format!("the drill could not be set up: {}", said.trim().replace('\n', "; "))))
}

/// Why a drill ends early.
pub fn told_to_end() -> Error {
    Error::new(Kind::Unavailable, "the drill was stopped by a signal")
}

/// How a writer ended.
pub struct Ended {
    pub code: i32,
    pub said: String,
}

/// A process that writes, and that knows nothing but its token.
pub struct Writer {
    child: Child,
    rest: Vec<u8>,
    held: Option<(PathBuf, PathBuf)>,
}

impl Writer {
    /// One that writes `text` as soon as it may.
    pub fn start(target: &Target, token: &Token, text: &str) -> Result<Self> {
        Self::spawn(target, token, text, Role::Holder)
    }

    /// One that is stopped in the middle: behind the check of its token, where the verb has one before its payload.
    pub fn stopped(target: &Target, token: &Token) -> Result<Self> {
        let mut writer = Self::spawn(target, token, "written by the zombie", Role::Zombie)?;
        match &writer.held {
            None => {
                let padding = vec![b' '; PADDING_BYTES];
                let sent = writer.child.stdin.as_mut().map(|pipe| pipe.write_all(&padding));
                if let Some(Err(e)) = sent {
                    return Err(Error::unavailable("the writer to be stopped ended before it was", e));
                }
            }
            Some((reached, _)) => {
                let reached = reached.clone();
                while !reached.exists() {
                    if writer.child.try_wait().ok().flatten().is_some() {
                        let ended = writer.wait(Duration::ZERO)?;
                        return Err(Error::new(Kind::Unavailable, format!("the push ended early: {}", ended.said)));
                    }
                    std::thread::sleep(POLL);
                }
            }
        }
        writer.signal(Signal::STOP)?;
        Ok(writer)
    }

    fn spawn(target: &Target, token: &Token, text: &str, role: Role) -> Result<Self> {
        if target.stop.as_ref().is_some_and(|stop| *stop.borrow()) {
            return Err(told_to_end());
        }
        let mut payload = text.to_owned();
        let mut command = match &target.kind {
            Resource::File(path) => {
                let mut command = leasehold(&["write", "--"])?;
                command.arg(path);
                command
            }
            Resource::Object(url) => leasehold(&["put", "-", url])?,
            Resource::Sql { url, resource, .. } => {
                payload = "SELECT 1".to_owned();
                leasehold(&["sql", url, "--resource", resource, "-f", "-"])?
            }
            Resource::Git { remote, branch, namespace } => {
                let tree = output_of(target.git(role).args(["hash-object", "-t", "tree", "-w", "/dev/null"]))?;
                let commit = output_of(target.git(role).args(["commit-tree", tree.trim(), "-m", text]))?;
                let mut command = leasehold(&["push", "--fence-namespace", &namespace.to_string(), "--repo"])?;
                command.arg(target.repository(role)).arg(remote).arg(format!("+{}:{branch}", commit.trim()));
                command
            }
        };
        let is_git = matches!(target.kind, Resource::Git { .. });
        command.env("LEASEHOLD_TOKEN", token.wire());
        command.env("LEASEHOLD_STORE", format!("dir:{}", target.scratch.join("no-store").display()));
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|e| Error::unavailable("cannot start a writer", e))?;
        let held = (is_git && role == Role::Zombie).then(|| (target.reached(), target.held()));
        Ok(Writer { child, rest: payload.into_bytes(), held })
    }

    /// Lets it continue, and waits for its end.
    pub fn resume(self, limit: Duration) -> Result<Ended> {
        if let Some((_, held)) = &self.held {
            let _ = std::fs::remove_file(held);
        }
        self.signal(Signal::CONT)?;
        self.wait(limit)
    }

    /// Gives it its payload, and waits for its end.
    pub fn wait(mut self, limit: Duration) -> Result<Ended> {
        if let Some(mut pipe) = self.child.stdin.take() {
            // Refused before it has read everything: that is its answer, not a failure of ours.
            let _ = pipe.write_all(&self.rest);
        }
        let mut waited = Duration::ZERO;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if waited < limit => {
                    std::thread::sleep(POLL);
                    waited += POLL;
                }
                Ok(None) => {
                    let _ = self.signal(Signal::KILL);
                    let _ = self.child.wait();
                    return Ok(Ended { code: -1, said: format!("it was held up for {} s", limit.as_secs()) });
                }
                Err(e) => return Err(Error::unavailable("cannot wait for a writer", e)),
            }
        };
        let mut said = String::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            let _ = pipe.read_to_string(&mut said);
        }
        Ok(Ended { code: status.code().unwrap_or(-1), said: said.trim().replace('\n', "; ") })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        group
            .map_or(Ok(()), |group| kill_process_group(group, signal))
            .map_err(|e| Error::unavailable("cannot signal a writer", std::io::Error::from(e)))
    }
}

impl Drop for Writer {
    /// A drill that fails leaves no stopped process behind.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
