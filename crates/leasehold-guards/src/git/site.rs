//! Where a push goes from and to: the repository, the remote's address, and what git is allowed to do there.
//!
//! Promise: everything is asked once, before anything is changed; a remote that has two addresses, or one that git's own
//! settings do not allow, is refused. Non-promise: the remote itself is not asked.

use super::memo::Memo;
use super::names::{Remote, helper};
use super::pen::Pen;
use super::program::{Git, OLDEST, Version};
use leasehold_core::secret::redacted;
use leasehold_core::{Error, Kind, Result};
use std::path::PathBuf;

/// A repository and a remote.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) git: Git,
    pub(crate) version: Version,
    pub(crate) remote: Remote,
    /// Where pushes go, as git takes it; it may hold a password.
    pub(crate) url: String,
    /// Whether fetches go to the same place; then the remote's name will do, with all of its settings.
    pub(crate) fetches_there: bool,
    /// A folder of ours inside the repository's.
    pub(crate) folder: PathBuf,
    /// The empty tree, in the repository's object format.
    pub(crate) empty_tree: &'static str,
    /// Writes fence commits, where that needs no git.
    pub(crate) pen: Option<Pen>,
}

/// The empty tree, by its SHA-1.
pub(crate) const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

impl Site {
    pub(crate) async fn find(git: &Git, remote: &Remote) -> Result<Self> {
        let memo = Memo::of(git, remote);
        if let Some(site) = memo.as_ref().and_then(|memo| memo.recall(git)) {
            return Ok(site);
        }
        let (site, is_plain) = Site::ask(git, remote).await?;
        if let Some(memo) = memo {
            memo.keep(&site, is_plain);
        }
        Ok(site)
    }

    /// Asks git; and whether nothing but its usual settings had a say.
    async fn ask(git: &Git, remote: &Remote) -> Result<(Self, bool)> {
        let words = ["rev-parse", "--git-common-dir", "--show-object-format"];
        let mut ask = git.command(["config", "--null", "--list"]);
        // Its trace says which git this is, and saves asking for that: a push is to cost few processes.
        if std::env::var_os("GIT_TRACE2_EVENT").is_none() {
            ask.env("GIT_TRACE2_EVENT", "2");
        }
        let (settings, repository) = tokio::join!(git.finish(ask), git.run(words));
        let (settings, repository) = (settings?, repository?);
        let version = match Version::traced(&settings.said) {
            Some(version) => version.at_least(OLDEST)?,
            None => git.version(OLDEST).await?,
        };
        if !repository.succeeded {
            let why = repository.complaint();
            return Err(Error::invalid("repository", git.folder().display(), why));
        }
        let text = repository.text();
        let mut lines = text.lines();
        let common = git.folder().join(lines.next().unwrap_or(".git"));
        let folder = common.join("leasehold");
        let empty_tree = match lines.next() {
            Some("sha256") => "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
            _ => EMPTY_TREE,
        };
        let settings = Settings::parse(&settings.stdout);
        let is_here = git.is_elsewhere() || std::env::var_os("GIT_OBJECT_DIRECTORY").is_none();
        let setting = |name: &str| settings.get(name).map(str::to_owned);
        let pen = std::path::absolute(&common).ok().filter(|_| is_here && empty_tree == EMPTY_TREE);
        let pen = pen.and_then(|common| Pen::new(&common, setting));
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
        let is_plain = settings.are_plain(remote);
        let site =
            Site { git: git.clone(), version, remote: remote.clone(), url, fetches_there, folder, empty_tree, pen };
        Ok((site, is_plain))
    }

    /// Where the fence is read: always where pushes go.
    pub(crate) fn address(&self) -> &str {
        if self.fetches_there { self.remote.as_str() } else { &self.url }
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

/// The few settings of git that matter here; the last of a name counts.
struct Settings(Vec<(String, String)>);

impl Settings {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let entries = text.split('\0').filter(|entry| !entry.is_empty());
        Settings(entries.map(|entry| entry.split_once('\n').unwrap_or((entry, "true"))).map(own).collect())
    }

    /// Where pushes to a remote of this name go; none if there is no such name.
    async fn addresses(&self, git: &Git, remote: &Remote) -> Result<Vec<String>> {
        let all = |name: &str| -> Vec<String> {
            let key = format!("remote.{}.{name}", remote.as_str());
            self.0.iter().filter(|(found, _)| *found == key).map(|(_, value)| value.clone()).collect()
        };
        let (urls, push_urls) = (all("url"), all("pushurl"));
        let is_rewritten = self.0.iter().any(|(key, _)| key.starts_with("url."));
        let found = if push_urls.is_empty() { urls } else { push_urls };
        if !is_rewritten && !found.is_empty() && found.iter().all(|url| !url.is_empty()) {
            return Ok(found);
        }
        // Rewritten, unset or kept in a file of old: git knows best.
        let answer = git.run(["remote", "get-url", "--push", "--all", remote.as_str()]).await?;
        let text = if answer.succeeded { answer.text() } else { String::new() };
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Whether they all come from the usual files and say themselves where the remote is.
    fn are_plain(&self, remote: &Remote) -> bool {
        let own = format!("remote.{}.url", remote.as_str());
        let is_odd = |key: &str| ["include.", "includeif.", "url."].iter().any(|start| key.starts_with(start));
        self.get(&own).is_some() && !self.0.iter().any(|(key, _)| is_odd(&key.to_ascii_lowercase()))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    fn is(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "true" | "yes" | "on" | "1"))
    }

    fn tells_pushes_apart(&self, remote: &Remote) -> bool {
        let own = format!("remote.{}.pushurl", remote.as_str());
        self.0
            .iter()
            .any(|(key, _)| key.eq_ignore_ascii_case(&own) || key.to_ascii_lowercase().ends_with(".pushinsteadof"))
    }

    /// A helper is a program that the URL chooses: only one that the user has allowed by name is run. Git's own check,
    /// which is laxer, comes after this one.
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

fn own((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}
