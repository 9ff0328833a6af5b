//! Every request and answer in docs/api.md is run, in one shell for the whole page.

use crate::blocks::{Shell, run_all};
use crate::rig::Rig;
use leasehold_work::schedule::{Definitions, FileRevision, Job, Publisher};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn every_request_and_answer_of_the_page_is_as_it_says() {
    let rig = Rig::start().await;
    let table = json!({ "name": "report", "cron": "0 3 * * *", "tz": "UTC", "command": "make report" });
    let job = Job::read(serde_json::from_value(table).unwrap(), 1).unwrap();
    let revision = FileRevision::new(None, Duration::from_secs(1), "text");
    let publisher = Publisher { owner: "jobs.toml".into(), revision, host: "box-1".into() };
    Definitions::new(rig.leases().await).publish(&[Arc::new(job)], &publisher).await.unwrap();
    let secret = rig.secret("team", "read,hold,work,operate", &["*"]).await;
    let admin = rig.secret("team", "read,hold,work,operate,admin", &["*"]).await;
    let folder = tempfile::tempdir().unwrap();
    let variables = [("URL", rig.base.as_str()), ("KEY", secret.reveal()), ("ADMIN", admin.reveal())];
    let mut shell = Shell::start(&variables, folder.path());
    let run = run_all(&mut shell, secret.id().as_str(), |language| !language.ends_with(" exchange")).await;
    assert!(run >= 25, "{run} blocks were run");
}
