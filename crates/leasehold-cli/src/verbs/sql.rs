//! `sql`: statements in one transaction, unless a newer epoch has been there.

use super::guarded::{Expired, explain, overtaken};
use super::write::read_bounded;
use crate::args::Sql as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::{output, targets};
use leasehold_core::guard::Policy;
use leasehold_core::{Result, Token};
use leasehold_guards::sql::{MAX_SCRIPT_BYTES, Outcome, Script, Setup, SqlGuard, fencing_column};
use serde_json::{Value, json};

pub async fn sql(context: &Context, args: &Args) -> Result<Exit> {
    let policy = match (args.once, args.seq) {
        (true, _) => Policy::OncePerEpoch,
        (false, Some(_)) => Policy::Ordered,
        (false, None) => Policy::Reentrant,
    };
    let guard = targets::database(&args.url, args.resource.as_deref(), policy)?;
    if args.init {
        return init(context, args, &*guard).await;
    }
    let token = context.token(args.token.as_deref())?;
    let token = Token { seq: args.seq.unwrap_or(token.seq), ..token };
    if let Some(column) = &args.column {
        return column_of(context, &*guard, column, &token);
    }
    let script = Script::parse(guard.dialect(), &text(args)?)?;
    overtaken(context, &*guard, &token, Expired::of(args.strict)).await?;
    match guard.run(&token, &script).await {
        Ok(outcome) => tell(context, &*guard, outcome),
        Err(error) => Err(explain(context, &*guard, &token, error).await),
    }
}

async fn init(context: &Context, args: &Args, guard: &dyn SqlGuard) -> Result<Exit> {
    let names = |texts: &[String]| texts.iter().map(|text| text.parse()).collect::<Result<Vec<_>>>();
    let setup = Setup { protect: names(&args.protect)?, unprotect: names(&args.unprotect)? };
    if args.print {
        output::print(&guard.statements(&setup))?;
        return Ok(Exit::Done);
    }
    guard.init(&setup).await?;
    context.print_json(|| json!({ "resource": guard.resource(), "protected": args.protect }))
}

fn column_of(context: &Context, guard: &dyn SqlGuard, column: &str, token: &Token) -> Result<Exit> {
    let (set, condition) = fencing_column(guard.dialect(), &column.parse()?, token);
    context.print(|| json!({ "set": set, "condition": condition }), || format!("SET {set}\nWHERE {condition}\n"))
}

/// All that is to run, as one text.
fn text(args: &Args) -> Result<String> {
    if args.file.is_empty() {
        return Ok(args.command.join(";\n"));
    }
    let mut whole = String::new();
    for path in &args.file {
        read_bounded(path, "the script ", "script", MAX_SCRIPT_BYTES, |from| from.read_to_string(&mut whole))?;
        whole.push_str("\n;\n");
    }
    Ok(whole)
}

fn tell(context: &Context, guard: &dyn SqlGuard, outcome: Outcome) -> Result<Exit> {
    let Outcome { high, counts, rows } = outcome;
    if context.common.json {
        let columns = apart(&rows.columns);
        let fields = |row: Vec<Option<String>>| {
            Value::Object(columns.iter().cloned().zip(row.into_iter().map(Value::from)).collect())
        };
        let rows: Vec<Value> = rows.values.into_iter().map(fields).collect();
        output::json(&json!({
            "resource": guard.resource(), "epoch": high.epoch.get(), "seq": high.seq,
            "strength": guard.strength().to_string(), "counts": counts, "rows": rows,
        }))?;
        return Ok(Exit::Done);
    }
    let line = |row: Vec<Option<String>>| {
        let fields: Vec<String> = row.into_iter().map(|field| field.map_or_else(|| "\\N".into(), one_field)).collect();
        format!("{}\n", fields.join("\t"))
    };
    output::print(&rows.values.into_iter().map(line).collect::<String>())?;
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
