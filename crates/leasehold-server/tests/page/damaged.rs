//! One damaged record hides no other.

use crate::scene::morning;
use crate::stage::{Client, Stage};
use leasehold_core::{Key, LeaseName, Shelf};

async fn damage(stage: &Stage, shelf: Shelf, name: &str) {
    let store = stage.leases().store().clone();
    let key = Key::new(shelf, &LeaseName::new(name).unwrap());
    let now = store.read(&key).await.unwrap().value;
    store.swap(&key, now.as_ref().map(|value| &value.revision), b"nonsense\n{}").await.unwrap();
}

#[tokio::test]
async fn a_job_with_a_damaged_lease_or_definition_is_shown_as_such_and_the_others_as_usual() {
    let stage = Stage::start().await;
    morning(&stage).await;
    damage(&stage, Shelf::Lease, "hourly-rollup").await;
    damage(&stage, Shelf::Job, "nightly-backup").await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/jobs").await;
    assert_eq!(page.status, 200, "{}", page.body);
    for job in ["hourly-rollup", "nightly-backup"] {
        assert!(page.body.contains(&format!("id=\"d-{job}\"")) && !page.body.contains(&format!("id=\"j-{job}\"")));
    }
    assert!(page.body.contains("is damaged: corrupt"), "{}", page.body);
    assert!(page.body.contains("id=\"j-invoice-run\"") && page.body.contains("id=\"j-search/reindex\""));
    // Whoever may not see the job is not told.
    let mut client = Client::signed_in(&stage, &stage.key("s", "read", &["search/*"], None).await).await;
    assert!(!client.get("/ns/default/jobs").await.body.contains("damaged"));
}
