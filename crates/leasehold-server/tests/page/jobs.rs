//! A job's pages: its state, and what its runs printed.

use crate::scene::{MINUTE, acquire, holder, morning, name};
use crate::stage::{Client, Stage};
use leasehold_core::lease::protocol::Report;
use leasehold_core::{Key, Marker, Shelf};
use leasehold_work::schedule::JobVerbs;

/// The address of the first output that a job's page leads to.
fn link(page: &str) -> String {
    let link = page.split("href=\"").find(|part| part.contains("?slot=")).unwrap().split('"').next().unwrap();
    link.trim_end_matches("#output").to_owned()
}

#[tokio::test]
async fn an_output_that_is_no_longer_kept_is_told_and_not_left_out() {
    let stage = Stage::start().await;
    morning(&stage).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let job = "/ns/default/job/hourly-rollup";
    let page = client.get(job).await.body;
    assert!(!page.contains("id=\"output\""), "nobody asked for one: {page}");
    let link = link(&page);
    assert!(client.get(&link).await.body.contains("rolled up 18,220 rows"));
    // Newer runs take the place of older ones.
    let leases = stage.leases();
    let (journal, _) = leases.journal(&name("hourly-rollup")).await.unwrap();
    for entry in &journal.entries {
        let Some(record) = &entry.output else { continue };
        let key = Key::new(Shelf::Output, record);
        let seen = leases.store().read(&key).await.unwrap().value.unwrap();
        leases.store().erase(&key, &seen.revision).await.unwrap();
    }
    for path in [link.as_str(), &format!("{job}?slot=2020-01-01T00:00:00Z")] {
        let page = client.get(path).await.body;
        assert!(page.contains("What this run printed is no longer kept"), "{page}");
    }
}

#[tokio::test]
async fn a_job_has_the_same_state_on_both_of_its_pages() {
    let stage = Stage::start().await;
    morning(&stage).await;
    let leases = stage.leases();
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let mut states = async || {
        let jobs = client.get("/ns/default/jobs").await.body;
        let row = jobs.split("id=\"j-search/reindex\"").nth(1).unwrap().split("</tr>").next().unwrap().to_owned();
        let job = client.get("/ns/default/job/search/reindex").await.body;
        let facts = job.split("id=\"facts\"").nth(1).unwrap().split("</section>").next().unwrap().to_owned();
        [row, facts].map(|part| part.split("class=\"state ").nth(1).unwrap().split('"').next().unwrap().to_owned())
    };
    assert_eq!(states().await, ["waiting", "waiting"]);
    let mut grant = acquire(&leases, "search/reindex", holder("batch-1", "reindex", 7), "4h").await;
    assert_eq!(states().await, ["running", "running"]);
    let report = Report { marker: Some(Marker::new("half").unwrap()), checkpoint: None };
    leases.checkpoint(&mut grant, report).await.unwrap();
    stage.clock.advance(MINUTE * 11);
    assert_eq!(states().await, ["stalled", "stalled"]);
}
