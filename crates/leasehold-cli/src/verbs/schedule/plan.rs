//! `schedule plan`: what would change if this file were deployed, and `schedule retire`.

use super::table::Jobs;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use crate::table::Column::{Text, Whole};
use crate::table::table;
use leasehold_core::{Error, Kind, Label, LeaseName, Result, Timestamp};
use leasehold_work::schedule::{Definition, Definitions, FileRevision, Publisher};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What publishing the file would do to one job.
struct Row {
    name: LeaseName,
    change: &'static str,
    details: Vec<String>,
    /// Where the published one is from.
    published: Option<Definition>,
}

pub async fn plan(context: &Context, jobs: &Jobs) -> Result<Exit> {
    let published = match context.in_use("compare with that one").await? {
        Some(coordinator) => Definitions::new(coordinator.clone()).all().await?,
        None => Vec::new(),
    };
    let published: BTreeMap<LeaseName, Definition> = published.into_iter().collect();
    let replaced = replaced_owner(jobs, &published);
    let owner = replaced.clone().unwrap_or_else(|| jobs.publisher.owner.clone());
    let publisher = Publisher { owner, ..jobs.publisher.clone() };
    let mut retired = BTreeMap::new();
    if let Some(coordinator) = context.existing().await? {
        let definitions = Definitions::new(coordinator.clone());
        for job in jobs.all.iter().filter(|job| !published.contains_key(&job.name)) {
            let by = definitions.retired_by(&job.name, &publisher).await?;
            retired.extend(by.map(|by| (job.name.clone(), by)));
        }
    }
    let mut rows = rows(jobs, &publisher, published, &retired);
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let as_json = |row: &Row| {
        let from = row.published.as_ref().map(|old| {
            json!({ "owner": old.owner, "host": old.host, "revision": old.revision.number, "at": output::rfc3339(old.at) })
        });
        json!({ "name": row.name.as_str(), "change": row.change, "details": row.details, "published": from })
    };
    context.print(
        || Value::Array(rows.iter().map(as_json).collect()),
        || {
            let row = |row: &Row| vec![row.name.to_string(), row.change.to_owned(), row.details.join("; ")];
            table(&[Whole("NAME"), Whole("CHANGE"), Text("DETAILS")], rows.iter().map(row))
        },
    )?;
    if !context.common.json {
        let changed = rows.iter().filter(|row| row.change != "same").count();
        output::say(&format!(
            "{changed} of {} jobs {} from what is published; this file: {}, owner `{}`",
            rows.len(),
            if changed == 1 { "differs" } else { "differ" },
            publisher.revision,
            publisher.owner
        ));
        if let Some(owner) = replaced {
            output::say(&format!(
                "the file names no `owner`, and its jobs are published by owner `{owner}`: compared as if it replaced that file. A \
                 scheduler that runs it from `{}` publishes the jobs under that path, and retires none of those of `{owner}`; {}",
                jobs.path.display(),
                same_owner(&owner)
            ));
        }
    }
    Ok(Exit::Done)
}

/// The owner of the file that this one is a new version of, kept elsewhere: it says nothing of its owner, nothing is published
/// under its own path, and all its published jobs are of one other file.
fn replaced_owner(jobs: &Jobs, published: &BTreeMap<LeaseName, Definition>) -> Option<String> {
    if jobs.names_owner || published.values().any(|old| old.owner == jobs.publisher.owner) {
        return None;
    }
    let old = jobs.all.iter().filter_map(|job| published.get(&job.name)).filter(|old| old.is_of_file());
    let owners: BTreeSet<&str> = old.map(|old| old.owner.as_str()).collect();
    let mut owners = owners.into_iter();
    owners.next().filter(|_| owners.next().is_none()).map(ToOwned::to_owned)
}

/// What to write so that the file has this owner wherever it is.
fn same_owner(owner: &str) -> String {
    match Label::named("owner", owner) {
        Ok(owner) => format!("to keep the owner, write owner = \"{owner}\""),
        Err(_) => "to have one owner, write the same owner = \"NAME\" in both files".to_owned(),
    }
}

fn rows(
    jobs: &Jobs,
    publisher: &Publisher,
    mut published: BTreeMap<LeaseName, Definition>,
    retired: &BTreeMap<LeaseName, FileRevision>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for job in &jobs.all {
        let name = job.name.clone();
        let Some(old) = published.remove(&name) else {
            if let Some(newer) = retired.get(&name) {
                let details = vec![format!("it is not published: a newer file is without it: {newer}")];
                rows.push(Row { name, change: "outdated", details, published: None });
                continue;
            }
            let new = Definition::of(job, publisher, Timestamp::from_millis(0));
            rows.push(Row { name, change: "new", details: vec![new.timing.to_string()], published: None });
            continue;
        };
        let mut details = old.differences(&Definition::of(job, publisher, old.at));
        let change = match (details.is_empty(), old.revision > publisher.revision) {
            (true, _) => "same",
            (false, false) => "changed",
            (false, true) => "outdated",
        };
        if change == "outdated" {
            details.push(format!("the published one stays, it is newer: {}", old.revision));
        }
        rows.push(Row { name, change, details, published: Some(old) });
    }
    for (name, old) in published.into_iter().filter(|(_, old)| old.owner == publisher.owner) {
        let (change, detail) = match old.revision < publisher.revision {
            true => ("retired", "it is not in this file".to_owned()),
            false => ("outdated", format!("it is not in this file, but in a newer one: {}", old.revision)),
        };
        rows.push(Row { name, change, details: vec![detail], published: Some(old) });
    }
    rows
}

pub async fn retire(context: &Context, name: &str) -> Result<Exit> {
    let name = LeaseName::new(name)?;
    let removed = match context.in_use("retire the job there; nothing was changed here").await? {
        Some(coordinator) => Definitions::new(coordinator.clone()).remove(&name).await?,
        None => false,
    };
    if !removed {
        let message = format!("no scheduler has published a job `{name}`; see `leasehold schedule plan`");
        return Err(Error::new(Kind::Invalid, message));
    }
    context.tell(
        || json!({ "name": name.as_str(), "retired": true }),
        || {
            format!(
                "nobody watches for `{name}` any more; a scheduler that still has it publishes it again within a minute"
            )
        },
    )
}
