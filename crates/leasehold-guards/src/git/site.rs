//! Where a push comes from and goes to: the repository, the remote's address, and what git may do there.
//!
//! Promise: git's settings are read once, before anything is changed. A remote with two addresses, or with one that
//! the settings do not allow, is refused. Non-promise: the remote itself is not asked.

use super::commit::Oid;
use super::names::{Remote, helper};
use super::program::{Answer, Git, OLDEST, QUIET_FETCH, Version};
use leasehold_core::secret::redacted;
use leasehold_core::{Error, Kind, Result};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The empty tree of repositories with SHA-1 names, as most are.
pub(crate) const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// A repository and a remote.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) git: Git,
    pub(crate) version: Version,
    pub(crate) remote: Remote,
    /// Where pushes go, as git takes it; it may hold a password.
    pub(crate) url: String,
    /// Whether fetches go to the same address. Then the remote's name is used, with all of its settings.
    pub(crate) fetches_there: bool,
    /// A folder of ours inside the repository's.
    pub(crate) folder: PathBuf,
    /// The empty tree, in the repository's object format.
    pub(crate) empty_tree: &'static str,
    /// Variables that give git an author where it knows none, as on CI machines.
    pub(crate) author: Vec<(String, &'static str)>,
}

impl Site {
    pub(crate) async fn find(git: &Git, remote: &Remote) -> Result<Self> {
        let mut ask = git.command(["config", "--null", "--list", "--show-origin"]);
        // Its trace tells the version of git, which saves a process.
        if std::env::var_os("GIT_TRACE2_EVENT").is_none() {
            ask.env("GIT_TRACE2_EVENT", "2");
        }
        let answer = git.finish(ask).await?;
        let version = match Version::traced(&answer.said) {
            Some(version) => version.at_least(OLDEST)?,
            None => git.version(OLDEST).await?,
        };
        let settings = Settings::parse(&answer.stdout);
        // If git could not read all settings, the second command says why.
        let common = match settings.common_folder(git.folder()).filter(|_| answer.succeeded) {
            Some(common) => common,
            None => common_folder(git).await?,
        };
        let empty_tree = match settings.get("extensions.objectformat") {
            Some("sha256") => "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
            _ => EMPTY_TREE,
        };
        let url = match &settings.addresses(git, remote).await?[..] {
            [] => unnamed(git, remote)?,
            [url] => url.clone(),
            many => {
                let message = format!(
                    "remote `{remote}` has {} push URLs: each would have a fence of its own, and a push to several is \
                     never atomic; push to one of them by its URL",
                    many.len()
                );
                return Err(Error::new(Kind::Unsupported, message));
            }
        };
        if settings.is(&format!("remote.{}.mirror", remote.as_str())) {
            let message = format!(
                "remote `{remote}` is a mirror: a push there would delete what is not here, fences too; use another"
            );
            return Err(Error::new(Kind::Unsupported, message));
        }
        settings.permit(&url)?;
        let fetches_there = !settings.tells_pushes_apart(remote);
        Ok(Site {
            git: git.clone(),
            version,
            remote: remote.clone(),
            url,
            fetches_there,
            folder: common.join("leasehold"),
            empty_tree,
            author: settings.missing_author(),
        })
    }

    /// Where the fence is read: always where pushes go.
    pub(crate) fn address(&self) -> &str {
        if self.fetches_there { self.remote.as_str() } else { &self.url }
    }

    /// The refs of these names that the remote has now. `what` is being read, for messages.
    pub(crate) async fn refs(&self, what: &str, names: &[String]) -> Result<HashMap<String, Oid>> {
        let words = ["ls-remote", "--refs", "--", self.address()].map(str::to_owned);
        let answer = self.git.run(words.iter().chain(names)).await?;
        if !answer.succeeded {
            return Err(Error::new(Kind::Unavailable, format!("cannot read {what}: {}", answer.complaint())));
        }
        let text = answer.text();
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        Ok(lines.filter_map(|(oid, name)| Some((name.to_owned(), Oid::parse(oid)?))).collect())
    }

    /// Fetches what one ref of the remote points at, and changes nothing else here.
    pub(crate) async fn fetch(&self, name: &str) -> Result<Answer> {
        let quiet = (self.version >= QUIET_FETCH).then_some("--no-write-fetch-head");
        let words = ["fetch", "--quiet", "--no-tags", "--no-auto-gc", "--no-recurse-submodules", "--refmap="];
        self.git.run(words.into_iter().chain(quiet).chain(["--", self.address(), name])).await
    }

    /// The remote's address as it may be shown and kept.
    pub(crate) fn shown(&self) -> String {
        redacted(&self.url)
    }
}

/// A remote that is not configured by name: then it has to look like an address.
fn unnamed(git: &Git, remote: &Remote) -> Result<String> {
    let text = remote.as_str();
    let is_address = text.contains(['/', ':']) || text == "." || text == ".." || git.folder().join(text).is_dir();
    if !is_address {
        let allowed = "there is no remote of that name (see `git remote -v`), and it is no URL or path";
        return Err(Error::invalid("remote", remote, allowed));
    }
    Ok(text.to_owned())
}

/// The folder of the repository that all of its worktrees share, as git knows it.
async fn common_folder(git: &Git) -> Result<PathBuf> {
    let answer = git.run(["rev-parse", "--git-common-dir"]).await?;
    if !answer.succeeded {
        return Err(Error::invalid("repository", git.folder().display(), answer.complaint()));
    }
    Ok(git.folder().join(answer.text()))
}

/// Git's settings, from all of their files; of one name the last counts.
struct Settings(Vec<Setting>);

struct Setting {
    /// `file:PATH`, from the top of the worktree if it is relative; or another word where it comes from no file.
    origin: String,
    key: String,
    value: String,
}

impl Settings {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut fields = text.split('\0');
        let mut settings = Vec::new();
        while let (Some(origin), Some(entry)) = (fields.next(), fields.next()) {
            let (key, value) = entry.split_once('\n').unwrap_or((entry, "true"));
            settings.push(Setting { origin: origin.to_owned(), key: key.to_owned(), value: value.to_owned() });
        }
        Settings(settings)
    }

    /// The folder that the worktrees of a repository share: where the repository's own settings are. That saves a
    /// process. None below the top of a worktree, and where that file is not known.
    fn common_folder(&self, folder: &Path) -> Option<PathBuf> {
        let own = self.0.iter().rev().find(|setting| setting.key == "core.repositoryformatversion")?;
        let file = folder.join(own.origin.strip_prefix("file:")?);
        let is_it = file.file_name()? == "config" && file.is_file();
        file.parent().filter(|_| is_it).map(Path::to_owned)
    }

    /// The author, as far as neither variables nor settings name one.
    fn missing_author(&self) -> Vec<(String, &'static str)> {
        let mut missing = Vec::new();
        for who in ["author", "committer"] {
            for (what, ours) in [("name", "leasehold"), ("email", "leasehold@localhost")] {
                let variable = format!("GIT_{}_{}", who.to_uppercase(), what.to_uppercase());
                let setting = self.get(&format!("{who}.{what}")).or_else(|| self.get(&format!("user.{what}")));
                let is_told = std::env::var_os(&variable).is_some_and(|value| !value.is_empty());
                if !is_told && setting.is_none_or(str::is_empty) {
                    missing.push((variable, ours));
                }
            }
        }
        missing
    }

    /// Where pushes to a remote of this name go; none if there is no such name.
    async fn addresses(&self, git: &Git, remote: &Remote) -> Result<Vec<String>> {
        let all = |name: &str| -> Vec<String> {
            let key = format!("remote.{}.{name}", remote.as_str());
            self.0.iter().filter(|setting| setting.key == key).map(|setting| setting.value.clone()).collect()
        };
        let (urls, push_urls) = (all("url"), all("pushurl"));
        let is_rewritten = self.0.iter().any(|setting| setting.key.starts_with("url."));
        let found = if push_urls.is_empty() { urls } else { push_urls };
        if !is_rewritten && !found.is_empty() && found.iter().all(|url| !url.is_empty()) {
            return Ok(found);
        }
        // Rewritten by a setting, unset, or in one of git's old files: git itself is asked.
        let answer = git.run(["remote", "get-url", "--push", "--all", remote.as_str()]).await?;
        let text = if answer.succeeded { answer.text() } else { String::new() };
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|setting| setting.key.eq_ignore_ascii_case(name)).map(|setting| setting.value.as_str())
    }

    fn is(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "true" | "yes" | "on" | "1"))
    }

    fn tells_pushes_apart(&self, remote: &Remote) -> bool {
        let own = format!("remote.{}.pushurl", remote.as_str());
        self.0
            .iter()
            .map(|setting| &setting.key)
            .any(|key| key.eq_ignore_ascii_case(&own) || key.to_ascii_lowercase().ends_with(".pushinsteadof"))
    }

    /// A helper is a program that the URL chooses. It is run only if the user has allowed it by name. Git's own check
    /// is less strict.
    fn permit(&self, url: &str) -> Result<()> {
        let Some(name) = helper(url) else { return Ok(()) };
        let listed = std::env::var("GIT_ALLOW_PROTOCOL").is_ok_and(|list| list.split(':').any(|one| one == name));
        let allowed = self.get(&format!("protocol.{name}.allow"));
        if listed || allowed.is_some_and(|value| matches!(value, "always" | "user")) {
            return Ok(());
        }
        let why = format!(
            "it would run the program `git-remote-{name}`; git's setting protocol.{name}.allow does not allow it"
        );
        Err(Error::invalid("remote", url, why))
    }
}
