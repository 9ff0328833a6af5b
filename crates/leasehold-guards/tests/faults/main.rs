//! Every named step x {stopped, killed, EIO, ENOSPC} x {transfer before, after}, for the file and the folder guard.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../rig/mod.rs"]
mod rig;

use common::{scratch, tree};
use leasehold_guards::Step;
use rig::artifact::read;
use rig::dice::{play, seed};
use rig::{Fault, How, Order, Reply, Worker};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return rig::worker::main();
    }
    let seed = seed();
    play("every_step_of_a_file_write_survives_every_fault", "faults", seed, || {
        let reached = matrix(How::File, false);
        let expected = Step::ALL.len() - 2;
        assert_eq!(reached.len(), expected, "steps that were never reached: {reached:?}");
    });
    play("every_step_of_a_symlink_publish_survives_every_fault", "faults", seed, || {
        assert_eq!(matrix(How::Folder, false).len(), Step::ALL.len());
    });
    play("every_step_of_an_exchange_survives_every_fault", "faults", seed, || {
        assert_eq!(matrix(How::Folder, true).len(), Step::ALL.len() - 1);
    });
    play("a_full_or_read_only_disk_keeps_the_old_content", "faults", seed, full_disk);
}

/// One cell of the matrix, and the writers that play it.
struct Cell<'a> {
    how: How,
    path: PathBuf,
    /// Whether epoch 1 has written before.
    old: bool,
    step: usize,
    fault: Fault,
    transfer_first: bool,
    victim: &'a mut Worker,
    newer: &'a mut Worker,
}

fn matrix(how: How, real_folder: bool) -> BTreeSet<usize> {
    let folder = scratch();
    let mut reached = BTreeSet::new();
    let mut cells = 0;
    let (mut victim, mut newer) = (Worker::start(), Worker::start());
    for step in 0..Step::ALL.len() {
        for fault in [Fault::Stop, Fault::Kill, Fault::Eio, Fault::Enospc] {
            for (transfer_first, old) in [(true, true), (true, false), (false, true), (false, false)] {
                let around = folder.path().join(format!("{step}-{fault:?}-{transfer_first}-{old}"));
                fs::create_dir(&around).unwrap();
                let path = around.join("out");
                if real_folder {
                    fs::create_dir(&path).unwrap();
                }
                let (victim_ref, newer) = (&mut victim, &mut newer);
                let mut cell = Cell { how, path, old, step, fault, transfer_first, victim: victim_ref, newer };
                if cell.play() {
                    reached.insert(step);
                    cells += 1;
                }
                if fault == Fault::Kill {
                    victim = Worker::start();
                }
                fs::remove_dir_all(around).unwrap();
            }
        }
    }
    println!("{how:?}, real folder {real_folder}: {cells} cells over {} steps, 0 stale", reached.len());
    reached
}

impl Cell<'_> {
    fn order(&self, epoch: u64) -> Order {
        Order::new(self.how, &self.path, epoch)
    }

    fn play(&mut self) -> bool {
        if self.old {
            assert_eq!(self.newer.run(&self.order(1)), Reply::Written);
        }
        if self.victim.run(&self.order(5).with(self.fault, self.step)) != Reply::At {
            return false;
        }
        if self.transfer_first {
            let sealed = Order { how: How::Seal, ..self.order(6) };
            if self.how == How::File {
                assert_eq!(self.newer.run(&sealed), Reply::Written, "{}", self.name());
            }
            assert_eq!(self.newer.run(&self.order(6)), Reply::Written, "{}", self.name());
        }
        self.see();
        let answer = self.end_of_victim();
        self.see();
        if self.transfer_first {
            if let Some(answer) = answer {
                let late = self.step >= place(Step::SyncParent);
                assert!(late || answer != Reply::Written, "{}: {answer}", self.name());
            }
            assert_eq!(read(self.how, &self.path), Some((6, 0)), "{}: stale", self.name());
        } else {
            self.same_holder_again(answer);
            assert_eq!(self.newer.run(&self.order(6)), Reply::Written, "{}", self.name());
        }
        let zombie = Worker::start().run(&self.order(5));
        assert!(zombie.is("fenced"), "{}: {zombie}", self.name());
        assert_eq!(read(self.how, &self.path), Some((6, 0)), "{}", self.name());
        self.nothing_left();
        true
    }

    /// Lets the victim go on to its end, if it has one.
    fn end_of_victim(&mut self) -> Option<Reply> {
        match self.fault {
            Fault::Stop => {
                self.victim.wait_stopped();
                self.victim.resume();
                Some(self.victim.reply())
            }
            Fault::Kill => {
                std::mem::replace(self.victim, Worker::start()).wait_killed();
                None
            }
            _ => {
                self.victim.go();
                Some(self.victim.reply())
            }
        }
    }

    /// No transfer took place: what failed left the old content or, past the publish, the new; and it can be done again.
    fn same_holder_again(&mut self, answer: Option<Reply>) {
        let now = read(self.how, &self.path);
        let before = self.old.then_some((1, 0));
        match answer {
            Some(Reply::Written) => assert_eq!(now, Some((5, 0)), "{}", self.name()),
            Some(refused) if refused.is("indeterminate") => assert_eq!(now, Some((5, 0)), "{}", self.name()),
            Some(refused) => {
                assert!(refused.is("unavailable"), "{}: {refused}", self.name());
                assert_eq!(now, before, "{}: {refused}", self.name());
                let left = tree(self.path.parent().unwrap());
                assert!(!left.iter().any(|line| line.contains("stage-")), "{}: {left:#?}", self.name());
            }
            None => assert!(now == before || now == Some((5, 0)), "{}", self.name()),
        }
        assert_eq!(self.newer.run(&self.order(5)), Reply::Written, "{}", self.name());
        assert_eq!(read(self.how, &self.path), Some((5, 0)), "{}", self.name());
        let left = tree(self.path.parent().unwrap());
        assert!(!left.iter().any(|line| line.contains("stage-")), "{}: {left:#?}", self.name());
    }

    /// Only the newest permit is left, and at most one generation besides the live one.
    fn nothing_left(&mut self) {
        // A file write that finds its permit sealed does not look for remains; the next transfer does.
        assert_eq!(self.newer.run(&self.order(7)), Reply::Written, "{}", self.name());
        let left = tree(self.path.parent().unwrap());
        let fence: Vec<_> = left.iter().filter_map(|line| line.strip_prefix(".out.fence/")).collect();
        let top: Vec<_> = fence.iter().filter(|line| !line.contains('/')).collect();
        assert_eq!(top.len(), 2, "{}: {fence:#?}", self.name());
        for word in ["stage-", "gone-", "anchor-", "lease-"] {
            assert!(!fence.iter().any(|line| line.contains(word)), "{}: {fence:#?}", self.name());
        }
        let generations =
            left.iter().filter(|line| line.starts_with(".out.generations/") && line.matches('/').count() == 1);
        assert!(generations.count() <= 2, "{}: {left:#?}", self.name());
    }

    /// Whatever is visible is whole.
    fn see(&self) {
        let _ = read(self.how, &self.path);
    }

    fn name(&self) -> String {
        let Cell { how, step, fault, transfer_first, old, .. } = self;
        format!("{how:?} step {:?} {fault:?} transfer first {transfer_first} old {old}", Step::ALL[*step])
    }
}

fn place(step: Step) -> usize {
    Step::ALL.iter().position(|known| *known == step).unwrap()
}

/// A real disk that is really full.
fn full_disk() {
    let mount = tempfile::tempdir().unwrap();
    let mounted =
        rustix::mount::mount("tmpfs", mount.path(), "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=128k"));
    if let Err(e) = mounted {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI may mount: {e}");
        return println!("skipped: a small file system cannot be mounted here: {e}");
    }
    let outcome = std::panic::catch_unwind(|| {
        fill_up(mount.path());
        rustix::mount::mount_remount(mount.path(), rustix::mount::MountFlags::RDONLY, c"").unwrap();
        let guard = leasehold_guards::FileGuard::new(mount.path().join("out"), leasehold::guard::Policy::Reentrant);
        let refused = guard.unwrap().write_from(&common::token(3, 0), &b"x"[..]).unwrap_err();
        assert_eq!(refused.kind(), leasehold::Kind::Unsupported);
        assert!(refused.to_string().contains("the file system is read-only"), "{refused}");
    });
    rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    outcome.unwrap();
}

fn fill_up(folder: &Path) {
    let guard = leasehold_guards::FileGuard::new(folder.join("out"), leasehold::guard::Policy::Reentrant).unwrap();
    guard.write_from(&common::token(1, 0), &b"old"[..]).unwrap();
    for epoch in [1, 2, 2] {
        let before = tree(folder).len();
        let failed = guard.write_from(&common::token(epoch, 0), &vec![b'x'; 1 << 20][..]).unwrap_err();
        assert_eq!(failed.kind(), leasehold::Kind::Unavailable);
        assert!(failed.to_string().contains("the disk is full, the old content stays"), "{failed}");
        assert_eq!(fs::read_to_string(folder.join("out")).unwrap(), "old");
        assert!(tree(folder).len() <= before, "staging was left");
    }
    guard.write_from(&common::token(2, 0), &b"fits"[..]).unwrap();
    assert_eq!(fs::read_to_string(folder.join("out")).unwrap(), "fits");
    let publisher =
        leasehold_guards::FolderGuard::new(folder.join("site"), leasehold::guard::Policy::Reentrant).unwrap();
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("big"), vec![b'x'; 1 << 20]).unwrap();
    let failed = publisher.publish(&common::token(1, 0), source.path()).unwrap_err();
    assert_eq!(failed.kind(), leasehold::Kind::Unavailable, "{failed}");
    assert!(!folder.join("site").exists());
    fs::write(source.path().join("big"), "small").unwrap();
    publisher.publish(&common::token(1, 0), source.path()).unwrap();
    assert_eq!(fs::read_to_string(folder.join("site/big")).unwrap(), "small");
}
