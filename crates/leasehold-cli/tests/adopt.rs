//! `adopt`: a guarded resource that is given to another lease, and what refuses the wrong one until then.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On};

fn token(home: &Home, lease: &str) -> String {
    home.done(&["acquire", lease]).expect(0).stdout.trim().to_owned()
}

fn write(home: &Home, token: &str, text: &str) -> Done {
    std::fs::write(home.path("new"), text).unwrap();
    home.done(&["write", "out", "--from", "new", "--token", token])
}

#[test]
fn a_lease_of_the_same_name_in_another_store_or_namespace_is_not_this_lease() {
    let home = Home::new(On::Dir);
    let ours = token(&home, "job");
    write(&home, &ours, "ours").expect(0);
    for store in [format!("dir:{}", home.path("other").display()), format!("{}?namespace=two", home.store)] {
        let there = |args: &[&str]| Done::from(home.leasehold(args).env("LEASEHOLD_STORE", &store).output().unwrap());
        let theirs = there(&["acquire", "job"]).expect(0).stdout.trim().to_owned();
        let refused = there(&["write", "out", "--from", "new", "--token", &theirs]).expect(64);
        assert!(refused.stderr.contains("not this lease"), "{refused:?}");
        for lineage in [&ours, &theirs].map(|token| token.split(':').nth(2).unwrap()) {
            assert!(refused.stderr.contains(lineage), "{refused:?}");
        }
        assert!(refused.stderr.contains("leasehold advance job --past 1 --lineage"), "{refused:?}");
        there(&["run", "job-2", "--guard", "file:out", "--", "true"]).expect(64);
    }
    write(&home, &ours, "still ours").expect(0);
    assert_eq!(home.read("out"), "still ours");
}

#[test]
fn an_operator_gives_a_file_to_another_lease() {
    let home = Home::new(On::Sqlite);
    let (old, new) = (token(&home, "old"), token(&home, "new"));
    write(&home, &old, "old").expect(0);
    write(&home, &new, "new").expect(64);
    home.done(&["adopt", "file:out", "--token", &new]).expect(64);
    let adopted = home.done(&["adopt", "file:out", "--token", &new, "--why", "replaced", "--by", "ann"]).expect(0);
    assert!(adopted.stderr.contains("`old` (epoch 1,") && adopted.stderr.contains("`new` (epoch 1,"), "{adopted:?}");
    assert_eq!(home.read("out"), "old");
    write(&home, &old, "old").expect(64);
    write(&home, &new, "new").expect(0);
    assert_eq!(home.read("out"), "new");
    let note = home.read(".out.fence/adopted");
    assert!(note.contains("ann") && note.contains("replaced"), "{note}");
    // And back, with a new epoch, as JSON.
    home.done(&["adopt", "file:out", "--token", &old, "--why", "a mistake"]).expect(13);
    let old = handed_over(&home, "old");
    let back = home.done(&["adopt", "file:out", "--token", &old, "--why", "a mistake", "--json"]).expect(0);
    let told: serde_json::Value = serde_json::from_str(&back.stdout).unwrap();
    assert_eq!((&told["before"]["lease"], &told["after"]["lease"]), (&"new".into(), &"old".into()));
    write(&home, &old, "old again").expect(0);
    assert_eq!(home.read("out"), "old again");
}

fn handed_over(home: &Home, lease: &str) -> String {
    let done = home.done(&["hand-off", lease, "--to", "next", "--why", "w", "--ttl", "1h"]).expect(0);
    done.stdout.trim().to_owned()
}

#[test]
fn a_file_given_away_and_back_has_not_forgotten_what_it_had_seen() {
    let home = Home::new(On::Dir);
    let first = token(&home, "x");
    let copied = std::process::Command::new("cp").arg("-a").args([home.path("leases"), home.path("copy")]).status();
    assert!(copied.unwrap().success());
    handed_over(&home, "x");
    write(&home, &handed_over(&home, "x"), "three").expect(0);
    // The store is restored from the copy, and knows epoch 1 only.
    std::fs::remove_dir_all(home.path("leases")).unwrap();
    std::fs::rename(home.path("copy"), home.path("leases")).unwrap();
    write(&home, &first, "one").expect(65);
    let other = token(&home, "y");
    home.done(&["adopt", "file:out", "--token", &other, "--why", "there"]).expect(0);
    let back = home.done(&["adopt", "file:out", "--token", &first, "--why", "back"]).expect(65);
    assert!(back.stderr.contains("store regressed") && back.stderr.contains("advance x --past 3"), "{back:?}");
    write(&home, &first, "one").expect(64);
    assert_eq!(home.read("out"), "three");
    home.done(&["advance", "x", "--past", "3", "--why", "store was restored"]).expect(0);
    let healed = handed_over(&home, "x");
    home.done(&["adopt", "file:out", "--token", &healed, "--why", "back"]).expect(0);
    write(&home, &healed, "five").expect(0);
}

#[test]
fn what_cannot_be_adopted_is_refused_and_nothing_changes() {
    let home = Home::new(On::Sqlite);
    let new = token(&home, "new");
    for (resource, code, expected) in [
        ("file:out", 64, "has no fence"),
        ("folder:site", 64, "has no fence"),
        ("file:", 64, "invalid guard"),
        ("nonsense", 64, "invalid guard"),
        ("http://127.0.0.1:1", 78, "cannot be adopted"),
    ] {
        let refused = home.done(&["adopt", resource, "--token", &new, "--why", "x"]).expect(code);
        assert!(refused.stderr.contains(expected), "{resource}: {refused:?}");
    }
    assert!(!home.path(".out.fence").exists() && !home.path(".out.adopt").exists());
}

#[test]
fn a_published_folder_is_adopted_and_its_files_are_not_written_one_by_one() {
    let home = Home::new(On::Sqlite);
    let (old, new) = (token(&home, "old"), token(&home, "new"));
    for name in ["build", "site"] {
        std::fs::create_dir(home.path(name)).unwrap();
    }
    std::fs::write(home.path("build/v"), "built").unwrap();
    home.done(&["publish", "build", "site", "--token", &old]).expect(0);
    let refused = home.done(&["write", "site/v", "--from", "build/v", "--token", &old]).expect(64);
    assert!(refused.stderr.contains(".site.fence`"), "{refused:?}");
    home.done(&["publish", "build", "site", "--token", &new]).expect(64);
    home.done(&["adopt", "folder:site", "--token", &new, "--why", "x"]).expect(0);
    home.done(&["publish", "build", "site", "--token", &old]).expect(64);
    home.done(&["publish", "build", "site", "--token", &new]).expect(0);
    home.done(&["run", "other", "--guard", "folder:site", "--", "true"]).expect(64);
}

#[test]
fn a_fence_in_the_store_is_given_to_items_too() {
    let home = Home::new(On::Sqlite);
    let lease = token(&home, "x");
    // The gate seals the resource when it starts, and ends with its input.
    home.done(&["mcp-gate", "--guard", "repo", "--token", &lease, "--", "cat"]).expect(0);
    let spool = format!("spool:{}", home.path("spool").display());
    for queue in ["q", &spool] {
        home.done(&["queue", "add", queue, "--text", "a"]).expect(0);
        let item = home.done(&["queue", "claim", queue, "--ttl", "1h"]).expect(0).stdout.trim().to_owned();
        let adopt = ["adopt", "mcp:repo", "--token", &item, "--why", "w"];
        let adopted = Done::from(home.leasehold(&adopt).env("LEASEHOLD_QUEUE", queue).output().unwrap()).expect(0);
        assert!(adopted.stderr.contains("`mcp:repo`"), "{adopted:?}");
        let item = item.replacen(":1:", ":2:", 1);
        let adopt = ["adopt", "mcp:repo", "--token", &item, "--why", "w"];
        let unknown = Done::from(home.leasehold(&adopt).env("LEASEHOLD_QUEUE", queue).output().unwrap()).expect(65);
        assert!(unknown.stderr.contains("was never granted by"), "{unknown:?}");
    }
    let help = home.done(&["adopt", "--help"]).expect(0).stdout;
    assert!(help.contains("http:NAME") && help.contains("mcp:NAME"), "{help}");
}
