//! Environment variables, as people and programs set them.

use leasehold_core::{Error, Kind, Result, secret};

/// Variables that may hold a secret. Each can name a file that has it instead, by its name and `_FILE`.
const SECRETS: [&str; 3] = ["LEASEHOLD_STORE", "LEASEHOLD_TOKEN", "LEASEHOLD_PING"];

/// What a variable says; an empty one is how people unset it for a single command.
pub fn environment(variable: &str) -> Result<Option<String>> {
    match std::env::var(variable) {
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Error::new(Kind::Invalid, format!("environment variable {variable} is not text")))
        }
        text => match text.ok().filter(|text| !text.is_empty() && !is_unexpanded(text, variable)) {
            None if SECRETS.contains(&variable) => secret::in_file_of(variable),
            text => Ok(text),
        },
    }
}

/// Whether a host has left its own `$NAME` or `${NAME}` in place of a variable that it does not have.
pub fn is_unexpanded(text: &str, variable: &str) -> bool {
    let name = text.strip_prefix('$').map(|rest| rest.trim_start_matches('{').trim_start_matches("env:"));
    name.and_then(|name| name.strip_prefix(variable))
        .is_some_and(|rest| rest.trim_end_matches('}').trim_end_matches(":-").is_empty())
}
