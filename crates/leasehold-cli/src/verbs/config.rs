//! `config`: the settings in force and where each came from.

use crate::args::Common;
use crate::config::Settings;
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Result, format_duration};
use serde_json::json;

pub fn config(common: &Common) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    let label = settings.label.value.as_ref().map(|l| l.as_str().to_owned());
    let state = settings.state_folder(false).ok().flatten().map(|folder| folder.display().to_string());
    let rows = [
        ("store", Some(settings.store.value.to_string()), &settings.store.source),
        ("ttl", Some(settings.ttl.value.to_string()), &settings.ttl.source),
        ("label", label, &settings.label.source),
        ("grace", settings.grace.value.map(format_duration), &settings.grace.source),
        ("held_exit_code", Some(settings.held_exit_code.value.to_string()), &settings.held_exit_code.source),
        ("state", state, &settings.state.source),
    ];
    if common.json {
        let entries: serde_json::Map<_, _> = rows
            .iter()
            .map(|(key, value, source)| ((*key).to_owned(), json!({ "value": value, "source": source.to_string() })))
            .collect();
        output::json(&entries.into())?;
    } else {
        let unset = |key: &str| match key {
            "label" => "(the machine's name)",
            "state" => "(unknown: HOME is not set)",
            _ => "(a sixth of the ttl, at most 10s)",
        };
        let mut table = vec![["SETTING", "VALUE", "FROM"].map(String::from).to_vec()];
        table.extend(rows.iter().map(|(key, value, source)| {
            vec![(*key).to_owned(), value.clone().unwrap_or_else(|| unset(key).into()), source.to_string()]
        }));
        output::print(&output::table(&table))?;
    }
    Ok(Exit::Done)
}
