//! The folder of a job's kept runs, as an open descriptor.
//!
//! The folder above may be shared: anyone who may write there can make ours first, or put a link in its place.
//!
//! Promise: files are made, appended and removed only in a folder of this user that nobody else may write to, whatever the
//! names on the way to it lead to meanwhile; links are not followed. Non-promise: that readers by path are protected.

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, mkdirat, open, openat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

const OTHERS_MAY_WRITE: Mode = Mode::WGRP.union(Mode::WOTH);

/// An open folder.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// Makes the folder and the one above it, which is this user's too, and what is above them.
    pub fn make(path: &Path) -> io::Result<Self> {
        let (home, root) = above(path)?;
        DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        Self::enter(path, home, root, |parent, name| match mkdirat(parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }

    /// Opens the folder, if it is there and this user's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (home, root) = above(path)?;
        Self::enter(path, home, root, |_, _| Ok(()))
    }

    fn enter(
        path: &Path,
        home: &Path,
        root: &Path,
        prepare: impl Fn(&OwnedFd, &OsStr) -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut folder = open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for step in [home, path] {
            let name = step.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            prepare(&folder, name)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = match openat(&folder, name, flags, Mode::empty()) {
                Ok(folder) => folder,
                Err(Errno::LOOP | Errno::NOTDIR) => return Err(refused(step, "is a link, or no folder")),
                Err(error) => return Err(error.into()),
            };
            let found = fstat(&folder)?;
            if found.st_uid != rustix::process::geteuid().as_raw() {
                return Err(refused(step, "belongs to another user"));
            }
            if Mode::from_raw_mode(found.st_mode).intersects(OTHERS_MAY_WRITE) {
                return Err(refused(step, "may be written by other users; take that right away with `chmod go-w`"));
            }
        }
        Ok(Folder(folder))
    }

    /// Makes a file that was not there, to be read by this user only.
    pub fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Opens a file for reading.
    pub fn read(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.0, name, flags, Mode::empty())?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// The names of the files in it that are valid text.
    pub fn names(&self) -> Vec<String> {
        let entries = Dir::read_from(self.0.as_fd()).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(entry.file_name().to_str().ok()?.to_owned())).collect()
    }
}

/// The folder of this machine and user, and the one that others may share.
fn above(path: &Path) -> io::Result<(&Path, &Path)> {
    let home = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let root = home.parent().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((home, if root.as_os_str().is_empty() { Path::new(".") } else { root }))
}

fn refused(folder: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("`{}` {why}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_that_is_a_link_or_that_others_may_write_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let job = root.path().join("home/job");
        let allow = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        Folder::make(&job).unwrap().create("a").unwrap();
        let told = |job: &Path| Folder::make(job).unwrap_err().to_string();
        allow(&job, 0o777);
        assert!(told(&job).contains("job` may be written by other users"), "{}", told(&job));
        allow(&job, 0o755);
        allow(job.parent().unwrap(), 0o770);
        assert!(told(&job).contains("home` may be written by other users"), "{}", told(&job));
        allow(job.parent().unwrap(), 0o700);
        assert_eq!(Folder::open(&job).unwrap().names().len(), 3, "itself, the folder above, and the file");
        symlink(elsewhere.path(), root.path().join("home/linked")).unwrap();
        let linked = root.path().join("home/linked");
        assert!(told(&linked).contains("is a link"), "{}", told(&linked));
        symlink(elsewhere.path(), root.path().join("guest")).unwrap();
        assert!(told(&root.path().join("guest/job")).contains("guest` is a link"));
        assert!(std::fs::read_dir(elsewhere.path()).unwrap().next().is_none(), "nothing was made there");
        // A link in the place of a file is neither read nor written through.
        let folder = Folder::open(&job).unwrap();
        std::fs::write(elsewhere.path().join("x"), "theirs").unwrap();
        symlink(elsewhere.path().join("x"), job.join("x")).unwrap();
        assert!(folder.read("x").is_err() && folder.create("x").is_err());
    }
}
