//! What people expect of a guarded file, one process at a time.
#![allow(clippy::unwrap_used)]

mod common;

use common::{token, token_of, tree};
use leasehold_core::guard::{Guard, Policy};
use leasehold_core::observe::Observer;
use leasehold_core::{Kind, Remedy};
use leasehold_guards::{FileGuard, FileStep};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

fn guard(path: &Path) -> FileGuard {
    FileGuard::new(path, Policy::Reentrant).unwrap()
}

fn write(path: &Path, epoch: u64, text: &str) -> leasehold_core::Result<()> {
    guard(path).write_from(&token(epoch, 0), text.as_bytes()).map(|_| ())
}

#[test]
fn the_newest_epoch_writes_and_an_older_one_is_refused_with_both_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    write(&path, 41, "old").unwrap();
    write(&path, 42, "new").unwrap();
    write(&path, 42, "newer").unwrap();
    let before = tree(folder.path());
    let refused = write(&path, 41, "zombie").unwrap_err();
    assert_eq!(refused.kind(), Kind::Fenced);
    let resource = format!("file:{}", path.display());
    assert_eq!(refused.to_string(), format!("stale epoch refused: resource=`{resource}` held=41 seen=42"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
    assert_eq!(tree(folder.path()), before);
}

#[test]
fn a_seal_alone_shuts_the_older_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    write(&path, 1, "one").unwrap();
    let sealed = guard(&path).seal_now(&token(2, 0)).unwrap();
    assert_eq!((sealed.epoch.get(), sealed.seq), (2, 0));
    assert_eq!(write(&path, 1, "zombie").unwrap_err().kind(), Kind::Fenced);
    assert_eq!(guard(&path).seal_now(&token(1, 0)).unwrap_err().kind(), Kind::Fenced);
    assert_eq!(fs::read_to_string(&path).unwrap(), "one");
    assert_eq!(guard(&path).high_water_now().unwrap(), Some(sealed));
    write(&path, 2, "two").unwrap();
    assert_eq!(guard(&path).high_water_now().unwrap().unwrap().seq, 1);
}

#[test]
fn another_grant_of_the_same_epoch_is_refused_as_regressed_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    write(&path, 7, "first grant").unwrap();
    let before = tree(folder.path());
    let refused = guard(&path).write_from(&token(7, 1), &b"second grant"[..]).unwrap_err();
    assert_eq!(refused.kind(), Kind::Regressed);
    let past_7 = |remedy: &Remedy| matches!(remedy, Remedy::Advance { past, .. } if past.get() == 7);
    assert!(refused.remedy().is_some_and(past_7), "{refused}");
    assert_eq!(tree(folder.path()), before);
    write(&path, 7, "goes on").unwrap();
}

#[test]
fn a_token_of_another_lease_is_refused_before_anything_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    write(&path, 3, "ours").unwrap();
    let before = tree(folder.path());
    let refused = guard(&path).write_from(&token_of("other", 99, 0), &b"theirs"[..]).unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
    assert!(refused.to_string().contains("`job`") && refused.to_string().contains("`other`"), "{refused}");
    assert_eq!(guard(&path).seal_now(&token_of("other", 99, 0)).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(tree(folder.path()), before);
}

#[test]
fn once_per_epoch_admits_one_write_and_the_next_epoch_one_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let once = FileGuard::new(&path, Policy::OncePerEpoch).unwrap();
    once.seal_now(&token(1, 0)).unwrap();
    once.write_from(&token(1, 0), &b"a"[..]).unwrap();
    let refused = once.write_from(&token(1, 0), &b"b"[..]).unwrap_err();
    assert_eq!(refused.kind(), Kind::Fenced);
    assert!(refused.to_string().contains("one write per epoch"), "{refused}");
    once.write_from(&token(2, 0), &b"c"[..]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"c");
    assert_eq!(FileGuard::new(&path, Policy::Ordered).unwrap_err().kind(), Kind::Unsupported);
}

#[test]
fn only_the_highest_permit_is_kept_and_nothing_else_lies_about() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    for epoch in 1..=20 {
        write(&path, epoch, &format!("{epoch}")).unwrap();
    }
    let fence: Vec<_> = tree(folder.path()).into_iter().filter(|line| line.starts_with(".out.fence/")).collect();
    let names: Vec<_> = fence.iter().map(|line| line.split(' ').next().unwrap()).collect();
    let own = format!(".out.fence/20-{}", token(20, 0).nonce);
    assert_eq!(names, [own.clone(), format!("{own}/sealed"), format!("{own}/wrote"), ".out.fence/lease".into()]);
}

#[test]
fn a_symlink_is_written_through_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("data");
    fs::create_dir(&real).unwrap();
    fs::write(real.join("out"), "old").unwrap();
    symlink("data/out", folder.path().join("one")).unwrap();
    symlink(folder.path().join("one"), folder.path().join("two")).unwrap();
    write(&folder.path().join("two"), 1, "new").unwrap();
    assert_eq!(fs::read_to_string(real.join("out")).unwrap(), "new");
    assert!(folder.path().join("two").symlink_metadata().unwrap().is_symlink());
    assert!(real.join(".out.fence").is_dir());
    // One fence, whichever name is used.
    write(&real.join("out"), 2, "direct").unwrap();
    assert_eq!(write(&folder.path().join("one"), 1, "zombie").unwrap_err().kind(), Kind::Fenced);
    symlink("data/later", folder.path().join("dangling")).unwrap();
    write(&folder.path().join("dangling"), 1, "created").unwrap();
    assert_eq!(fs::read_to_string(real.join("later")).unwrap(), "created");
}

#[test]
fn symlinks_in_a_circle_are_a_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    symlink("b", folder.path().join("a")).unwrap();
    symlink("a", folder.path().join("b")).unwrap();
    let refused = write(&folder.path().join("a"), 1, "x").unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
    assert!(refused.to_string().contains("circle"), "{refused}");
    assert_eq!(tree(folder.path()).len(), 2);
}

#[test]
fn the_mode_stays_and_special_bits_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6750)).unwrap();
    write(&path, 1, "new").unwrap();
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o750);
    fs::write(folder.path().join("plain"), "").unwrap();
    write(&folder.path().join("new"), 1, "new").unwrap();
    let mode = |name: &str| folder.path().join(name).metadata().unwrap().mode();
    assert_eq!(mode("new"), mode("plain"));
}

#[test]
fn user_and_group_stay_where_permitted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    fs::write(&path, "old").unwrap();
    if chown(&path, Some(12_345), Some(23_456)).is_err() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI runs this as root");
        eprintln!("skipped: only root may give a file away");
        return;
    }
    write(&path, 1, "new").unwrap();
    let now = path.metadata().unwrap();
    assert_eq!((now.uid(), now.gid()), (12_345, 23_456));
}

#[test]
fn what_cannot_be_a_guarded_file_is_refused_clearly_and_nothing_is_created() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("dir")).unwrap();
    fs::write(folder.path().join("plain"), "").unwrap();
    let long = "n".repeat(250);
    let before = tree(folder.path());
    for (path, expected) in [
        ("dir", "is a folder and a file was to be written"),
        ("dir/", "is a folder and a file was to be written"),
        ("dir/..", "is a folder and a file was to be written"),
        ("missing/out", "does not exist; create it first"),
        ("plain/out", "is not a folder"),
        (long.as_str(), "leaves room for 248"),
        ("nul\0byte", "invalid path"),
    ] {
        let refused = write(&folder.path().join(path), 1, "x").unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid, "{path}: {refused}");
        assert!(refused.to_string().contains(expected), "{path}: {refused}");
        assert!(!refused.to_string().contains('\n'), "{path}: {refused}");
        assert_eq!(tree(folder.path()), before, "{path}");
    }
    assert_eq!(write(Path::new(""), 1, "x").unwrap_err().kind(), Kind::Invalid);
    assert_eq!(write(Path::new("/"), 1, "x").unwrap_err().kind(), Kind::Invalid);
    assert_eq!(write(Path::new("/dev/null"), 1, "x").unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn odd_names_are_names_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    let longest = "n".repeat(248);
    for name in [&b"new\nline"[..], b"\xff\xfe", b" ", b"-rf", b"a b'\"$(x)", b"sub/../up", longest.as_bytes()] {
        let path = folder.path().join(OsStr::from_bytes(name));
        write(&path, 1, "x").unwrap();
        let refused = {
            write(&path, 2, "y").unwrap();
            write(&path, 1, "z").unwrap_err()
        };
        assert_eq!(refused.kind(), Kind::Fenced, "{refused}");
        assert!(!refused.to_string().contains('\n'), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "y");
    }
}

#[test]
fn a_fence_folder_that_is_a_symlink_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), folder.path().join(".out.fence")).unwrap();
    let refused = write(&folder.path().join("out"), 1, "x").unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
    assert!(tree(elsewhere.path()).is_empty() && !folder.path().join("out").exists());
}

#[test]
fn every_flipped_bit_in_the_lease_file_is_corrupt_and_the_file_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    write(&path, 1, "old").unwrap();
    let lease = folder.path().join(".out.fence/lease");
    let good = fs::read(&lease).unwrap();
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            fs::write(&lease, &bad).unwrap();
            let refused = write(&path, 2, "new").unwrap_err();
            assert!(matches!(refused.kind(), Kind::Corrupt | Kind::Unsupported), "byte {at} bit {bit}: {refused}");
            assert_eq!(fs::read(&lease).unwrap(), bad);
        }
    }
    fs::remove_file(&lease).unwrap();
    let refused = write(&path, 2, "new").unwrap_err();
    assert_eq!(refused.kind(), Kind::Corrupt);
    assert!(refused.to_string().contains("no `lease` file"), "{refused}");
    assert_eq!(guard(&path).high_water_now().unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    fs::write(&lease, &good).unwrap();
    write(&path, 2, "new").unwrap();
}

#[test]
fn strangers_in_the_fence_folder_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    write(&path, 1, "old").unwrap();
    let fence = folder.path().join(".out.fence");
    let nonce = token(1, 0).nonce;
    let strangers = ["README", "gone-but-not-ours", "1", &format!("01-{nonce}"), &format!("x-{nonce}"), "lease-copy"];
    for name in strangers {
        fs::create_dir(fence.join(name)).unwrap();
        fs::write(fence.join(name).join("inside"), "kept").unwrap();
    }
    write(&path, 2, "new").unwrap();
    for name in strangers {
        assert_eq!(fs::read_to_string(fence.join(name).join("inside")).unwrap(), "kept");
    }
    // A file where a permit should be is reported: neither trusted nor removed.
    let fake = fence.join(format!("9-{nonce}"));
    fs::write(&fake, "").unwrap();
    assert_eq!(write(&path, 3, "x").unwrap_err().kind(), Kind::Corrupt);
    assert!(fake.exists());
}

#[test]
fn a_payload_that_cannot_be_read_changes_nothing() {
    struct Broken(bool);
    impl std::io::Read for Broken {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                return Err(std::io::Error::other("the pipe burst"));
            }
            into[0] = b'x';
            Ok(1)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    write(&path, 1, "old").unwrap();
    let before = tree(folder.path());
    let failed = guard(&path).write_from(&token(1, 0), Broken(false)).unwrap_err();
    assert_eq!(failed.kind(), Kind::Unavailable);
    assert!(failed.to_string().contains("the pipe burst"), "{failed}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(tree(folder.path()), before);
}

#[test]
fn high_water_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(guard(&folder.path().join("out")).high_water_now().unwrap(), None);
    assert!(tree(folder.path()).is_empty());
}

#[tokio::test]
async fn the_trait_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = guard(&folder.path().join("out"));
    assert_eq!(file.strength().to_string(), "atomic");
    assert_eq!(file.high_water().await.unwrap(), None);
    file.seal(&token(1, 0)).await.unwrap();
    file.write(&token(1, 0), b"x".to_vec()).await.unwrap();
    assert_eq!(file.high_water().await.unwrap().unwrap().epoch.get(), 1);
}

/// Writes under a newer epoch the first time that the permits are listed.
#[derive(Debug)]
struct OvertakesOnce {
    guard: FileGuard,
    newer: leasehold_core::Token,
    done: std::sync::atomic::AtomicBool,
}

impl Observer<FileStep> for OvertakesOnce {
    fn reach(&self, step: FileStep) -> std::io::Result<()> {
        if step == FileStep::List && !self.done.swap(true, std::sync::atomic::Ordering::SeqCst) {
            self.guard.write_from(&self.newer, &b"new"[..]).map_err(std::io::Error::other)?;
        }
        Ok(())
    }
}

/// Two writers in lock step: both have looked before either makes its permit, both have made it before either lists.
#[derive(Debug)]
struct InStep {
    together: Barrier,
    reached: [AtomicUsize; 2],
}

impl Observer<FileStep> for InStep {
    fn reach(&self, step: FileStep) -> std::io::Result<()> {
        let Some(n) = [FileStep::MakePermit, FileStep::Anchor].iter().position(|known| *known == step) else {
            return Ok(());
        };
        if self.reached[n].fetch_add(1, Ordering::SeqCst) < 2 {
            self.together.wait();
        }
        Ok(())
    }
}

/// Fails the sync of the fence folder once.
#[derive(Debug, Default)]
struct Unsynced {
    failed: std::sync::atomic::AtomicBool,
}

impl Observer<FileStep> for Unsynced {
    fn reach(&self, step: FileStep) -> std::io::Result<()> {
        match step == FileStep::SyncFence && !self.failed.swap(true, Ordering::SeqCst) {
            true => Err(std::io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    }
}

/// A second sync after one that failed proves nothing, so what it was to make durable is made again.
#[test]
fn after_a_failed_sync_the_permit_and_the_fence_folder_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let fence = folder.path().join(".out.fence");
    let failing = || guard(&path).with_observer(Arc::new(Unsynced::default()));
    assert_eq!(failing().seal_now(&token(1, 0)).unwrap_err().kind(), Kind::Unavailable);
    assert!(!fence.exists(), "a fence folder whose name may not be on disk was left");
    write(&path, 1, "one").unwrap();
    let refused = failing().write_from(&token(2, 0), &b"two"[..]).unwrap_err();
    assert_eq!(refused.kind(), Kind::Unavailable, "{refused}");
    let [old, new] = [1, 2].map(|epoch| fence.join(format!("{epoch}-{}", token(epoch, 0).nonce)));
    let unsynced = fs::metadata(&new).unwrap().ino();
    assert!(old.exists());
    // The number of a folder that is gone may be given again at once, so something keeps it.
    let kept = fs::File::open(&new).unwrap();
    write(&path, 2, "two").unwrap();
    assert_ne!(fs::metadata(&new).unwrap().ino(), unsynced, "the permit was only synced again");
    drop(kept);
    assert!(!old.exists());
    assert_eq!(write(&path, 1, "zombie").unwrap_err().kind(), Kind::Fenced);
}

#[test]
fn rival_grants_of_one_epoch_are_both_refused_and_stay_until_a_higher_one_comes() {
    for round in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        write(&path, 5, "five").unwrap();
        let steps = Arc::new(InStep { together: Barrier::new(2), reached: Default::default() });
        let rivals = [1, 2].map(|number| {
            let rival = guard(&path).with_observer(steps.clone());
            std::thread::spawn(move || rival.write_from(&token(7, number), &b"rival"[..]))
        });
        for answer in rivals.map(|rival| rival.join().unwrap()) {
            assert_eq!(answer.unwrap_err().kind(), Kind::Regressed, "round {round}");
        }
        assert_eq!(write(&path, 6, "stale").unwrap_err().kind(), Kind::Fenced, "round {round}");
        for rival in [1, 2] {
            let again = guard(&path).write_from(&token(7, rival), &b"again"[..]).unwrap_err();
            assert_eq!(again.kind(), Kind::Regressed, "round {round}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "five");
        write(&path, 8, "healed").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "healed");
    }
}

/// Notes which steps were taken.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<FileStep>>);

impl Observer<FileStep> for Notes {
    fn reach(&self, step: FileStep) -> std::io::Result<()> {
        self.0.lock().unwrap().push(step);
        Ok(())
    }
}

#[test]
fn the_mark_of_the_one_write_is_synced_before_the_write_is_published() {
    for (policy, expected) in [
        (Policy::OncePerEpoch, &[FileStep::MarkWrote, FileStep::SyncMark, FileStep::Publish][..]),
        (Policy::Reentrant, &[FileStep::MarkWrote, FileStep::Publish]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let notes = Arc::new(Notes::default());
        let once = FileGuard::new(folder.path().join("out"), policy).unwrap().with_observer(notes.clone());
        once.write_from(&token(1, 0), &b"x"[..]).unwrap();
        let taken = notes.0.lock().unwrap();
        let from = taken.iter().position(|step| *step == FileStep::MarkWrote).unwrap();
        assert!(taken[from..].starts_with(expected), "{policy:?}: {taken:?}");
    }
}

#[test]
fn a_fence_that_is_founded_while_we_look_is_not_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let token = |epoch| leasehold_core::Token {
        lineage: leasehold_core::Lineage::from_u128(1),
        lease: "x".parse().unwrap(),
        epoch: leasehold_core::Epoch::new(epoch).unwrap(),
        nonce: leasehold_core::Nonce::random(),
        seq: 0,
    };
    let guard = || FileGuard::new(&path, leasehold_core::guard::Policy::Reentrant).unwrap();
    let steps = OvertakesOnce { guard: guard(), newer: token(2), done: false.into() };
    let refused = guard().with_observer(std::sync::Arc::new(steps)).write_from(&token(1), &b"old"[..]).unwrap_err();
    assert_eq!(refused.kind(), leasehold_core::Kind::Fenced, "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
}
