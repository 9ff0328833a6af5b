//! Users and groups by name.
//!
//! Promise: an id that is in the system's own files is shown by name, any other as the number. Non-promise: names that
//! only a directory service knows stay numbers.

use std::fs;

/// The name of a user, or its number if it has none in `/etc/passwd`.
pub fn user(id: u32) -> String {
    named(&fs::read_to_string("/etc/passwd").unwrap_or_default(), id)
}

/// The name of the account that this process runs as (its effective user).
pub fn own() -> String {
    user(rustix::process::geteuid().as_raw())
}

/// The name of a group, or its number if it has none in `/etc/group`.
pub fn group(id: u32) -> String {
    named(&fs::read_to_string("/etc/group").unwrap_or_default(), id)
}

/// Whether this process is in a group, as its effective or a supplementary one.
pub fn is_member(group: u32) -> bool {
    let groups = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group || groups.iter().any(|own| own.as_raw() == group)
}

/// The first field of the line whose third is this number: `NAME:x:ID:...`.
fn named(file: &str, id: u32) -> String {
    let wanted = id.to_string();
    let line = file.lines().find(|line| line.split(':').nth(2) == Some(wanted.as_str()));
    line.and_then(|line| line.split(':').next()).filter(|name| !name.is_empty()).map_or(wanted.clone(), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_number_has_its_name_and_another_is_itself() {
        let file = "root:x:0:0:root:/root:/bin/sh\nmail-team:x:120:ada,bob\n";
        assert_eq!((named(file, 0), named(file, 120), named(file, 7)), ("root".into(), "mail-team".into(), "7".into()));
        assert_eq!(named("", 7), "7");
        assert!(is_member(rustix::process::getegid().as_raw()));
    }
}
