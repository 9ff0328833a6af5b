//! A pattern of names, as people write it in settings and flags: of leases, jobs and queues.
//!
//! Promise: every setting that takes a pattern takes this one. Matching takes
//! at most the pattern's length times the name's.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The longest pattern, in bytes: the longest name and some more.
const MAX_BYTES: usize = 256;

/// A name in which `*` stands for any number of characters, `/` included, and `?` for one character.
///
/// ```
/// use leasehold_core::NamePattern;
/// let pattern: NamePattern = "team-a/*".parse()?;
/// assert!(pattern.matches("team-a/reports/weekly") && !pattern.matches("team-b/reports"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    /// The text as a pattern; if it has neither `*` nor `?`, it matches every name that begins with it.
    pub fn or_prefix(text: &str) -> Result<Self> {
        let pattern: NamePattern = text.parse()?;
        Ok(if text.contains(['*', '?']) { pattern } else { NamePattern(format!("{text}*")) })
    }

    /// Whether the pattern matches the whole name.
    pub fn matches(&self, name: &str) -> bool {
        is_like(&self.0, name)
    }

    /// Whether it surely matches every name that the other one matches. For some pairs
    /// that differ only in the order of `*` and `?` it says no although it does.
    pub fn covers(&self, other: &NamePattern) -> bool {
        is_like_by(&self.0, &other.0, |wanted, found| match found {
            // Any number of characters: only another `*` covers that.
            '*' => false,
            found => wanted == '?' || wanted == found,
        })
    }
}

/// Whether the pattern matches the whole text. `*` stands for any number of characters and `?` for one.
pub fn is_like(pattern: &str, text: &str) -> bool {
    is_like_by(pattern, text, |wanted, found| wanted == '?' || wanted == found)
}

/// The same, where `fits` says whether a character of the pattern matches one of the text.
fn is_like_by(pattern: &str, text: &str, fits: impl Fn(char, char) -> bool) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), text.chars());
    // The pattern after the last `*`, and the part of the name that this `*` has not taken yet.
    let mut star: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let before = name.clone();
        match (pattern.next(), name.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                star = Some((pattern.clone(), before.clone()));
                name = before;
            }
            (Some(wanted), Some(found)) if fits(wanted, found) => {}
            // The last `*` takes one more character. An earlier `*` need not,
            // because it has left the most for what follows.
            _ => {
                let Some((after, taken)) = &mut star else { return false };
                if taken.next().is_none() {
                    return false;
                }
                (pattern, name) = (after.clone(), taken.clone());
            }
        }
    }
}

impl FromStr for NamePattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "._-/:*?".contains(c);
        if text.is_empty() || text.len() > MAX_BYTES || !text.chars().all(is_fit) {
            let form = format!(
                "use a name, in which `*` stands for any characters and `?` for one, such as `team-a/*`: A-Z a-z 0-9 . _ - / : * ?, \
                 at most {MAX_BYTES} bytes"
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
    use proptest::prelude::*;

    #[test]
    fn a_star_stands_for_any_characters_and_a_question_mark_for_one() {
        let cases: [(&str, &[&str], &[&str]); 12] = [
            ("team/*", &["team/a", "team/a/b", "team/"], &["team", "other/team/a"]),
            ("*", &["", "a", "a/b"], &[]),
            ("nightly", &["nightly"], &["nightly-2", "a-nightly", ""]),
            ("*-report", &["daily-report", "-report", "a-report-report"], &["daily-report-2"]),
            ("a*b*c", &["abc", "a/b/c", "abbcc", "abcbc"], &["ab", "acb", "abcd"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("a**b", &["ab", "axb"], &["a", "b"]),
            ("?", &["a", "/", "é"], &["", "ab"]),
            ("a?", &["ab"], &["a", "abc"]),
            ("*/n?", &["x/y/n1", "/n1"], &["x/n", "x/n12"]),
            ("spool:/srv/*", &["spool:/srv/mail", "spool:/srv/a b"], &["spool:/var/mail"]),
            ("*?*?", &["ab", "abc"], &["a", ""]),
        ];
        for (pattern, yes, no) in cases {
            let pattern: NamePattern = pattern.parse().unwrap();
            yes.iter().for_each(|name| assert!(pattern.matches(name), "{pattern} {name}"));
            no.iter().for_each(|name| assert!(!pattern.matches(name), "{pattern} {name}"));
        }
    }

    #[test]
    fn a_pattern_covers_another_if_it_matches_all_its_names() {
        let covers = |wide: &str, narrow: &str| {
            wide.parse::<NamePattern>().unwrap().covers(&narrow.parse::<NamePattern>().unwrap())
        };
        for (wide, narrow) in
            [("*", "*"), ("*", "a?"), ("team/*", "team/a*"), ("team/*", "team/*/x"), ("a?", "ab"), ("a?", "a?")]
        {
            assert!(covers(wide, narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [("?", "*"), ("a", "*"), ("team/*", "team*"), ("a*", "*a"), ("ab", "a?"), ("a?", "a*")] {
            assert!(!covers(wide, narrow), "{wide} {narrow}");
        }
    }

    #[test]
    fn what_is_not_a_pattern_is_refused_with_the_form_that_is_allowed() {
        for wrong in ["", "a b", "a\n", "[ab]", "ä", "a,b", &"a".repeat(257)] {
            let error = wrong.parse::<NamePattern>().unwrap_err().to_string();
            assert!(error.contains("`*` stands for any characters and `?` for one"), "{error}");
        }
    }

    #[test]
    fn a_plain_word_may_stand_for_what_begins_with_it() {
        let matches = |text: &str, name: &str| NamePattern::or_prefix(text).unwrap().matches(name);
        assert!(matches("team", "team/a") && matches("team", "team") && !matches("team", "a/team"));
        assert!(!matches("t?am", "team/a") && matches("t?am*", "team/a") && NamePattern::or_prefix("a b").is_err());
    }

    /// The meaning by definition: slow, and too simple to be wrong.
    fn means(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (['*', rest @ ..], _) => (0..=name.len()).any(|taken| means(rest, &name[taken..])),
            (['?', rest @ ..], [_, name @ ..]) => means(rest, name),
            ([wanted, rest @ ..], [found, name @ ..]) => wanted == found && means(rest, name),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_what_its_definition_says(pattern in "[ab/*?]{1,10}", name in "[ab/]{0,12}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let parsed: NamePattern = pattern.parse().unwrap();
            prop_assert_eq!(parsed.matches(&name), means(&chars(&pattern), &chars(&name)));
            prop_assert_eq!(&parsed.to_string().parse::<NamePattern>().unwrap(), &parsed);
        }

        #[test]
        fn a_pattern_that_covers_another_matches_all_that_it_does(
            wide in "[ab/*?]{1,6}", narrow in "[ab/*?]{1,6}", names in prop::collection::vec("[ab/]{0,8}", 0..40),
        ) {
            let (wide, narrow): (NamePattern, NamePattern) = (wide.parse().unwrap(), narrow.parse().unwrap());
            prop_assert!(wide.covers(&wide) && "*".parse::<NamePattern>().unwrap().covers(&narrow));
            let is_plain = !narrow.0.contains(['*', '?']);
            prop_assert!(!is_plain || wide.covers(&narrow) == wide.matches(&narrow.0));
            for name in names.iter().filter(|name| wide.covers(&narrow) && narrow.matches(name)) {
                prop_assert!(wide.matches(name), "{} {} {}", wide, narrow, name);
            }
        }

        #[test]
        fn every_name_matches_itself_and_its_own_shape(name in "[a-z0-9._/-]{1,40}") {
            for text in [name.clone(), "?".repeat(name.len()), format!("{}*", &name[..name.len() / 2]), "*".into()] {
                prop_assert!(text.is_empty() || text.parse::<NamePattern>().unwrap().matches(&name), "{}", text);
            }
        }
    }
}
