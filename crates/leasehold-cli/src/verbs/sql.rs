//! `sql`: statements in one transaction, unless a newer epoch has been there.

use super::token;
use super::tokens::{explain, overtaken};
use crate::args::{Common, Sql as Args};
use crate::exit::Exit;
use crate::{output, targets};
use leasehold_core::guard::Policy;
use leasehold_core::{Error, Kind, Result, Token};
use leasehold_guards::sql::{MAX_SCRIPT_BYTES, Outcome, Script, Setup, SqlGuard, fencing_column};
use serde_json::{Map, Value, json};
use std::io::Read;
use std::path::Path;

pub async fn sql(common: &Common, args: &Args) -> Result<Exit> {
    let policy = match (args.once, args.seq) {
        (true, _) => Policy::OncePerEpoch,
        (false, Some(_)) => Policy::Ordered,
        (false, None) => Policy::Reentrant,
    };
    let guard = targets::database(&args.url, args.resource.as_deref(), policy)?;
    if args.init {
        return init(common, args, &*guard).await;
    }
    let token = token(args.token.as_deref())?;
    let token = Token { seq: args.seq.unwrap_or(token.seq), ..token };
    if let Some(column) = &args.column {
        return column_of(common, &*guard, column, &token);
    }
    let script = Script::parse(guard.dialect(), &text(args)?)?;
    overtaken(common, &*guard, &token).await?;
    match guard.run(&token, &script).await {
        Ok(outcome) => tell(common, &*guard, outcome),
        Err(error) => Err(explain(common, &*guard, &token, error).await),
    }
}

async fn init(common: &Common, args: &Args, guard: &dyn SqlGuard) -> Result<Exit> {
    let names = |texts: &[String]| texts.iter().map(|text| text.parse()).collect::<Result<Vec<_>>>();
    let setup = Setup { protect: names(&args.protect)?, unprotect: names(&args.unprotect)? };
    if args.print {
        output::print(&guard.statements(&setup))?;
        return Ok(Exit::Done);
    }
    guard.init(&setup).await?;
    if common.json {
        output::json(&json!({ "resource": guard.resource(), "protected": args.protect }))?;
    }
    Ok(Exit::Done)
}

fn column_of(common: &Common, guard: &dyn SqlGuard, column: &str, token: &Token) -> Result<Exit> {
    let (set, condition) = fencing_column(guard.dialect(), &column.parse()?, token);
    if common.json {
        output::json(&json!({ "set": set, "condition": condition }))?;
    } else {
        output::print(&format!("SET {set}\nWHERE {condition}\n"))?;
    }
    Ok(Exit::Done)
}

/// All that is to run, as one text.
fn text(args: &Args) -> Result<String> {
    if args.file.is_empty() {
        return Ok(args.command.join(";\n"));
    }
    let mut whole = String::new();
    for path in &args.file {
        let read = |from: &mut dyn Read, whole: &mut String| {
            from.take(MAX_SCRIPT_BYTES as u64 + 1).read_to_string(whole).map_err(|e| {
                Error::new(Kind::Invalid, format!("cannot read the script `{}`", path.display())).with_source(e)
            })
        };
        let before = whole.len();
        if path == Path::new("-") {
            read(&mut std::io::stdin().lock(), &mut whole)?;
        } else {
            let mut file = std::fs::File::open(path).map_err(|e| {
                Error::new(Kind::Invalid, format!("cannot read the script `{}`", path.display())).with_source(e)
            })?;
            read(&mut file, &mut whole)?;
        }
        if whole.len() - before > MAX_SCRIPT_BYTES {
            let allowed = format!("at most {} MiB", MAX_SCRIPT_BYTES >> 20);
            return Err(Error::invalid("script", path.display(), allowed));
        }
        whole.push_str("\n;\n");
    }
    Ok(whole)
}

fn tell(common: &Common, guard: &dyn SqlGuard, outcome: Outcome) -> Result<Exit> {
    let Outcome { high, counts, rows } = outcome;
    if common.json {
        let columns = apart(&rows.columns);
        let fields = |row: Vec<Option<String>>| {
            let fields = columns.iter().cloned().zip(row.into_iter().map(Value::from));
            Value::Object(fields.collect::<Map<_, _>>())
        };
        let rows: Vec<Value> = rows.values.into_iter().map(fields).collect();
        output::json(&json!({
            "resource": guard.resource(), "epoch": high.epoch.get(), "seq": high.seq,
            "strength": guard.strength().to_string(), "counts": counts, "rows": rows,
        }))?;
        return Ok(Exit::Done);
    }
    let mut text = String::new();
    for row in rows.values {
        let fields: Vec<String> = row.into_iter().map(|field| field.map_or_else(|| "\\N".into(), one_field)).collect();
        text.push_str(&fields.join("\t"));
        text.push('\n');
    }
    output::print(&text)?;
    Ok(Exit::Done)
}

/// The columns' names, each once: JSON keeps one field of a name.
fn apart(names: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        let numbered = (2_u32..).map(|number| format!("{name}_{number}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !all.contains(name));
        all.extend(free);
    }
    all
}

/// A value in the text form, where tabs and line ends come between values.
fn one_field(value: String) -> String {
    if value.contains(['\t', '\n', '\r']) {
        return value.replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r");
    }
    value
}
