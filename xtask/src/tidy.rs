//! Style as a test: what a reader may rely on without looking.
//!
//! Promise: each complaint names a place and what to do. Non-promise: taste; that is for review.

mod names;
mod noise;

use crate::lines::without_tests;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A file that is longer than this has more than one idea in it. Its unit tests do not count.
const MAX_LINES: usize = 500;
/// A function that is longer than this cannot be seen at once.
const MAX_FUNCTION_LINES: usize = 80;

/// Which of our crates a crate may use outside its tests, by folder. Arrows point one way: stores, guards and work never see
/// each other.
const LAYERS: &[(&str, &[&str])] = &[
    ("crates/leasehold-system", &[]),
    ("crates/leasehold-core", &["leasehold-system"]),
    ("crates/leasehold-stores", &["leasehold-core", "leasehold-system"]),
    ("crates/leasehold-guards", &["leasehold-core", "leasehold-system"]),
    ("crates/leasehold-work", &["leasehold-core", "leasehold-system"]),
    ("crates/leasehold-conformance", &["leasehold-core"]),
    ("crates/leasehold", &["leasehold-core", "leasehold-guards", "leasehold-stores", "leasehold-work"]),
    (
        "crates/leasehold-server",
        &["leasehold-core", "leasehold-guards", "leasehold-stores", "leasehold-system", "leasehold-work"],
    ),
    (
        "crates/leasehold-cli",
        &[
            "leasehold",
            "leasehold-core",
            "leasehold-conformance",
            "leasehold-guards",
            "leasehold-server",
            "leasehold-stores",
            "leasehold-system",
            "leasehold-work",
        ],
    ),
    ("crates/leasehold-testbed", &["leasehold-core", "leasehold-system"]),
    ("crates/leasehold-torture", &["leasehold-system", "leasehold-testbed"]),
    ("sim", &["leasehold-core"]),
    (
        "bench",
        &[
            "leasehold-core",
            "leasehold-guards",
            "leasehold-stores",
            "leasehold-system",
            "leasehold-testbed",
            "leasehold-work",
        ],
    ),
    ("xtask", &[]),
];

/// The one file that may say `unsafe`.
const UNSAFE_FILE: &str = "crates/leasehold-system/src/descriptor.rs";
/// The one file that may name clocks.
const CLOCK_FILE: &str = "crates/leasehold-system/src/clock.rs";

/// Everything that is out of order below this root.
pub fn complaints(root: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    layers(root, &mut complaints);
    for path in files(root, &["crates", "sim", "bench", "xtask"], "rs") {
        source(root, &path, &mut complaints);
    }
    checklist(root, "stores", &mut complaints);
    checklist(root, "guards", &mut complaints);
    decisions(root, &mut complaints);
    links(root, &mut complaints);
    named_files(root, &mut complaints);
    names::complaints(root, &mut complaints);
    noise::complaints(root, &mut complaints);
    track_record(root, &mut complaints);
    switches(root, &mut complaints);
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        if !root.join(name).is_file() {
            complaints.push(format!("{name} is missing"));
        }
    }
    complaints
}

/// A reader of ARCHITECTURE.md finds every file and folder at the top of a crate's sources.
fn named_files(root: &Path, complaints: &mut Vec<String>) {
    let page = read(&root.join("ARCHITECTURE.md"));
    let words: BTreeSet<&str> = page.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    for path in files(root, &["crates"], "rs") {
        let file = path.strip_prefix(root.join("crates")).unwrap_or(&path);
        let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
        if let [package, "src", top, ..] = parts[..]
            && let name = top.strip_suffix(".rs").unwrap_or(top)
            && !words.contains(name)
            && !name.contains("tests")
            && !["lib", "main"].contains(&name)
        {
            let complaint = format!("ARCHITECTURE.md: say where crates/{package}/src/{top} belongs");
            complaints.extend((complaints.last() != Some(&complaint)).then_some(complaint));
        }
    }
}

fn layers(root: &Path, complaints: &mut Vec<String>) {
    for folder in packages(root) {
        let Some((name, allowed)) = LAYERS.iter().find(|(name, _)| *name == folder) else {
            complaints.push(format!("{folder}: say in xtask/src/tidy.rs which of our crates it may use"));
            continue;
        };
        let mut complain = |file: String, named: &str| {
            if !allowed.contains(&named) {
                complaints.push(format!("{file}: {name} may not use {named}; arrows point the other way"));
            }
        };
        let manifest = read(&root.join(name).join("Cargo.toml"));
        for line in section(&manifest, "dependencies").lines() {
            let named = line.split(['=', '.', ' ']).next().unwrap_or_default();
            if named.starts_with("leasehold") {
                complain(format!("{name}/Cargo.toml"), named);
            }
        }
        let own = manifest.split("name = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        for path in files(&root.join(name), &["src"], "rs").into_iter().filter(|path| !is_unit_test(path)) {
            let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            for named in uses(&read(&path)).iter().filter(|named| *named != own) {
                complain(file.clone(), named);
            }
        }
    }
}

/// Whether a file of its own holds unit tests: the module above it declares it so.
fn is_unit_test(path: &Path) -> bool {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let above = read(&path.with_file_name("mod.rs"));
    let lines: Vec<&str> = above.lines().collect();
    let declared = lines.iter().position(|line| *line == format!("mod {name};"));
    declared.is_some_and(|at| {
        lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).any(|line| *line == "#[cfg(test)]")
    })
}

/// Every folder with a manifest of its own.
fn packages(root: &Path) -> Vec<String> {
    let manifests = files(root, &["crates", "sim", "bench", "xtask"], "toml");
    let folders = manifests.iter().filter(|path| path.ends_with("Cargo.toml")).filter_map(|path| path.parent());
    folders.map(|path| path.strip_prefix(root).unwrap_or(path).display().to_string()).collect()
}

/// The section of a manifest, without its heading.
fn section<'a>(manifest: &'a str, heading: &str) -> &'a str {
    let rest = manifest.split(&format!("[{heading}]")).nth(1).unwrap_or_default();
    rest.split("\n[").next().unwrap_or_default()
}

/// Our crates that a source file names by path, its unit tests apart.
fn uses(source: &str) -> BTreeSet<String> {
    let code = without_tests(source).into_iter();
    let bare = code.map(|line| line.split("//").next().unwrap_or_default());
    let words = bare.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':'));
    let paths = words.filter_map(|word| word.split_once("::")).map(|(first, _)| first);
    paths.filter(|first| first.starts_with("leasehold_")).map(|first| first.replace('_', "-")).collect()
}

fn source(root: &Path, path: &Path, complaints: &mut Vec<String>) {
    let file = path.strip_prefix(root).unwrap_or(path).display().to_string();
    let text = read(path);
    let mut complain = |what: &str| complaints.push(format!("{file}: {what}"));
    if !text.starts_with("//!") {
        complain("open with a `//!` sentence: its noun, its promise, its non-promise");
    }
    let code = without_tests(&text);
    let is_test = file.contains("/tests/");
    if code.len() > MAX_LINES && !is_test {
        complain(&format!("{} lines; split it by idea (at most {MAX_LINES})", code.len()));
    }
    for (at, line) in text.lines().enumerate() {
        let at = at + 1;
        let bare = line.split("//").next().unwrap_or_default();
        let says = |word: &str| bare.contains(word) && file != "xtask/src/tidy.rs";
        if (says("unsafe {") || says("unsafe fn") || says("unsafe impl")) && file != UNSAFE_FILE {
            complaints.push(format!("{file}:{at}: `unsafe` lives in {UNSAFE_FILE} only"));
        }
        if says("clock_gettime") && file != CLOCK_FILE {
            complaints.push(format!("{file}:{at}: clocks are read in {CLOCK_FILE} only"));
        }
        for mark in ["todo!(", "unimplemented!(", "#[ignore", "FIXME", "XXX"] {
            if says(mark) {
                complaints.push(format!("{file}:{at}: `{mark}` is an unfinished mark"));
            }
        }
    }
    if !is_test {
        long_functions(&file, &code, complaints);
    }
}

/// Functions by indentation: rustfmt puts a function's closing brace under its first word.
fn long_functions(file: &str, lines: &[&str], complaints: &mut Vec<String>) {
    for (at, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let visible =
            ["pub ", "pub(crate) ", "pub(super) "].iter().find_map(|pub_| line.trim_start().strip_prefix(pub_));
        let words = visible.unwrap_or(line.trim_start());
        let is_function = ["fn ", "async fn ", "const fn "].iter().any(|start| words.starts_with(start));
        if !is_function || words.ends_with(';') {
            continue;
        }
        let close = format!("{}}}", " ".repeat(indent));
        let length = lines[at..].iter().position(|l| **l == close).unwrap_or(0) + 1;
        if length > MAX_FUNCTION_LINES {
            complaints.push(format!("{file}:{}: a function of {length} lines (at most {MAX_FUNCTION_LINES})", at + 1));
        }
    }
}

/// Adding a store or a guard is so many edits; this fails if one is missing.
fn checklist(root: &Path, what: &str, complaints: &mut Vec<String>) {
    let folder = root.join(format!("crates/leasehold-{what}"));
    let manifest = read(&folder.join("Cargo.toml"));
    let features = section(&manifest, "features");
    let guarantees = read(&root.join("docs/guarantees.md"));
    let heading = if what == "stores" { "\n## Stores\n" } else { "\n## Guards\n" };
    let rows = guarantees.split(heading).nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap_or_default();
    let front = read(&root.join("crates/leasehold/Cargo.toml"));
    let full = front.split("\nfull = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    // The client of a server is tested with the server.
    let served = files(&root.join("crates/leasehold-server"), &["tests"], "rs");
    let tests: String = files(&folder, &["tests"], "rs").iter().chain(&served).map(|path| read(path)).collect();
    for feature in features.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name) {
        if feature == "default" || feature.is_empty() {
            continue;
        }
        let mut need = |so: bool, edit: &str| {
            if !so {
                complaints.push(format!("{what} `{feature}`: {edit}"));
            }
        };
        let rooms = [
            format!("{feature}.rs"),
            format!("{feature}/mod.rs"),
            format!("sql/{feature}.rs"),
            format!("sql/{feature}/mod.rs"),
        ];
        let is_there = rooms.iter().any(|room| folder.join("src").join(room).is_file());
        need(is_there, &format!("write crates/leasehold-{what}/src/{feature}/mod.rs"));
        let row = |line: &str| line.split(" | ").next().is_some_and(|cell| cell.contains(&format!("`{feature}")));
        need(rows.lines().any(row), "give it a row in docs/guarantees.md");
        // What the SQL guards share is turned on by each of them.
        let passed_on = feature == "sql" || front.contains(&format!("\"leasehold-{what}/{feature}\""));
        need(passed_on, "pass the feature on in crates/leasehold/Cargo.toml");
        let is_full = feature == "sql" || full.contains(&format!("\"{feature}\""));
        need(is_full, "turn the feature on in `full` of crates/leasehold/Cargo.toml");
        if what == "stores" {
            let open = read(&folder.join("src/open/mod.rs"));
            let line = open.split(&format!("feature: \"{feature}\"")).nth(1).and_then(|rest| rest.split('}').next());
            need(line.is_some(), "give it a line in DRIVERS of open/mod.rs");
            let line = line.unwrap_or_default();
            let (arm, edit) = match line.contains("is_path: true") {
                true => (format!("\"{feature}\" => Some("), "give it an arm in `open_path` of open/mod.rs"),
                false => (format!("\"{feature}\" => {feature},"), "give it a line in `networked!` of open/mod.rs"),
            };
            need(open.contains(&arm), edit);
            let scheme = line.split("schemes: &[\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or(feature);
            let is_described = read(&root.join("docs/stores.md")).contains(&format!("`{scheme}:"));
            need(is_described, "give it a section in docs/stores.md, with its URL");
            need(
                tests.contains(&format!("fn {feature}_keeps_every_promise")) && tests.contains("leasehold_conformance"),
                "call the conformance suite on it in tests/",
            );
        }
    }
}

/// Fixes are turned off in no build but the torture's: only the feature `undo` of the command turns the switches on, and no
/// other feature turns that on.
fn switches(root: &Path, complaints: &mut Vec<String>) {
    for path in files(root, &["crates", "sim", "bench", "xtask"], "toml") {
        let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        for line in read(&path).lines().map(|line| line.split('#').next().unwrap_or_default()) {
            let is_own = match file.as_str() {
                "crates/leasehold-system/Cargo.toml" => line == "undo = []",
                "crates/leasehold-cli/Cargo.toml" => line == "undo = [\"leasehold-system/undo\"]",
                _ => false,
            };
            let names_it = line.split(['"', '/', ' ']).any(|word| word == "undo");
            if names_it && !is_own {
                complaints.push(format!("{file}: `{line}`: only `undo` of leasehold-cli may turn `undo` on"));
            }
        }
    }
    let source = read(&root.join("crates/leasehold-system/src/undo.rs"));
    if source.matches("#[cfg(feature = \"undo\")]\npub fn is_disabled(").count() != 1 {
        complaints
            .push("crates/leasehold-system/src/undo.rs: `is_disabled` reads its variable with the feature only".into());
    }
}

/// Decisions are numbered without a gap.
fn decisions(root: &Path, complaints: &mut Vec<String>) {
    let mut names: Vec<String> = files(root, &["docs/adr"], "md")
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    for (at, name) in names.iter().enumerate() {
        if !name.starts_with(&format!("{:04}-", at + 1)) {
            complaints.push(format!("docs/adr/{name}: the next number is {:04}", at + 1));
        }
    }
}

/// Every test that the track record names in its last column is there. The end of a name may be filled in by its source.
fn track_record(root: &Path, complaints: &mut Vec<String>) {
    let sources: String =
        files(root, &["crates", "sim", "bench", "xtask"], "rs").iter().map(|path| read(path)).collect();
    let words: BTreeSet<&str> = sources.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    for file in ["docs/track-record.md", "docs/guarantees.md"] {
        for (at, line) in read(&root.join(file)).lines().enumerate() {
            // Most rows of the guarantees name none.
            let is_proved = file == "docs/track-record.md" || line.starts_with("| R");
            for name in tests_named(line).into_iter().filter(|_| is_proved) {
                let family = name.rsplit_once('_').map(|(start, _)| format!("{start}_")).unwrap_or_default();
                if !words.contains(name) && !words.contains(family.as_str()) {
                    complaints.push(format!("{file}:{}: there is no test `{name}`", at + 1));
                }
            }
        }
    }
}

/// The tests that a row of the track record names.
fn tests_named(row: &str) -> Vec<&str> {
    let proof = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or_default();
    let is_test = |name: &&str| {
        name.contains('_') && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    proof.split('`').skip(1).step_by(2).filter(is_test).collect()
}

/// Links between the documents, and from them to the sources, lead somewhere.
fn links(root: &Path, complaints: &mut Vec<String>) {
    let top = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let top = top.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    for path in top.chain(files(root, &["docs", "bench", "workers"], "md")) {
        let page = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let folder = path.parent().unwrap_or(root);
        for target in targets(&read(&path)) {
            let is_elsewhere = target.contains("://") || target.starts_with('#') || target.starts_with("mailto:");
            let file = target.split('#').next().unwrap_or_default();
            if !is_elsewhere && !folder.join(file).exists() {
                complaints.push(format!("{page}: the link to `{target}` leads nowhere"));
            }
        }
    }
}

/// What the links of a document point at, code apart.
fn targets(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2);
    let links = prose.flat_map(|part| part.split("](").skip(1));
    links.filter_map(|rest| rest.split(')').next()).map(ToOwned::to_owned).collect()
}

pub(crate) fn files(root: &Path, below: &[&str], extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = below.iter().map(|name| root.join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf();
        assert_eq!(complaints(&root), Vec::<String>::new());
    }

    #[test]
    fn a_released_binary_that_could_take_a_mend_back_is_noticed() {
        let root = std::env::temp_dir().join(format!("leasehold-tidy-{}", std::process::id()));
        let complaints_about = |manifest: &str| {
            fs::create_dir_all(root.join("crates/leasehold-cli")).unwrap();
            fs::create_dir_all(root.join("crates/leasehold-system/src")).unwrap();
            let source = "#[cfg(feature = \"undo\")]\npub fn is_disabled(";
            fs::write(root.join("crates/leasehold-system/src/undo.rs"), source).unwrap();
            fs::write(root.join("crates/leasehold-cli/Cargo.toml"), manifest).unwrap();
            let mut found = Vec::new();
            switches(&root, &mut found);
            fs::remove_dir_all(&root).unwrap();
            found.len()
        };
        assert_eq!(complaints_about("undo = [\"leasehold-system/undo\"]\n"), 0);
        assert_eq!(complaints_about("full = [\"undo\"]\n"), 1);
        assert_eq!(complaints_about("leasehold-system = { features = [\"undo\"] }\n"), 1);
    }

    #[test]
    fn a_path_against_the_arrows_is_noticed() {
        let source = "use leasehold_core::Token;\nfn f() { leasehold_stores::open() } // leasehold_work::x\n";
        assert_eq!(uses(source), BTreeSet::from(["leasehold-core".to_owned(), "leasehold-stores".to_owned()]));
        assert_eq!(uses("\n#[cfg(test)]\nmod tests {\nuse leasehold_stores::open; }"), BTreeSet::new());
        assert_eq!(
            uses("\n#[cfg(test)]\nmod tests;\nuse leasehold_core::x;"),
            BTreeSet::from(["leasehold-core".to_owned()])
        );
    }

    #[test]
    fn links_are_read_from_prose_only() {
        let text = "See [a](docs/a.md) and [b](../b.md#part).\n```sh\necho [x](y)\n```\n[c](c.md)";
        assert_eq!(targets(text), ["docs/a.md", "../b.md#part", "c.md"]);
    }

    #[test]
    fn tests_are_read_from_the_last_column_of_the_track_record() {
        let row = "| `a_word` in a bug | reading | `a_test_that_holds`, `bench/`, `LEASEHOLD_LANE`, `b_test_2` |";
        assert_eq!(tests_named(row), ["a_test_that_holds", "b_test_2"]);
    }

    #[test]
    fn a_long_function_is_noticed() {
        let code = format!("fn long() {{\n{}}}\n", "    work();\n".repeat(MAX_FUNCTION_LINES));
        let mut found = Vec::new();
        long_functions("x.rs", &code.lines().collect::<Vec<_>>(), &mut found);
        assert_eq!(found.len(), 1);
    }
}
