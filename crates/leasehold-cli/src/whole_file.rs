//! A file of text for people that is there as a whole or not at all: it is written beside its place, and then renamed.
//!
//! Promise: a full disk leaves nothing, neither half of the text nor an empty file in its place. Non-promise: a process that is
//! killed meanwhile may leave the file beside it, whose name begins with a dot.

use leasehold_core::Nonce;
use leasehold_system::rename::without_replacing;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Makes a file that was not there.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if it was: nothing that somebody wrote is ever lost.
pub fn create(path: &Path, text: &str) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let staged = Staged::write(path, text)?;
    match without_replacing(&staged.0, path) {
        // Not every file system can do that; a second name is refused in the same way.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => fs::hard_link(&staged.0, path),
        renamed => renamed,
    }
}

/// Makes a file, or replaces what was there. The file that a link leads to is replaced, and not the link.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let staged = Staged::write(&path, text)?;
    if let Ok(metadata) = fs::metadata(&path) {
        fs::set_permissions(&staged.0, metadata.permissions())?;
    }
    fs::rename(&staged.0, &path)
}

/// The text beside its place. What is still there when this is dropped is removed.
struct Staged(PathBuf);

impl Staged {
    fn write(path: &Path, text: &str) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
        let staged = path.with_file_name(format!(".{name}.{}", Nonce::random()));
        let mut file = File::create_new(&staged)?;
        let staged = Staged(staged);
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        Ok(staged)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_made_once_replaced_behind_a_link_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a"), folder.path().join("link"));
        create(&file, "one").unwrap();
        assert_eq!(create(&file, "two").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).unwrap(), "one");
        symlink(&file, &link).unwrap();
        assert_eq!(create(&link, "two").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        replace(&link, "three").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "three");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
