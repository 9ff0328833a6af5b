//! Names that only their writer can read: of types, functions, constants, modules and files in `crates/*/src`.
//!
//! Promise: a name that contains a refused word is refused, whatever is before and after it. Non-promise: the names of tests,
//! variables and fields; nor whether another name is a good one.

use super::{files, is_unit_test, read};
use crate::lines::without_tests;
use std::path::Path;

/// Words that stood for parts of this project once, each with what to say instead.
const REFUSED: &[(&str, &str)] = &[
    ("bell", "what it wakes: `watch`, `hint`"),
    ("beside", "what it is compared with, or where it is stored"),
    ("desk", "`queue`"),
    ("haunted", "`grace`, or until when an old process may act"),
    ("hub", "`watch`"),
    ("memo", "`cache`"),
    ("pen", "what it writes: `loose_object`, `record`"),
    ("remains", "`leftovers`, or what is left"),
    ("sheet", "`record`, `row`"),
    ("sleepers", "`waiters`"),
    ("station", "`connection`"),
    ("waved", "`skipped`, `refused`"),
    ("wave", "`skip`, `refuse`"),
];

/// The words that come before a name that is declared.
const DECLARED: &[&str] = &["struct", "enum", "trait", "union", "type", "fn", "mod", "const", "static", "macro_rules!"];

pub(super) fn complaints(root: &Path, complaints: &mut Vec<String>) {
    for path in files(root, &["crates"], "rs").into_iter().filter(|path| !is_unit_test(path)) {
        let file = path.strip_prefix(root).unwrap_or(&path);
        let mut parts = file.iter().filter_map(|part| part.to_str());
        if parts.nth(2) != Some("src") {
            continue;
        }
        for part in parts.map(|part| part.trim_end_matches(".rs")) {
            complaints.extend(refused(part).map(|why| format!("{}: {why}", file.display())));
        }
        for (at, line) in without_tests(&read(&path)).iter().enumerate() {
            let why = declared(line).filter_map(refused);
            complaints.extend(why.map(|why| format!("{}:{}: {why}", file.display(), at + 1)));
        }
    }
}

/// Why a name is refused, if it is.
fn refused(name: &str) -> Option<String> {
    let words = words(name);
    let (word, instead) = REFUSED.iter().find(|(word, _)| words.iter().any(|other| other == word))?;
    Some(format!("`{name}`: nobody else says `{word}` for it; say {instead}"))
}

/// The names that a line of code declares.
fn declared(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    let pairs = code.split_whitespace().zip(code.split_whitespace().skip(1));
    let names = pairs.filter(|(word, _)| DECLARED.contains(word)).map(|(_, name)| name);
    names.filter_map(|name| name.split(|c: char| !c.is_alphanumeric() && c != '_').next())
}

/// The words of a name, in small letters: `WaveOff`, `wave_off` and `WAVE_OFF` have the same.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_small) {
            words.push(String::new());
        }
        was_small = c.is_lowercase() || c.is_numeric();
        if c != '_'
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_private_word_is_refused_in_every_form_and_not_inside_another() {
        for name in ["desk", "Desk", "FrontDesk", "front_desk", "DESK_SIZE", "wave_off", "WaveOff", "haunted_until"] {
            assert!(refused(name).is_some_and(|why| why.starts_with(&format!("`{name}`: "))), "{name}");
        }
        for name in ["desktop", "open", "Opened", "github", "worksheet", "spreadsheet", "microwave", "labelled"] {
            assert_eq!(refused(name), None, "{name}");
        }
    }

    #[test]
    fn only_what_a_line_declares_is_a_name() {
        let found = |line: &'static str| declared(line).collect::<Vec<_>>();
        assert_eq!(found("pub(crate) async fn ring_bell<T>(bell: &Bell) {"), ["ring_bell"]);
        assert_eq!(found("    const fn memo(&self) -> u8 {"), ["fn", "memo"]);
        assert_eq!(found("pub struct Hub<'a>(&'a str); // struct Desk"), ["Hub"]);
        assert_eq!(found("let desk = hub.station();"), Vec::<&str>::new());
    }

    #[test]
    fn files_modules_and_items_of_the_sources_are_looked_at_and_tests_are_not() {
        let root = std::env::temp_dir().join(format!("leasehold-tidy-names-{}", std::process::id()));
        for (file, text) in [
            ("crates/a/src/desk/mod.rs", "//! A.\nmod open;\n"),
            ("crates/a/src/lib.rs", "mod desk;\nenum Fine {}\n#[cfg(test)]\nmod tests {\nfn the_bell_rings() {}\n}\n"),
            ("crates/a/tests/hub.rs", "fn a_hub() {}\n"),
        ] {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut found = Vec::new();
        complaints(&root, &mut found);
        fs::remove_dir_all(&root).unwrap();
        let places: Vec<&str> = found.iter().filter_map(|complaint| complaint.split(": ").next()).collect();
        assert_eq!(places, ["crates/a/src/desk/mod.rs", "crates/a/src/lib.rs:1"]);
    }
}
