//! Scheduled jobs.

use crate::rig::{Rig, text};
use leasehold_core::{Acquired, Ask, HolderId, Key, Outcome, Shelf, Slot, Timestamp};
use leasehold_work::output::{self, Ring, RunOutput};
use leasehold_work::schedule::requests::RunRequests;
use leasehold_work::schedule::{
    CatchUp, Definitions, FileRevision, Job, Journals, Publisher, RunDefinition, RunEnd, Timing,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

async fn published(rig: &Rig) {
    publish(rig, &["tick"]).await;
}

async fn publish(rig: &Rig, names: &[&str]) {
    let job = |(name, at): (&&str, usize)| {
        let table = json!({ "name": name, "cron": "0 3 * * *", "tz": "UTC", "command": "echo secret" });
        Arc::new(Job::read(serde_json::from_value(table).unwrap(), at).unwrap())
    };
    let jobs: Vec<Arc<Job>> = names.iter().zip(1..).map(job).collect();
    let revision = FileRevision::new(None, Duration::from_secs(1), "text");
    let publisher = Publisher { owner: "team.toml".into(), revision, host: "box-1".into() };
    Definitions::new(rig.leases().await).publish(&jobs, &publisher).await.unwrap();
}

async fn damage(rig: &Rig, shelf: Shelf, name: &str) {
    let store = rig.leases().await.store().clone();
    let key = Key::new(shelf, &name.parse().unwrap());
    let now = store.read(&key).await.unwrap().value;
    store.swap(&key, now.as_ref().map(|value| &value.revision), b"nonsense\n{}").await.unwrap();
}

/// The names in a list of an answer.
fn names(answer: &Value, list: &str) -> Vec<String> {
    let found = answer[list].as_array().map(Vec::as_slice).unwrap_or_default();
    found.iter().map(|one| text(one, "name").to_owned()).collect()
}

#[tokio::test]
async fn a_job_with_a_damaged_lease_or_definition_is_listed_as_such_and_the_others_as_usual() {
    let rig = Rig::start().await;
    publish(&rig, &["backup", "report", "rollup", "tick"]).await;
    damage(&rig, Shelf::Lease, "report").await;
    damage(&rig, Shelf::Job, "rollup").await;
    let listed = rig.get(&rig.all().await, "jobs").await.ok();
    assert_eq!(
        (names(&listed, "jobs"), names(&listed, "damaged")),
        (vec!["backup".to_owned(), "tick".into()], vec!["report".to_owned(), "rollup".into()],)
    );
    assert!(text(&listed["damaged"][0], "why").contains("report"), "{listed}");
    let narrow = rig.key("read", &["tick"]).await;
    let listed = rig.get(&narrow, "jobs").await.ok();
    assert!(listed.get("damaged").is_none(), "whoever may not see a job is not told: {listed}");
}

#[tokio::test]
async fn a_listing_of_jobs_is_bounded_and_goes_on_where_it_stopped() {
    let rig = Rig::start().await;
    let all: Vec<String> = (0..7).map(|n| format!("team-{}/{n}", n % 2)).collect();
    publish(&rig, &all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let pages = async |key: &str, query: &str| {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = rig.get(key, &format!("jobs?limit=2{query}{cursor}")).await.ok();
            assert!(names(&page, "jobs").len() <= 2, "{page}");
            found.extend(names(&page, "jobs"));
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return found,
            }
        }
    };
    let mut expected = all.clone();
    expected.sort();
    assert_eq!(pages(&rig.all().await, "").await, expected);
    assert_eq!(pages(&rig.all().await, "&name=team-1/*").await, ["team-1/1", "team-1/3", "team-1/5"]);
    assert_eq!(pages(&rig.key("read", &["team-1/*"]).await, "").await, ["team-1/1", "team-1/3", "team-1/5"]);
    let other = rig.get(&rig.all().await, "leases?limit=1&cursor=x").await.refused(400, "invalid");
    assert_eq!(text(&other, "detail"), "this cursor is not from this listing; start again without a cursor");
}

#[tokio::test]
async fn a_published_job_is_listed_with_its_next_slots_and_can_be_paused() {
    let rig = Rig::start().await;
    published(&rig).await;
    let key = rig.key("read,operate", &["tick"]).await;
    let listed = rig.get(&key, "jobs").await.ok();
    let job = &listed["jobs"][0];
    assert_eq!((text(job, "name"), text(job, "owner"), text(job, "state")), ("tick", "team.toml", "free"));
    assert!(text(&job["next"], "at").ends_with("T03:00:00.000Z"), "{job}");
    assert!(!listed.to_string().contains("secret"), "what a job runs is not published");
    let next = rig.get(&key, "jobs/tick/next?limit=3").await.ok();
    let slots: Vec<u64> = next["slots"].as_array().unwrap().iter().map(|s| s["slot"]["ms"].as_u64().unwrap()).collect();
    assert_eq!((slots[1] - slots[0], slots[2] - slots[1]), (86_400_000, 86_400_000));
    let order = json!({ "why": "deploy", "epoch": job["epoch"] });
    rig.post(&key, "jobs/tick/pause", order.clone()).await.ok();
    assert_eq!(rig.get(&key, "jobs?name=t*").await.ok()["jobs"][0]["paused"]["why"], "deploy");
    rig.post(&key, "jobs/tick/resume", order).await.ok();
    rig.get(&key, "jobs/other/next").await.refused(403, "not_allowed");
    let all = rig.all().await;
    rig.get(&all, "jobs/other/next").await.refused(404, "not_found");
    let blind = rig.key("read", &["x"]).await;
    assert_eq!(rig.get(&blind, "jobs").await.ok()["jobs"], json!([]));
}

#[tokio::test]
async fn what_became_of_slots_and_what_runs_printed_is_shown() {
    let rig = Rig::start().await;
    let (leases, name) = (rig.leases().await, "tick".parse().unwrap());
    let ask = Ask::new(HolderId::new(None), "90s".parse().unwrap());
    let leasehold_core::Acquired::Granted(grant) = leases.acquire(&name, &ask).await.unwrap() else { panic!() };
    let (token, slot) = (grant.token(), Slot(Timestamp::from_millis(1_763_434_800_000)));
    let journals = Journals::new(leases.clone());
    journals.begin(&name, slot, token.epoch).await.unwrap();
    let end = RunEnd::new(leasehold_work::schedule::Fate::Failed, Some(3), 1_500);
    journals.end(&name, slot, token.epoch, end).await.unwrap();
    let output = RunOutput {
        lease: name.clone(),
        epoch: token.epoch,
        slot: Some(slot),
        host: "box-1".into(),
        at: Timestamp::from_millis(0),
        exit: Some(3),
        why: None,
        usage: None,
        bytes: 12,
        file: None,
        is_cut: false,
        tail: "no such file\n".into(),
    };
    output::write(&leases, &Ring::of_lease(&token.lease, token.lineage, 10), token, &output).await.unwrap();
    let key = rig.key("read", &["tick"]).await;
    let runs = rig.get(&key, "jobs/tick/runs").await.ok();
    let run = &runs["runs"][0];
    assert_eq!((text(run, "fate"), run["exit"].as_u64(), run["ran_for_ms"].as_u64()), ("failed", Some(3), Some(1_500)));
    assert_eq!(run["slot"]["at"], "2025-11-18T03:00:00.000Z");
    let logs = rig.get(&key, "jobs/tick/logs?epoch=1").await.ok();
    assert_eq!((text(&logs["logs"][0], "tail"), &logs["logs"][0]["cut"]), ("no such file\n", &json!(false)));
    assert_eq!(rig.get(&key, "jobs/tick/logs?epoch=2").await.ok()["logs"], json!([]));
}

#[tokio::test]
async fn a_run_is_requested_once_and_its_outcome_is_reported() {
    let rig = Rig::start().await;
    published(&rig).await;
    let (leases, key) = (rig.leases().await, rig.key("read,operate", &["tick"]).await);
    let order = json!({ "why": "the report was wrong", "epoch": 0 });
    let made = rig.attempt(&key, "one", "jobs/tick/trigger", order.clone()).await.accepted();
    assert_eq!((text(&made, "state"), text(&made, "why")), ("waiting", "the report was wrong"));
    assert!(text(&made, "by").starts_with("tester (key "), "{made}");
    assert_eq!(made["until"]["ms"].as_u64().unwrap() - made["at"]["ms"].as_u64().unwrap(), 300_000);
    assert_eq!(rig.attempt(&key, "one", "jobs/tick/trigger", order.clone()).await.accepted()["at"], made["at"]);
    let other = json!({ "why": "another", "epoch": 0 });
    rig.attempt(&key, "one", "jobs/tick/trigger", other.clone()).await.refused(409, "key_reused");
    let refused = rig.post(&key, "jobs/tick/trigger", other).await.refused(409, "requested");
    assert_eq!(refused["why"], "the report was wrong");
    let one = rig.get(&key, "jobs/tick").await.ok();
    assert_eq!((&one["job"]["requested"], &one["job"]["has_scheduler"]), (&made, &json!(true)));
    assert_eq!(rig.get(&key, "jobs").await.ok()["jobs"][0]["requested"], made);
    // A scheduler takes it up.
    let (requests, _) = RunRequests::new(leases.clone()).all().await.unwrap();
    let ask = Ask { requested: Some(requests[0].condition()), ..Ask::new(HolderId::new(None), "90s".parse().unwrap()) };
    let Acquired::Granted(grant) = leases.acquire(&requests[0].job, &ask).await.unwrap() else { panic!() };
    let seen = rig.attempt(&key, "one", "jobs/tick/trigger", order.clone()).await.accepted();
    assert_eq!((text(&seen, "state"), &seen["run"]["epoch"]), ("taken_up", &json!(1)), "{seen}");
    leases.release(&grant, Outcome::Succeeded).await.unwrap();
    let seen = rig.get(&key, "jobs/tick").await.ok();
    assert_eq!(seen["job"]["requested"]["run"]["outcome"], "succeeded");
    let all = rig.all().await;
    let last = &rig.get(&all, "leases/tick/history").await.ok()["transfers"][0];
    assert_eq!((text(last, "reason"), text(last, "why")), ("triggered", "the report was wrong"));
    rig.post(&key, "jobs/tick/trigger", order).await.refused(409, "changed");
}

#[tokio::test]
async fn a_run_that_could_not_start_now_is_not_requested() {
    let rig = Rig::start().await;
    published(&rig).await;
    let (leases, key) = (rig.leases().await, rig.key("read,operate", &["*"]).await);
    let order = |epoch: u64| json!({ "why": "again", "epoch": epoch });
    let trigger = "jobs/tick/trigger";
    rig.post(&key, "jobs/other/trigger", order(0)).await.refused(404, "not_found");
    rig.post(&key, trigger, order(4)).await.refused(409, "changed");
    rig.post(&key, trigger, json!({ "why": "", "epoch": 0 })).await.refused(400, "invalid");
    rig.post(&key, trigger, json!({ "epoch": 0 })).await.refused(400, "invalid");
    let ask = Ask::new(HolderId::new(None), "90s".parse().unwrap());
    let Acquired::Granted(grant) = leases.acquire(&"tick".parse().unwrap(), &ask).await.unwrap() else { panic!() };
    let refused = rig.post(&key, trigger, order(1)).await.refused(409, "held");
    assert_eq!(refused["epoch"], 1);
    rig.post(&key, "leases/tick/drain", json!({ "why": "reboot", "epoch": 1, "within": "5m" })).await.ok();
    leases.release(&grant, Outcome::Succeeded).await.unwrap();
    assert_eq!(rig.post(&key, trigger, order(1)).await.refused(409, "draining")["why"], "reboot");
    rig.post(&key, "leases/tick/revoke", json!({ "why": "enough", "epoch": 1 })).await.ok();
    rig.post(&key, "jobs/tick/pause", order(2)).await.ok();
    rig.post(&key, trigger, order(2)).await.refused(409, "paused");
    rig.post(&key, "jobs/tick/resume", order(2)).await.ok();
    rig.post(&key, trigger, order(2)).await.accepted();
    // What only `run --slot` knows, no scheduler can be asked for.
    let run = RunDefinition {
        name: "cronned".parse().unwrap(),
        timing: Timing::of_line("@hourly", None, None, None),
        catch_up: CatchUp::default(),
        host: "box-2".into(),
    };
    let now = leasehold_core::LeaseVerbs::now(&leases).await.unwrap();
    Definitions::new(leases).publish_run(&run, Slot(now)).await.unwrap();
    let refused = rig.post(&key, "jobs/cronned/trigger", order(0)).await.refused(409, "no_scheduler");
    assert!(text(&refused, "detail").contains("box-2"), "{refused}");
}
