//! A small file system of its own, to be filled up.
//!
//! Promise: it is gone when the test lets go of it. Non-promise: mounting takes rights; without them there is none, and the
//! test says so and passes, except in CI.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Such a disk.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    _folder: Option<TempDir>,
}

impl SmallDisk {
    /// In a folder of its own, where everybody may write.
    pub fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let disk = SmallDisk { path: folder.path().to_owned(), _folder: Some(folder) };
        let disk = disk.mounted(size)?;
        std::fs::set_permissions(disk.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        Some(disk)
    }

    /// Below a server's folder, for the server's user alone.
    pub fn mount_for(user: &str, folder: &Path, size: &str) -> Option<Self> {
        let path = folder.join("small");
        std::fs::create_dir(&path).unwrap();
        let disk = SmallDisk { path, _folder: None }.mounted(size)?;
        disk.run("chown", &[user]).unwrap();
        disk.run("chmod", &["700"]).unwrap();
        Some(disk)
    }

    fn mounted(self, size: &str) -> Option<Self> {
        match self.run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "leasehold-test"]) {
            Ok(()) => Some(self),
            Err(why) => {
                assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot mount a small disk: {why}");
                println!("skipped: cannot mount a small disk: {why}");
                None
            }
        }
    }

    /// The folder on which it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// With other options: `size=64m`, `ro`.
    pub fn remount(&self, how: &str) {
        self.run("mount", &["-o", &format!("remount,{how}")]).unwrap();
    }

    fn run(&self, command: &str, args: &[&str]) -> Result<(), String> {
        let output = Command::new(command).args(args).arg(&self.path).output().map_err(|e| e.to_string())?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.run("umount", &["-l"]);
    }
}
