//! Variables that are nearly those of settings: `LEASEHOLD_STROE` would be passed over in silence, and the command would use
//! another store than the one that was meant.
//!
//! Promise: whoever starts a command is warned of them once, and the command does what it would do without them. Non-promise: a
//! name with two mistakes or more is not noticed.

use crate::output;
use std::ffi::OsString;

/// The settings that decide what a command acts on, and for how long.
const SETTINGS: [&str; 9] = [
    "LEASEHOLD_CONTEXT",
    "LEASEHOLD_GRACE",
    "LEASEHOLD_KEY",
    "LEASEHOLD_KEY_FILE",
    "LEASEHOLD_LABEL",
    "LEASEHOLD_STATE",
    "LEASEHOLD_STORE",
    "LEASEHOLD_STORE_FILE",
    "LEASEHOLD_TTL",
];
const BELOW_A_RUN: &str = "LEASEHOLD_TOKEN";

/// Warns of them, but not below a run: whoever started that was told.
pub fn warn() {
    if std::env::var_os(BELOW_A_RUN).is_some() {
        return;
    }
    for (found, meant) in mistaken(std::env::vars_os().map(|(name, _)| name)) {
        output::warn(&format!("ignored the variable {found}, which is not a setting; did you mean {meant}?"));
    }
}

/// What is one mistake away from a setting, and that setting.
fn mistaken(names: impl Iterator<Item = OsString>) -> Vec<(String, &'static str)> {
    let ours = names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with("LEASEHOLD"));
    let unknown = ours.filter(|name| !SETTINGS.contains(&name.as_str()));
    unknown
        .filter_map(|name| {
            let meant = SETTINGS.into_iter().find(|setting| strsim::osa_distance(&name, setting) == 1)?;
            Some((name, meant))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mistake_is_noticed_and_other_variables_are_not() {
        let found = |name: &str| mistaken([OsString::from(name)].into_iter()).first().map(|(_, meant)| *meant);
        for name in ["LEASEHOLD_STROE", "LEASEHOLD_STOR", "LEASEHOLD_STORES", "LEASEHOLDS_STORE"] {
            assert_eq!(found(name), Some("LEASEHOLD_STORE"), "{name}");
        }
        for name in SETTINGS.into_iter().chain(["LEASEHOLD_TOKEN", "LEASEHOLD_LOG", "LEASEHOLD_ITEM", "STORE", "PATH"])
        {
            assert_eq!(found(name), None, "{name}");
        }
    }
}
