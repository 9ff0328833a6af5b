//! Every feature of the library by itself, and the oldest compiler that it says it needs.
//!
//! Promise: what is checked is what the manifest names, so a new feature is checked without a word here. Non-promise: not
//! every set of features; they only add, so each alone and all together is what can go wrong.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Checks them, one after the other. Takes several minutes: each driver is compiled.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let needed = oldest_compiler(root)?;
    let read = |name: &str| fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"));
    let alone = ["check", "--package", "leasehold", "--no-default-features"];
    crate::cargo("the library stands without any feature", &alone)?;
    for feature in features(&read("crates/leasehold/Cargo.toml")?) {
        let what = format!("the library stands with `{feature}` alone");
        crate::cargo(&what, &[&alone[..], &["--features", &feature]].concat())?;
    }
    let has_it = Command::new("rustup").args(["run", &needed, "rustc", "--version"]).output();
    if !has_it.is_ok_and(|answer| answer.status.success()) {
        println!("xtask: Rust {needed} is not installed: whether it compiles the library was not checked");
        return Ok(());
    }
    let mut command = Command::new("rustup");
    command.args(["run", &needed, "cargo", "check", "--package", "leasehold", "--all-features"]);
    crate::run(&format!("Rust {needed} compiles the library"), command)
}

/// The compiler that manifest and README name, which must be the same.
fn oldest_compiler(root: &Path) -> Result<String, String> {
    let read = |name: &str| fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"));
    let (manifest, readme) = (read("Cargo.toml")?, read("README.md")?);
    let after = |text: &str, start: &str, end: &str| {
        text.split(start).nth(1).and_then(|rest| rest.split(end).next()).unwrap_or_default().to_owned()
    };
    let needed = after(&manifest, "rust-version = \"", "\"");
    let told = after(&readme, "Rust toolchain (", " or newer)");
    if needed.is_empty() || needed != told {
        return Err(format!("Cargo.toml needs Rust `{needed}`, and README.md says `{told}`"));
    }
    Ok(needed)
}

/// The names in a manifest's table of features.
fn features(manifest: &str) -> Vec<String> {
    let table = manifest.split("[features]").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap_or_default();
    let names = table.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    names.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_of_the_table_is_found() {
        let manifest = "[features]\ndefault = [\"a\"]\n# Why.\na = []\nfull = [\n    \"a\", \"b-c\",\n]\nb-c = []\n\n[dependencies]\nx = 1\n";
        assert_eq!(features(manifest), ["default", "a", "full", "b-c"]);
    }
}
