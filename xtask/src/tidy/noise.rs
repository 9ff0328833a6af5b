//! Doc comments that say nothing.
//!
//! Promise: a doc comment that is only a question word or a pronoun is refused. Non-promise: whether any other says
//! more than the name that it stands on.

use super::{files, read};
use std::path::Path;

/// What is no sentence about anything.
const EMPTY: &[&str] = &[
    "all of them",
    "how",
    "it",
    "its id",
    "its name",
    "one of them",
    "since when",
    "the text",
    "these",
    "this",
    "until when",
    "what",
    "when",
    "where",
    "which",
    "who",
    "whose",
    "why",
];

pub(super) fn complaints(root: &Path, complaints: &mut Vec<String>) {
    for path in files(root, &["crates", "sim", "bench", "xtask"], "rs") {
        let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        for (at, comment) in empty(&read(&path)) {
            let what = "say what is allowed, the unit, or who sets it";
            complaints.push(format!("{file}:{at}: `{comment}` says nothing; {what}"));
        }
    }
}

/// The doc comments of one line that say nothing, with their lines.
fn empty(source: &str) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_doc = |at: usize| lines.get(at).is_some_and(|line| line.starts_with("///"));
    let alone = (0..lines.len()).filter(|at| is_doc(*at) && !is_doc(at + 1) && !(*at > 0 && is_doc(at - 1)));
    let said = |at: &usize| lines[*at].trim_start_matches('/').trim().trim_end_matches('.').to_lowercase();
    alone.filter(|at| EMPTY.contains(&said(at).as_str())).map(|at| (at + 1, lines[at])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_that_is_only_a_question_word_or_a_pronoun_is_refused() {
        let source = "/// Why.\nwhy: Why,\n    /// These\n    pub fn of() {}\n";
        assert_eq!(empty(source), [(1, "/// Why."), (3, "/// These")]);
    }

    #[test]
    fn the_end_of_a_longer_comment_and_a_short_sentence_are_left_alone() {
        for source in
            ["/// What holds\n/// it.\nfn of() {}\n", "/// Why it failed.\nwhy: Why,\n", "// Why.\nlet x = 1;\n"]
        {
            assert_eq!(empty(source), [], "{source}");
        }
    }
}
