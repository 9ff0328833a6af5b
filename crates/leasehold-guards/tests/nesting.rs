//! A folder that is published whole, and files in it that are written one by one: never both.
#![allow(clippy::unwrap_used)]

mod common;

use common::{scratch, token, token_of, tree};
use leasehold_core::Kind;
use leasehold_core::guard::Policy;
use leasehold_core::observe::Observer;
use leasehold_guards::{FileGuard, FileStep, FolderGuard};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

fn file(path: &Path) -> FileGuard {
    FileGuard::new(path, Policy::Reentrant).unwrap()
}

fn folder(path: &Path) -> FolderGuard {
    FolderGuard::new(path, Policy::Reentrant).unwrap()
}

/// A real folder `site/deep`, and a `build` to publish over it.
fn site(around: &Path) {
    for name in ["site/deep", "build/deep"] {
        fs::create_dir_all(around.join(name)).unwrap();
    }
    fs::write(around.join("build/v"), "built").unwrap();
}

#[test]
fn a_tree_that_holds_fences_is_not_published_over() {
    let around = tempfile::tempdir().unwrap();
    site(around.path());
    let [build, site] = ["build", "site"].map(|name| around.path().join(name));
    for inside in ["site/v", "site/deep/w"] {
        file(&around.path().join(inside)).write_from(&token(6, 0), &b"six"[..]).unwrap();
    }
    // Another lease's file counts as much.
    file(&site.join("x")).write_from(&token_of("other", 3, 0), &b"three"[..]).unwrap();
    let before = tree(around.path());
    for refused in [folder(&site).publish(&token(6, 0), &build), folder(&site).seal_now(&token(7, 0))] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid);
        for name in ["site/.v.fence`", "site/.x.fence`", "site/deep/.w.fence`"] {
            assert!(refused.to_string().contains(name), "{refused}");
        }
        assert_eq!(tree(around.path()), before);
    }
    assert_eq!(file(&site.join("v")).write_from(&token(5, 0), &b"five"[..]).unwrap_err().kind(), Kind::Fenced);
    file(&site.join("v")).write_from(&token(6, 0), &b"goes on"[..]).unwrap();
    // When nothing writes them any more, a person removes them.
    for fence in ["site/.v.fence", "site/.x.fence", "site/deep/.w.fence"] {
        fs::remove_dir_all(around.path().join(fence)).unwrap();
    }
    folder(&site).publish(&token(6, 0), &build).unwrap();
}

#[test]
fn nothing_inside_of_a_published_folder_is_guarded_by_itself() {
    let around = tempfile::tempdir().unwrap();
    site(around.path());
    let [build, site] = ["build", "site"].map(|name| around.path().join(name));
    for real in [true, false] {
        if !real {
            fs::remove_dir_all(&site).unwrap();
            fs::remove_dir_all(around.path().join(".site.generations")).unwrap();
        }
        folder(&site).publish(&token(6, 0), &build).unwrap();
        assert_eq!(site.symlink_metadata().unwrap().is_dir(), real);
        let before = tree(around.path());
        for epoch in [5, 6, 7] {
            let refusals = [
                file(&site.join("v")).write_from(&token(epoch, 0), &b"part"[..]),
                file(&site.join("deep/new")).seal_now(&token(epoch, 0)),
                folder(&site.join("deep")).publish(&token(epoch, 0), &build),
            ];
            for refused in refusals {
                let refused = refused.unwrap_err();
                assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
                assert!(!real || refused.to_string().contains(".site.fence`"), "{refused}");
            }
        }
        assert_eq!(tree(around.path()), before);
        folder(&site).publish(&token(6, 0), &build).unwrap();
    }
}

#[test]
fn fences_in_the_source_stay_there() {
    let around = tempfile::tempdir().unwrap();
    site(around.path());
    let [build, site] = ["build", "site"].map(|name| around.path().join(name));
    file(&build.join("v")).write_from(&token(9, 0), &b"built"[..]).unwrap();
    fs::create_dir(build.join(".mine.fence")).unwrap();
    folder(&site).publish(&token(1, 0), &build).unwrap();
    assert!(!site.join(".v.fence").exists());
    assert!(site.join(".mine.fence").is_dir(), "what no guard made is published like anything else");
    assert_eq!(fs::read(site.join("v")).unwrap(), b"built");
}

/// Waits for the other at the first time of one step.
#[derive(Debug)]
struct Meet {
    at: FileStep,
    met: AtomicBool,
    barrier: Arc<Barrier>,
}

impl Observer<FileStep> for Meet {
    fn reach(&self, step: FileStep) -> io::Result<()> {
        if step == self.at && !self.met.swap(true, Ordering::SeqCst) {
            self.barrier.wait();
        }
        Ok(())
    }
}

#[test]
fn a_first_write_and_a_first_publish_at_once_do_not_both_succeed() {
    const ROUNDS: usize = 100;
    let mut both_refused = 0;
    for round in 0..ROUNDS {
        let around = scratch();
        site(around.path());
        let [build, site] = ["build", "site"].map(|name| around.path().join(name));
        let barrier = Arc::new(Barrier::new(2));
        // Both have looked and seen nobody when their fences are made.
        let meet = || Arc::new(Meet { at: FileStep::MakeFence, met: false.into(), barrier: barrier.clone() });
        let (write, publish) = (file(&site.join("v")).with_observer(meet()), folder(&site).with_observer(meet()));
        let (written, published) = std::thread::scope(|scope| {
            let writer = scope.spawn(move || write.write_from(&token(6, 0), &b"six"[..]));
            (scope.spawn(move || publish.publish(&token(6, 0), &build)).join().unwrap(), writer.join().unwrap())
        });
        let refused: Vec<_> = [&written, &published].into_iter().filter_map(|answer| answer.as_ref().err()).collect();
        assert!(!refused.is_empty(), "round {round}: the fence of the file went with the tree");
        assert!(refused.iter().all(|error| error.kind() == Kind::Invalid), "round {round}: {refused:?}");
        both_refused += usize::from(refused.len() == 2);
        if both_refused == 0 {
            let older = file(&site.join("v")).write_from(&token(5, 0), &b"five"[..]).unwrap_err();
            assert!(matches!(older.kind(), Kind::Fenced | Kind::Invalid), "round {round}: {older}");
        }
    }
    println!("{ROUNDS} rounds, both refused in {both_refused}");
}
