//! The fire drill, on real resources: every stale write is refused, and nothing is left behind.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On};
use serde_json::Value;
use std::process::Command;

fn drilled(home: &Home, guard: &str) -> Value {
    let done = home.done(&["drill", guard, "--json"]).expect(0);
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    let attempts = report["attempts"].as_array().unwrap();
    let came = |word: &str| attempts.iter().filter(|row| row["came"].as_str().unwrap().starts_with(word)).count();
    assert_eq!(report["safe"], true, "{report}");
    assert!(attempts.iter().all(|row| row["right"] == true), "{report}");
    // The zombie in the middle of its write, from the start and by a seal; and the second grant of one epoch.
    assert_eq!((came("refused"), came("refused: store regressed"), came("admitted")), (4, 1, 4), "{report}");
    report
}

#[test]
fn a_file_withstands_a_drill_and_is_left_as_it_was() {
    let home = Home::new(On::Sqlite);
    std::fs::create_dir(home.path("team")).unwrap();
    std::fs::write(home.path("team/out.json"), "precious").unwrap();
    let report = drilled(&home, "file:team/out.json");
    assert!(
        report["attempts"].as_array().unwrap().iter().any(|row| row["came"] == "written under epoch 2"),
        "{report}"
    );
    let left: Vec<_> = std::fs::read_dir(home.path("team")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out.json"]);
    assert_eq!(std::fs::read_to_string(home.path("team/out.json")).unwrap(), "precious");
}

#[test]
fn a_git_remote_withstands_a_drill_and_has_no_refs_left_of_it() {
    let home = Home::new(On::Sqlite);
    let remote = home.path("remote.git");
    assert!(Command::new("git").args(["init", "-q", "--bare"]).arg(&remote).status().unwrap().success());
    drilled(&home, &format!("git:{}", remote.display()));
    let refs = Command::new("git").arg("-C").arg(&remote).arg("for-each-ref").output().unwrap();
    assert!(refs.status.success() && refs.stdout.is_empty(), "{refs:?}");
}

#[test]
fn a_database_withstands_a_drill() {
    let home = Home::new(On::Sqlite);
    drilled(&home, &format!("sqlite:{}", home.path("app.db").display()));
}

#[test]
fn what_cannot_be_drilled_on_is_refused_before_anything_is_made() {
    let home = Home::new(On::Sqlite);
    for guard in ["", "nonsense", "file:", "file:/", "git:", "git:--upload-pack=x", "git:ext::sh", "s3:", "http://x"] {
        let done = home.done(&["drill", guard]);
        assert!([64, 78].contains(&done.code), "{guard}: {done:?}");
    }
    let done = home.done(&["drill", "file:no-such-folder/out.json"]);
    assert!(done.code != 0 && !home.path("no-such-folder").exists(), "{done:?}");
}
