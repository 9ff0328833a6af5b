//! What a notice says, and where it tells people to look.

use super::*;

#[test]
fn a_notice_says_what_happened_and_where_to_look() {
    let mut course = LeaseHistory::new(rule(&[Cause::Failed]));
    let tail = Some("line 1\n```\nlast line\n".to_owned());
    let detail = Detail { epoch: epoch(1), exit_code: Some(3), ran_for_ms: Some(1), is_kept: true, why: None, tail };
    course.facts = course.facts.with_detail(Some(detail));
    let slot = Slot(at(0));
    course.facts.ends.push(end(1, Some(slot), Outcome::Failed, 1));
    course.watched = course.watched.judged(&course.subject, &course.rules, &course.facts, at(1)).unwrap();
    let notice = course.watched.take_outbox().remove(0);
    let slot = crate::schedule::slot_text(slot);
    let text = format!(
        "nightly failed with exit code 3 for slot {slot}\n```\nline 1\n'''\nlast line\n```\nlook: leasehold logs nightly \
         {slot}\nlook: leasehold runs nightly"
    );
    assert_eq!(notice.text(), text);
    assert_eq!(
        (notice.kind(), notice.name(), notice.body["data"]["exit_code"].as_u64()),
        ("job.failed", "nightly", Some(3))
    );
}

/// The message about a job that failed with this detail, in a store at this location.
fn told(outcome: Outcome, detail: Option<Detail>, location: StoreLocation) -> Notice {
    let mut course = LeaseHistory::new(rule(&[Cause::Failed, Cause::Lost]));
    course.facts = Facts { location, ..course.facts.with_detail(detail) };
    let slot = Some(Slot(at(0)));
    course.facts.ends.push(end(1, slot, outcome, 1));
    course.watched = course.watched.judged(&course.subject, &course.rules, &course.facts, at(1)).unwrap();
    course.watched.take_outbox().remove(0)
}

#[test]
fn the_output_of_a_run_without_a_slot_is_looked_up_by_its_epoch() {
    let mut course = LeaseHistory::new(rule(&[Cause::Failed]));
    course.subject = Subject::Lease("nightly".parse().unwrap());
    let end = end(4, None, Outcome::Failed, 1);
    course.facts = Facts { ends: vec![end], ..Facts::default() }.with_detail(Some(Detail {
        epoch: epoch(4),
        is_kept: true,
        ..Detail::default()
    }));
    let mut told = course.watched.judged(&course.subject, &course.rules, &course.facts, at(1)).unwrap();
    let looks = &told.take_outbox()[0].body["data"]["look"];
    assert_eq!(looks, &serde_json::json!(["leasehold logs nightly 4", "leasehold history nightly"]));
}

#[test]
fn a_message_points_to_the_store_and_to_the_output_only_where_some_is_kept() {
    let looks = |notice: &Notice| -> Vec<String> {
        notice.text().lines().filter(|line| line.starts_with("look")).map(String::from).collect()
    };
    let detail = |is_kept| Some(Detail { epoch: epoch(1), is_kept, ..Detail::default() });
    let slot = crate::schedule::slot_text(Slot(at(0)));
    let nowhere = told(Outcome::Failed, detail(false), StoreLocation::default());
    assert_eq!(looks(&nowhere), ["look: leasehold runs nightly"]);
    let (store, host) = (Some("postgres://ada:***@db/jobs".to_owned()), Some("box-1".to_owned()));
    let networked = StoreLocation { store, host: host.clone(), is_local: false };
    let logs = format!("look: leasehold logs nightly {slot} --store 'postgres://ada:***@db/jobs'");
    let runs = "look: leasehold runs nightly --store 'postgres://ada:***@db/jobs'";
    assert_eq!(looks(&told(Outcome::Failed, detail(true), networked)), [logs.as_str(), runs]);
    let local = StoreLocation { store: Some("sqlite:/srv/jobs.db".into()), host, is_local: true };
    let notice = told(Outcome::Failed, None, local);
    assert_eq!(looks(&notice), ["look on box-1: leasehold runs nightly --store sqlite:/srv/jobs.db"]);
    assert_eq!(notice.body["data"]["look"][0], "leasehold runs nightly --store sqlite:/srv/jobs.db");
}

#[test]
fn a_run_that_was_ended_says_why() {
    let why = |why: &str| Some(Detail { epoch: epoch(1), why: Some(why.into()), ..Detail::default() });
    let slot = crate::schedule::slot_text(Slot(at(0)));
    let stalled = told(Outcome::Lost, why("no progress was seen for 4s"), StoreLocation::default());
    let says = format!("nightly lost its lease for slot {slot}: no progress was seen for 4s\n");
    assert!(stalled.text().starts_with(&says), "{}", stalled.text());
    assert_eq!(stalled.body["data"]["why"], "no progress was seen for 4s");
    let cut = told(Outcome::Failed, why("it ran for longer than 1h"), StoreLocation::default());
    assert!(cut.text().contains(": it ran for longer than 1h\n"), "{}", cut.text());
    assert!(told(Outcome::Expired, None, StoreLocation::default()).body["data"]["why"].is_null());
}
