//! What is wrong with a spool, for `doctor`: folders, rights, the sticky bit, what others left.
//!
//! Promise: each check says what was found and, if it is not as it should be, the command that mends it. Nothing of the
//! spool is changed but for a file in `tmp/` that is removed again. Non-promise: it speaks for the user who asks; ask as
//! each of them.

use super::folder::{FOLDERS, Spool, Where, is_known};
use super::listing::{listing, odd_entry};
use super::name::FileName;
use super::rights::{GROUP_WRITES, OTHERS_WRITE, SETGID, STICKY, may_use};
use leasehold::{Nonce, format_duration, printable};
use leasehold_system::volume::Volume;
use rustix::fs::{Access, access};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many payloads are looked at.
const LOOKED_AT: usize = 10_000;
/// How many entries that do not belong there are named.
const NAMED: usize = 20;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fitness {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// To be mended before the spool can be relied on.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Clone)]
pub struct SpoolCheck {
    /// What it was, in a word or two.
    pub what: &'static str,
    /// How it came out.
    pub fitness: Fitness,
    /// What was found, and what to do.
    pub detail: String,
}

fn check(fitness: Fitness, what: &'static str, detail: impl Into<String>) -> SpoolCheck {
    SpoolCheck { what, fitness, detail: detail.into() }
}

impl Spool {
    /// Looks at the spool as this user.
    pub fn examine(&self) -> Vec<SpoolCheck> {
        let mut checks = vec![self.volume_check(), self.sharing()];
        let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| self.path(folder)).collect();
        folders.insert(0, self.root().to_owned());
        checks.extend(self.rights_of(&folders));
        checks.extend(self.workers_of_others());
        checks.push(self.payloads());
        checks.push(self.trial());
        let mut odd = self.survey().odd;
        if let Ok(own) = listing(self.root()) {
            let strange = own.files.iter().chain(&own.folders).chain(&own.others).filter(|name| !is_known(name));
            odd.extend(strange.map(|name| odd_entry(self.root(), name, "it is no part of a spool; move it elsewhere")));
        }
        checks.extend(odd.iter().take(NAMED).map(|odd| check(Fitness::Note, "entries", odd.to_string())));
        checks
    }

    fn volume_check(&self) -> SpoolCheck {
        match self.volume() {
            Volume::Local => check(Fitness::Good, "volume", "a disk of this machine"),
            Volume::Network(name) => check(
                Fitness::Good,
                "volume",
                format!(
                    "shared over the network ({name}); its server's clock counts; all workers must be on this one share"
                ),
            ),
            Volume::Unknown => check(
                Fitness::Note,
                "volume",
                "of a kind that is not known: see that it is no folder that a program copies between machines",
            ),
        }
    }

    /// Who shares it, by the mode of its own folder.
    fn sharing(&self) -> SpoolCheck {
        let Ok(root) = fs::metadata(self.root()) else {
            return check(Fitness::Bad, "sharing", "the spool's folder cannot be looked at");
        };
        let (mode, group, shown) = (root.mode(), root.gid(), self.root().display());
        if mode & OTHERS_WRITE != 0 {
            let detail = format!("everybody on this machine may use it (mode {:04o})", mode & 0o7777);
            return check(Fitness::Note, "sharing", detail);
        }
        if mode & GROUP_WRITES == 0 {
            let detail = format!(
                "used by one user, {}; for more: chgrp -R GROUP {shown} && chmod -R g+rwX {shown} && find {shown} -type d -exec \
                 chmod g+s {{}} +",
                root.uid()
            );
            return check(Fitness::Good, "sharing", detail);
        }
        let detail = format!(
            "shared by group {group}: leasehold opens what it makes to that group, whatever the umask; shell workers and \
             producers need `umask 002`"
        );
        check(Fitness::Good, "sharing", detail)
    }

    /// What this user, and the others who share it, may do in its folders.
    fn rights_of(&self, folders: &[PathBuf]) -> Vec<SpoolCheck> {
        let mut wrong = Vec::new();
        let Ok(root) = fs::metadata(self.root()) else { return wrong };
        let shared = root.mode() & GROUP_WRITES != 0;
        let mut bad = |what, detail: String| wrong.push(check(Fitness::Bad, what, detail));
        for folder in folders {
            let shown = folder.display();
            let Ok(metadata) = fs::symlink_metadata(folder) else {
                bad("folders", format!("{shown} cannot be looked at; is it there?"));
                continue;
            };
            let mode = metadata.mode();
            if !may_use(folder) {
                let found = format!("{:04o}, owner {}, group {}", mode & 0o7777, metadata.uid(), metadata.gid());
                bad(
                    "rights",
                    format!(
                        "this user may not read and write {shown} ({found}): chmod g+rwx {shown}, or join its group"
                    ),
                );
            }
            if mode & STICKY != 0 && folder != self.root() {
                bad(
                    "sticky bit",
                    format!(
                        "in {shown} a file may be moved only by its owner, so nobody else can claim it: chmod -t {shown}"
                    ),
                );
            }
            if !shared {
                continue;
            }
            if metadata.gid() != root.gid() {
                bad(
                    "group",
                    format!(
                        "{shown} belongs to group {}: chgrp {} {shown} && chmod g+rwxs {shown}",
                        metadata.gid(),
                        root.gid()
                    ),
                );
            } else if mode & 0o070 != 0o070 {
                bad("group", format!("the group may not use {shown} ({:04o}): chmod g+rwx {shown}", mode & 0o7777));
            }
            if mode & SETGID == 0 {
                bad("setgid", format!("what is made in {shown} belongs to its maker's group: chmod g+s {shown}"));
            }
        }
        if wrong.is_empty() {
            let what =
                if shared { "this user and the group may use all folders" } else { "this user may use all folders" };
            wrong.push(check(Fitness::Good, "rights", what));
        }
        wrong
    }

    /// Folders of workers from which this user could put nothing back.
    fn workers_of_others(&self) -> Vec<SpoolCheck> {
        let claimed = self.path("claimed");
        let workers = listing(&claimed).map(|found| found.folders).unwrap_or_default();
        let closed = workers.iter().map(|worker| claimed.join(worker));
        let closed = closed.filter(|folder| !may_use(folder) || super::rights::is_sticky(folder));
        closed
            .map(|folder| {
                let shown = folder.display();
                let detail = format!(
                    "what its worker leaves when it dies cannot be put back by this user from {shown}: as its owner, chmod g+rwx,-t \
                     {shown}, and give shell workers `umask 002`"
                );
                check(Fitness::Bad, "workers", detail)
            })
            .collect()
    }

    /// What waits and cannot be read by this user.
    fn payloads(&self) -> SpoolCheck {
        let (mut looked, mut closed) = (0, Vec::new());
        for place in [Where::Ready, Where::Later] {
            let folder = self.path(place.folder());
            for name in listing(&folder).map(|found| found.files).unwrap_or_default().into_iter().take(LOOKED_AT) {
                looked += 1;
                let path = folder.join(&name);
                if access(&path, Access::READ_OK).is_err() && path.symlink_metadata().is_ok() {
                    closed.push((name, path));
                }
            }
        }
        let Some((name, path)) = closed.first() else {
            return check(Fitness::Good, "payloads", format!("{looked} wait, and this user can read them"));
        };
        let id = FileName::parse(name).map_or_else(|| printable(name), |name| name.id.to_string());
        let detail = format!(
            "{} of {looked} that wait cannot be read by this user, such as `{id}`; each attempt fails: as its owner, chmod g+r {}",
            closed.len(),
            path.display()
        );
        check(Fitness::Bad, "payloads", detail)
    }

    /// One file made, linked, moved and removed, as an item is.
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
            Err(error) => check(Fitness::Bad, "trial", format!("a file cannot be made and moved in tmp/: {error}")),
            Ok(()) if !links => check(
                Fitness::Note,
                "trial",
                "a file can be made and moved, but hard links cannot be made: `queue add --key` does not work here",
            ),
            Ok(()) => check(
                Fitness::Good,
                "trial",
                format!("a file was made, linked and moved; a sign of life is exact to {}", format_duration(grain)),
            ),
        }
    }
}

fn moved_to(folder: &Path) -> PathBuf {
    folder.join(Nonce::random().to_string())
}
