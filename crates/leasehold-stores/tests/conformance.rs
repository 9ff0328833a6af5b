//! Every store keeps every promise of the conformance suite.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_stores::{StoreUrl, open};

fn bench(text: &str) -> Bench {
    let url: StoreUrl = text.parse().unwrap();
    Bench::new(Effort::LIGHT, move || {
        let url = url.clone();
        async move { open(&url).await }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_keeps_every_promise() {
    let folder = tempfile::tempdir().unwrap();
    exercise(&bench(&format!("sqlite:{}/x.db", folder.path().display()))).await.assert_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dir_keeps_every_promise() {
    let folder = tempfile::tempdir().unwrap();
    exercise(&bench(&format!("dir:{}/store", folder.path().display()))).await.assert_kept();
}
