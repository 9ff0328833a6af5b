//! File systems, by the magic number that the kernel gives them, and the folders of the XDG convention.

use crate::volume::Volume;
use std::io;
use std::path::{Path, PathBuf};

/// Magic numbers of file systems that other machines may write to (linux/magic.h and the drivers' own headers).
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

/// Magic numbers of file systems behind which anything may stand.
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
    fn xdg_state_home_comes_before_home() {
        let both = |name: &str| Some(PathBuf::from(if name == "HOME" { "/home/u" } else { "/state" }));
        assert_eq!(state_dir(&both).unwrap(), Path::new("/state/leasehold"));
        let home = |name: &str| (name == "HOME").then(|| PathBuf::from("/home/u"));
        assert_eq!(state_dir(&home).unwrap(), Path::new("/home/u/.local/state/leasehold"));
        assert_eq!(state_dir(&|_| None), None);
    }
}
