//! How much code there is: the lines of `crates/*/src`, comments, blank lines and tests apart. Crates that are not published
//! exist for the tests, and do not count either.
//!
//! Promise: the same tree gives the same count. Non-promise: a line inside a block comment or a long string counts as code;
//! we write neither.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Prints the count of each crate and their sum.
pub(crate) fn print(root: &Path) -> Result<(), String> {
    let counts = counts(root)?;
    for (name, lines) in &counts {
        println!("{lines:>7}  {name}");
    }
    println!("{:>7}  in all", counts.values().sum::<usize>());
    Ok(())
}

fn counts(root: &Path) -> Result<BTreeMap<String, usize>, String> {
    let (mut texts, mut tests) = (Vec::new(), BTreeSet::new());
    for path in crate::tidy::files(root, &["crates"], "rs") {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        tests.extend(test_files(&path, &text));
        texts.push((path, text));
    }
    // What a module of the tests declares is the tests' too.
    tests = tests.iter().flat_map(|path| [path.clone(), path.with_extension("")]).collect();
    let mut counts = BTreeMap::new();
    for (path, text) in texts.iter().filter(|(path, _)| !path.ancestors().any(|part| tests.contains(part))) {
        let path = path.strip_prefix(root.join("crates")).map_err(|error| error.to_string())?;
        let mut parts = path.iter().filter_map(|part| part.to_str());
        if let (Some(name), Some("src")) = (parts.next(), parts.next())
            && !is_for_tests_alone(root, name)
        {
            *counts.entry(name.to_owned()).or_default() += code_lines(text);
        }
    }
    Ok(counts)
}

/// Whether a crate is not published.
fn is_for_tests_alone(root: &Path, name: &str) -> bool {
    let manifest = fs::read_to_string(root.join("crates").join(name).join("Cargo.toml")).unwrap_or_default();
    manifest.lines().any(|line| line == "publish = false")
}

/// Whether an attribute keeps what follows out of every build but the tests'.
fn is_for_tests(line: &str) -> bool {
    line == "#[cfg(test)]" || line.starts_with("#[cfg(all(test,")
}

/// The files of modules that only the tests have.
fn test_files(path: &Path, text: &str) -> Vec<PathBuf> {
    let is_root = path.file_stem().is_some_and(|stem| stem == "mod" || stem == "lib" || stem == "main");
    let folder = if is_root { path.with_file_name("") } else { path.with_extension("") };
    let lines: Vec<&str> = text.lines().collect();
    let named = (0..lines.len()).filter_map(|at| test_module(&lines[at..])?.strip_suffix(';'));
    named.map(|name| folder.join(format!("{name}.rs"))).collect()
}

/// What stands after `mod`, if a module that only the tests have begins with the first of these lines.
fn test_module<'a>(lines: &[&'a str]) -> Option<&'a str> {
    let mut after = lines.iter().skip_while(|line| line.starts_with("#["));
    if is_for_tests(lines.first()?) { after.next()?.strip_prefix("mod ") } else { None }
}

/// The lines of a file that are neither blank, nor comments, nor its unit tests, which are last.
fn code_lines(text: &str) -> usize {
    let lines = without_tests(text).into_iter().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// The lines of a file without its unit tests, which are last.
pub(crate) fn without_tests(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    let begins = |at: &usize| test_module(&lines[*at..]).is_some_and(|name| name.ends_with('{'));
    if let Some(end) = (0..lines.len()).find(begins) {
        lines.truncate(end);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_tests_do_not_count() {
        for attributes in ["#[cfg(test)]", "#[cfg(test)]\n#[allow(clippy::unwrap_used)]", "#[cfg(all(test, unix))]"] {
            let text = format!(
                "//! A file.\n\n/// A function.\nfn f() {{\n    // Why.\n    g();\n}}\n\n{attributes}\nmod tests {{\n}}\n"
            );
            assert_eq!(code_lines(&text), 3, "{attributes}");
        }
    }

    #[test]
    fn a_module_that_only_the_tests_have_does_not_count() {
        let text = "mod a;\n#[cfg(test)]\n#[cfg(unix)]\nmod b;\n";
        assert_eq!(test_files(Path::new("x/mod.rs"), text), [PathBuf::from("x/b.rs")]);
        assert_eq!(test_files(Path::new("x/y.rs"), text), [PathBuf::from("x/y/b.rs")]);
    }
}
