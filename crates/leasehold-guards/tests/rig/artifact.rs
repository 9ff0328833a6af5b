//! What is written, and who wrote what is there.

use super::How;
use std::fs;
use std::path::{Path, PathBuf};

/// Long enough for a part of it to be told from the whole.
const LINES: usize = 300;
const FILES: usize = 3;

pub fn text(epoch: u64, rival: u64) -> String {
    format!("epoch {epoch} {rival}\n").repeat(LINES)
}

/// Who wrote this text; panics if it is not whole.
pub fn author(found: &str) -> (u64, u64) {
    let mut words = found.lines().next().expect("never empty").split(' ').skip(1);
    let mut number = || words.next().unwrap().parse().unwrap();
    let (epoch, rival) = (number(), number());
    assert_eq!(found, text(epoch, rival), "half-written content is visible");
    (epoch, rival)
}

/// A source tree for the folder guard, made once.
pub fn source(path: &Path, epoch: u64, rival: u64) -> PathBuf {
    let at = path.with_file_name(format!("source-{epoch}-{rival}"));
    if !at.exists() {
        fs::create_dir_all(at.join("sub")).unwrap();
        for n in 0..FILES {
            fs::write(at.join(if n == 0 { "sub" } else { "." }).join(format!("f{n}")), text(epoch, rival)).unwrap();
        }
    }
    at
}

/// Whose content is at `path`; none if nobody's yet.
pub fn read(how: How, path: &Path) -> Option<(u64, u64)> {
    if how != How::Folder {
        return Some(author(&fs::read_to_string(path).ok()?));
    }
    let at = path.canonicalize().ok()?;
    let names = ["sub/f0", "f1", "f2"];
    let authors: Vec<_> =
        names.iter().filter_map(|name| Some(author(&fs::read_to_string(at.join(name)).ok()?))).collect();
    if authors.is_empty() {
        return None;
    }
    assert_eq!(authors, vec![authors[0]; FILES], "a mixture is visible");
    Some(authors[0])
}
