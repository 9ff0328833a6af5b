//! A guarded file or folder that an operator gives to another lease, and leases that are taken for each other.
#![allow(clippy::unwrap_used)]

mod common;

use common::{scratch, theirs, token, token_of, tree};
use leasehold_core::guard::{Adopt, HighWater, Policy};
use leasehold_core::{Error, Kind, Lineage, Remedy, Token, Who, Why};
use leasehold_guards::{FileGuard, FolderGuard};
use std::fs;
use std::path::Path;
use std::sync::Barrier;

fn file(path: &Path) -> FileGuard {
    FileGuard::new(path, Policy::Reentrant).unwrap()
}

fn folder(path: &Path) -> FolderGuard {
    FolderGuard::new(path, Policy::Reentrant).unwrap()
}

fn order() -> (Who, Why) {
    ("ann".parse().unwrap(), "the new job replaces it".parse().unwrap())
}

/// It names both lineages and the command that heals a store which was begun anew.
fn is_not_this_lease(refused: &Error, held: &Token, seen: &Token) {
    assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
    let text = refused.to_string();
    assert!(text.starts_with("not this lease: "), "{text}");
    assert!(text.contains(&held.lineage.to_string()) && text.contains(&seen.lineage.to_string()), "{text}");
    let back = |remedy: &Remedy| {
        matches!(remedy, Remedy::Advance { past, back_to: Some((lineage, _)), .. }
            if (*past, *lineage) == (seen.epoch, seen.lineage))
    };
    assert!(refused.remedy().is_some_and(back), "{text}");
}

#[test]
fn a_lease_of_the_same_name_from_another_store_is_refused_whatever_its_number() {
    let around = tempfile::tempdir().unwrap();
    let [out, site, build] = ["out", "site", "build"].map(|name| around.path().join(name));
    fs::create_dir(&build).unwrap();
    file(&out).write_from(&token(5, 0), &b"ours"[..]).unwrap();
    folder(&site).publish(&token(5, 0), &build).unwrap();
    let before = tree(around.path());
    for epoch in [4, 5, 6, 99] {
        let held = theirs(epoch);
        for refused in [
            file(&out).write_from(&held, &b"theirs"[..]),
            file(&out).seal_now(&held),
            folder(&site).publish(&held, &build),
            folder(&site).seal_now(&held),
        ] {
            is_not_this_lease(&refused.unwrap_err(), &held, &token(5, 0));
        }
        assert_eq!(tree(around.path()), before);
    }
    assert_eq!(file(&out).high_water_now().unwrap().unwrap().lineage, token(5, 0).lineage);
}

#[test]
fn of_two_lineages_at_once_one_founds_the_fence_and_the_other_is_refused() {
    const ROUNDS: usize = 200;
    let around = scratch();
    for round in 0..ROUNDS {
        let path = around.path().join(format!("out-{round}"));
        let start = Barrier::new(3);
        let answers = std::thread::scope(|scope| {
            let writers = [1, 2, 3].map(|lineage| {
                let (start, path) = (&start, &path);
                scope.spawn(move || {
                    let held = Token { lineage: Lineage::from_u128(lineage), ..token(lineage as u64, 0) };
                    start.wait();
                    file(path).write_from(&held, &b"x"[..]).map(|high| (high.lineage, lineage))
                })
            });
            writers.map(|writer| writer.join().unwrap())
        });
        let won: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().ok()).collect();
        assert_eq!(won.len(), 1, "round {round}: {answers:?}");
        assert_eq!(won[0].0, Lineage::from_u128(won[0].1));
        for refused in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(refused.kind(), Kind::Invalid, "round {round}: {refused}");
        }
    }
}

#[test]
fn an_adopted_file_belongs_to_the_new_lease_alone() {
    let around = tempfile::tempdir().unwrap();
    let path = around.path().join("out");
    file(&path).write_from(&token(41, 0), &b"old"[..]).unwrap();
    let (by, why) = order();
    for new in [theirs(2), token_of("other", 7, 0), token(42, 0)] {
        let from = file(&path).high_water_now().unwrap().unwrap();
        let high = file(&path).adopt_now(&from, &new, &by, &why).unwrap();
        assert_eq!(high, HighWater::of(&new, 0));
        assert_eq!(file(&path).high_water_now().unwrap().unwrap(), high);
        for former in [from.token(), Token { epoch: leasehold_core::Epoch::new(1000).unwrap(), ..from.token() }] {
            let refused = file(&path).write_from(&former, &b"stale"[..]).unwrap_err();
            assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
        }
        file(&path).write_from(&new, new.wire().as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), new.wire());
        let note = fs::read_to_string(around.path().join(".out.fence/adopted")).unwrap();
        assert!(
            note.contains("ann") && note.contains(why.as_str()) && note.contains(&from.lineage.to_string()),
            "{note}"
        );
    }
    let from = file(&path).high_water_now().unwrap().unwrap();
    for (former, kind) in
        [(theirs(1), Kind::Regressed), (theirs(2), Kind::Fenced), (token_of("other", 7, 0), Kind::Fenced)]
    {
        let refused = file(&path).adopt_now(&from, &former, &by, &why).unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
        assert_eq!(file(&path).high_water_now().unwrap().as_ref(), Some(&from));
    }
    assert!(!around.path().join(".out.adopt").exists());
}

#[test]
fn an_adoption_that_was_decided_on_another_fence_changes_nothing() {
    let around = tempfile::tempdir().unwrap();
    let path = around.path().join("out");
    let (by, why) = order();
    let adopt = |from: &HighWater| file(&path).adopt_now(from, &theirs(2), &by, &why);
    let seen = HighWater::of(&token(4, 0), 0);
    assert_eq!(adopt(&seen).unwrap_err().kind(), Kind::Contended);
    assert!(tree(around.path()).is_empty());
    file(&path).write_from(&token(5, 0), &b"old"[..]).unwrap();
    let before = tree(around.path());
    for seen in [seen, HighWater::of(&token(5, 1), 0), HighWater::of(&theirs(5), 0)] {
        let refused = adopt(&seen).unwrap_err();
        assert_eq!(refused.kind(), Kind::Contended, "{refused}");
        assert!(refused.to_string().contains("nothing was changed"), "{refused}");
        assert_eq!(tree(around.path()), before);
    }
    file(&path).write_from(&token(5, 0), &b"goes on"[..]).unwrap();
}

#[test]
fn of_two_adoptions_at_once_one_is_refused() {
    const ROUNDS: usize = 100;
    let around = scratch();
    let (by, why) = order();
    for round in 0..ROUNDS {
        let path = around.path().join(format!("out-{round}"));
        file(&path).write_from(&token(5, 0), &b"old"[..]).unwrap();
        let from = file(&path).high_water_now().unwrap().unwrap();
        let start = Barrier::new(2);
        let answers = std::thread::scope(|scope| {
            let operators = ["a", "b"].map(|lease| {
                let (start, path, from, by, why) = (&start, &path, &from, &by, &why);
                scope.spawn(move || {
                    start.wait();
                    file(path).adopt_now(from, &token_of(lease, 1, 0), by, why).map(|high| high.lease.to_string())
                })
            });
            operators.map(|operator| operator.join().unwrap())
        });
        let won: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().ok()).collect();
        assert_eq!(won.len(), 1, "round {round}: {answers:?}");
        let refused = answers.iter().find_map(|answer| answer.as_ref().err()).unwrap();
        assert_eq!(refused.kind(), Kind::Contended, "round {round}: {refused}");
        assert_eq!(&file(&path).high_water_now().unwrap().unwrap().lease.to_string(), won[0]);
    }
}

#[tokio::test]
async fn a_folder_is_adopted_too_and_keeps_what_it_held() {
    let around = tempfile::tempdir().unwrap();
    let [site, build] = ["site", "build"].map(|name| around.path().join(name));
    let (by, why) = order();
    for real in [false, true] {
        let _ = fs::remove_file(&site);
        if real {
            fs::create_dir(&site).unwrap();
        }
        fs::create_dir_all(&build).unwrap();
        fs::write(build.join("f"), "ours").unwrap();
        let (old, new) = if real { (theirs(3), token(9, 0)) } else { (token(5, 0), theirs(2)) };
        folder(&site).publish(&old, &build).unwrap();
        let guard: Box<dyn Adopt> = Box::new(folder(&site));
        let from = guard.high_water().await.unwrap().unwrap();
        guard.adopt(&from, &new, &by, &why).await.unwrap();
        assert_eq!(fs::read(site.join("f")).unwrap(), b"ours");
        assert_eq!(folder(&site).publish(&old, &build).unwrap_err().kind(), Kind::Invalid);
        fs::write(build.join("f"), "theirs").unwrap();
        folder(&site).publish(&new, &build).unwrap();
        assert_eq!(fs::read(site.join("f")).unwrap(), b"theirs");
        // What it was adopted by adopts it again: nothing more happens.
        let from = guard.high_water().await.unwrap().unwrap();
        assert_eq!(guard.adopt(&from, &new, &by, &why).await.unwrap().epoch, new.epoch);
    }
}

#[test]
fn a_fence_that_was_founded_and_never_entered_can_be_adopted() {
    let around = tempfile::tempdir().unwrap();
    let path = around.path().join("out");
    file(&path).seal_now(&token(5, 0)).unwrap();
    let permit = format!(".out.fence/5-{}", token(5, 0).nonce);
    fs::remove_dir_all(around.path().join(permit)).unwrap();
    let from = file(&path).high_water_now().unwrap().unwrap();
    assert_eq!((from.epoch.get(), from.lineage), (0, token(5, 0).lineage));
    is_not_this_lease(&file(&path).seal_now(&theirs(1)).unwrap_err(), &theirs(1), &from.token());
    let (by, why) = order();
    file(&path).adopt_now(&from, &theirs(1), &by, &why).unwrap();
    assert_eq!(file(&path).seal_now(&token(5, 0)).unwrap_err().kind(), Kind::Invalid);
}
