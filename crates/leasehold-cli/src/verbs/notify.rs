//! `notify test`: does what the `[[notify]]` tables name take messages?

use crate::args::{Notify as Args, NotifyVerb};
use crate::context::Context;
use crate::exit::Exit;
use crate::notify::{Told, try_out};
use crate::output;
use crate::table::Column::{Text, Whole};
use crate::table::table;
use leasehold_core::{Error, Kind, Result, printable};
use serde_json::{Value, json};

/// The exit code when a channel did not take the event.
const NOT_TAKEN: Exit = Exit::Code(1);

pub async fn notify(context: &Context, args: &Args) -> Result<Exit> {
    let NotifyVerb::Test(args) = &args.verb;
    let (told, wrong) = context.settings()?.notify.read_each();
    let known: Vec<String> = told.iter().map(|(rule, _)| rule.channel.as_str().to_owned()).collect();
    if told.is_empty() {
        let nothing = || Error::new(Kind::Unsupported, "no [[notify]] table applies here; see `leasehold config`");
        return Err(wrong.into_iter().next().unwrap_or_else(nothing));
    }
    let is_chosen = |(rule, _): &Told| args.channel.as_ref().is_none_or(|name| rule.channel.as_str() == name);
    let chosen: Vec<Told> = told.into_iter().filter(is_chosen).collect();
    if let (true, Some(name)) = (chosen.is_empty(), &args.channel) {
        // It may be one of those that are wrong.
        wrong.iter().for_each(|error| output::warn(&error.to_string()));
        let found = wrong.iter().find(|error| error.to_string().contains(&format!("notify `{name}`")));
        return Err(match found {
            Some(error) => Error::new(error.kind(), format!("channel `{}` is invalid, see above", printable(name))),
            None => Error::invalid("channel", name, format!("the settings have {}", known.join(", "))),
        });
    }
    let mut answers = Vec::with_capacity(chosen.len());
    for (rule, target) in &chosen {
        let taken = try_out(&rule.channel, target).await.map_err(|error| error.to_string());
        answers.push((rule.channel.as_str(), target.to_string(), taken));
    }
    context.print(
        || {
            let row = |(channel, target, taken): &(&str, String, Result<(), String>)| json!({ "channel": channel, "target": target, "delivered": taken.is_ok(), "error": taken.as_ref().err() });
            Value::Array(answers.iter().map(row).collect())
        },
        || {
            let row = |(channel, target, taken): &(&str, String, Result<(), String>)| {
                let answer = taken.as_ref().err().map_or_else(|| "delivered".to_owned(), |error| format!("not delivered: {error}"));
                vec![(*channel).to_owned(), target.clone(), answer]
            };
            table(&[Whole("CHANNEL"), Text("TO"), Text("ANSWER")], answers.iter().map(row))
        },
    )?;
    if args.channel.is_none() {
        wrong.iter().for_each(|error| output::warn(&error.to_string()));
    }
    match wrong.first().filter(|_| args.channel.is_none()) {
        _ if answers.iter().any(|(.., taken)| taken.is_err()) => Ok(NOT_TAKEN),
        wrong => Ok(wrong.map_or(Exit::Done, Exit::from)),
    }
}
