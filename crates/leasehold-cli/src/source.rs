//! Where a setting came from.
//!
//! Promise: what is shown of it is what a person would change: the flag, the variable, or the file. Non-promise: a variable
//! that was set since is told as if it had been there.

use crate::config::SECRETS;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A flag of the command line.
    Flag,
    /// This environment variable, or for a secret the file that it names with `_FILE` added.
    Environment(&'static str),
    /// A settings file, by its path.
    File(PathBuf),
    /// What `run` has told its command, in a file that the command line or the environment names.
    Context,
    /// Nowhere: it is the default.
    Default,
}

impl Source {
    /// What a relative path is relative to; the current folder if none.
    pub fn folder(&self) -> Option<&Path> {
        if let Source::File(path) = self { path.parent() } else { None }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag => f.write_str("flag"),
            Source::Environment(name) => match file_of_secret(name) {
                Some((variable, path)) => write!(f, "environment {variable} ({})", path.display()),
                None => write!(f, "environment {name}"),
            },
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Context => f.write_str("the context of a run"),
            Source::Default => f.write_str("default"),
        }
    }
}

/// The variable that names the file of this secret, and the file, if the secret is not in its own variable.
fn file_of_secret(name: &str) -> Option<(String, PathBuf)> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let file = format!("{name}_FILE");
    let path = set(&file).filter(|_| SECRETS.contains(&name) && set(name).is_none())?;
    Some((file, PathBuf::from(path)))
}
