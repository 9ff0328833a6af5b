//! Writes a fence's commit into the repository without starting git for it.
//!
//! Promise: the object is there whole under its own name, or not at all, as git itself leaves it; where anything about the
//! repository is out of the ordinary (another object format, shared permissions, objects elsewhere), there is no pen, and
//! git is asked. Non-promise: like git's own loose objects by default, it is not synced.

use super::commit::Oid;
use leasehold_core::Nonce;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The most that one stored block holds.
const BLOCK: usize = 0xffff;

/// What is needed to write commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pen {
    /// The folder of the repository's objects.
    objects: PathBuf,
    /// `Name <email>`.
    who: String,
}

impl Pen {
    /// A pen for a repository whose shared folder this is; `setting` reads git's settings.
    pub(crate) fn new(common: &Path, setting: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let is_shared = setting("core.sharedrepository")
            .is_some_and(|value| !matches!(&*value.to_ascii_lowercase(), "false" | "no" | "off" | "0" | "umask"));
        let objects = common.join("objects");
        if is_shared || setting("extensions.objectformat").is_some_and(|format| format != "sha1") || !objects.is_dir() {
            return None;
        }
        let one = |name: &str| {
            let told = std::env::var(format!("GIT_COMMITTER_{}", name.to_uppercase())).ok();
            let told =
                told.or_else(|| setting(&format!("committer.{name}"))).or_else(|| setting(&format!("user.{name}")));
            told.map(|text| fit(&text)).filter(|text| !text.is_empty())
        };
        // Nobody has told git who they are: CI machines. The fence needs no author.
        let who = one("name").zip(one("email")).map(|(name, email)| format!("{name} <{email}>"));
        Some(Pen { objects, who: who.unwrap_or_else(|| "leasehold <leasehold@localhost>".into()) })
    }

    /// Writes a commit of this tree without parents.
    pub(crate) fn write(&self, tree: &str, message: &str) -> io::Result<Oid> {
        let (who, at) = (&self.who, leasehold_system::clock::wall_ms() / 1000);
        let body = format!("tree {tree}\nauthor {who} {at} +0000\ncommitter {who} {at} +0000\n\n{message}");
        let object = [format!("commit {}\0", body.len()).as_bytes(), body.as_bytes()].concat();
        let name = sha1_smol::Sha1::from(&object).digest().to_string();
        let oid = Oid::parse(&name).ok_or_else(|| io::Error::other("no name"))?;
        let folder = self.objects.join(&name[..2]);
        if !folder.is_dir() {
            fs::create_dir_all(&folder)?;
        }
        // As git calls them, so that its housekeeping removes what a crash leaves.
        let staged = folder.join(format!("tmp_obj_{}", Nonce::random()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&staged)?;
        let written = file.write_all(&stored(&object)).and_then(|()| fs::rename(&staged, folder.join(&name[2..])));
        if written.is_err() {
            let _ = fs::remove_file(&staged);
        }
        written.map(|()| oid)
    }
}

/// A name as git has it in a commit: without what would end it.
fn fit(text: &str) -> String {
    let inner: String = text.chars().filter(|c| !c.is_control() && !matches!(c, '<' | '>')).collect();
    inner.trim_matches(|c: char| c.is_whitespace() || ".,:;\"\\'".contains(c)).to_owned()
}

/// Bytes as zlib has them (RFC 1950), stored and not compressed.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let mut rest = bytes;
    loop {
        let (block, after) = rest.split_at(rest.len().min(BLOCK));
        // A block is no longer than 16 bits tell.
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        out.push(u8::from(after.is_empty()));
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend(block);
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    let (low, high) = bytes.iter().fold((1_u32, 0_u32), |(low, high), byte| {
        let low = (low + u32::from(*byte)) % 65_521;
        (low, (high + low) % 65_521)
    });
    out.extend((high << 16 | low).to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Git reads it back and finds nothing wrong with it.
    #[test]
    fn git_takes_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let git = |words: &[&str]| {
            let output = Command::new("git").args(words).current_dir(folder.path()).output().unwrap();
            assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        git(&["init", "-q", "--object-format=sha1"]);
        let tree = git(&["hash-object", "-w", "-t", "tree", "/dev/null"]);
        let names = |key: &str| match key {
            "user.name" => Some(" A <b>\nC, ".to_owned()),
            "user.email" => Some("a@localhost".to_owned()),
            _ => None,
        };
        let pen = Pen { who: "A b <a@localhost>".into(), ..Pen::new(&folder.path().join(".git"), names).unwrap() };
        for message in ["leasehold fence 1\n", &"x".repeat(3 * BLOCK), ""] {
            let oid = pen.write(tree.trim(), message).unwrap();
            let found = git(&["cat-file", "commit", oid.as_str()]);
            assert!(found.contains("committer A b <a@localhost> "), "{found}");
            assert_eq!(found.split_once("\n\n").unwrap().1, message);
        }
        git(&["fsck", "--strict", "--no-dangling"]);
        assert_eq!(fit(" A <b>\nC, "), "A bC");
        let shared = |key: &str| (key == "core.sharedrepository").then(|| "group".to_owned());
        assert_eq!(Pen::new(&folder.path().join(".git"), shared), None);
        let other = |key: &str| (key == "extensions.objectformat").then(|| "sha256".to_owned());
        assert_eq!(Pen::new(&folder.path().join(".git"), other), None);
    }
}
