//! Where an artifact really is: the folder around it, opened, and its name in there.
//!
//! Promise: a symlink is followed to its target, even if that does not exist yet. Non-promise: hard links are not
//! kept: a file that is replaced by a rename has a new inode.

use crate::permit::error::{errno, vanished};
use leasehold_core::{Error, Kind, Remedy, Result, printable};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// As many as Linux follows itself.
const MAX_SYMLINKS: usize = 40;
/// The longest name that common file systems accept.
const MAX_NAME_BYTES: usize = 255;

/// The folder that holds an artifact, and the artifact's name in it.
#[derive(Debug)]
pub struct ArtifactPath {
    pub(crate) folder: PathBuf,
    pub(crate) parent: OwnedFd,
    pub(crate) name: OsString,
    /// What is there now, not followed.
    pub(crate) found: Option<Stat>,
}

/// Whether a file or folder of this name is where guards keep fences and generations.
fn is_a_guards_own(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(b".")
        && [&b".fence"[..], b".adopt", b".generations"].iter().any(|end| name.len() > end.len() && name.ends_with(end))
}

impl ArtifactPath {
    /// Opens the folder around `path`; whatever is at `path` is looked at but not followed.
    pub(crate) fn open(path: &Path, resource: &str) -> Result<ArtifactPath> {
        ArtifactPath::look(path, resource)?.outside_of_guards(path, resource)
    }

    /// Refuses the files of guards.
    fn outside_of_guards(self, path: &Path, resource: &str) -> Result<ArtifactPath> {
        let real = self.folder.canonicalize();
        let real = real.map_err(|e| Error::unavailable(format!("cannot look at resource=`{resource}`"), e))?;
        if real.components().map(Component::as_os_str).chain([&*self.name]).any(is_a_guards_own) {
            let allowed = "a guard keeps its records there, and what it published; name what is guarded";
            return Err(Error::invalid("path", shown(path), allowed));
        }
        Ok(self)
    }

    fn look(path: &Path, resource: &str) -> Result<ArtifactPath> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() || bytes.contains(&0) {
            return Err(Error::invalid("path", shown(path), "use the path of a file or folder"));
        }
        let name = path
            .file_name()
            .ok_or_else(|| Error::invalid("path", shown(path), "it ends in no name of its own; use FOLDER/NAME"))?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent =
            rustix::fs::open(&folder, flags, Mode::empty()).map_err(|e| unreachable_folder(&folder, resource, e))?;
        let found = match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(Errno::NAMETOOLONG) => return Err(too_long(name)),
            Err(e) => {
                let message = format!("cannot look at resource=`{resource}`");
                return Err(Error::unavailable(message, io::Error::from(e)));
            }
        };
        Ok(ArtifactPath { folder, parent, name: name.to_os_string(), found })
    }

    /// Opens the folder around the file that `path` leads to, through any symlinks.
    pub(crate) fn open_followed(path: &Path, resource: &str) -> Result<ArtifactPath> {
        if names_a_folder(path) {
            return Err(is_a_folder(resource));
        }
        let mut at = path.to_path_buf();
        for _ in 0..MAX_SYMLINKS {
            let artifact = ArtifactPath::look(&at, resource)?;
            match artifact.found.as_ref().map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                None | Some(FileType::RegularFile) => return artifact.outside_of_guards(path, resource),
                Some(FileType::Symlink) => {
                    let to = artifact.link(resource)?;
                    if names_a_folder(&to) {
                        return Err(is_a_folder(resource));
                    }
                    at = artifact.folder.join(to);
                }
                Some(FileType::Directory) => return Err(is_a_folder(resource)),
                Some(_) => {
                    let allowed = "it is neither a file nor a folder; only files and folders can be replaced";
                    return Err(Error::invalid("path", shown(&at), allowed));
                }
            }
        }
        Err(Error::invalid(
            "path",
            shown(path),
            format!("it leads through more than {MAX_SYMLINKS} symlinks, or in a circle"),
        ))
    }

    /// Where the symlink at this place points to.
    pub(crate) fn link(&self, resource: &str) -> Result<PathBuf> {
        let to = rustix::fs::readlinkat(&self.parent, &self.name, Vec::new()).map_err(|e| {
            Error::unavailable(format!("cannot read the symlink: resource=`{resource}`"), io::Error::from(e))
        })?;
        Ok(PathBuf::from(OsString::from_vec(to.into_bytes())))
    }

    /// The hidden name beside the artifact that ends in `suffix`: `.out.json.fence`.
    pub(crate) fn sibling(&self, suffix: &str) -> Result<OsString> {
        let hidden = hidden(&self.name, suffix);
        if hidden.len() > MAX_NAME_BYTES { Err(too_long(&self.name)) } else { Ok(hidden) }
    }
}

/// `.NAMEsuffix`.
pub(crate) fn hidden(name: &OsStr, suffix: &str) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(suffix);
    hidden
}

/// How messages name a path: escaped, and not too long.
pub(crate) fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

fn names_a_folder(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let last = bytes.rsplit(|b| *b == b'/').next().unwrap_or_default();
    !bytes.is_empty() && matches!(last, b"" | b"." | b"..")
}

fn is_a_folder(resource: &str) -> Error {
    let message = format!("resource=`{resource}` is a folder and a file was to be written");
    Error::new(Kind::Invalid, message).with_remedy(Remedy::PublishTheFolder)
}

fn too_long(name: &OsStr) -> Error {
    let most = MAX_NAME_BYTES - "..fence".len();
    let length = name.len();
    Error::invalid(
        "file name",
        name.to_string_lossy(),
        format!("it has {length} bytes, its fence folder leaves room for {most}"),
    )
}

fn unreachable_folder(folder: &Path, resource: &str, cause: Errno) -> Error {
    let cause = io::Error::from(cause);
    let message = |what: &str| format!("folder `{}` of resource=`{resource}` {what}", shown(folder));
    if vanished(&cause) {
        return Error::new(Kind::Invalid, message("does not exist; create it first"));
    }
    match errno(&cause) {
        Some(Errno::NOTDIR) => Error::new(Kind::Invalid, message("is not a folder")),
        Some(Errno::LOOP | Errno::NAMETOOLONG) => {
            Error::new(Kind::Invalid, message("cannot be opened")).with_source(cause)
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            Error::new(Kind::Unsupported, message("may not be read by this user")).with_source(cause)
        }
        _ => Error::unavailable(message("cannot be opened"), cause),
    }
}
