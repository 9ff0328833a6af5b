//! Adding what is missing to a file that people edit.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstArray, CstInputValue, CstNode, CstObject, CstRootNode};
use serde_json::Value;
use toml_edit::{DocumentMut, Item, Table};

/// A hook of ours, whatever its flags: one is enough.
const OUR_HOOK: &str = "leasehold hook ";

/// The file with what was missing.
#[derive(Debug)]
pub struct Merged {
    pub text: String,
    /// Settings that say something else than ours, and were left.
    pub conflicts: Vec<String>,
}

/// Merges into JSON, which may have comments.
pub fn json(theirs: &str, ours: &str) -> Result<Merged, String> {
    let options = ParseOptions {
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        ..ParseOptions::default()
    };
    let theirs = CstRootNode::parse(theirs, &options).map_err(|e| e.to_string())?;
    let ours = CstRootNode::parse(ours, &options).map_err(|e| e.to_string())?;
    let (Some(into), Some(from)) = (theirs.object_value(), ours.object_value()) else {
        return Err("it is no JSON object".into());
    };
    let mut conflicts = Vec::new();
    add_properties(&into, &from, "", &mut conflicts);
    Ok(Merged { text: theirs.to_string(), conflicts })
}

fn add_properties(into: &CstObject, from: &CstObject, path: &str, conflicts: &mut Vec<String>) {
    for property in from.properties() {
        let (Some(name), Some(value)) = (property.decoded_name(), property.value()) else { continue };
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let Some(theirs) = into.get(&name).and_then(|property| property.value()) else {
            into.append(&name, input(&value));
            continue;
        };
        match (theirs.as_object(), value.as_object(), theirs.as_array(), value.as_array()) {
            (Some(theirs), Some(ours), ..) => add_properties(&theirs, &ours, &path, conflicts),
            // What a program is started with is one value, not a list to add to.
            (.., Some(theirs), Some(ours)) if ours.elements().iter().all(|one| one.as_object().is_some()) => {
                add_elements(&theirs, &ours);
            }
            _ if theirs.to_serde_value() == value.to_serde_value() => {}
            _ => conflicts.push(left(&path, &theirs.to_string(), &value.to_string())),
        }
    }
}

fn add_elements(into: &CstArray, from: &CstArray) {
    for element in from.elements() {
        let value = element.to_serde_value();
        let is_there = |theirs: &CstNode| {
            let theirs = theirs.to_serde_value();
            theirs == value || theirs.as_ref().is_some_and(has_our_hook)
        };
        if !into.elements().iter().any(is_there) {
            into.append(input(&element));
        }
    }
}

fn has_our_hook(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(OUR_HOOK),
        Value::Array(all) => all.iter().any(has_our_hook),
        Value::Object(all) => all.values().any(has_our_hook),
        _ => false,
    }
}

/// A value of ours, in the order in which it is written.
fn input(node: &CstNode) -> CstInputValue {
    if let Some(object) = node.as_object() {
        let one =
            |property: jsonc_parser::cst::CstObjectProp| Some((property.decoded_name()?, input(&property.value()?)));
        return CstInputValue::Object(object.properties().into_iter().filter_map(one).collect());
    }
    if let Some(array) = node.as_array() {
        return CstInputValue::Array(array.elements().iter().map(input).collect());
    }
    match node.to_serde_value() {
        Some(Value::Bool(is)) => CstInputValue::Bool(is),
        Some(Value::Number(number)) => CstInputValue::Number(number.to_string()),
        Some(Value::String(text)) => CstInputValue::String(text),
        _ => CstInputValue::Null,
    }
}

/// Merges into TOML.
pub fn toml(theirs: &str, ours: &str) -> Result<Merged, String> {
    let parse = |text: &str| text.parse::<DocumentMut>().map_err(|e| e.to_string().trim_end().replace('\n', " "));
    let (mut into, from) = (parse(theirs)?, parse(ours)?);
    let mut conflicts = Vec::new();
    add_items(into.as_table_mut(), from.as_table(), "", &mut conflicts);
    Ok(Merged { text: into.to_string(), conflicts })
}

fn add_items(into: &mut Table, from: &Table, path: &str, conflicts: &mut Vec<String>) {
    for (name, ours) in from {
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match (into.get_mut(name), ours) {
            (None, ours) => drop(into.insert(name, unplaced(ours))),
            (Some(Item::Table(theirs)), Item::Table(ours)) => add_items(theirs, ours, &path, conflicts),
            (Some(Item::ArrayOfTables(theirs)), Item::ArrayOfTables(ours)) => {
                for table in ours {
                    let is_there = theirs.iter().any(|their| {
                        let their = their.to_string();
                        their == table.to_string() || their.contains(OUR_HOOK)
                    });
                    if !is_there {
                        theirs.push(unplaced_table(table));
                    }
                }
            }
            (Some(theirs), ours) if theirs.to_string().trim() == ours.to_string().trim() => {}
            (Some(theirs), ours) => conflicts.push(left(&path, &theirs.to_string(), &ours.to_string())),
        }
    }
}

/// A copy without the place that it had in our own text, so that it is put at the end of theirs.
fn unplaced(item: &Item) -> Item {
    match item {
        Item::Table(table) => Item::Table(unplaced_table(table)),
        Item::ArrayOfTables(tables) => Item::ArrayOfTables(tables.iter().map(unplaced_table).collect()),
        other => other.clone(),
    }
}

fn unplaced_table(table: &Table) -> Table {
    let mut copy = table.clone();
    copy.set_position(None);
    for (_, item) in copy.iter_mut() {
        *item = unplaced(item);
    }
    copy
}

fn left(path: &str, theirs: &str, ours: &str) -> String {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("`{path}` is {} and was left; it should be {}", one_line(theirs), one_line(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_with_its_comments_and_its_order() {
        let theirs =
            "{\n  // mine\n  \"z\": 1,\n  \"hooks\": {\n    \"Pre\": [{ \"command\": \"lint\" }], // keep\n  },\n}\n";
        let ours = r#"{ "hooks": { "Pre": [{ "command": "leasehold hook claude" }] }, "a": { "b": true } }"#;
        let merged = json(theirs, ours).unwrap();
        assert!(merged.text.contains("// mine") && merged.text.contains("// keep"), "{}", merged.text);
        assert!(merged.text.find("\"z\"") < merged.text.find("\"a\""), "{}", merged.text);
        assert!(merged.text.contains("lint") && merged.text.contains("leasehold hook claude"), "{}", merged.text);
        assert_eq!(json(&merged.text, ours).unwrap().text, merged.text);
        // A hook of ours with other flags is not doubled.
        let other = ours.replace("hook claude", "hook claude --allow-unleased");
        assert_eq!(json(&merged.text, &other).unwrap().text, merged.text);
    }

    #[test]
    fn a_setting_that_says_something_else_is_left_and_said() {
        let ours = r#"{ "mcpServers": { "leasehold": { "command": "leasehold", "args": ["mcp"] } } }"#;
        let theirs =
            r#"{ "mcpServers": { "leasehold": { "command": "/opt/leasehold", "args": ["mcp", "--root", "x"] } } }"#;
        let merged = json(theirs, ours).unwrap();
        assert_eq!(merged.text, theirs);
        assert_eq!(merged.conflicts.len(), 2, "{:?}", merged.conflicts);
        assert!(merged.conflicts[0].contains("mcpServers.leasehold.command"), "{:?}", merged.conflicts);
        for wrong in ["[]", "1", "{", "{ 'a': 1 }", "{ a: 1 }"] {
            assert!(json(wrong, ours).is_err(), "{wrong}");
        }
    }

    #[test]
    fn toml_is_merged_as_json_is() {
        let theirs = "# mine\nmodel = \"x\" # keep\n\n[mcp_servers.other]\ncommand = \"other\"\n\n[[hooks.PreToolUse]]\nmatcher = \"a\"\n";
        let ours = "[mcp_servers.leasehold]\ncommand = \"leasehold\"\n\n[[hooks.PreToolUse]]\nmatcher = \".*\"\n\n[[hooks.PreToolUse.hooks]]\ncommand = \"leasehold hook codex\"\n";
        let merged = toml(theirs, ours).unwrap();
        let read: toml::Table = toml::from_str(&merged.text).unwrap();
        assert!(merged.text.starts_with("# mine\nmodel = \"x\" # keep\n"), "{}", merged.text);
        assert_eq!(read["mcp_servers"]["other"]["command"].as_str(), Some("other"));
        assert_eq!(read["mcp_servers"]["leasehold"]["command"].as_str(), Some("leasehold"));
        assert_eq!(read["hooks"]["PreToolUse"].as_array().map(Vec::len), Some(2), "{}", merged.text);
        assert_eq!(toml(&merged.text, ours).unwrap().text, merged.text);
        let conflict = toml("[mcp_servers.leasehold]\ncommand = \"mine\"\n", ours).unwrap();
        assert_eq!(conflict.conflicts.len(), 1, "{conflict:?}");
        assert!(toml("[", ours).is_err());
    }
}
