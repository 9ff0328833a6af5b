//! What git said about a remote, so that the next push need not ask.
//!
//! Promise: it is used only while every file and variable that git's settings come from, and git itself, are as they were;
//! in doubt git is asked. A remote whose settings are out of the ordinary (includes, rewritten addresses, helpers, passwords)
//! is never remembered. Non-promise: it is not synced to disk.

use super::names::{Remote, helper};
use super::pen::Pen;
use super::program::{Git, Version};
use super::site::Site;
use leasehold_core::secret::redacted;
use leasehold_core::{Nonce, codec};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const KIND: &str = "git-site";
/// More would be no memo of ours.
const MOST_BYTES: u64 = 64 * 1024;

/// As it is written down.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    remote: String,
    /// Of everything that the answer came from.
    sources: String,
    version: (u32, u32),
    url: String,
    fetches_there: bool,
    pen: Option<Pen>,
}

/// Where what is known of a remote is written down.
#[derive(Debug)]
pub(crate) struct Memo {
    common: PathBuf,
    path: PathBuf,
    remote: Remote,
    sources: String,
}

impl Memo {
    /// None where the repository is not the plain kind: a folder `.git` here or above.
    pub(crate) fn of(git: &Git, remote: &Remote) -> Option<Self> {
        const ELSEWHERE: [&str; 5] =
            ["GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"];
        if !git.is_elsewhere() && ELSEWHERE.iter().any(|name| std::env::var_os(name).is_some()) {
            return None;
        }
        let looks_like_one = |place: &Path| place.join("HEAD").exists() && place.join("objects").is_dir();
        let start = fs::canonicalize(git.folder()).ok()?;
        for folder in start.ancestors() {
            let common = folder.join(".git");
            if common.exists() {
                let is_plain = looks_like_one(&common) && !common.join("commondir").exists();
                return is_plain.then(|| Memo::at(common, remote)).flatten();
            }
            // A bare repository is one itself.
            if looks_like_one(folder) {
                return None;
            }
        }
        None
    }

    fn at(common: PathBuf, remote: &Remote) -> Option<Self> {
        let name = sha1_smol::Sha1::from(remote.as_str()).digest().to_string();
        let path = common.join("leasehold").join(format!("site-{name}"));
        let sources = sources(&common)?;
        Some(Memo { common, path, remote: remote.clone(), sources })
    }

    /// What was found before, if all it came from is as it was.
    pub(crate) fn recall(&self, git: &Git) -> Option<Site> {
        if fs::symlink_metadata(&self.path).ok().filter(|stat| stat.is_file())?.len() > MOST_BYTES {
            return None;
        }
        let record: Record = codec::decode(KIND, &fs::read(&self.path).ok()?, "memo").ok()?;
        if record.remote != self.remote.as_str() || record.sources != self.sources {
            return None;
        }
        Some(Site {
            git: git.clone(),
            version: Version(record.version.0, record.version.1),
            remote: self.remote.clone(),
            url: record.url,
            fetches_there: record.fetches_there,
            folder: self.common.join("leasehold"),
            empty_tree: super::site::EMPTY_TREE,
            pen: Some(record.pen?),
        })
    }

    /// Writes down what was found. `is_plain`: that nothing but the sources has a say in it.
    pub(crate) fn keep(&self, site: &Site, is_plain: bool) {
        let is_fit = is_plain && helper(&site.url).is_none() && redacted(&site.url) == site.url && site.pen.is_some();
        // What was changed while git was asked is not what it answered.
        if !is_fit || sources(&self.common).as_ref() != Some(&self.sources) {
            return;
        }
        let record = Record {
            remote: self.remote.as_str().to_owned(),
            sources: self.sources.clone(),
            version: (site.version.0, site.version.1),
            url: site.url.clone(),
            fetches_there: site.fetches_there,
            pen: site.pen.clone(),
        };
        let Ok(bytes) = codec::encode(KIND, &record) else { return };
        let staged = self.path.with_extension(format!("tmp-{}", Nonce::random()));
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&staged, bytes));
        if written.and_then(|()| fs::rename(&staged, &self.path)).is_err() {
            let _ = fs::remove_file(&staged);
        }
    }
}

/// A sum over everything that git's answer depends on: the files of its settings, whether they are there or not, the
/// variables, and the program.
fn sources(common: &Path) -> Option<String> {
    const SYSTEM: [&str; 4] =
        ["/etc/gitconfig", "/usr/local/etc/gitconfig", "/usr/etc/gitconfig", "/opt/homebrew/etc/gitconfig"];
    let mut sum = sha1_smol::Sha1::new();
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = variable("HOME").unwrap_or_default();
    let search = std::env::var_os("PATH")?;
    let program = std::env::split_paths(&search).map(|folder| folder.join("git")).find(|path| path.is_file())?;
    let mut files = vec![program, common.join("config"), common.join("config.worktree"), home.join(".gitconfig")];
    files.push(variable("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")).join("git/config"));
    files.extend(SYSTEM.map(PathBuf::from));
    files.extend(["GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL"].into_iter().filter_map(variable));
    // Old ways to name a remote.
    files.extend([common.join("remotes"), common.join("branches")]);
    for path in files {
        let stat =
            fs::metadata(&path).ok().map(|s| (s.ino(), s.size(), s.mtime(), s.mtime_nsec(), s.ctime(), s.ctime_nsec()));
        sum.update(format!("{}\0{stat:?}\0", path.display()).as_bytes());
    }
    let mut variables: Vec<_> = std::env::vars_os()
        .filter(|(name, _)| {
            let name = name.to_string_lossy();
            name.starts_with("GIT_") || matches!(&*name, "HOME" | "XDG_CONFIG_HOME" | "PATH" | "PREFIX")
        })
        .collect();
    variables.sort();
    sum.update(format!("{variables:?}").as_bytes());
    Some(sum.digest().to_string())
}
