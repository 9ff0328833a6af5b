//! `config`: the settings in force and where each came from.

use crate::config::Source;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use leasehold_core::Result;
use serde_json::{Value, json};

pub fn config(context: &Context) -> Result<Exit> {
    let settings = context.settings()?;
    let unset = |key: &str| match key {
        "label" => "(the machine's name)",
        "state" => "(unknown: HOME is not set)",
        "log" => "(info for `schedule`, `work` and `proxy`, warn for others)",
        "history_age" => "(for ever)",
        "metrics" | "metrics_leases" => "(none)",
        _ => "(a sixth of the ttl, at most 10s)",
    };
    context.print(
        || {
            let entry = |(key, value, source): (&str, Option<String>, &Source)| {
                (key.to_owned(), json!({ "value": value, "source": source.to_string() }))
            };
            Value::Object(settings.rows().map(entry).into_iter().collect())
        },
        || {
            let row = |(key, value, source): (&str, Option<String>, &Source)| {
                vec![key.to_owned(), value.unwrap_or_else(|| unset(key).into()), source.to_string()]
            };
            output::table(&["SETTING", "VALUE", "FROM"], settings.rows().map(row))
        },
    )
}
