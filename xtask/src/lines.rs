//! How much code there is: the lines of `crates/*/src`, comments, blank lines and tests apart.
//!
//! Promise: the same tree gives the same count. Non-promise: a line inside a block comment or a long string counts as code;
//! we write neither.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

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
    let mut counts = BTreeMap::new();
    for path in crate::tidy::files(root, &["crates"], "rs") {
        let place = path.strip_prefix(root.join("crates")).map_err(|error| error.to_string())?.to_path_buf();
        let mut parts = place.iter().filter_map(|part| part.to_str());
        let (Some(name), Some("src")) = (parts.next(), parts.next()) else { continue };
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        *counts.entry(name.to_owned()).or_default() += code_lines(&text);
    }
    Ok(counts)
}

/// The lines of a file that are neither blank, nor comments, nor its unit tests.
fn code_lines(text: &str) -> usize {
    let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[cfg(test)]
mod tests {
    use super::code_lines;

    #[test]
    fn comments_blank_lines_and_tests_do_not_count() {
        let text =
            "//! A file.\n\n/// A function.\nfn f() {\n    // Why.\n    g();\n}\n\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(code_lines(text), 3);
    }
}
