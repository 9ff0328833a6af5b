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
        return Err("it is not a JSON object".into());
    };
    let mut conflicts = Vec::new();
    // Claude Code's switch.
    let switch =
        into.get("disableAllHooks").and_then(|property| property.value()).and_then(|value| value.to_serde_value());
    if switch == Some(Value::Bool(true)) && from.get("hooks").is_some() {
        conflicts.push("`disableAllHooks` is true and was left: no hook runs".into());
    }
    add_properties(&into, &from, "", &mut conflicts)?;
    Ok(Merged { text: theirs.to_string(), conflicts })
}

fn add_properties(into: &CstObject, from: &CstObject, path: &str, conflicts: &mut Vec<String>) -> Result<(), String> {
    for property in from.properties() {
        let (Some(name), Some(value)) = (property.decoded_name(), property.value()) else { continue };
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let same = into.properties().into_iter().filter(|one| one.decoded_name().as_ref() == Some(&name));
        if same.count() > 1 {
            return Err(format!("`{path}` is there twice"));
        }
        let Some(theirs) = into.get(&name).and_then(|property| property.value()) else {
            into.append(&name, input(&value));
            continue;
        };
        match (theirs.as_object(), value.as_object(), theirs.as_array(), value.as_array()) {
            (Some(theirs), Some(ours), ..) => add_properties(&theirs, &ours, &path, conflicts)?,
            // What a program is started with is one value, not a list to add to.
            (.., Some(theirs), Some(ours)) if ours.elements().iter().all(|one| one.as_object().is_some()) => {
                add_elements(&theirs, &ours, &path, conflicts);
            }
            _ if theirs.to_serde_value() == value.to_serde_value() => {}
            _ => conflicts.push(left(&path, &theirs.to_string(), &value.to_string())),
        }
    }
    Ok(())
}

fn add_elements(into: &CstArray, from: &CstArray, path: &str, conflicts: &mut Vec<String>) {
    let theirs: Vec<Value> = into.elements().iter().filter_map(CstNode::to_serde_value).collect();
    for element in from.elements() {
        let Some(value) = element.to_serde_value() else { continue };
        match missing(&theirs, &value, path) {
            Ok(true) => drop(into.append(input(&element))),
            Ok(false) => {}
            Err(conflict) => conflicts.push(conflict),
        }
    }
}

/// Whether this is to be added to what is there. A hook of ours with other words is theirs to change.
fn missing(theirs: &[Value], ours: &Value, path: &str) -> Result<bool, String> {
    match theirs.iter().find(|one| *one != ours && has_our_hook(one)) {
        _ if theirs.contains(ours) => Ok(false),
        Some(other) => Err(left(path, &other.to_string(), &ours.to_string())),
        None => Ok(true),
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
    Ok(Merged { text: with_line_ends_of(theirs, &into.to_string()), conflicts })
}

/// A text whose lines end as those of another do: what is parsed and written again has lost how they ended.
fn with_line_ends_of(theirs: &str, text: &str) -> String {
    let (all, carriage) = (theirs.matches('\n').count(), theirs.matches("\r\n").count());
    let text = text.replace("\r\n", "\n");
    if carriage * 2 > all { text.replace('\n', "\r\n") } else { text }
}

fn add_items(into: &mut Table, from: &Table, path: &str, conflicts: &mut Vec<String>) {
    for (name, ours) in from {
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match (into.get_mut(name), ours) {
            (None, ours) => drop(into.insert(name, unplaced(ours))),
            (Some(Item::Table(theirs)), Item::Table(ours)) => add_items(theirs, ours, &path, conflicts),
            (Some(Item::ArrayOfTables(theirs)), Item::ArrayOfTables(ours)) => {
                let there: Vec<Value> = theirs.iter().map(table_value).collect();
                for table in ours {
                    match missing(&there, &table_value(table), &path) {
                        Ok(true) => theirs.push(unplaced_table(table)),
                        Ok(false) => {}
                        Err(conflict) => conflicts.push(conflict),
                    }
                }
            }
            (Some(theirs), ours) if value(theirs) == value(ours) => {}
            (Some(theirs), ours) => {
                conflicts.push(left(&path, &value(theirs).to_string(), &value(ours).to_string()));
            }
        }
    }
}

/// What an item says, without its comments and its form.
fn value(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Table(table) => table_value(table),
        Item::ArrayOfTables(tables) => tables.iter().map(table_value).collect(),
        Item::Value(one) => plain(one),
    }
}

fn table_value(table: &Table) -> Value {
    table.iter().map(|(name, item)| (name.to_owned(), value(item))).collect()
}

fn plain(one: &toml_edit::Value) -> Value {
    use toml_edit::Value as Toml;
    match one {
        Toml::String(text) => Value::String(text.value().clone()),
        Toml::Integer(number) => Value::from(*number.value()),
        Toml::Float(number) => Value::from(*number.value()),
        Toml::Boolean(is) => Value::Bool(*is.value()),
        Toml::Datetime(at) => Value::String(at.value().to_string()),
        Toml::Array(all) => all.iter().map(plain).collect(),
        Toml::InlineTable(table) => table.iter().map(|(name, one)| (name.to_owned(), plain(one))).collect(),
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
        // A hook of ours with other words is not doubled, and that is said.
        let other = ours.replace("hook claude", "hook claude --allow-unleased");
        let again = json(&merged.text, &other).unwrap();
        assert_eq!((again.text, again.conflicts.len()), (merged.text, 1));
        let off = json(r#"{ "disableAllHooks": true }"#, ours).unwrap();
        assert_eq!(off.conflicts.len(), 1, "{off:?}");
        assert!(json(r#"{ "hooks": {}, "hooks": {} }"#, ours).unwrap_err().contains("twice"));
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
        // Lines end as they did.
        let windows = toml(&theirs.replace('\n', "\r\n"), ours).unwrap().text;
        assert_eq!(windows, merged.text.replace('\n', "\r\n"));
        assert_eq!(toml(&windows, ours).unwrap().text, windows);
        let conflict = toml("[mcp_servers.leasehold]\ncommand = \"mine\"\n", ours).unwrap();
        assert_eq!(conflict.conflicts.len(), 1, "{conflict:?}");
        assert!(toml("[", ours).is_err());
        // A comment is no hook, and other words are said.
        let comment = "[[hooks.PreToolUse]]\n# leasehold hook codex\nmatcher = \"a\"\n";
        assert!(toml(comment, ours).unwrap().text.contains("[[hooks.PreToolUse.hooks]]"));
        let narrow = merged.text.replace("\".*\"", "\"Read\"");
        assert_eq!(toml(&narrow, ours).unwrap().conflicts.len(), 1);
    }
}
