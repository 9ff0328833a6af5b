//! Every store keeps every promise of the conformance suite.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_stores::{StoreUrl, open};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Folders, separated by `:`, that are all mounts of one network share: the directory store is then tried on these,
/// its handles spread over them, instead of on a local folder.
const MOUNTS: &str = "LEASEHOLD_TEST_MOUNTS";

/// Every handle is opened through the next URL in turn.
fn bench(urls: Vec<StoreUrl>) -> Bench {
    let turn = AtomicUsize::new(0);
    Bench::new(Effort::LIGHT, move || {
        let url = urls[turn.fetch_add(1, Ordering::Relaxed) % urls.len()].clone();
        async move { open(&url).await }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_keeps_every_promise() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/x.db", folder.path().display()).parse().unwrap();
    exercise(&bench(vec![url])).await.assert_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dir_keeps_every_promise() {
    let folder = tempfile::tempdir().unwrap();
    let mounts = std::env::var(MOUNTS).unwrap_or_else(|_| folder.path().display().to_string());
    let name = leasehold_core::Nonce::random();
    let urls = mounts.split(':').map(|mount| format!("dir:{mount}/{name}").parse().unwrap()).collect();
    exercise(&bench(urls)).await.assert_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_of_a_file_or_folder_keeps_every_promise_and_is_apart() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().display();
    for url in [format!("sqlite:{here}/x.db"), format!("dir:{here}/store")] {
        let (plain, team): (StoreUrl, StoreUrl) =
            (url.parse().unwrap(), format!("{url}?namespace=team").parse().unwrap());
        exercise(&bench(vec![team.clone()])).await.assert_kept();
        leasehold_testbed::namespaces_are_apart(open(&plain).await.unwrap(), open(&team).await.unwrap()).await;
    }
}
