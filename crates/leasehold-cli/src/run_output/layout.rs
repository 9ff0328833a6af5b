//! Where a run's output lies: a folder for each job or queue, a file for each run.
//!
//! Promise: two runs never share a file, whatever machines, users and stores share the folder: the name has the grant's random
//! nonce in it, and of an item also its lineage, by which `logs` knows whose item it is. A name of a job, a queue or an item
//! stays one part of the path. Non-promise: on a file system that does not tell `A` from `a`, two such jobs share a folder, and
//! the number of runs that are kept.
//!
//! ```text
//! ROOT/web-1-1000/nightly/42-0123456789abcdef0123456789abcdef.log.gz
//! ROOT/web-1-1000/queue+mail/k.welcome.3-0123456789abcdef0123456789abcdef.fedcba98765432100123456789abcdef.log.gz
//! ```

use leasehold_core::{LeaseName, Token, TokenKind};
use leasehold_work::digest::digest;
use std::path::{Path, PathBuf};

/// How a kept file's name ends.
pub const ENDING: &str = ".log.gz";
/// How much of a spool's path is shown in a folder's name.
const SHOWN: usize = 60;

/// The file of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFile {
    /// Of the job or the queue.
    pub folder: String,
    /// The file's name without [`ENDING`].
    pub stem: String,
}

impl RunFile {
    /// Of the run under this token; `spool` is the path of the spool that an item is of.
    pub fn new(token: &Token, spool: Option<&str>) -> Self {
        let (folder, item) = folder_of(&token.lease, spool);
        let (epoch, nonce) = (token.epoch.get(), token.nonce.to_string());
        match item {
            Some(item) => RunFile::of_item(folder, &item, epoch, &nonce, &token.lineage.to_string()),
            None => RunFile { folder, stem: format!("{epoch}-{nonce}") },
        }
    }

    /// Of an attempt of an item.
    pub fn of_item(folder: String, item: &str, epoch: u64, nonce: &str, lineage: &str) -> Self {
        RunFile { folder, stem: format!("{item}.{epoch}-{nonce}.{lineage}") }
    }

    /// What it is called in its folder.
    pub fn name(&self) -> String {
        format!("{}{ENDING}", self.stem)
    }

    /// Below the root of a machine, or of a bucket.
    pub fn path(&self) -> String {
        format!("{}/{}", self.folder, self.name())
    }

    /// What a file's name says about its run.
    pub fn parse(name: &str) -> Option<Named<'_>> {
        let (rest, grant) = name.strip_suffix(ENDING)?.rsplit_once('-')?;
        let (item, epoch) = rest.rsplit_once('.').map_or((None, rest), |(item, epoch)| (Some(item), epoch));
        let (nonce, lineage) = grant.split_once('.').map_or((grant, None), |(nonce, rest)| (nonce, Some(rest)));
        Some(Named { item, epoch: epoch.parse().ok()?, nonce, lineage })
    }
}

/// Which run a file is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    pub item: Option<&'a str>,
    pub epoch: u64,
    pub nonce: &'a str,
    /// Only the files of items have one.
    pub lineage: Option<&'a str>,
}

/// The folder of a lease's runs; of an item's, and what it is called there.
pub fn folder_of(lease: &LeaseName, spool: Option<&str>) -> (String, Option<String>) {
    let text = lease.as_str();
    match (TokenKind::of(lease), text.rsplit_once('/')) {
        (TokenKind::Item, Some((queue, item))) => (queue.replace('/', "+"), Some(item.to_owned())),
        (TokenKind::SpoolFile, Some((_, item))) => (spool_folder(spool.unwrap_or_default()), Some(item.to_owned())),
        // No name of a lease has a `+`.
        _ => (text.replace('/', "+"), None),
    }
}

/// A spool has a path where others have a name.
pub fn spool_folder(path: &str) -> String {
    let shown: Vec<char> = path.chars().map(plain).collect();
    let shown: String = shown[shown.len().saturating_sub(SHOWN)..].iter().collect();
    format!("spool+{}-{:016x}", shown.trim_start_matches('_'), digest([path]) as u64)
}

fn plain(c: char) -> char {
    if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' }
}

/// This machine's and this user's own part of a folder that others may share.
pub fn home() -> String {
    let host: String = leasehold_system::host::name().chars().map(plain).collect();
    format!("{host}-{}", rustix::process::geteuid().as_raw())
}

/// Whether a folder beside this machine's is the same user's on a machine of another name.
pub fn is_home_of_this_user(name: &str) -> bool {
    let user = rustix::process::geteuid().as_raw().to_string();
    name.rsplit_once('-').is_some_and(|(host, of)| !host.is_empty() && of == user)
}

/// Where a file of a machine's home is; none if the name leads elsewhere, as a damaged record's may.
pub fn within(root: &Path, home: &str, file: &str) -> Option<PathBuf> {
    let path = Path::new(home).join(file);
    let is_below = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    is_below.then(|| root.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lease: &str, spool: Option<&str>) -> RunFile {
        let hex = "0123456789abcdef0123456789abcdef";
        RunFile::new(&format!("{lease}:42:{hex}:{hex}:0").parse().unwrap(), spool)
    }

    #[test]
    fn every_name_is_one_part_of_a_path_and_tells_its_run() {
        let nonce = "0123456789abcdef0123456789abcdef";
        for (lease, spool, folder, item) in [
            ("nightly", None, "nightly".to_owned(), None),
            ("team/a.b/c", None, "team+a.b+c".to_owned(), None),
            ("queue/mail/k.7.8-9", None, "queue+mail".to_owned(), Some("k.7.8-9")),
            ("spool/k.x", Some("/var/../odd \n name"), spool_folder("/var/../odd \n name"), Some("k.x")),
        ] {
            let file = file(lease, spool);
            assert_eq!(file.folder, folder);
            assert!(!file.folder.contains(['/', '\n', ' ']) && !file.stem.contains('/'), "{file:?}");
            let path = file.path();
            let (_, name) = path.split_once('/').unwrap();
            let lineage = item.map(|_| nonce);
            assert_eq!(RunFile::parse(name), Some(Named { item, epoch: 42, nonce, lineage }));
            assert!(within(Path::new("/r"), "h-0", &path).unwrap().starts_with("/r/h-0"));
        }
        assert_ne!(spool_folder("/a/b"), spool_folder("/a_b"));
        for name in ["x", "x.log.gz", "a-b.log.gz", "42-n.log.gz.000001"] {
            assert_eq!(RunFile::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_damaged_record_leads_nowhere_else() {
        let root = Path::new("/root");
        for (home, file) in [("h", "../../etc/passwd"), ("..", "x"), ("/etc", "passwd"), ("h", "/etc/passwd")] {
            assert_eq!(within(root, home, file), None, "{home} {file}");
        }
        assert_eq!(within(root, "h-0", "a/b.log.gz"), Some("/root/h-0/a/b.log.gz".into()));
    }
}
