//! Several processes on one store, one of which is killed at any point.
//!
//! The contenders are this very test binary, started again with [`STORE`] set. Each says on its standard output what it
//! was answered, so that the wins of a killed one count too.

#![allow(clippy::unwrap_used)]

use leasehold_core::store::Swap;
use leasehold_core::{Key, Kind, Shelf};
use leasehold_stores::{StoreUrl, open};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const STORE: &str = "LEASEHOLD_TEST_CONTENDED_STORE";
const PROCESSES: usize = 4;
const SWAPS_EACH: usize = 150;
/// After how many wins the victim is killed.
const VICTIM_WINS: usize = 10;

fn key() -> Key {
    Key::new(Shelf::Probe, &"contended".parse().unwrap())
}

/// Does nothing unless it was started by the tests below.
#[tokio::test]
async fn contender() {
    let Ok(text) = std::env::var(STORE) else { return };
    let store = open(&text.parse::<StoreUrl>().unwrap()).await.unwrap();
    let mut output = std::io::stdout();
    for _ in 0..SWAPS_EACH {
        let value = store.read(&key()).await.unwrap().value;
        let count = value.as_ref().map_or(0, |v| std::str::from_utf8(&v.bytes).unwrap().parse::<u64>().unwrap());
        let next = (count + 1).to_string();
        let word = match store.swap(&key(), value.as_ref().map(|v| &v.revision), next.as_bytes()).await {
            Ok(Swap::Done { .. }) => "won",
            Ok(Swap::Mismatch) => "overtaken",
            Err(e) if e.kind() == Kind::Indeterminate => {
                eprintln!("{e}");
                "unknown"
            }
            Err(e) => panic!("{e}"),
        };
        writeln!(output, "\nanswer {word}").unwrap();
    }
}

fn start(url: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "contender", "--nocapture"])
        .env(STORE, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn wins_are_the_final_count(url: &str) {
    let mut victim = start(url);
    let others: Vec<_> = (1..PROCESSES).map(|_| start(url)).collect();
    let mut heard = String::new();
    let mut lines = BufReader::new(victim.stdout.take().unwrap());
    while heard.matches("answer won").count() < VICTIM_WINS && lines.read_line(&mut heard).unwrap() > 0 {}
    victim.kill().unwrap();
    victim.wait().unwrap();
    lines.read_to_string(&mut heard).unwrap();
    for other in others {
        let output = other.wait_with_output().unwrap();
        assert!(output.status.success(), "a contender failed");
        heard.push_str(&String::from_utf8(output.stdout).unwrap());
    }
    let count = |word: &str| heard.lines().filter(|line| *line == format!("answer {word}")).count() as u64;
    let (won, unknown) = (count("won"), count("unknown"));
    let store = open(&url.parse().unwrap()).await.unwrap();
    let bytes = store.read(&key()).await.unwrap().value.unwrap().bytes;
    let last: u64 = String::from_utf8(bytes).unwrap().parse().unwrap();
    // The killed one may have won once more than it could tell.
    assert!((won..=won + unknown + 1).contains(&last), "{won} won, {unknown} unknown, but the count is {last}");
    // Each win makes at most one swap of each other process fail.
    let least = SWAPS_EACH * (PROCESSES - 1) / PROCESSES;
    assert!(won >= least as u64, "only {won} of all swaps were done");
}

#[tokio::test]
async fn on_sqlite_wins_are_the_final_count_though_one_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    wins_are_the_final_count(&format!("sqlite:{}/x.db", folder.path().display())).await;
}

#[tokio::test]
async fn in_a_directory_wins_are_the_final_count_though_one_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    wins_are_the_final_count(&format!("dir:{}/store", folder.path().display())).await;
}

#[test]
fn the_users_own_store_is_made_in_the_state_directory() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("not/yet/there");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "contender"]).env(STORE, "sqlite:").env("HOME", &state).env("XDG_STATE_HOME", &state);
    assert!(child.output().unwrap().status.success());
    // Where it is below the home differs between systems.
    let mut made = state.join("leasehold/leasehold.db");
    if !made.exists() {
        made = state.join("Library/Application Support/leasehold/leasehold.db");
    }
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&made), 0o600);
    assert_eq!(mode(made.parent().unwrap()), 0o700);
}

#[test]
fn without_a_home_the_message_asks_for_a_store_url() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "contender", "--nocapture"]).env(STORE, "sqlite:");
    let output = child.env_remove("HOME").env_remove("XDG_STATE_HOME").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("give a store URL") && said.contains("`HOME` is not set"), "{said}");
}
