//! One night, as `docs/night/night.sh` makes it, on Postgres: from what is left in the morning a reader can tell what happened to
//! every slot and to every item. What varies from night to night (times, processes, hosts) is left out, and the rest is as
//! `docs/one-night.md` shows it.

#![cfg(feature = "http")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, within};
use leasehold_testbed::{Postgres, Receiver, Service, postgres};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const LONG: Duration = Duration::from_secs(120);
/// Between these the page shows the morning.
const BEGIN: &str = "```text\n";
const END: &str = "\n```\n";
const UPDATE: &str = "LEASEHOLD_UPDATE_MESSAGES";

#[test]
fn a_reader_can_tell_what_happened_to_every_slot_and_item() {
    let server = postgres();
    let receiver = Receiver::start(Service::Webhooks(SECRET.into()));
    let home = Home::at(Postgres::url(server.port()));
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page_file = docs.join("one-night.md");
    let night = Command::new("sh")
        .arg(docs.join("night/night.sh"))
        .arg(home.path("night"))
        .env_clear()
        .envs(home.leasehold(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env_remove("LEASEHOLD_STORE")
        .env("NIGHT_STORE", &home.store)
        .env("NIGHT_HOOK", receiver.url("/hook"))
        .env("NIGHT_SECRET", SECRET)
        .output()
        .unwrap();
    let night = Done::from(night);
    let left = |name: &str| home.read(&format!("night/{name}"));
    if night.code != 0 {
        let all: String = ["box-1.log", "box-2.log", "box-3.log", "operator.txt"].map(left).concat();
        panic!("{night:#?}\n{all}");
    }
    // At least once.
    let told = || receiver.heard().iter().map(|heard| masked(&notice(&heard.body))).collect::<BTreeSet<String>>();
    within(LONG, "everything is told", || told().len() >= 5);
    assert!(receiver.refused().is_empty(), "{:?}", receiver.refused());

    let mut morning = String::new();
    for (box_name, what) in
        [("box-1", "killed"), ("box-2", "left alone, drained in the morning"), ("box-3", "the worker")]
    {
        morning += &format!("log of {box_name} ({what})\n{}\n", log(&left(&format!("{box_name}.log"))));
    }
    morning += &format!("runs\n{}\n", runs(&left("runs.json")));
    // A shell says so if it was waiting for a command that the signal ended, which is chance.
    let logs = left("logs.txt").replace("Terminated\n", "");
    morning += &format!("logs\n{}\n", indented(&plain(&logs)));
    morning += &format!("items\n{}\n", items(&left("items.json")));
    morning += &format!("numbers\n{}\n", numbers(&left("numbers.txt")));
    morning += &format!("webhook\n{}\n", told().into_iter().collect::<String>());
    morning += &format!("operator\n{}\n", indented(&plain(&without_store(&left("operator.txt")))));
    morning += &format!("check --missed\n{}", indented(&plain(&left("missed.txt"))));
    let page = std::fs::read_to_string(&page_file).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (shown, after) = rest.split_once(END).unwrap();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&page_file, format!("{before}{BEGIN}{}{END}{after}", morning.trim_end())).unwrap();
    } else {
        assert_eq!(
            morning.trim_end(),
            shown,
            "docs/one-night.md shows something else; {UPDATE}=1 writes it again:\n{morning}"
        );
    }
}

/// Without the address of the store, whose port is another each time.
fn masked(text: &str) -> String {
    let mut parts = text.split("--store '");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| format!("{text}--store STORE{}", part.split_once('\'').unwrap().1))
}

fn without_store(text: &str) -> String {
    let (before, rest) = text.split_once("in store `").unwrap();
    let (_, after) = rest.split_once('`').unwrap();
    format!("{before}in store `STORE`{after}")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// What each line of a log says of a run or an item, the lines of each job together: which job of two is first is chance.
fn log(text: &str) -> String {
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |line: &Value| ["job", "item"].iter().find_map(|field| Some(line[field].as_str()?.to_owned()));
    let is_told = |line: &&Value| {
        let message = line["message"].as_str().unwrap_or_default();
        !line["outcome"].is_null() || message.starts_with("started") || message.contains("asked to finish")
    };
    let mut told: Vec<(String, String)> = lines
        .iter()
        .filter(is_told)
        .filter_map(|line| {
            let fields = ["epoch", "outcome", "exit_code"];
            let fields = fields.iter().filter(|field| !line[**field].is_null());
            let fields: Vec<String> = fields.map(|field| format!("{field}={}", line[field]).replace('"', "")).collect();
            let message = plain(line["message"].as_str()?);
            Some((of(line)?, format!("  {}: {message} [{}]\n", line["level"].as_str()?, fields.join(" "))))
        })
        .collect();
    // By job, and within a job in the order of time.
    told.sort_by(|(a, _), (b, _)| a.cmp(b));
    told.into_iter().map(|(_, line)| line).collect()
}

fn lists(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn runs(text: &str) -> String {
    let mut all = String::new();
    for (job, runs) in ["export", "report", "sync", "backup"].into_iter().zip(lists(text)) {
        for run in runs.as_array().unwrap() {
            let (fate, exit, epoch) = (&run["fate"], &run["exit"], &run["epoch"]);
            all += &format!("  {job}: slot SLOT {fate}, exit {exit}, epoch {epoch}\n").replace('"', "");
        }
    }
    all
}

fn items(text: &str) -> String {
    let mut all = String::new();
    for item in lists(text) {
        let (id, state, epoch, tried) = (&item["id"], &item["state"], &item["epoch"], &item["tried"]);
        all += &format!("  {id}: {state}, epoch {epoch}, tried {tried}\n").replace('"', "");
        for event in item["history"].as_array().unwrap() {
            let [what, by, why] = ["what", "by", "why"].map(|field| event[field].as_str().unwrap_or("-").to_owned());
            all += &plain(&format!("    {what} by {by}: {why}, epoch {}\n", event["epoch"]));
        }
    }
    all
}

/// What was counted of how runs ended, and what is in the queue.
fn numbers(text: &str) -> String {
    // Not `granted`, which is counted while the command runs: the machine may have died before.
    let outcomes = ["succeeded", "failed", "lost", "died", "evicted"];
    let is_told = |line: &&str| {
        let ends = outcomes.iter().any(|outcome| line.contains(&format!("outcome=\"{outcome}\"")));
        let is_ours = !line.contains("leasehold.notify.");
        is_ours && (line.starts_with("leasehold_runs_total{") && ends || line.starts_with("leasehold_queue_items{"))
    };
    let mut lines: Vec<&str> = text.lines().filter(is_told).filter(|line| !line.ends_with(" 0")).collect();
    lines.sort_unstable();
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

/// Which machine judged it, and how soon, is chance: whether it knew the exit code, and for how long the job had been down.
fn notice(body: &str) -> String {
    let event: Value = serde_json::from_str(body).unwrap();
    let text = plain(event["text"].as_str().unwrap());
    let text = ["; down for Ns", "; it was down for Ns", " with exit code 3", " with exit code 124"]
        .iter()
        .fold(text, |text, chance| text.replace(chance, ""));
    format!("  {}: {}\n", event["type"].as_str().unwrap(), text.replace('\n', "\n    "))
}

/// Without what is another on every night: instants, processes, hosts and how long something took.
fn plain(text: &str) -> String {
    let words = text.replace(&format!("({}, pid ", leasehold_system::host::name()), "(HOST, pid ");
    let mut plain = String::new();
    let mut rest = words.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        plain += before;
        let len = number.find(|c: char| !(c.is_ascii_alphanumeric() || "-:.".contains(c))).unwrap_or(number.len());
        let word = number[..len].trim_end_matches([':', '.']);
        rest = &number[word.len()..];
        let is_instant = word.len() >= 20 && word.ends_with('Z');
        let is_time = word.ends_with(['h', 'm', 's']) && word.chars().all(|c| c.is_ascii_digit() || "hms.".contains(c));
        plain += match word {
            _ if is_instant => "SLOT",
            _ if plain.ends_with("pid ") => "N",
            _ if is_time && !plain.ends_with("up to ") => "Ns",
            word => word,
        };
    }
    plain + rest
}
