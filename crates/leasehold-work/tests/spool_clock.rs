//! A spool whose clock was a year ahead for a moment, and is right again: nothing waits for a year.
//!
//! The times that the kernel would have stamped are put into an ext4 image by debugfs, which takes root and a loop device.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::observe::Observer;
use leasehold_core::{Label, Ttl};
use leasehold_testbed::wait_until;
use leasehold_work::queue::{DedupeKey, NewItem, Payload, Reason};
use leasehold_work::spool::{FileName, Spool, SpoolClaimer, SpoolFolder, SpoolGrant, SpoolStep};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const YEAR: Duration = Duration::from_secs(31_536_000);

/// A volume in a file.
struct Image {
    folder: TempDir,
}

impl Image {
    /// None where the tests may not mount: that takes root, as CI has it.
    fn new() -> Option<Self> {
        let image = Image { folder: tempfile::tempdir().unwrap() };
        fs::File::create(image.file()).unwrap().set_len(16 << 20).unwrap();
        fs::create_dir(image.mounted()).unwrap();
        run("mkfs.ext4", &["-q", "-I", "256", image.file().to_str().unwrap()]).expect("mkfs.ext4 makes an image");
        if let Err(why) = image.mount() {
            assert!(
                std::env::var("CI").as_deref() != Ok("true"),
                "cannot mount an image: run the tests as root: {why}"
            );
            println!("skipped: cannot mount an image; run the tests as root: {why}");
            return None;
        }
        Some(image)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn mounted(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    fn mount(&self) -> Result<(), String> {
        run("mount", &["-o", "loop", self.file().to_str().unwrap(), self.mounted().to_str().unwrap()])
    }

    fn unmount(&self) -> Result<(), String> {
        run("umount", &[self.mounted().to_str().unwrap()])
    }

    /// Lets these have been changed by a clock that was a year ahead.
    fn stamp_a_year_ahead(&self, files: &[PathBuf]) {
        let seconds = (leasehold_system::clock::wall_ms() + YEAR.as_millis() as u64) / 1000;
        let inner: Vec<String> =
            files.iter().map(|file| file.strip_prefix(self.mounted()).unwrap().to_str().unwrap().to_owned()).collect();
        self.unmount().unwrap();
        for file in inner {
            for (field, value) in [("ctime", format!("@{seconds}")), ("ctime_extra", "0".to_owned())] {
                let request = format!("set_inode_field {file} {field} {value}");
                run("debugfs", &["-w", "-R", &request, self.file().to_str().unwrap()]).unwrap();
            }
        }
        self.mount().unwrap();
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let done = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(said) }
}

fn claimer(spool: &Spool) -> SpoolClaimer {
    SpoolClaimer::new(spool.clone(), &"worker".parse::<Label>().unwrap(), "3s".parse::<Ttl>().unwrap()).unwrap()
}

fn claim(spool: &Spool) -> SpoolGrant {
    claimer(spool).claim().unwrap().unwrap()
}

fn keyed(key: &str) -> NewItem {
    NewItem { key: Some(key.parse::<DedupeKey>().unwrap()), ..NewItem::default() }
}

fn text(grant: &SpoolGrant) -> String {
    fs::read_to_string(grant.path()).unwrap()
}

/// Names a waiting item as a clock would have that was a year ahead.
fn due_in_a_year(path: &Path) -> PathBuf {
    let mut name = FileName::parse(path.file_name().unwrap().to_str().unwrap()).unwrap();
    name.due = name.due.plus(YEAR);
    let later = path.with_file_name(name.to_string());
    fs::rename(path, &later).unwrap();
    later
}

fn only_file(folder: &Path) -> PathBuf {
    let found: Vec<_> = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// Dies before a completion's follow-ups are added.
#[derive(Debug)]
struct Dies;

impl Observer<SpoolStep> for Dies {
    fn reach(&self, step: SpoolStep) -> std::io::Result<()> {
        if step == SpoolStep::SyncEnded {
            std::panic::resume_unwind(Box::new(step));
        }
        Ok(())
    }
}

#[test]
fn nothing_waits_for_a_clock_that_was_ahead() {
    let Some(image) = Image::new() else { return };
    let root = image.mounted().join("spool");
    let spool = Spool::open(&root).unwrap();
    // An item that failed, a claim whose worker died, and a completion whose follow-ups were not added.
    spool.add_bytes(&NewItem::default(), b"failed").unwrap();
    let pause = Some(Duration::from_millis(500));
    spool.fail(&claim(&spool), &Reason::lossy("test", "test"), pause, false).unwrap();
    let waiting = due_in_a_year(&only_file(&root.join("later")));
    spool.add_bytes(&NewItem::default(), b"parent").unwrap();
    let parent = claim(&spool);
    spool.add_bytes(&NewItem::default(), b"claimed").unwrap();
    let claimed = claim(&spool);
    let add = [NewItem { payload: Payload::new("follow-up").unwrap(), ..NewItem::default() }];
    let dying = spool.clone().with_observer(Arc::new(Dies));
    let died = catch_unwind(AssertUnwindSafe(|| dying.complete(&parent, None, &add))).err();
    let at = died.as_ref().and_then(|payload| payload.downcast_ref::<SpoolStep>());
    assert!(at == Some(&SpoolStep::SyncEnded), "it died elsewhere");
    let follow_up = due_in_a_year(&only_file(&only_file(&root.join("outbox"))));
    let finished = root.join("done").join(parent.name().to_string());
    // An addition that was cut off when it had its key.
    let (staged, key) = (root.join("tmp/shell"), root.join("keys/invoice-7"));
    fs::write(&staged, "cut off").unwrap();
    fs::hard_link(&staged, &key).unwrap();
    image.stamp_a_year_ahead(&[follow_up, finished.clone(), claimed.path().to_owned(), waiting, key]);
    let stamped = fs::metadata(claimed.path()).unwrap().ctime() as u64 * 1000;
    assert!(stamped > leasehold_system::clock::wall_ms() + YEAR.as_millis() as u64 / 2, "debugfs did not do it");

    let spool = Spool::open(&root).unwrap().abandoning_after(Duration::from_millis(300));
    let held = spool.adopt(claimed.token()).unwrap();
    assert!(held.live().trust_until <= SystemClock.now() + held.live().ttl.get(), "trusted for longer than its time");
    let mut worker = claimer(&spool);
    let mut worked_on = Vec::new();
    wait_until("all are worked on", || {
        if let Some(grant) = worker.claim().unwrap() {
            worked_on.push(text(&grant));
            spool.complete(&grant, None, &[]).unwrap();
        }
        ["claimed", "failed", "follow-up"].iter().all(|item| worked_on.iter().any(|worked_on| worked_on == item))
    });
    assert_eq!(worked_on.len(), 3, "{worked_on:?}");
    wait_until("the key is free", || {
        spool.clean().unwrap();
        spool.add_bytes(&keyed("invoice-7"), b"new").is_ok_and(|(_, new)| new)
    });
    wait_until("what was finished is purged", || {
        spool.purge(Duration::from_millis(300), &[SpoolFolder::Done]).unwrap();
        !finished.exists()
    });
}
