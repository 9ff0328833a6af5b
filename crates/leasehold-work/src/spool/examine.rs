//! What is wrong with a spool, for `doctor`: folders, rights, the sticky bit, foreign entries.
//!
//! Promise: each check says what was found and, if that is wrong, the command that repairs
//! it. Nothing in the spool is changed except for a file in `tmp/`, which is removed again.
//! Non-promise: the answer is for the current user; run it as each user who shares the spool.

use super::folder::{FOLDERS, Spool, SpoolFolder, failed, is_known};
use super::listing::{foreign_entry, listing};
use super::name::FileName;
use super::rights::{GROUP_WRITES, OTHERS_WRITE, SETGID, STICKY, may_use};
use leasehold_core::{Error, Kind, Nonce, Result, format_duration, printable};
use leasehold_system::accounts;
use leasehold_system::volume::{self, Volume};
use rustix::fs::{Access, access};
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many payloads are checked.
const MAX_CHECKED: usize = 10_000;
/// How many foreign entries are named.
const MAX_NAMED: usize = 20;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fitness {
    /// As it should be.
    Good,
    /// Worth knowing, but no problem.
    Note,
    /// Must be repaired before the spool can be relied on.
    Bad,
}

/// One thing that was checked, and what was found.
#[derive(Debug, Clone)]
pub struct SpoolCheck {
    /// What was checked, in a word or two.
    pub what: &'static str,
    /// Whether a spool can work so.
    pub fitness: Fitness,
    /// What was found, and what to do.
    pub detail: String,
}

/// What is at the path of a spool, before anything is created there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Nothing, or a folder of something else.
    Missing,
    /// An empty folder, which becomes a spool when it is first used.
    Empty,
    /// The folder is a spool.
    Spool,
}

impl Presence {
    /// Looks. A path that this user cannot look into is an error, not missing.
    pub fn at(root: &Path) -> Result<Self> {
        let metadata = match fs::metadata(root) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Presence::Missing),
            Err(e) => return Err(failed(e, "look at", root)),
        };
        if !metadata.is_dir() {
            return Err(failed(ErrorKind::NotADirectory.into(), "use", root));
        }
        if access(root, Access::READ_OK | Access::EXEC_OK).is_err() {
            let (shown, found) = (root.display(), describe(&metadata));
            let advice = if metadata.mode() & 0o050 == 0o050 && !accounts::is_member(metadata.gid()) {
                format!("join group `{}`, or ask its owner", accounts::group(metadata.gid()))
            } else {
                "ask its owner".into()
            };
            let message = format!("cannot read spool `{shown}` ({found}): {advice}; see docs/queues.md");
            return Err(Error::new(Kind::Unsupported, message));
        }
        if root.join("ready").is_dir() {
            return Ok(Presence::Spool);
        }
        let found = listing(root)?;
        let mut named = found.files.iter().chain(&found.folders).chain(&found.others);
        Ok(if named.all(|name| is_known(name)) { Presence::Empty } else { Presence::Missing })
    }
}

/// The mode, the owner and the group of a file or folder, for people.
fn describe(of: &Metadata) -> String {
    let (mode, owner, group) = (of.mode() & 0o7777, accounts::user(of.uid()), accounts::group(of.gid()));
    format!("mode {mode:04o}, owner {owner}, group {group}")
}

/// Checks, as this user, an empty folder that will become a spool; creates nothing.
pub fn examine_empty(root: &Path) -> Result<Vec<SpoolCheck>> {
    let volume = volume::of(root).map_err(|e| failed(e, "look at", root))?;
    let mut checks = vec![volume_check(volume), sharing(root)];
    checks.extend(rights_of(root, &[root.to_owned()]));
    if super::rights::is_sticky(root) {
        let detail = format!("it has no use for the sticky bit: chmod -t {}", root.display());
        checks.push(note("sticky bit", detail));
    }
    checks.push(good("items", "none: the folder is empty, and its first use makes a spool of it"));
    Ok(checks)
}

fn good(what: &'static str, detail: impl Into<String>) -> SpoolCheck {
    SpoolCheck { what, fitness: Fitness::Good, detail: detail.into() }
}

fn note(what: &'static str, detail: impl Into<String>) -> SpoolCheck {
    SpoolCheck { fitness: Fitness::Note, ..good(what, detail) }
}

fn bad(what: &'static str, detail: impl Into<String>) -> SpoolCheck {
    SpoolCheck { fitness: Fitness::Bad, ..good(what, detail) }
}

impl Spool {
    /// Checks the spool as this user.
    pub fn examine(&self) -> Vec<SpoolCheck> {
        let mut checks = vec![volume_check(self.volume()), sharing(self.root())];
        let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| self.path(folder)).collect();
        folders.insert(0, self.root().to_owned());
        checks.extend(rights_of(self.root(), &folders));
        checks.extend(self.workers_of_others());
        checks.push(self.payloads());
        checks.push(self.trial());
        let mut foreign = self.survey().foreign;
        if let Ok(own) = listing(self.root()) {
            let strange = own.files.iter().chain(&own.folders).chain(&own.others).filter(|name| !is_known(name));
            foreign
                .extend(strange.map(|name| foreign_entry(self.root(), name, "not part of a spool; move it elsewhere")));
        }
        checks.extend(foreign.iter().take(MAX_NAMED).map(|foreign| note("entries", foreign.to_string())));
        checks
    }

    /// Workers' folders from which this user cannot put items back.
    fn workers_of_others(&self) -> Vec<SpoolCheck> {
        let claimed = self.path("claimed");
        let workers = listing(&claimed).map(|found| found.folders).unwrap_or_default();
        let closed = workers.iter().map(|worker| claimed.join(worker));
        let closed = closed.filter(|folder| !may_use(folder) || super::rights::is_sticky(folder));
        closed
            .map(|folder| {
                let shown = folder.display();
                let detail = format!(
                    "what its worker leaves when it dies cannot be put back by this user from {shown}: as its owner or root, chmod g+rwx,-t \
                     {shown}, and give shell workers `umask 002`"
                );
                bad("workers", detail)
            })
            .collect()
    }

    /// Waiting items whose payload this user cannot read.
    fn payloads(&self) -> SpoolCheck {
        let (mut looked, mut closed) = (0, Vec::new());
        for kind in [SpoolFolder::Ready, SpoolFolder::Later] {
            let folder = self.path(kind.path());
            for name in listing(&folder).map(|found| found.files).unwrap_or_default().into_iter().take(MAX_CHECKED) {
                looked += 1;
                let path = folder.join(&name);
                if access(&path, Access::READ_OK).is_err() && path.symlink_metadata().is_ok() {
                    closed.push((name, path));
                }
            }
        }
        let Some((name, path)) = closed.first() else {
            return good("payloads", format!("{looked} wait, and this user can read them"));
        };
        let id = FileName::parse(name).map_or_else(|| printable(name), |name| name.id.to_string());
        let detail = format!(
            "{} of {looked} that wait cannot be read by this user, such as `{id}`; each attempt fails: as its owner or root, chmod g+r {}",
            closed.len(),
            path.display()
        );
        bad("payloads", detail)
    }

    /// Creates, links, moves and removes one file, as happens to an item.
    fn trial(&self) -> SpoolCheck {
        let nonce = Nonce::random();
        let (made, moved, linked) =
            (self.path("tmp").join(nonce.to_string()), moved_to(&self.path("tmp")), self.path("keys"));
        let linked = linked.join(format!(".doctor-{nonce}"));
        let (mut links, mut grain) = (true, Duration::ZERO);
        let tried = || -> std::io::Result<()> {
            File::create_new(&made)?.sync_all()?;
            links = fs::hard_link(&made, &linked).is_ok();
            fs::rename(&made, &moved)?;
            grain = self.grain();
            Ok(())
        };
        let outcome = { tried }();
        for path in [&made, &moved, &linked] {
            let _ = fs::remove_file(path);
        }
        match outcome {
            Err(error) => bad("trial", format!("a file cannot be made and moved in tmp/: {error}")),
            Ok(()) if !links => note(
                "trial",
                "a file can be made and moved, but hard links cannot be made, so no item can have a key here",
            ),
            Ok(()) => good(
                "trial",
                format!("a file was made, linked and moved; a heartbeat is exact to {}", format_duration(grain)),
            ),
        }
    }
}

fn volume_check(volume: Volume) -> SpoolCheck {
    match volume {
        Volume::Local => good("volume", "a disk of this machine"),
        Volume::Network(name) => good(
            "volume",
            format!(
                "shared over the network ({name}); its server's clock counts; all workers must be on this one share"
            ),
        ),
        Volume::Unknown => note(
            "volume",
            "of a kind that is not known: see that it is no folder that a program copies between machines",
        ),
    }
}

/// Who shares it, according to the mode of its own folder.
fn sharing(root: &Path) -> SpoolCheck {
    let shown = root.display();
    let Ok(root) = fs::metadata(root) else {
        return bad("sharing", "the spool's folder cannot be looked at");
    };
    let (mode, group) = (root.mode(), accounts::group(root.gid()));
    if mode & OTHERS_WRITE != 0 {
        let detail = format!("everybody on this machine may use it (mode {:04o})", mode & 0o7777);
        return note("sharing", detail);
    }
    if mode & GROUP_WRITES == 0 {
        let detail = format!(
            "used by one user, {}; for more: chgrp -R GROUP {shown} && chmod -R g+rwX {shown} && find {shown} -type d -exec \
             chmod g+s {{}} +; see docs/queues.md",
            accounts::user(root.uid())
        );
        return good("sharing", detail);
    }
    let detail = format!(
        "shared by group {group}: leasehold opens what it makes to that group, whatever the umask; shell workers and \
         producers need `umask 002`; see docs/queues.md"
    );
    good("sharing", detail)
}

/// What this user, and the others who share the spool, may do in its folders.
fn rights_of(root: &Path, folders: &[PathBuf]) -> Vec<SpoolCheck> {
    let mut wrong = Vec::new();
    let Ok(own) = fs::metadata(root) else { return wrong };
    let shared = own.mode() & GROUP_WRITES != 0;
    let mut complain = |what, detail: String| wrong.push(bad(what, detail));
    for folder in folders {
        let shown = folder.display();
        let Ok(metadata) = fs::symlink_metadata(folder) else {
            complain("folders", format!("{shown} cannot be looked at; is it there?"));
            continue;
        };
        let mode = metadata.mode();
        if !may_use(folder) {
            let mut advice = format!("as its owner or root, chmod g+rwx {shown}");
            if !accounts::is_member(metadata.gid()) {
                let group = accounts::group(metadata.gid());
                let joining = format!("join group `{group}`");
                advice = if mode & 0o070 == 0o070 { joining } else { format!("{joining}, and {advice}") };
            }
            complain("rights", format!("this user may not read and write {shown} ({}): {advice}", describe(&metadata)));
        }
        if mode & STICKY != 0 && folder != root {
            complain(
                "sticky bit",
                format!(
                    "in {shown} a file may be moved only by its owner, so nobody else can claim it: as its owner or root, chmod -t {shown}"
                ),
            );
        }
        if !shared {
            continue;
        }
        if metadata.gid() != own.gid() {
            let (group, wanted) = (accounts::group(metadata.gid()), accounts::group(own.gid()));
            let mending = format!("as its owner or root, chgrp {wanted} {shown} && chmod g+rwxs {shown}");
            complain("group", format!("{shown} belongs to group {group}: {mending}"));
        } else if mode & 0o070 != 0o070 {
            let mode = mode & 0o7777;
            complain(
                "group",
                format!("the group may not use {shown} ({mode:04o}): as its owner or root, chmod g+rwx {shown}"),
            );
        }
        if mode & SETGID == 0 {
            let mending = format!("as its owner or root, chmod g+s {shown}");
            complain("setgid", format!("what is made in {shown} belongs to its maker's group: {mending}"));
        }
    }
    if wrong.is_empty() {
        let what = if shared { "this user and the group may use all folders" } else { "this user may use all folders" };
        wrong.push(good("rights", what));
    }
    wrong
}

fn moved_to(folder: &Path) -> PathBuf {
    folder.join(Nonce::random().to_string())
}
