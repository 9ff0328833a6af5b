//! A pattern of names, as people write it in settings and flags.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The longest pattern.
const MAX_BYTES: usize = 256;

/// A name, in which `*` stands for any characters, also for none and for `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    /// Whether a name is one of those that are meant.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return rest.ends_with(part);
            }
            // The earliest place leaves the most for what follows.
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

impl FromStr for NamePattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_./*:@".contains(c);
        if text.is_empty() || text.len() > MAX_BYTES || !text.chars().all(is_fit) {
            let form = format!(
                "use a name in which `*` stands for any characters, such as `team/*`, of at most {MAX_BYTES} bytes"
            );
            return Err(Error::invalid("name pattern", text, form));
        }
        Ok(NamePattern(text.to_owned()))
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        let cases: [(&str, &[&str], &[&str]); 6] = [
            ("team/*", &["team/a", "team/a/b", "team/"], &["team", "other/team/a"]),
            ("*", &["a", "a/b"], &[]),
            ("nightly", &["nightly"], &["nightly-2", "a-nightly"]),
            ("*-report", &["daily-report", "-report"], &["daily-report-2"]),
            ("a*b*c", &["abc", "a/b/c", "abbcc", "abcbc"], &["ab", "acb", "abcd"]),
            ("a*a", &["aa", "aba"], &["a"]),
        ];
        for (pattern, yes, no) in cases {
            let pattern: NamePattern = pattern.parse().unwrap();
            yes.iter().for_each(|name| assert!(pattern.matches(name), "{pattern} {name}"));
            no.iter().for_each(|name| assert!(!pattern.matches(name), "{pattern} {name}"));
        }
        for wrong in ["", "a b", "a\n", &"a".repeat(257)] {
            assert!(wrong.parse::<NamePattern>().is_err(), "{wrong:?}");
        }
    }
}
