//! Names that a user gives: a remote, a namespace for fences, a refspec. And the fence ref of a lease.
//!
//! Promise: git cannot take a parsed name for an option, and it is shown without its password. Non-promise: whether a
//! remote or a ref exists is for git to say.

use leasehold_core::{Error, LeaseName, Result, printable};
use std::fmt;
use std::str::FromStr;

/// The longest file name that servers can be expected to accept, less what git itself appends.
const MAX_COMPONENT_BYTES: usize = 240;

/// A remote as git takes it: the name of a configured one, a URL, or a path.
#[derive(Clone, PartialEq, Eq)]
pub struct Remote(String);

impl Remote {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Remote {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |what: &str| {
            let allowed = "use the name of a remote, a URL or a path";
            Err(Error::invalid("remote", text, format!("{what}; {allowed}")))
        };
        if text.is_empty() {
            return refuse("it is empty");
        }
        if text.starts_with('-') {
            return refuse("it would be taken for an option");
        }
        if text.chars().any(char::is_control) {
            return refuse("it has control characters");
        }
        if text.trim() != text {
            return refuse("it begins or ends with a space");
        }
        // ssh takes a host that begins with a dash for an option; git refuses that too, but not in every version.
        let host = text.split_once("://").map_or(text, |(_, rest)| rest);
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        if host.starts_with('-') {
            return refuse("its host would be taken for an option");
        }
        Ok(Remote(text.to_owned()))
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.0))
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({self})")
    }
}

/// The name of the program that would carry a URL of this kind, if it is one of git's remote helpers: `ext::sh -c ...`.
pub(crate) fn helper(url: &str) -> Option<&str> {
    let (name, _) = url.split_once("::")?;
    let is_name =
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    is_name.then_some(name)
}

/// Where on the remote the fences are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceNamespace(String);

impl Default for FenceNamespace {
    /// `refs/fence` sorts before `refs/heads`: if the remote crashes in the middle of a push, the fence has moved
    /// first.
    fn default() -> Self {
        FenceNamespace("refs/fence".into())
    }
}

impl FenceNamespace {
    /// The namespace as text, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The fence of a lease. Different leases have different fences, and none is a folder where another is a file: the
    /// folders end with `%`, which no lease name has.
    pub fn fence_of(&self, lease: &LeaseName) -> Result<String> {
        let mut fence = self.0.clone();
        let mut segments = lease.as_str().split('/').peekable();
        while let Some(segment) = segments.next() {
            let mut component = escaped(segment);
            if segments.peek().is_some() {
                component.push('%');
            }
            if component.len() > MAX_COMPONENT_BYTES {
                let allowed = format!(
                    "a segment takes {} bytes in a git ref, at most {MAX_COMPONENT_BYTES} fit",
                    component.len()
                );
                return Err(Error::invalid("lease name", lease, allowed));
            }
            fence.push('/');
            fence.push_str(&component);
        }
        Ok(fence)
    }

    /// Whether a ref, or a short name that git could take for one, is a fence or a folder of fences.
    pub(crate) fn covers(&self, name: &str) -> bool {
        let full = ["", "refs/", "refs/heads/", "refs/tags/", "refs/remotes/"].map(|start| format!("{start}{name}"));
        // Some servers' file systems take `Fence` for `fence`.
        let own = self.0.to_ascii_lowercase();
        full.iter()
            .map(|name| name.to_ascii_lowercase())
            .any(|name| name == own || name.strip_prefix(&own).is_some_and(|rest| rest.starts_with('/')))
    }
}

impl fmt::Display for FenceNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for FenceNamespace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = text.strip_suffix('/').unwrap_or(text);
        let allowed = "use refs/fence, refs/heads/NAME or refs/tags/NAME";
        let refuse = |what: &str| Err(Error::invalid("fence namespace", text, format!("{what}; {allowed}")));
        if let Err(what) = ref_name(name) {
            return refuse(&what);
        }
        let parts: Vec<&str> = name.split('/').collect();
        match parts[..] {
            ["refs", "heads" | "tags", _, ..] => Ok(FenceNamespace(name.to_owned())),
            ["refs", "heads" | "tags" | "remotes" | "notes" | "replace" | "bisect" | "worktree" | "stash", ..] => {
                refuse("git uses it itself")
            }
            ["refs", _, ..] => Ok(FenceNamespace(name.to_owned())),
            ["refs"] => refuse("it names nothing below `refs/`"),
            _ => refuse("it does not begin with `refs/`"),
        }
    }
}

/// A segment of a lease name as a part of a ref: git takes no dot at either end, none after another, and no `.lock`.
fn escaped(segment: &str) -> String {
    let lock = segment.ends_with(".lock").then(|| segment.len() - ".lock".len());
    let bytes = segment.as_bytes();
    let mut component = String::with_capacity(segment.len());
    for (at, c) in segment.char_indices() {
        let is_edge = at == 0 || at + 1 == bytes.len();
        if c == '.' && (is_edge || bytes[at - 1] == b'.' || Some(at) == lock) {
            component.push_str("%2e");
        } else {
            component.push(c);
        }
    }
    component
}

/// Whether git accepts this as a ref's full name; if not, why.
fn ref_name(name: &str) -> Result<(), String> {
    let bad = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c);
    if let Some(c) = name.chars().find(|c| bad(*c)) {
        return Err(format!("character `{}` is not allowed", c.escape_debug()));
    }
    for part in name.split('/') {
        if part.is_empty() {
            return Err("it has an empty part".into());
        }
        if part.starts_with('.') || part.ends_with('.') || part.ends_with(".lock") {
            return Err(format!("part `{part}` is not allowed"));
        }
    }
    if name.starts_with('-') {
        return Err("it would be taken for an option".into());
    }
    if name.contains("..") || name.contains("@{") || name == "@" {
        return Err("`..`, `@{` and `@` are not allowed".into());
    }
    Ok(())
}

/// One `[+]SOURCE[:DESTINATION]`, as `git push` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refspec {
    /// Whether the destination may be moved to what does not descend from it.
    force: bool,
    /// Empty when the destination is to be deleted.
    source: String,
    destination: Option<String>,
}

impl Refspec {
    /// What is pushed; empty for a deletion.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The destination as it was written, or the source where none was.
    pub fn destination(&self) -> &str {
        self.destination.as_deref().unwrap_or(&self.source)
    }

    /// Whether it would move a fence.
    pub(crate) fn touches(&self, namespace: &FenceNamespace) -> bool {
        namespace.covers(self.destination())
    }

    /// Whether a remote that crashes in the middle of a push could have moved the destination and not the fence.
    pub(crate) fn sorts_before(&self, fence: &str) -> bool {
        let name = self.destination();
        if name.starts_with("refs/") { name < fence } else { "refs/heads/" < fence }
    }
}

impl fmt::Display for Refspec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let force = if self.force { "+" } else { "" };
        match &self.destination {
            Some(destination) => write!(f, "{force}{}:{destination}", self.source),
            None => write!(f, "{force}{}", self.source),
        }
    }
}

impl FromStr for Refspec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |what: &str| {
            let allowed = "use BRANCH, SOURCE:BRANCH, +SOURCE:BRANCH to overwrite, or :BRANCH to delete";
            Err(Error::invalid("refspec", text, format!("{what}; {allowed}")))
        };
        let (force, plain) = text.strip_prefix('+').map_or((false, text), |rest| (true, rest));
        if plain.is_empty() || plain == ":" {
            return refuse("it names no ref");
        }
        if plain.starts_with('-') {
            return refuse("it would be taken for an option");
        }
        if plain.starts_with('^') {
            return refuse("exclusions are not supported");
        }
        if plain.contains('*') {
            return refuse("patterns are not supported, because they could match the fence: name each ref");
        }
        if let Some(c) = plain.chars().find(|c| c.is_control() || *c == ' ') {
            return refuse(&format!("character `{}` is not allowed", c.escape_debug()));
        }
        let (source, destination) = match plain.split_once(':') {
            None => (plain, None),
            Some((_, "")) => return refuse("the destination is empty"),
            Some((source, destination)) => (source, Some(destination)),
        };
        if destination.is_some_and(|name| ref_name(name).is_err()) {
            return refuse(&destination.map(ref_name).and_then(Result::err).unwrap_or_default());
        }
        // Without a destination, git finds one by the source's name; then it has to be a name.
        if destination.is_none() && plain != "HEAD" && plain != "@" && ref_name(plain).is_err() {
            return refuse(&ref_name(plain).err().unwrap_or_default());
        }
        Ok(Refspec { force, source: source.to_owned(), destination: destination.map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn fences_of_different_leases_are_apart_and_none_is_anothers_folder() {
        let leases = ["a", "a/b", "a/b/c", "a.b", "a..b", ".a", "a.", "x.lock", "x/y.lock/z", "...", "-a", "a-", "A"];
        let namespace = FenceNamespace::default();
        let fences: HashSet<String> =
            leases.iter().map(|lease| namespace.fence_of(&lease.parse().unwrap()).unwrap()).collect();
        assert_eq!(fences.len(), leases.len());
        for fence in &fences {
            assert_eq!(ref_name(fence), Ok(()), "{fence}");
            assert!(namespace.covers(fence));
            assert!(!fences.iter().any(|other| other.starts_with(&format!("{fence}/"))), "{fence}");
        }
        assert!(fences.contains("refs/fence/a%/b"));
        assert!(namespace.fence_of(&"x".repeat(200).parse().unwrap()).is_ok());
        assert!(namespace.fence_of(&".".repeat(199).parse().unwrap()).is_err());
    }

    #[test]
    fn short_names_of_fences_are_seen_through() {
        let namespace = FenceNamespace::default();
        for text in
            ["x:fence/job", "fence/job", "x:refs/fence/job", ":refs/fence/a%/b", "x:refs/FENCE/job", "x:refs/fence"]
        {
            assert!(text.parse::<Refspec>().unwrap().touches(&namespace), "{text}");
        }
        for text in ["main", "x:refs/heads/fenced", "x:refs/fences/y", "x:offence/job"] {
            assert!(!text.parse::<Refspec>().unwrap().touches(&namespace), "{text}");
        }
        let branches: FenceNamespace = "refs/heads/00-fence/".parse().unwrap();
        for text in ["x:00-fence/job", "x:heads/00-fence/job", "00-fence/job"] {
            assert!(text.parse::<Refspec>().unwrap().touches(&branches), "{text}");
        }
    }

    #[test]
    fn helpers_are_known_by_their_colons() {
        assert_eq!(helper("ext::sh -c id"), Some("ext"));
        assert_eq!(helper("persistent-https::x"), Some("persistent-https"));
        assert_eq!(helper("https://host/a::b"), None);
        assert_eq!(helper("host:path"), None);
        assert_eq!(helper("::x"), None);
    }
}
