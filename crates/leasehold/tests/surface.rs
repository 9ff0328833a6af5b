//! What this crate offers, as one committed text: whoever changes it sees that, and so does whoever reads the change.
//!
//! Promise: every public item of this crate, with its signature, derives and features, and of those that it passes on from
//! the core. Non-promise: it reads text as rustfmt leaves it; modules that are passed on whole are named, not listed.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Set to `write` to take what there is as what is wanted.
const SWITCH: &str = "LEASEHOLD_SURFACE";
/// What the root passes on from the core.
const PASSED_ON: &[&str] = &["Drain", "Epoch", "Error", "HolderId", "Kind", "Loss", "Outcome", "Token"];

#[test]
fn what_the_crate_offers_is_what_was_agreed() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for path in sources(&here.join("src")) {
        let items = items(&fs::read_to_string(&path).unwrap());
        let own: Vec<String> = items.iter().filter(|item| !item.is_impl).map(|item| item.of.clone()).collect();
        let items = items.into_iter().filter(|item| own.contains(&item.of));
        section(&mut text, path.strip_prefix(here).unwrap(), items.map(|item| item.text));
    }
    let core = here.parent().unwrap().join("leasehold-core");
    for path in sources(&core.join("src")).into_iter().filter(|path| !path.ends_with("lib.rs")) {
        let items = items(&fs::read_to_string(&path).unwrap());
        let items = items.into_iter().filter(|item| PASSED_ON.contains(&item.of.as_str()));
        section(&mut text, path.strip_prefix(here.parent().unwrap()).unwrap(), items.map(|item| item.text));
    }
    let agreed = here.join("tests/surface.txt");
    if std::env::var_os(SWITCH).is_some_and(|word| word == "write") {
        fs::write(&agreed, &text).unwrap();
    }
    let agreed = fs::read_to_string(&agreed).unwrap_or_default();
    let changed: Vec<String> = (agreed.lines().filter(|line| !text.lines().any(|other| other == *line)))
        .map(|line| format!("- {line}"))
        .chain(text.lines().filter(|line| !agreed.lines().any(|other| other == *line)).map(|line| format!("+ {line}")))
        .collect();
    let changed = changed.join("\n");
    assert!(text == agreed, "the surface has changed; if that is meant, run the test with {SWITCH}=write:\n{changed}");
}

fn section(text: &mut String, path: &Path, items: impl Iterator<Item = String>) {
    let items: Vec<String> = items.collect();
    if !items.is_empty() {
        writeln!(text, "{}\n{}", path.display(), items.join("\n")).unwrap();
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            paths.extend(sources(&path));
        } else {
            paths.push(path);
        }
    }
    paths.sort();
    paths
}

struct Item {
    /// The type that it is, or is a part of.
    of: String,
    /// Whether it is an `impl`, which may be one for a type that is not public.
    is_impl: bool,
    text: String,
}

/// The public items of a file, in its order.
fn items(source: &str) -> Vec<Item> {
    let code = source.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code = without_words(code);
    let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//")).peekable();
    let (mut found, mut attributes, mut of, mut is_listed) = (Vec::new(), String::new(), String::new(), false);
    while let Some(line) = lines.next() {
        let (indent, word) = (line.len() - line.trim_start().len(), line.trim());
        if word.starts_with("#[") || word.starts_with("#![") {
            let mut attribute = word.to_owned();
            while !attribute.ends_with(']') {
                attribute.push_str(lines.next().unwrap_or("]").trim());
            }
            attributes.push_str(&attribute);
            continue;
        }
        let kept = kept(&std::mem::take(&mut attributes));
        if indent == 0 && word == "}" {
            is_listed = false;
        }
        let is_type = ["pub struct ", "pub enum ", "pub trait "].iter().any(|kind| word.starts_with(kind));
        let is_impl = indent == 0 && word.starts_with("impl");
        let is_item = word.starts_with("pub ") && (indent == 0 || indent == 4);
        let is_part = is_listed && indent == 4 && !word.starts_with(['}', ')']);
        if !(is_impl || is_item || is_part) {
            continue;
        }
        let mut text = word.to_owned();
        // The parameters of a function, and what it asks of them, have commas at the end of lines too.
        let ends: &[char] = if word.contains("fn ") || is_impl { &['{', ';'] } else { &['{', ';', ',', '}'] };
        while !text.ends_with(ends) && !text.ends_with("{}") {
            let Some(next) = lines.next() else { break };
            text.push(' ');
            text.push_str(next.trim());
        }
        if is_type || is_impl {
            of = name_of(&text);
            is_listed = word.starts_with("pub enum ") && text.ends_with('{');
        } else if indent == 0 {
            of = name_of(&text);
        }
        let Some(kept) = kept else { continue };
        let text = text.trim_end_matches([' ', '{', ';', ',']);
        found.push(Item { of: of.clone(), is_impl, text: format!("{:indent$}  {kept}{text}", "") });
    }
    found
}

/// The code with what `words!` makes of its enums.
fn without_words(code: &str) -> String {
    let (mut plain, mut rest) = (String::new(), code);
    while let Some((before, after)) = rest.split_once("leasehold_system::words! {\n") {
        let (words, end) = after.split_once("\n}\n").unwrap();
        plain.push_str(before);
        for line in words.lines() {
            let line = line.strip_prefix("    ").unwrap_or(line);
            match line.split_once(" = \"") {
                Some((variant, _)) if line.ends_with("\",") => writeln!(plain, "{variant},").unwrap(),
                _ => writeln!(plain, "{line}").unwrap(),
            }
        }
        let name = words.split_once("pub enum ").unwrap().1.split(' ').next().unwrap();
        let made = "    pub const ALL: [Self];\n    pub const fn as_str(self) -> &'static str {\n}";
        writeln!(plain, "impl {name} {{\n{made}\nimpl fmt::Display for {name} {{\n}}").unwrap();
        rest = end;
    }
    plain + rest
}

/// The attributes that are part of the surface; none if the item is hidden.
fn kept(attributes: &str) -> Option<String> {
    if attributes.contains("doc(hidden)") {
        return None;
    }
    let is_kept = |attribute: &&str| {
        ["cfg(", "derive(", "non_exhaustive", "must_use"].iter().any(|word| attribute.starts_with(word))
    };
    let each = attributes.split("#[").map(|attribute| attribute.trim_end_matches(']')).filter(is_kept);
    Some(each.map(|attribute| format!("#[{}] ", attribute.split(" = \"dropped").next().unwrap())).collect())
}

/// The type that a heading is about: the last word of a path, without its parameters.
fn name_of(heading: &str) -> String {
    let after = heading.split(" for ").last().unwrap_or(heading);
    let mut words = after.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).filter(|w| !w.is_empty());
    let skipped = ["pub", "struct", "enum", "trait", "impl", "fn", "async", "const", "type", "use", "mod"];
    words.find(|word| !skipped.contains(word)).unwrap_or_default().rsplit("::").next().unwrap_or_default().to_owned()
}
