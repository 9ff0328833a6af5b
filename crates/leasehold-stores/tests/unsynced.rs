//! A directory store whose syncs fail, one at a time: what is answered as done is durable all the same.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use leasehold_core::store::Swap;
use leasehold_core::{Key, Kind, Shelf};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{Disk, Entry, SyncTrace};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

const STORE: &str = "LEASEHOLD_TEST_UNSYNCED_STORE";
/// Before each line in which the writer says what it was answered.
const ANSWER: &str = "answer";
/// More syncs than the writer ever makes.
const MAX_SYNCS: usize = 60;

fn key(name: &str) -> Key {
    Key::new(Shelf::Lease, &name.parse().unwrap())
}

fn say(line: &str) {
    // In one call, so that it is one line of the trace.
    std::io::stdout().write_all(format!("\n{ANSWER} {line}\n").as_bytes()).unwrap();
}

/// Opens the store and writes two keys, each twice. It does nothing unless it was started by the tests below.
#[test]
fn writer() {
    let Ok(text) = std::env::var(STORE) else { return };
    // One thread makes every call, because `strace` counts the calls of each by themselves.
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let url: StoreUrl = text.parse().unwrap();
        let store = match open(&url).await {
            Ok(store) => store,
            Err(e) => {
                say(&format!("open {}", e.kind().as_str()));
                // What failed may work the next time.
                open(&url).await.unwrap()
            }
        };
        for name in ["one", "two", "one", "two"] {
            for _ in 0..3 {
                let seen = store.read(&key(name)).await.unwrap().value.map(|value| value.revision);
                let answer = store.swap(&key(name), seen.as_ref(), b"same").await;
                let after = store.read(&key(name)).await.unwrap().value.map(|value| value.revision);
                match answer {
                    Ok(Swap::Done { revision, .. }) => {
                        assert_eq!(after, Some(revision));
                        say(&format!("{name} done"));
                        break;
                    }
                    Ok(Swap::Mismatch) => panic!("nobody else writes here"),
                    Err(e) => {
                        assert!(e.kind() == Kind::Indeterminate || after == seen, "{e}, and it was applied");
                        say(&format!("{name} {}", e.kind().as_str()));
                    }
                }
            }
        }
    });
}

fn run(store: &Path, failing_sync: usize) -> SyncTrace {
    let program = std::env::current_exe().unwrap();
    let args = [program.as_os_str(), "--exact".as_ref(), "writer".as_ref(), "--nocapture".as_ref()];
    let trace = SyncTrace::of(&args, &[(STORE, &format!("dir:{}", store.display()))], failing_sync);
    assert!(trace.status.success(), "with sync {failing_sync} failing:\n{}", trace.calls);
    trace
}

/// Checks every answer of a run; gives how many syncs came before each.
fn check(mut disk: Disk, store: &Path, trace: &SyncTrace) -> HashMap<String, Vec<usize>> {
    let mut answers: HashMap<String, Vec<usize>> = HashMap::new();
    trace.replay(&mut disk, ANSWER, |disk, answer| {
        answers.entry(answer.to_owned()).or_default().push(disk.syncs);
        if let Some(name) = answer.strip_suffix(" done") {
            let way = disk.way_to_last(store.parent().unwrap(), &store.join("lease").join(name)).unwrap();
            let durable = way.len() == 4 && way.iter().all(|(_, entry)| *entry == Entry::Durable);
            assert!(durable, "answered as done, and not durable: {way:#?}\n{}", trace.calls);
        }
    });
    answers
}

#[test]
fn whatever_sync_fails_what_is_done_is_durable() {
    let mut kinds = HashMap::<String, usize>::new();
    for failing in 1..MAX_SYNCS {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().canonicalize().unwrap().join("store");
        let trace = run(&store, failing);
        let answers = check(Disk::default(), &store, &trace);
        if !trace.has_failed_sync() {
            println!("{} syncs; answers when one of them failed: {kinds:?}", failing - 1);
            // Opening makes the folders and the mark; then each key needs its file, its folder and its version.
            assert!(kinds["open unavailable"] > Shelf::ALL.len(), "{kinds:?}");
            assert_eq!(["one", "two"].map(|key| kinds[&format!("{key} unavailable")]), [3, 3], "{kinds:?}");
            assert_eq!(["one", "two"].map(|key| kinds[&format!("{key} indeterminate")]), [2, 2], "{kinds:?}");
            return;
        }
        let answered: Vec<&String> = answers.keys().filter(|answer| !answer.ends_with(" done")).collect();
        assert_eq!(answered.len(), 1, "sync {failing} failed, and that was answered as {answered:?}\n{}", trace.calls);
        *kinds.entry(answered[0].clone()).or_default() += 1;
    }
    panic!("more than {MAX_SYNCS} syncs");
}

#[test]
fn folders_that_others_made_are_synced_by_whoever_relies_on_them() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().canonicalize().unwrap();
    let store = base.join("store");
    let url: StoreUrl = format!("dir:{}", store.display()).parse().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async { open(&url).await.unwrap() });
    // Of somebody who died before the first version was linked.
    std::fs::create_dir(store.join("lease/two")).unwrap();
    let answers = check(Disk::found(&base), &store, &run(&store, MAX_SYNCS));
    let [one, two] = ["one done", "two done"].map(|answer| answers[answer].clone());
    // First the folders of the store, of its shelf and of the key, then the file and the version; later what is new only.
    assert_eq!((one, two), (vec![5, 10], vec![8, 12]));
}
