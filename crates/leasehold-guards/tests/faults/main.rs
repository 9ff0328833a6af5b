//! Every named step x {stopped, killed, EIO, ENOSPC} x {transfer before, after}, for the file and the folder guard.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../rig/mod.rs"]
mod rig;

use common::{scratch, tree};
use leasehold_guards::FileStep;
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
        only_unreached(&reached, &[FileStep::SyncMark, FileStep::MoveGeneration, FileStep::Collect]);
    });
    play("every_step_of_a_symlink_publish_survives_every_fault", "faults", seed, || {
        only_unreached(&matrix(How::Folder, false), &[FileStep::SyncMark]);
    });
    play("every_step_of_an_exchange_survives_every_fault", "faults", seed, || {
        only_unreached(&matrix(How::Folder, true), &[FileStep::SyncMark, FileStep::MoveGeneration]);
    });
    play("what_a_publish_displaces_survives_its_death_at_every_step", "faults", seed, displaced);
    play("an_adoption_that_dies_at_any_step_leaves_one_fence_and_lets_no_sleeper_through", "faults", seed, adoptions);
    play("an_adoption_yields_to_a_newer_epoch_of_the_former_lease", "faults", seed, outrun_adoption);
    play("a_full_or_read_only_disk_keeps_the_old_content", "faults", seed, full_disk);
}

/// The steps of an adoption, which no write takes.
const OF_ADOPTION: [FileStep; 3] = [FileStep::StageFence, FileStep::ExchangeFence, FileStep::Retire];

fn only_unreached(reached: &BTreeSet<usize>, expected: &[FileStep]) {
    let missed =
        FileStep::ALL.iter().enumerate().filter(|(n, step)| !reached.contains(n) && !OF_ADOPTION.contains(step));
    assert_eq!(missed.map(|(_, step)| *step).collect::<Vec<_>>(), expected);
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
    for step in 0..FileStep::ALL.len() {
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
                let late = self.step >= number(FileStep::SyncParent);
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
        format!("{how:?} step {:?} {fault:?} transfer first {transfer_first} old {old}", FileStep::ALL[*step])
    }
}

fn number(step: FileStep) -> usize {
    FileStep::ALL.iter().position(|known| *known == step).unwrap()
}

/// A publisher that is killed, or fails, at any step over the only copy of something: the next publish, by the same tenure
/// or a newer one, leaves that copy in place or among the generations.
fn displaced() {
    let folder = scratch();
    let kept = |around: &Path| {
        tree(around).iter().any(|line| line.contains("/precious ") && line.starts_with(".out.generations/"))
    };
    let (mut next, mut reached) = (Worker::start(), 0);
    for (step, fault, epoch) in (0..FileStep::ALL.len())
        .flat_map(|step| [Fault::Kill, Fault::Eio].map(|fault| (step, fault)))
        .flat_map(|(step, fault)| [(step, fault, 5), (step, fault, 6)])
    {
        let around = folder.path().join(format!("{step}-{fault:?}-{epoch}"));
        let path = around.join("out");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("precious"), "the only copy").unwrap();
        let mut victim = Worker::start();
        if victim.run(&Order::new(How::Folder, &path, 5).with(fault, step)) != Reply::At {
            continue;
        }
        if fault == Fault::Kill {
            victim.wait_killed();
        } else {
            victim.go();
            victim.reply();
        }
        if kept(&around) {
            // It was in its place before the end: from now on it goes as any other generation does.
            continue;
        }
        reached += 1;
        let name = format!("{:?} {fault:?}, then epoch {epoch}", FileStep::ALL[step]);
        assert_eq!(next.run(&Order::new(How::Folder, &path, epoch)), Reply::Written, "{name}");
        assert_eq!(read(How::Folder, &path), Some((epoch, 0)), "{name}");
        let left = tree(&around);
        assert!(kept(&around), "{name}: {left:#?}");
        assert!(!left.iter().any(|line| line.contains("stage-") || line.contains("gone-")), "{name}: {left:#?}");
        fs::remove_dir_all(around).unwrap();
    }
    println!("{reached} deaths of publishers, nothing lost");
    assert!(reached > 40);
}

/// A writer of the former lease sleeps before its rename while an operator gives the file to another lease and dies at every
/// step of it. Whoever goes on, the operator or the first writer of the new lease, the sleeper is refused.
fn adoptions() {
    let folder = scratch();
    let [mut former, mut theirs] = [(); 2].map(|()| Worker::start());
    let mut reached = 0;
    for (step, fault) in (0..FileStep::ALL.len()).flat_map(|step| [(step, Fault::Kill), (step, Fault::Eio)]) {
        let path = folder.path().join(format!("{step}-{fault:?}"));
        let name = format!("{:?} {fault:?}", FileStep::ALL[step]);
        assert_eq!(former.run(&Order::new(How::File, &path, 4)), Reply::Written);
        let (mut sleeper, mut operator) = (Worker::start(), Worker::start());
        let publish = number(FileStep::Publish);
        assert_eq!(sleeper.run(&Order::new(How::File, &path, 5).with(Fault::Stop, publish)), Reply::At);
        sleeper.wait_stopped();
        let adopt = Order::new(How::Adopt, &path, 2);
        if operator.run(&adopt.clone().with(fault, step)) == Reply::At {
            reached += 1;
            if fault == Fault::Kill {
                operator.wait_killed();
            } else {
                operator.go();
                operator.reply();
            }
        }
        let guard = leasehold_guards::FileGuard::new(&path, leasehold_core::guard::Policy::Reentrant).unwrap();
        let now = guard.high_water_now().unwrap().expect("there is always a fence");
        if now.lineage == common::token(4, 0).lineage {
            assert_eq!(now.epoch.get(), 5, "{name}");
            assert_eq!(theirs.run(&adopt), Reply::Written, "{name}");
        }
        assert_eq!(theirs.run(&Order::new(How::Theirs, &path, 2).rival(9)), Reply::Written, "{name}");
        sleeper.resume();
        let refused = sleeper.reply();
        assert!(refused.is("invalid") && refused.to_string().contains("not this lease"), "{name}: {refused}");
        assert_eq!(read(How::File, &path), Some((2, 9)), "{name}");
        for epoch in [5, 99] {
            let refused = former.run(&Order::new(How::File, &path, epoch));
            assert!(refused.is("invalid"), "{name}: {refused}");
        }
        assert_eq!(theirs.run(&Order::new(How::Theirs, &path, 3).rival(9)), Reply::Written, "{name}");
        assert!(!path.with_file_name(format!(".{step}-{fault:?}.adopt")).exists(), "{name}: staging was left");
        let left = tree(folder.path());
        assert!(!left.iter().any(|line| line.contains("gone-") || line.contains("new-")), "{name}: {left:#?}");
    }
    println!("{reached} deaths of operators, one fence at any time");
    assert!(reached > 20);
}

/// The operator decided on what was there; it is not there any more.
fn outrun_adoption() {
    let folder = scratch();
    let path = folder.path().join("out");
    let [mut former, mut operator] = [(); 2].map(|()| Worker::start());
    assert_eq!(former.run(&Order::new(How::File, &path, 4)), Reply::Written);
    let adopt = Order::new(How::Adopt, &path, 9).with(Fault::Stop, number(FileStep::ExchangeFence));
    assert_eq!(operator.run(&adopt), Reply::At);
    operator.wait_stopped();
    assert_eq!(former.run(&Order::new(How::File, &path, 5)), Reply::Written);
    operator.resume();
    let refused = operator.reply();
    assert!(refused.is("contended"), "{refused}");
    assert_eq!(former.run(&Order::new(How::File, &path, 5)), Reply::Written);
    assert_eq!(former.run(&Order::new(How::File, &path, 6)), Reply::Written);
    assert!(!folder.path().join(".out.adopt").exists());
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
        let guard =
            leasehold_guards::FileGuard::new(mount.path().join("out"), leasehold_core::guard::Policy::Reentrant);
        let refused = guard.unwrap().write_from(&common::token(3, 0), &b"x"[..]).unwrap_err();
        assert_eq!(refused.kind(), leasehold_core::Kind::Unsupported);
        assert!(refused.to_string().contains("the file system is read-only"), "{refused}");
    });
    rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    outcome.unwrap();
}

fn fill_up(folder: &Path) {
    let guard = leasehold_guards::FileGuard::new(folder.join("out"), leasehold_core::guard::Policy::Reentrant).unwrap();
    guard.write_from(&common::token(1, 0), &b"old"[..]).unwrap();
    for epoch in [1, 2, 2] {
        let before = tree(folder).len();
        let failed = guard.write_from(&common::token(epoch, 0), &vec![b'x'; 1 << 20][..]).unwrap_err();
        assert_eq!(failed.kind(), leasehold_core::Kind::Unavailable);
        assert!(failed.to_string().contains("the disk is full, the old content stays"), "{failed}");
        assert_eq!(fs::read_to_string(folder.join("out")).unwrap(), "old");
        assert!(tree(folder).len() <= before, "staging was left");
    }
    guard.write_from(&common::token(2, 0), &b"fits"[..]).unwrap();
    assert_eq!(fs::read_to_string(folder.join("out")).unwrap(), "fits");
    let publisher =
        leasehold_guards::FolderGuard::new(folder.join("site"), leasehold_core::guard::Policy::Reentrant).unwrap();
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("big"), vec![b'x'; 1 << 20]).unwrap();
    let failed = publisher.publish(&common::token(1, 0), source.path()).unwrap_err();
    assert_eq!(failed.kind(), leasehold_core::Kind::Unavailable, "{failed}");
    assert!(!folder.join("site").exists());
    fs::write(source.path().join("big"), "small").unwrap();
    publisher.publish(&common::token(1, 0), source.path()).unwrap();
    assert_eq!(fs::read_to_string(folder.join("site/big")).unwrap(), "small");
}
