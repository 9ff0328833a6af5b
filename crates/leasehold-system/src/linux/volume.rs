//! File systems, by the kernel's magic numbers, and the folders of the XDG convention.

use crate::volume::Volume;
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Magic numbers of file systems to which other machines may write (linux/magic.h and the drivers' own headers).
const NETWORK: &[(u64, &str)] = &[
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "afs"),
    (0x7375_7245, "coda"),
    (0x00c3_6400, "ceph"),
    (0x0116_1970, "gfs2"),
    (0x7461_636f, "ocfs2"),
    (0x0bd0_0bd0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
];

/// Magic numbers of file systems that may be backed by anything.
const UNKNOWN: &[u64] = &[
    0x6573_5546, // fuse, virtiofs
    0x0102_1997, // 9p
    0x786f_4256, // virtualbox shared folders
    0xbacb_acbc, // vmware shared folders
];

pub(crate) fn of(path: &Path) -> io::Result<Volume> {
    // The field's type differs between architectures; the numbers are 32 bits wide.
    let magic = u64::from(rustix::fs::statfs(path)?.f_type as u32);
    Ok(match NETWORK.iter().find(|(number, _)| *number == magic) {
        Some((_, name)) => Volume::Network(name),
        None if UNKNOWN.contains(&magic) => Volume::Unknown,
        None => Volume::Local,
    })
}

pub(crate) fn changed(path: &Path) -> io::Result<(i64, u32)> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    match rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::CTIME) {
        Ok(found) => Ok((found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec)),
        // Some sandboxes refuse the call.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
            let found = std::fs::symlink_metadata(path)?;
            Ok((found.ctime(), u32::try_from(found.ctime_nsec()).unwrap_or(0)))
        }
        Err(e) => Err(e.into()),
    }
}

pub(crate) fn is_mount_point(file: &Path) -> io::Result<bool> {
    let file = file.canonicalize()?;
    if let Ok(found) = rustix::fs::statx(rustix::fs::CWD, &file, AtFlags::empty(), StatxFlags::empty())
        && found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
    {
        return Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Kernels before 5.8 do not report it.
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    Ok(mounts.split(|byte| *byte == b'\n').any(|line| mounted_at(line) == Some(file.as_os_str().as_bytes().to_vec())))
}

/// The mount point in a line of `mountinfo`, where blanks are written as `\040`.
fn mounted_at(line: &[u8]) -> Option<Vec<u8>> {
    let field = line.split(|byte| *byte == b' ').nth(4)?;
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let escaped = rest.get(1..4).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &rest[4..];
            }
            None => {
                path.push(*first);
                rest = after;
            }
        }
    }
    Some(path)
}

pub(crate) fn state_dir(variable: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let base = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")))?;
    Some(base.join("leasehold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_the_root_are_local() {
        assert_eq!(of(Path::new("/proc")).unwrap(), Volume::Local);
        assert!(of(Path::new("/no/such/path")).is_err());
    }

    #[test]
    fn mount_points_are_distinguished_from_other_files() {
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        assert!(!is_mount_point(Path::new("/proc/self/status")).unwrap());
        let line = b"63 43 254:0 /tmp/a\\040b /mnt/c\\040d\\134e rw,relatime - ext4 /dev/vda rw";
        assert_eq!(mounted_at(line).unwrap(), b"/mnt/c d\\e");
        assert_eq!(mounted_at(b""), None);
    }

    #[test]
    fn xdg_state_home_comes_before_home() {
        let both = |name: &str| Some(PathBuf::from(if name == "HOME" { "/home/u" } else { "/state" }));
        assert_eq!(state_dir(&both).unwrap(), Path::new("/state/leasehold"));
        let home = |name: &str| (name == "HOME").then(|| PathBuf::from("/home/u"));
        assert_eq!(state_dir(&home).unwrap(), Path::new("/home/u/.local/state/leasehold"));
        assert_eq!(state_dir(&|_| None), None);
    }
}
