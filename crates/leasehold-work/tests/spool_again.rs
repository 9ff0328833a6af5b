//! A spool where something is done again: a completion that is told twice, a key that is used after a purge, a purge that
//! was cut off.
#![allow(clippy::unwrap_used)]

use leasehold_core::observe::Observer;
use leasehold_core::{Checkpoint, Epoch, Label, Ttl};
use leasehold_testbed::wait_until;
use leasehold_work::backlog::Ordered;
use leasehold_work::queue::protocol::Order;
use leasehold_work::queue::{NewItem, Payload};
use leasehold_work::spool::{Spool, SpoolClaimer, SpoolFolder, SpoolGrant, SpoolStep};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// What is finished for longer than this is purged.
const AGE: Duration = Duration::from_millis(50);
/// Where everything that is finished is.
const FINISHED: [SpoolFolder; 3] = [SpoolFolder::Done, SpoolFolder::Cancelled, SpoolFolder::Failed];

fn spool() -> (TempDir, Spool) {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(&folder.path().join("mail")).unwrap().abandoning_after(AGE);
    (folder, spool)
}

fn claim(spool: &Spool) -> SpoolGrant {
    let label = "worker".parse::<Label>().unwrap();
    let mut claimer = SpoolClaimer::new(spool.clone(), &label, "10s".parse::<Ttl>().unwrap()).unwrap();
    claimer.claim().unwrap().expect("there is something to claim")
}

fn keyed(key: &str) -> NewItem {
    NewItem { key: Some(key.parse().unwrap()), ..NewItem::default() }
}

fn payload(text: &str) -> Payload {
    Payload::new(text).unwrap()
}

fn count(spool: &Spool, folder: &str) -> usize {
    fs::read_dir(spool.root().join(folder)).unwrap().count()
}

/// Waits until everything that is in the spool now is older than that, by the clock that stamps its files.
fn grow_old(spool: &Spool) {
    let youngest = spool.now().unwrap();
    wait_until("everything is old", || spool.now().unwrap().saturating_since(youngest) > AGE);
}

/// Purges, once what is finished is old enough. What is finished was changed a moment ago, so that is soon.
fn purge(spool: &Spool) {
    grow_old(spool);
    spool.purge(AGE, &FINISHED).unwrap();
}

/// Dies at the nth step of those that are counted.
#[derive(Debug)]
struct Dies {
    at: usize,
    of: Option<SpoolStep>,
    reached: AtomicUsize,
}

impl Observer<SpoolStep> for Dies {
    fn reach(&self, step: SpoolStep) -> std::io::Result<()> {
        if self.of.is_none_or(|of| of == step) && self.reached.fetch_add(1, Ordering::Relaxed) + 1 == self.at {
            std::panic::resume_unwind(Box::new(step));
        }
        Ok(())
    }
}

/// Does something that ends at its nth step; false if it has fewer.
fn cut_off(spool: &Spool, at: usize, of: Option<SpoolStep>, what: impl FnOnce(&Spool)) -> bool {
    let dying = spool.clone().with_observer(Arc::new(Dies { at, of, reached: AtomicUsize::new(0) }));
    catch_unwind(AssertUnwindSafe(|| what(&dying))).is_err()
}

fn follow_ups() -> Vec<NewItem> {
    let new = |n: &u32| if *n == 3 { keyed("third") } else { NewItem::default() };
    [1, 2, 3].iter().map(|n| NewItem { payload: payload(&format!("f{n}")), ..new(n) }).collect()
}

#[test]
fn a_completion_that_is_reported_again_adds_its_follow_ups_once() {
    for janitor in [false, true] {
        for at in 1.. {
            let (_folder, spool) = spool();
            spool.add_bytes(&NewItem::default(), b"x").unwrap();
            let grant = claim(&spool);
            let result = payload("result");
            let died =
                cut_off(&spool, at, None, |dying| drop(dying.complete(&grant, Some(&result), &follow_ups()).unwrap()));
            if janitor {
                spool.clean().unwrap();
            }
            spool.complete(&grant, Some(&result), &follow_ups()).unwrap_or_else(|e| panic!("step {at}: {e}"));
            spool.clean().unwrap();
            let mut ready = Vec::new();
            for name in spool.items(&SpoolFolder::Ready).unwrap() {
                ready.push(fs::read_to_string(spool.root().join("ready").join(name.to_string())).unwrap());
            }
            ready.sort();
            assert_eq!(ready, ["f1", "f2", "f3"], "cut off at step {at}, janitor: {janitor}");
            assert_eq!((count(&spool, "done"), count(&spool, "outbox")), (1, 0), "step {at}");
            if !died {
                break;
            }
        }
    }
}

#[test]
fn a_follow_up_waits_while_its_key_is_not_settled() {
    let (_folder, spool) = spool();
    // An addition that was cut off between its key and its place in line.
    assert!(cut_off(&spool, 1, Some(SpoolStep::Enter), |dying| drop(dying.add_bytes(&keyed("third"), b"cut off"))));
    let key = spool.root().join("keys/third");
    assert!(key.exists() && spool.items(&SpoolFolder::Ready).unwrap().is_empty());
    // It is younger than a minute for this one.
    let patient = spool.clone().abandoning_after(Duration::from_secs(60));
    patient.add_bytes(&NewItem::default(), b"x").unwrap();
    let grant = claim(&patient);
    patient.complete(&grant, None, &follow_ups()).unwrap();
    patient.clean().unwrap();
    assert_eq!((count(&spool, "ready"), count(&spool, "outbox")), (2, 1));
    // The janitor takes away what was cut off, and then adds it.
    wait_until("it is added", || {
        spool.clean().unwrap();
        (count(&spool, "ready"), count(&spool, "outbox")) == (3, 0)
    });
    assert!(key.exists());
}

/// The item of a key, worked on with a checkpoint and a result, and ended in one of several ways. Gives its last epoch.
fn live_and_end(spool: &Spool, how: usize) -> Epoch {
    let ordered = |order| Ordered { by: "ada".parse().unwrap(), why: "test".parse().unwrap(), if_epoch: None, order };
    spool.add_bytes(&keyed("page"), b"old").unwrap();
    let grant = claim(spool);
    spool.checkpoint(&grant, &Checkpoint::new("page 300 of the OLD item").unwrap()).unwrap();
    let id = grant.name().id.clone();
    match how {
        0 => drop(spool.complete(&grant, Some(&payload("OLD")), &[]).unwrap()),
        1 => drop(spool.operate(&id, &ordered(Order::Cancel)).unwrap()),
        2 => drop(spool.fail(&grant, &"broken".parse().unwrap(), None, true).unwrap()),
        _ => {
            spool.operate(&id, &ordered(Order::Retry { past: Some(Epoch::new(1_000).unwrap()) })).unwrap();
            spool.complete(&claim(spool), None, &[]).unwrap();
        }
    }
    spool.find(&id).unwrap().name.epoch
}

/// What the next item of the key finds: epochs that nobody had, and no notes.
fn begins_anew(spool: &Spool, last: Epoch, how: &str) {
    let grant = claim(spool);
    assert_eq!(grant.name().id.as_str(), "k.page", "{how}");
    assert!(grant.token().epoch > last, "{how}: epoch {} after {last}", grant.token().epoch);
    assert_eq!(spool.checkpoint_for(grant.name()), None, "{how}");
    assert_eq!(spool.show(&grant.name().id).unwrap().notes, [], "{how}");
    assert_eq!(fs::read_to_string(grant.path()).unwrap(), "new", "{how}");
    spool.complete(&grant, None, &[]).unwrap();
}

#[test]
fn a_key_that_is_used_again_continues_above_its_old_epochs() {
    for how in 0..4 {
        let (_folder, spool) = spool();
        let mut last = live_and_end(&spool, how);
        for round in 0..3 {
            purge(&spool);
            assert_eq!((count(&spool, "notes"), count(&spool, "keys")), (0, 0));
            spool.add_bytes(&keyed("page"), b"new").unwrap();
            begins_anew(&spool, last, &format!("ended by {how}, purge {round}"));
            last = spool.find(&"k.page".parse().unwrap()).unwrap().name.epoch;
        }
    }
}

#[test]
fn a_stranger_and_a_follow_up_begin_above_the_old_epochs_too() {
    let (_folder, spool) = spool();
    let mut last = live_and_end(&spool, 3);
    purge(&spool);
    fs::write(spool.root().join("ready/page"), "new").unwrap();
    begins_anew(&spool, last, "a shell's");
    // Laid out while the old one still had the key, and added when that was free.
    last = spool.find(&"k.page".parse().unwrap()).unwrap().name.epoch;
    spool.add_bytes(&NewItem::default(), b"parent").unwrap();
    let parent = claim(&spool);
    let add = [NewItem { payload: payload("new"), ..keyed("page") }];
    let laid_out = cut_off(&spool, 1, Some(SpoolStep::FanOut), |dying| {
        let _ = dying.complete(&parent, None, &add);
    });
    assert!(!laid_out, "the key was taken, so nothing is added");
    spool.add_bytes(&NewItem::default(), b"parent").unwrap();
    let parent = claim(&spool);
    assert!(cut_off(&spool, 1, Some(SpoolStep::SyncEnded), |dying| drop(dying.complete(&parent, None, &add).unwrap())));
    purge(&spool);
    spool.clean().unwrap();
    begins_anew(&spool, last, "a follow-up");
}

#[test]
fn a_strangers_file_that_another_has_replaced_gets_an_epoch_of_its_own() {
    /// While a worker is about to claim a file, another is done with it, it is purged, and there is a new one of that name.
    #[derive(Debug)]
    struct Sleeper(Spool, AtomicUsize);
    impl Observer<SpoolStep> for Sleeper {
        fn reach(&self, step: SpoolStep) -> std::io::Result<()> {
            if step == SpoolStep::Claim && self.1.fetch_add(1, Ordering::Relaxed) == 0 {
                self.0.complete(&claim(&self.0), None, &[]).unwrap();
                purge(&self.0);
                fs::write(self.0.root().join("ready/page"), "new").unwrap();
            }
            Ok(())
        }
    }
    let (_folder, spool) = spool();
    fs::write(spool.root().join("ready/page"), "old").unwrap();
    let grant = claim(&spool.clone().with_observer(Arc::new(Sleeper(spool.clone(), AtomicUsize::new(0)))));
    assert_eq!(grant.name().id.as_str(), "k.page");
    assert!(grant.token().epoch > Epoch::new(1).unwrap(), "{}", grant.name());
    assert!(same_file(grant.path(), &spool.root().join("keys/page")));
    assert_eq!(fs::read_to_string(grant.path()).unwrap(), "new");
    spool.complete(&grant, None, &[]).unwrap();
}

#[test]
fn a_purge_that_is_cut_off_anywhere_leaves_nothing_to_inherit() {
    for how in [0, 3] {
        for at in 1.. {
            let (_folder, spool) = spool();
            let last = live_and_end(&spool, how);
            grow_old(&spool);
            let died =
                cut_off(&spool, at, Some(SpoolStep::Collect), |dying| drop(dying.purge(AGE, &FINISHED).unwrap()));
            let said = format!("ended by {how}, cut off at {at}");
            // Before the next purge, as soon as the key is free.
            if spool.add_bytes(&keyed("page"), b"new").is_ok_and(|(_, new)| new) {
                begins_anew(&spool, last, &said);
                purge(&spool);
            } else {
                purge(&spool);
                // A key alone is of an addition, or a purge, that was cut off.
                grow_old(&spool);
                spool.clean().unwrap();
                spool.add_bytes(&keyed("page"), b"new").unwrap();
                begins_anew(&spool, last, &said);
                purge(&spool);
            }
            for folder in ["notes", "keys", "done", "failed", "tmp"] {
                assert_eq!(count(&spool, folder), 0, "{said}: {folder}");
            }
            if !died {
                break;
            }
        }
    }
}

#[test]
fn any_number_of_purges_at_once_forget_each_item_once() {
    const KEYS: usize = 40;
    let (_folder, spool) = spool();
    for n in 0..KEYS {
        spool.add_bytes(&keyed(&format!("n{n}")), b"old").unwrap();
        spool.complete(&claim(&spool), None, &[]).unwrap();
    }
    grow_old(&spool);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| spool.purge(AGE, &FINISHED).unwrap());
        }
        // Each key is used again as soon as it is free, and is not freed by a purge of the old item.
        scope.spawn(|| {
            for n in 0..KEYS {
                while !spool.add_bytes(&keyed(&format!("n{n}")), b"new").is_ok_and(|(_, new)| new) {
                    std::thread::yield_now();
                }
            }
        });
    });
    let keys = spool.root().join("keys");
    for name in spool.items(&SpoolFolder::Ready).unwrap() {
        assert!(name.epoch > Epoch::ZERO, "{name}");
        assert!(same_file(&keys.join(&name.id.as_str()[2..]), &spool.root().join("ready").join(name.to_string())));
    }
    assert_eq!((count(&spool, "ready"), count(&spool, "keys"), count(&spool, "done")), (KEYS, KEYS, 0));
}

fn same_file(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    inode(one) == inode(other)
}

#[test]
fn notes_without_an_item_are_purged_when_they_are_old() {
    let (_folder, spool) = spool();
    spool.add_bytes(&keyed("lives"), b"x").unwrap();
    let grant = claim(&spool);
    spool.checkpoint(&grant, &Checkpoint::new("page 7").unwrap()).unwrap();
    fs::write(spool.root().join("notes/k.gone.e3.checkpoint"), "page 300").unwrap();
    fs::write(spool.root().join("notes/by-hand"), "no note of an item").unwrap();
    purge(&spool);
    assert!(!spool.root().join("notes/k.gone.e3.checkpoint").exists());
    assert!(spool.root().join("notes/by-hand").exists());
    assert_eq!(spool.checkpoint_for(grant.name()).unwrap().as_str(), "page 7");
}

#[test]
fn a_folder_that_cannot_be_looked_into_keeps_its_trouble_to_itself() {
    let (_folder, spool) = spool();
    let last = live_and_end(&spool, 0);
    let failed = spool.root().join("failed");
    fs::remove_dir(&failed).unwrap();
    fs::write(&failed, "no folder").unwrap();
    grow_old(&spool);
    let purged = spool.purge(AGE, &[SpoolFolder::Failed, SpoolFolder::Done]).unwrap();
    assert_eq!((purged.items, purged.troubles.is_empty()), (1, false));
    assert!(purged.troubles[0].to_string().contains("failed"), "{:?}", purged.troubles);
    assert_eq!((count(&spool, "done"), count(&spool, "notes"), count(&spool, "keys")), (0, 0, 0));
    fs::remove_file(&failed).unwrap();
    fs::create_dir(&failed).unwrap();
    spool.add_bytes(&keyed("page"), b"new").unwrap();
    begins_anew(&spool, last, "after a closed folder");
}

#[test]
fn an_operators_order_finds_an_item_whole_or_not_at_all() {
    let (_folder, spool) = spool();
    live_and_end(&spool, 2);
    grow_old(&spool);
    // The purge has chosen it, and an operator puts it back in line.
    #[derive(Debug)]
    struct Operator(Spool);
    impl Observer<SpoolStep> for Operator {
        fn reach(&self, step: SpoolStep) -> std::io::Result<()> {
            let id = "k.page".parse().unwrap();
            if step == SpoolStep::Collect && self.0.find(&id).is_ok_and(|item| item.folder == SpoolFolder::Failed) {
                let (by, why, order) = ("ada".parse().unwrap(), "test".parse().unwrap(), Order::Retry { past: None });
                self.0.operate(&id, &Ordered { by, why, if_epoch: None, order }).unwrap();
            }
            Ok(())
        }
    }
    let purged = spool.clone().with_observer(Arc::new(Operator(spool.clone()))).purge(AGE, &FINISHED).unwrap();
    assert_eq!((purged.items, purged.troubles.len()), (0, 0));
    let grant = claim(&spool);
    assert_eq!(spool.checkpoint_for(grant.name()).unwrap().as_str(), "page 300 of the OLD item");
    assert_eq!(count(&spool, "keys"), 1);
}

/// A command that replaces its file, as `sed -i` does, and a copy without hard links leave a key that has one link.
#[test]
fn a_key_counts_as_long_as_there_is_an_item_of_it() {
    let (_folder, spool) = spool();
    spool.add_bytes(&keyed("page"), b"old").unwrap();
    let grant = claim(&spool);
    spool.complete(&grant, None, &[]).unwrap();
    let item = spool.find(&"k.page".parse().unwrap()).unwrap();
    let path = spool.root().join(SpoolFolder::Done.path()).join(item.name.to_string());
    let copy = spool.root().join("done/.copy");
    fs::copy(&path, &copy).unwrap();
    fs::rename(&copy, &path).unwrap();
    grow_old(&spool);
    spool.clean().unwrap();
    let (id, is_new) = spool.add_bytes(&keyed("page"), b"new").unwrap();
    assert_eq!((id.as_str(), is_new, count(&spool, "ready")), ("k.page", false, 0));
    // A follow-up of that key is not added either, and does not wait for ever.
    spool.add_bytes(&NewItem::default(), b"parent").unwrap();
    let add = [NewItem { payload: payload("new"), ..keyed("page") }];
    spool.complete(&claim(&spool), None, &add).unwrap();
    assert_eq!((count(&spool, "ready"), count(&spool, "outbox")), (0, 0));
}

/// A failure whose sync failed is told again, and its due time is another one by then.
#[test]
fn a_failure_that_is_reported_again_is_not_stale() {
    let (_folder, spool) = spool();
    spool.add_bytes(&NewItem::default(), b"x").unwrap();
    let grant = claim(&spool);
    let why = "it failed".parse().unwrap();
    for _ in 0..2 {
        let folder = spool.fail(&grant, &why, Some(Duration::from_secs(3_600)), false).unwrap().folder;
        assert_eq!((folder, count(&spool, "later")), (SpoolFolder::Later, 1));
        let told = spool.now().unwrap();
        wait_until("the due time is another one", || spool.now().unwrap() > told);
    }
}
