//! What this crate offers, as one committed text: whoever changes it sees that, and so does whoever reads the change.
//!
//! Promise: every public item of this crate, with its signature, derives and features, and of those that it passes on,
//! the contracts of a store and of a guard included. Non-promise: it reads text as rustfmt leaves it; the modules `mcp`,
//! `object` and `sql` of the guards are named, not listed.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Set to `write` to take what there is as what is wanted.
const SWITCH: &str = "LEASEHOLD_SURFACE";
/// The items that are passed on by name, with the folder or file that has them.
const PASSED_ON: &[(&str, &[&str])] = &[
    ("leasehold-core/src", &["Drain", "Epoch", "Error", "HolderId", "Kind", "Loss", "Outcome", "Token"]),
    ("leasehold-core/src", &["Key", "LeaseName", "MemoryStore", "Shelf", "Timestamp", "Ttl"]),
    ("leasehold-core/src", &["Remedy", "StoredLineage", "Words", "put_into_words"]),
    ("leasehold-core/src/lease/transfer.rs", &["Reason"]),
    ("leasehold-guards/src", &["FileGuard", "FolderGuard", "GitGuard", "ObjectGuard"]),
    ("leasehold-guards/src/sql", &["MysqlGuard", "PostgresGuard", "SqliteGuard"]),
    ("leasehold-stores/src/open", &["StoreUrl", "open"]),
    ("leasehold-stores/src/url.rs", &["Namespace"]),
];
/// What is only named: modules of guards, and our `Result`.
const NAMED_ONLY: &[&str] = &["Result", "mcp", "object", "sql"];
/// The modules that are passed on whole: the contracts for authors.
const CONTRACTS: &[&str] = &["guard.rs", "store.rs"];

#[test]
fn what_the_crate_offers_is_what_was_agreed() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut text, mut passed_on, mut listed) = (String::new(), Vec::new(), Vec::new());
    for path in sources(&here.join("src")) {
        passed_on.extend(uses(&fs::read_to_string(&path).unwrap()));
        section(&mut text, path.strip_prefix(here).unwrap(), whole(&path));
    }
    let crates = here.parent().unwrap();
    for package in ["leasehold-core", "leasehold-guards", "leasehold-stores"] {
        let source = crates.join(package).join("src");
        for path in sources(&source).into_iter().filter(|path| !path.ends_with("lib.rs")) {
            let named = PASSED_ON.iter().filter(|(of, _)| path.starts_with(crates.join(of)));
            let named: Vec<&str> = named.flat_map(|(_, names)| names.iter().copied()).collect();
            let is_contract = |name: &&str| package == "leasehold-core" && path == source.join(name);
            let items = match CONTRACTS.iter().any(is_contract) {
                true => whole(&path),
                false => items(&path).into_iter().filter(|item| named.contains(&item.of.as_str())).collect(),
            };
            listed.extend(items.iter().map(|item| item.of.clone()));
            section(&mut text, path.strip_prefix(crates).unwrap(), items);
        }
    }
    for name in passed_on.iter().filter(|name| !NAMED_ONLY.contains(&name.as_str())) {
        assert!(listed.contains(name), "`{name}` is passed on: say in PASSED_ON where it is declared");
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

/// The names that a file passes on from our other crates, one by one.
fn uses(source: &str) -> Vec<String> {
    let lines = source.lines().filter_map(|line| line.strip_prefix("pub use leasehold_"));
    let names = lines.filter_map(|line| line.split_once("::")).map(|(_, names)| names);
    let names = names.flat_map(|names| names.split(['{', '}', ',', ';', ' ']));
    names.filter(|name| !name.is_empty() && !name.ends_with('*')).map(ToOwned::to_owned).collect()
}

/// The public items of a file, and what is implemented for them.
fn whole(path: &Path) -> Vec<Item> {
    let items = items(path);
    let own: Vec<String> = items.iter().filter(|item| !item.is_impl).map(|item| item.of.clone()).collect();
    items.into_iter().filter(|item| own.contains(&item.of)).collect()
}

fn section(text: &mut String, path: &Path, items: Vec<Item>) {
    let items: Vec<String> = items.into_iter().map(|item| item.text).collect();
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
fn items(path: &Path) -> Vec<Item> {
    let source = fs::read_to_string(path).unwrap();
    let code = source.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code = without_words(code);
    let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//")).peekable();
    let (mut found, mut attributes, mut of, mut parts) = (Vec::new(), String::new(), String::new(), None);
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
        if word == "}" && parts == Some(indent + 4) {
            parts = None;
        }
        let is_type = ["pub struct ", "pub enum ", "pub trait "].iter().any(|kind| word.starts_with(kind));
        let is_impl = indent == 0 && word.starts_with("impl");
        let is_item = word.starts_with("pub ") && (indent == 0 || indent == 4);
        let is_part = parts == Some(indent) && !word.starts_with(['}', ')']);
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
            let has_parts = !is_impl && !word.starts_with("pub struct ") && text.ends_with('{');
            // In a macro, a type is indented.
            parts = has_parts.then_some(indent + 4);
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
    let skipped = ["pub", "struct", "enum", "trait", "impl", "dyn", "fn", "async", "const", "type", "use", "mod"];
    let path = words.find(|word| !skipped.contains(word)).unwrap_or_default().trim_end_matches(':');
    path.rsplit("::").next().unwrap_or_default().to_owned()
}
