//! A control group (cgroup v2) for one command: what is started in it stays in it, and the kernel kills it as a whole.
//!
//! Promise: only a group that was created here is ever killed or removed, and never the one that this process is in.
//! Non-promise: it may not be available. It needs a cgroup v2 mount, the right to create a group below our own, and
//! Linux 5.14 for `cgroup.kill`. A process with that right may move processes out of the group.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstatfs, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::Pid;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The file system's magic number (linux/magic.h).
const CGROUP2: u64 = 0x6367_7270;
/// The first part of our groups' names; the creator's process id and its key follow.
const PREFIX: &str = "leasehold-";
/// How often a removal is tried, at intervals of a millisecond: the kernel may
/// still be cleaning up a process that was reaped.
const REMOVAL_TRIES: u32 = 50;
/// How deep groups are removed that a command created inside its own. The kernel's own default is no limit.
const MAX_DEPTH: u32 = 16;

/// A group below the one that we are in. It is removed when dropped.
#[derive(Debug)]
pub(crate) struct Cgroup {
    parent: OwnedFd,
    name: String,
    path: PathBuf,
    folder: OwnedFd,
    kill: OwnedFd,
}

impl Cgroup {
    /// Creates a group for this process, and removes groups that killed processes left behind.
    pub(crate) fn make(key: &str) -> io::Result<Self> {
        let (parent, path) = own_group()?;
        sweep(parent.as_fd());
        let name = name(rustix::process::getpid(), key);
        mkdirat(&parent, &name, Mode::from_raw_mode(0o755))?;
        Cgroup::at(parent, path.join(&name), &name).map_err(|(parent, error)| {
            remove(parent.as_fd(), &name, 0, REMOVAL_TRIES);
            error
        })
    }

    /// The group that another process created with this key, if it exists. A key is used only once.
    pub(crate) fn find(maker: Pid, key: &str) -> Option<Self> {
        let (parent, path) = own_group().ok()?;
        let name = name(maker, key);
        Cgroup::at(parent, path.join(&name), &name).ok()
    }

    fn at(parent: OwnedFd, path: PathBuf, name: &str) -> Result<Self, (OwnedFd, io::Error)> {
        let open = || -> io::Result<(OwnedFd, OwnedFd)> {
            let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let folder = openat(&parent, name, flags, Mode::empty())?;
            let kill = openat(&folder, "cgroup.kill", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            Ok((folder, kill))
        };
        match open() {
            Ok((folder, kill)) => Ok(Cgroup { parent, name: name.into(), path, folder, kill }),
            Err(error) => Err((parent, error)),
        }
    }

    /// Its folder, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Starts a command inside. The outer error says that none can be started there; the inner error is the command's.
    ///
    /// What the kernel cannot run by itself is not started there: `Command::exec`, which the child calls, would pass it
    /// to a shell, and `Command::spawn` refuses it. Commands must behave alike with and without a group.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<io::Result<Pid>> {
        if !is_binary_or_script(command.get_program()) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "neither a binary nor a script with a first line"));
        }
        crate::descriptor::spawn_into(self.folder.as_fd(), command)
    }

    /// The processor time and the peak memory used inside, as far as the kernel counts them here.
    pub(crate) fn usage(&self) -> (Option<Duration>, Option<u64>) {
        let read = |name: &str| {
            let file = openat(&self.folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
            let mut text = String::new();
            File::from(file).read_to_string(&mut text).ok()?;
            Some(text)
        };
        let cpu = read("cpu.stat").and_then(|text| {
            let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
            micros.trim().parse().ok().map(Duration::from_micros)
        });
        (cpu, read("memory.peak").and_then(|text| text.trim().parse().ok()))
    }

    /// Kills everything inside at once, including processes that are being forked.
    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(rustix::io::write(&self.kill, b"1").map(drop)?)
    }
}

fn is_binary_or_script(program: &OsStr) -> bool {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let file = match program.as_bytes().contains(&b'/') {
        true => File::open(program).ok(),
        false => std::env::split_paths(&search).find_map(|folder| File::open(folder.join(program)).ok()),
    };
    let mut start = [0; 4];
    let length = file.and_then(|mut file| file.read(&mut start).ok()).unwrap_or(0);
    start[..length].starts_with(b"#!") || start[..length].starts_with(b"\x7fELF")
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove(self.parent.as_fd(), &self.name, 0, REMOVAL_TRIES);
    }
}

fn name(maker: Pid, key: &str) -> String {
    format!("{PREFIX}{maker}-{key}")
}

/// Removes the empty groups whose creators are gone. The kernel removes no group that has a process in it.
fn sweep(parent: BorrowedFd<'_>) {
    for name in groups_in(parent) {
        let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).map(|(maker, _)| maker);
        let maker = maker.filter(|maker| maker.bytes().all(|byte| byte.is_ascii_digit()));
        if maker.is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
            remove(parent, &name, 0, 1);
        }
    }
}

/// Removes a group, after the groups that a command created inside it.
fn remove(parent: BorrowedFd<'_>, name: &str, depth: u32, tries: u32) {
    for _ in 0..tries {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::BUSY | Errno::NOTEMPTY) => {}
            _ => return,
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inner = openat(parent, name, flags, Mode::empty()).ok().filter(|_| depth < MAX_DEPTH);
        let below = inner.as_ref().map(|inner| groups_in(inner.as_fd())).unwrap_or_default();
        if let Some(inner) = inner.filter(|_| !below.is_empty()) {
            below.iter().for_each(|name| remove(inner.as_fd(), name, depth + 1, 1));
            if unlinkat(parent, name, AtFlags::REMOVEDIR).is_ok() {
                return;
            }
        }
        if tries > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn groups_in(folder: BorrowedFd<'_>) -> Vec<String> {
    let entries = Dir::read_from(folder).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type() == FileType::Directory);
    let names = groups.filter_map(|entry| entry.file_name().to_str().ok().map(String::from));
    names.filter(|name| name != "." && name != "..").collect()
}

/// The group of this process, wherever cgroup v2 is mounted, alone or together with v1.
fn own_group() -> io::Result<(OwnedFd, PathBuf)> {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup")?;
    let none =
        || io::Error::new(io::ErrorKind::Unsupported, "cgroup v2 is not mounted where this process could see it");
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::")).ok_or_else(none)?;
    for path in candidates(&std::fs::read("/proc/self/mountinfo")?, own) {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(folder) = openat(CWD, &path, flags, Mode::empty()) else { continue };
        // Something else may be mounted over it.
        if fstatfs(&folder).is_ok_and(|found| u64::from(found.f_type as u32) == CGROUP2) {
            return Ok((folder, path));
        }
    }
    Err(none())
}

/// The folders at which the mounts of this process show the group `own`.
fn candidates(mountinfo: &[u8], own: &str) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    lines.filter_map(|line| candidate(line, own)).collect()
}

fn candidate(line: &[u8], own: &str) -> Option<PathBuf> {
    // 36 35 98:0 /root /mount/point rw,noatime shared:1 - cgroup2 source rw
    let mut fields = line.split(|byte| *byte == b' ');
    let (root, mount_point) = (fields.nth(3)?, fields.next()?);
    if fields.skip_while(|field| *field != b"-").nth(1)? != b"cgroup2" {
        return None;
    }
    let (root, mount_point) = (unescaped(root), unescaped(mount_point));
    let own = Path::new(own);
    // Groups outside of our cgroup namespace are shown with `..`, on either side. Such paths cannot be compared.
    if [root.as_path(), own].iter().any(|path| path.components().any(|part| part.as_os_str() == "..")) {
        return None;
    }
    Some(mount_point.join(own.strip_prefix(root).ok()?))
}

/// A path from mountinfo, where space, tab, newline and backslash are a backslash and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [byte, tail @ ..] = rest {
        let code = || u8::from_str_radix(std::str::from_utf8(tail.get(..3)?).ok()?, 8).ok();
        match code().filter(|_| *byte == b'\\') {
            Some(code) => {
                bytes.push(code);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_runs_by_itself_is_distinguished_from_what_needs_a_shell() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "exit 3\n").unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        for (program, is_so) in [
            (plain.as_os_str(), false),
            (script.as_os_str(), true),
            (OsStr::new("sh"), true),
            (OsStr::new("no-such-command"), false),
            (OsStr::new("/"), false),
        ] {
            assert_eq!(is_binary_or_script(program), is_so, "{program:?}");
        }
    }

    #[test]
    fn our_group_is_found_by_the_mounts() {
        let found = |mounts: &str, own| candidates(mounts.as_bytes(), own);
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(found(unified, "/a.slice/b"), [Path::new("/sys/fs/cgroup/a.slice/b")]);
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(found(hybrid, "/"), [Path::new("/sys/fs/cgroup/unified")]);
        // A container that sees only its own part, under the name that it has on the host.
        let part = "30 23 0:26 /docker/7 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(found(part, "/docker/7/x"), [Path::new("/sys/fs/cgroup/x")]);
        assert!(found(part, "/docker/70").is_empty());
        // A cgroup namespace that still has the outer mount.
        let outer = "30 23 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert!(found(outer, "/").is_empty());
        assert!(found(unified, "/../x").is_empty());
        let spaced = "30 23 0:26 / /mnt/a\\040b\\134c rw - cgroup2 none rw\n";
        assert_eq!(found(spaced, "/x"), [Path::new("/mnt/a b\\c/x")]);
        for broken in
            ["", "\n", "30", "30 23 0:26 /", "30 23 0:26 / /x rw", "30 23 0:26 / /x rw -", "a b c d e - cgroup2"]
        {
            assert!(found(broken, "/").is_empty(), "{broken}");
        }
    }
}
