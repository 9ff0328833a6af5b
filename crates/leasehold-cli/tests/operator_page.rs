//! What an operator does in a browser ends a process that runs somewhere else.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "../../leasehold-server/tests/page/driver.rs"]
mod driver;

use common::{Home, On, eventually, is_alive};
use driver::Browser;

#[tokio::test]
async fn a_job_dies_when_its_lease_is_revoked_in_the_page() {
    let home = Home::new(On::Served);
    let (url, key) = home.page();
    let command = "echo $$ >pid; exec sleep 100000";
    let mut run = home.start(&["run", "nightly", "--ttl", "60s", "--", "sh", "-c", command]);
    let job: i32 = home.words("pid")[0].parse().unwrap();
    assert!(is_alive(job) && !run.is_over());
    let mut browser = Browser::start(&url, "job", &[("KEY", &key)]);
    assert_eq!(browser.asks().await.as_deref(), Some("the job is dead"));
    eventually("the job is dead, and its supervisor has said so", || !is_alive(job) && run.is_over());
    let told = run.end().expect(75).stderr;
    assert!(told.contains("it reads the wrong input") && told.contains("(key "), "{told}");
    assert_eq!(home.show("nightly")["epoch"], 2);
    browser.answer();
    browser.ends_well().await;
}
