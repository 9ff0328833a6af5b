//! What people expect of a guarded folder, and what its readers see.
#![allow(clippy::unwrap_used)]

mod common;

use common::{scratch, token, tree};
use leasehold_core::Kind;
use leasehold_core::guard::Policy;
use leasehold_core::observe::Observer;
use leasehold_guards::{FileStep, FolderGuard};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

fn guard(path: &Path) -> FolderGuard {
    FolderGuard::new(path, Policy::Reentrant).unwrap()
}

/// A source tree whose every file says `mark`.
fn source(at: &Path, mark: &str, files: usize) -> PathBuf {
    fs::create_dir_all(at.join("deep/er")).unwrap();
    for n in 0..files {
        fs::write(at.join(if n % 2 == 0 { "deep/er" } else { "." }).join(format!("f{n}")), mark).unwrap();
    }
    at.to_path_buf()
}

/// Everything that one opened folder says; none if it was collected while it was read.
fn marks(folder: &Path) -> Option<Vec<String>> {
    let mut marks = Vec::new();
    let mut open = vec![folder.canonicalize().ok()?];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).ok()? {
            let path = entry.ok()?.path();
            match path.is_dir() {
                true => open.push(path),
                false => marks.push(fs::read_to_string(path).ok()?),
            }
        }
    }
    Some(marks)
}

#[test]
fn a_tree_is_published_whole_with_modes_and_symlinks_and_the_source_stays() {
    let folder = tempfile::tempdir().unwrap();
    let from = source(&folder.path().join("from"), "one", 4);
    symlink("f1", from.join("link")).unwrap();
    symlink("/nowhere/at all", from.join("dangling")).unwrap();
    fs::set_permissions(from.join("f1"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(from.join("deep"), fs::Permissions::from_mode(0o750)).unwrap();
    let before = tree(&from);
    let site = folder.path().join("site");
    for real in [false, true] {
        if real {
            fs::remove_file(&site).unwrap();
            fs::create_dir(&site).unwrap();
            fs::write(site.join("old"), "old").unwrap();
        }
        guard(&site).publish(&token(1, 0), &from).unwrap();
        assert_eq!(site.symlink_metadata().unwrap().is_dir(), real);
        assert_eq!(tree(&site.canonicalize().unwrap()).len(), before.len());
        assert_eq!(fs::read_link(site.join("link")).unwrap(), Path::new("f1"));
        assert_eq!(fs::read_link(site.join("dangling")).unwrap(), Path::new("/nowhere/at all"));
        let mode = |name: &str| site.join(name).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("f1"), mode("deep")), (0o751, 0o750));
    }
    assert_eq!(tree(&from), before);
}

#[test]
fn a_stale_publisher_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let site = folder.path().join("site");
    for real in [false, true] {
        if real {
            fs::remove_dir_all(folder.path().join(".site.generations")).unwrap();
            fs::remove_file(&site).unwrap();
            fs::create_dir(&site).unwrap();
        }
        let new = source(&folder.path().join("new"), "two", 4);
        guard(&site).publish(&token(2, 0), &new).unwrap();
        let before = tree(folder.path());
        let refused = guard(&site).publish(&token(1, 0), &new).unwrap_err();
        assert_eq!(refused.kind(), Kind::Fenced);
        assert!(refused.to_string().contains("held=1 seen=2"), "{refused}");
        assert_eq!(guard(&site).publish(&token(2, 1), &new).unwrap_err().kind(), Kind::Regressed);
        assert_eq!(tree(folder.path()), before);
    }
}

/// Lets a newer epoch in at one step of an older one's publish.
#[derive(Debug)]
struct Overtake {
    at: FileStep,
    site: PathBuf,
    newer: PathBuf,
    done: AtomicBool,
}

impl Observer<FileStep> for Overtake {
    fn reach(&self, step: FileStep) -> io::Result<()> {
        if step == self.at && !self.done.swap(true, Ordering::SeqCst) {
            guard(&self.site).publish(&token(9, 0), &self.newer).unwrap();
        }
        Ok(())
    }
}

#[test]
fn a_publisher_overtaken_at_any_step_changes_nothing_and_its_orphans_are_collected() {
    for real in [false, true] {
        for step in FileStep::ALL {
            let folder = tempfile::tempdir().unwrap();
            let site = folder.path().join("site");
            if real {
                fs::create_dir(&site).unwrap();
            }
            let (first, old, newer) = ("first", "old", "newer");
            let [first, old, newer] = [first, old, newer].map(|name| source(&folder.path().join(name), name, 3));
            guard(&site).publish(&token(1, 0), &first).unwrap();
            let watch = Overtake { at: step, site: site.clone(), newer: newer.clone(), done: AtomicBool::new(false) };
            let watch = Arc::new(watch);
            let answer = guard(&site).with_observer(watch.clone()).publish(&token(5, 0), &old);
            if !watch.done.load(Ordering::SeqCst) {
                continue;
            }
            if !matches!(step, FileStep::SyncParent | FileStep::Collect) {
                assert_eq!(answer.unwrap_err().kind(), Kind::Fenced, "{step:?}");
            }
            assert_eq!(marks(&site).unwrap(), vec!["newer"; 3], "{step:?} real={real}");
            guard(&site).publish(&token(9, 0), &newer).unwrap();
            let left = tree(folder.path());
            let generations =
                left.iter().filter(|l| l.starts_with(".site.generations/") && l.matches('/').count() == 1);
            assert!(generations.count() <= 2, "{step:?}: {left:#?}");
            assert!(!left.iter().any(|l| l.contains("stage-") || l.contains("gone-")), "{step:?}: {left:#?}");
        }
    }
}

#[test]
fn readers_never_see_a_mixture() {
    const ROUNDS: u64 = 250;
    for real in [false, true] {
        let folder = scratch();
        let site = folder.path().join("site");
        if real {
            fs::create_dir(&site).unwrap();
        }
        let from = folder.path().join("from");
        guard(&site).publish(&token(1, 0), &source(&from, "1", 6)).unwrap();
        let done = AtomicBool::new(false);
        let started = Barrier::new(2);
        let (mut whole, mut torn) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                started.wait();
                for epoch in 2..ROUNDS {
                    guard(&site).publish(&token(epoch, 0), &source(&from, &epoch.to_string(), 6)).unwrap();
                }
                done.store(true, Ordering::SeqCst);
            });
            started.wait();
            let mut last = 0;
            while !done.load(Ordering::SeqCst) {
                // A real folder is held open by handle, as a reader that wants one publish must.
                let seen = if real { marks_by_handle(&site) } else { marks(&site) };
                let Some(seen) = seen.filter(|seen| seen.len() == 6) else {
                    torn += 1;
                    continue;
                };
                let distinct: BTreeSet<_> = seen.iter().collect();
                assert_eq!(distinct.len(), 1, "a mixture: {seen:?}");
                let epoch: u64 = seen[0].parse().unwrap();
                assert!(epoch >= last, "went back from {last} to {epoch}");
                last = epoch;
                whole += 1;
            }
        });
        println!("real={real}: {whole} whole reads, {torn} of folders collected meanwhile, 0 mixtures");
        assert!(whole > 0);
        assert_eq!(marks(&site).unwrap(), vec![(ROUNDS - 1).to_string(); 6]);
    }
}

/// Reads through one opened handle: the same folder, whatever is put in its place.
fn marks_by_handle(site: &Path) -> Option<Vec<String>> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let folder = openat(CWD, site, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let mut marks = Vec::new();
    for n in 0..6 {
        let name = if n % 2 == 0 { format!("deep/er/f{n}") } else { format!("f{n}") };
        let file = openat(&folder, name, OFlags::RDONLY, Mode::empty()).ok()?;
        marks.push(io::read_to_string(fs::File::from(file)).ok()?);
    }
    Some(marks)
}

#[test]
fn old_generations_are_kept_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let site = folder.path().join("site");
    let from = source(&folder.path().join("from"), "x", 2);
    for (keep, epoch) in [(0, 1), (3, 2), (1, 3), (0, 4)] {
        for _ in 0..5 {
            guard(&site).keeping(keep).publish(&token(epoch, 0), &from).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path().join(".site.generations")).unwrap().count(), keep + 1);
    }
}

#[test]
fn what_cannot_be_published_is_refused_and_nothing_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let from = source(&folder.path().join("from"), "x", 2);
    fs::create_dir(folder.path().join("pipes")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.path().join("pipes/p"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    fs::write(folder.path().join("plain"), "").unwrap();
    symlink("from", folder.path().join("theirs")).unwrap();
    let before = tree(folder.path());
    for (site, from, expected) in [
        ("plain", "from", "it is not a folder"),
        ("theirs", "from", "no publish made"),
        ("missing/site", "from", "does not exist; create it first"),
        ("from/site", "from", "holds"),
        ("site", "", "holds"),
    ] {
        let refused = guard(&folder.path().join(site)).publish(&token(1, 0), &folder.path().join(from)).unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid, "{site}: {refused}");
        assert!(refused.to_string().contains(expected), "{site}: {refused}");
        assert_eq!(tree(folder.path()), before, "{site}");
    }
    for (from, expected) in [("pipes", "pipe"), ("absent", "does not exist"), ("plain", "use a folder")] {
        let refused = guard(&folder.path().join("site")).publish(&token(1, 0), &folder.path().join(from)).unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid, "{from}: {refused}");
        assert!(refused.to_string().contains(expected), "{from}: {refused}");
        assert!(!folder.path().join("site").exists());
        assert!(!tree(folder.path()).iter().any(|line| line.contains("stage-")));
    }
    let once = FolderGuard::new(folder.path().join("site"), Policy::OncePerEpoch).unwrap();
    once.publish(&token(2, 0), &from).unwrap();
    assert_eq!(once.publish(&token(2, 0), &from).unwrap_err().kind(), Kind::Fenced);
}

#[test]
fn what_a_publish_displaces_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("new"), folder.path().join("site"));
    for (path, file) in [(&source, "n"), (&target, "precious")] {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join(file), "x").unwrap();
    }
    let token = leasehold_core::Token {
        lineage: leasehold_core::Lineage::from_u128(1),
        lease: "x".parse().unwrap(),
        epoch: leasehold_core::Epoch::new(1).unwrap(),
        nonce: leasehold_core::Nonce::random(),
        seq: 0,
    };
    let guard = leasehold_guards::FolderGuard::new(&target, leasehold_core::guard::Policy::Reentrant).unwrap();
    guard.publish(&token, &source).unwrap();
    assert!(target.join("n").exists());
    let kept: Vec<_> = std::fs::read_dir(folder.path().join(".site.generations")).unwrap().flatten().collect();
    assert_eq!(kept.len(), 1);
    assert!(kept[0].path().join("precious").exists());
    // One is kept: the next publish displaces the first publish, and what was there before goes.
    guard.publish(&token, &source).unwrap();
    let kept: Vec<_> = std::fs::read_dir(folder.path().join(".site.generations")).unwrap().flatten().collect();
    assert_eq!(kept.len(), 1);
    assert!(kept[0].path().join("n").exists());
    let refused = guard.publish(&token, &target).unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
    assert!(refused.to_string().contains("itself"), "{refused}");
}
