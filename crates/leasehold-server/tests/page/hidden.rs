//! What lies in front of what a key may see: it hides nothing, costs nothing, and is not told.

use crate::scene::{MINUTE, acquire, holder, job, name, queue};
use crate::stage::{Client, Stage};
use leasehold_core::lease::protocol::Order;
use leasehold_core::{Outcome, Who, Why};
use leasehold_server::page::budget;
use leasehold_work::queue::NewItem;
use leasehold_work::schedule::{Definitions, FileRevision, Publisher};
use std::time::Duration;

const MINE: &[&str] = &["team-z/*", "team-z"];

async fn many(stage: &Stage, prefix: &str, count: usize) {
    let leases = stage.leases();
    for n in 0..count {
        acquire(&leases, &format!("{prefix}/{n:05}"), holder("box", "many", 1), "1h").await;
    }
}

async fn publish(stage: &Stage, names: &[String], number: u64) {
    let revision = FileRevision::new(Some(number), Duration::from_secs(1_700_000_000 + number), &format!("{number}"));
    let publisher = Publisher { owner: "jobs.toml".to_owned(), revision, host: "scheduler-1".to_owned() };
    let jobs: Vec<_> = names.iter().map(|name| job(name, "0 * * * *", "UTC")).collect();
    Definitions::new(stage.leases()).publish(&jobs, &publisher).await.unwrap();
}

#[tokio::test]
async fn a_key_sees_what_it_is_for_however_much_others_have_in_front_of_it() {
    let stage = Stage::start().await;
    many(&stage, "a", budget::LEASES + 20).await;
    acquire(&stage.leases(), "team-z/one", holder("box", "z", 1), "1h").await;
    let mut jobs: Vec<String> = (0..budget::JOBS + 5).map(|n| format!("a/{n:03}")).collect();
    jobs.push("team-z/nightly".to_owned());
    publish(&stage, &jobs, 1).await;
    for n in 0..budget::QUEUES + 5 {
        queue(&stage, &format!("a{n:02}")).add(NewItem::default()).await.unwrap();
    }
    queue(&stage, "team-z").add(NewItem::default()).await.unwrap();
    let mut client = Client::signed_in(&stage, &stage.key("z", "read", MINE, None).await).await;
    for (page, row) in [("leases", "l-team-z/one"), ("jobs", "j-team-z/nightly"), ("queues", "q-team-z")] {
        let lists = stage.counts.of("list");
        let body = client.get(&format!("/ns/default/{page}")).await.body;
        assert!(body.contains(&format!("id=\"{row}\"")) && !body.contains("None in what your key sees"), "{body}");
        assert!(!body.contains("after="), "there is nothing more for this key: {body}");
        let cost = stage.counts.of("list") - lists;
        assert!(page == "queues" || cost == 1, "{page} lists {cost} times");
    }
    // A key whose names only a pattern tells apart looks at them one by one, and says so if it did not get to the end.
    many(&stage, "b", 1_100).await;
    let mut client = Client::signed_in(&stage, &stage.key("y", "read", &["*/one"], None).await).await;
    let body = client.get("/ns/default/leases").await.body;
    assert!(body.contains("None among those that were looked at so far") && body.contains("Look further"), "{body}");
    let next = body.split("href=\"").find(|part| part.contains("after=")).unwrap().split('"').next().unwrap();
    assert!(client.get(next).await.body.contains("id=\"l-team-z/one\""));
}

#[tokio::test]
async fn forgotten_leases_and_retired_jobs_hide_nothing_behind_them() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    many(&stage, "a", budget::LEASES + 20).await;
    stage.clock.advance(MINUTE * 90);
    let (who, why) = (Who::new("t").unwrap(), Why::new("t").unwrap());
    for n in 0..budget::LEASES + 20 {
        let order = Order::Forget { idle: MINUTE };
        leases.operate(&name(&format!("a/{n:05}")), who.clone(), why.clone(), order).await.unwrap();
    }
    let grant = acquire(&leases, "zz", holder("box", "z", 1), "1h").await;
    let mut jobs: Vec<String> = (0..budget::JOBS + 5).map(|n| format!("a/{n:03}")).collect();
    jobs.push("zz-nightly".to_owned());
    publish(&stage, &jobs, 1).await;
    publish(&stage, &["zz-nightly".to_owned()], 2).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    for (page, row) in [("leases", "l-zz"), ("jobs", "j-zz-nightly")] {
        let body = client.get(&format!("/ns/default/{page}")).await.body;
        assert!(body.contains(&format!("id=\"{row}\"")) && !body.contains(" yet."), "{body}");
        assert!(!body.contains("after="), "{body}");
    }
    leases.release(&grant, Outcome::Succeeded).await.unwrap();
}

#[tokio::test]
async fn a_full_page_has_a_link_to_the_next_only_if_there_is_more() {
    let stage = Stage::start().await;
    many(&stage, "a", budget::LEASES).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let body = client.get("/ns/default/leases").await.body;
    assert!(body.contains("id=\"l-a/00099\"") && !body.contains("after="), "{body}");
    acquire(&stage.leases(), "b", holder("box", "b", 1), "1h").await;
    let body = client.get("/ns/default/leases").await.body;
    let next = body.split("href=\"").find(|part| part.contains("after=")).unwrap().split('"').next().unwrap();
    assert!(client.get(next).await.body.contains("id=\"l-b\""));
}

#[tokio::test]
async fn the_filters_own_example_finds_names_wherever_they_are() {
    let stage = Stage::start().await;
    many(&stage, "a", 1_050).await;
    for lease in ["team-z/one", "team-z/two", "team-zebra"] {
        acquire(&stage.leases(), lease, holder("box", "z", 1), "1h").await;
    }
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    for text in ["team-z/", "team-z/*", "team-z/t?o", "team-z"] {
        let body = client.get(&format!("/ns/default/leases?q={text}")).await.body;
        assert!(body.contains("id=\"l-team-z/two\""), "{text}: {body}");
        assert_eq!(body.contains("id=\"l-team-z/one\""), !text.contains('?'), "{text}");
        assert_eq!(body.contains("id=\"l-team-zebra\""), text == "team-z", "{text}");
    }
}

#[tokio::test]
async fn a_key_for_some_names_does_not_learn_how_many_others_there_are() {
    let stage = Stage::start().await;
    many(&stage, "a", 1_050).await;
    acquire(&stage.leases(), "team-z/one", holder("box", "z", 1), "1h").await;
    for names in [MINE, &["*/one"]] {
        let mut client = Client::signed_in(&stage, &stage.key("z", "read", names, None).await).await;
        for page in ["leases?q=nothing", "leases?state=paused", "leases", "health"] {
            let body = client.get(&format!("/ns/default/{page}")).await.body;
            for told in ["1,000 leases", "1,050", "1,051", "500 leases", "250 leases"] {
                assert!(!body.contains(told), "{names:?} {page}: {told}: {body}");
            }
        }
    }
}
