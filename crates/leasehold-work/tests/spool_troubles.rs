//! A spool on a bad day: entries that are damaged or at a limit, producers that are slow, an urgent item behind a full line.
#![allow(clippy::unwrap_used)]

use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::observe::Observer;
use leasehold_core::{Label, Ttl};
use leasehold_testbed::wait_until;
use leasehold_work::backlog::Ordered;
use leasehold_work::queue::NewItem;
use leasehold_work::queue::protocol::Order;
use leasehold_work::spool::{Spool, SpoolClaimer, SpoolFolder, SpoolStep};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

fn spool() -> (TempDir, Spool) {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(&folder.path().join("mail")).unwrap();
    (folder, spool)
}

fn claimer(spool: &Spool) -> SpoolClaimer {
    SpoolClaimer::new(spool.clone(), &"worker".parse::<Label>().unwrap(), "10s".parse::<Ttl>().unwrap()).unwrap()
}

fn urgent(priority: &str) -> NewItem {
    NewItem { priority: priority.parse().unwrap(), ..NewItem::default() }
}

fn pipe(path: std::path::PathBuf) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn one_worker_claims_in_order_whatever_is_added_meanwhile() {
    let (_folder, spool) = spool();
    for n in 0..80 {
        spool.add_bytes(&NewItem::default(), n.to_string().as_bytes()).unwrap();
    }
    let mut worker = claimer(&spool);
    worker.claim().unwrap().unwrap();
    for priority in ["6", "9", "7"] {
        let (id, _) = spool.add_bytes(&urgent(priority), b"urgent").unwrap();
        assert_eq!(worker.claim().unwrap().unwrap().name().id, id, "priority {priority}");
    }
    // What an operator takes out of the line moves nobody else.
    let first = spool.items(&SpoolFolder::Ready).unwrap();
    let (by, why) = ("ada".parse().unwrap(), "test".parse().unwrap());
    spool.operate(&first[0].id, &Ordered { by, why, if_epoch: None, order: Order::Cancel }).unwrap();
    assert_eq!(worker.claim().unwrap().unwrap().name().id, first[1].id);
}

#[test]
fn entries_at_every_limit_stop_nobody() {
    let (_folder, spool) = spool();
    let root = spool.root();
    let ready = root.join("ready");
    // Items, whatever their names: the longest, one that has no text, and one whose epoch could not be raised any more.
    let longest = "x".repeat(255);
    fs::write(ready.join(&longest), "long").unwrap();
    fs::write(ready.join("empty"), "").unwrap();
    fs::write(ready.join("4-1763260000000-k.last.t0-5.e9007199254740991"), "last").unwrap();
    fs::write(ready.join("4-1763260000000-k.tried.t4294967295-4294967295.e7"), "tried").unwrap();
    let huge = fs::File::create(ready.join("4-1763260000000-k.huge.t0-5.e0")).unwrap();
    huge.set_len(1 << 40).unwrap();
    // No items.
    fs::write(ready.join(OsString::from_vec(vec![b'a', 0xff])), "x").unwrap();
    fs::write(ready.join(".hidden"), "x").unwrap();
    for below in ["ready", "later", "claimed/a.1s", "done", "notes", "outbox/k.a.e1", "keys", "tmp"] {
        let folder = root.join(below);
        fs::create_dir_all(&folder).unwrap();
        symlink("/nowhere", folder.join("dangling")).unwrap();
        pipe(folder.join("pipe"));
        fs::create_dir(folder.join("folder")).unwrap();
        if below != "ready" {
            fs::write(folder.join("no-item"), "x").unwrap();
            fs::write(folder.join(OsString::from_vec(vec![b'b', 0xfe])), "x").unwrap();
        }
    }
    fs::write(root.join("claimed/file"), "x").unwrap();
    fs::write(root.join("README"), "x").unwrap();
    fs::write(root.join(OsString::from_vec(vec![b'c', 0xfd])), "x").unwrap();
    Spool::open(root).expect("a stranger's file beside the folders stops nobody");
    fs::write(root.join("done/4-1763260000000-k.a.t0-5.e1"), "x").unwrap();
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut worker = claimer(&spool).warning(|error| SAID.lock().unwrap().push(error.to_string()));
    let mut claimed = Vec::new();
    while let Some(grant) = worker.claim().unwrap() {
        claimed.push(grant.name().id.to_string());
        assert!(grant.token().epoch.get() < 10, "{:?}", grant.name());
        spool.complete(&grant, None, &[]).unwrap();
    }
    assert_eq!(claimed.len(), 5, "{claimed:?}");
    for id in ["k.empty", "k.tried", "k.huge"] {
        assert!(claimed.iter().any(|claimed| claimed == id), "{id} in {claimed:?}");
    }
    let first = SAID.lock().unwrap().clone();
    for what in ["`dangling` in", "`pipe` in", "`folder` in", "`no-item` in"] {
        assert!(first.iter().any(|said| said.contains(what)), "{what}: {first:#?}");
    }
    spool.clean().unwrap();
    assert!(worker.claim().unwrap().is_none());
    let distinct: std::collections::HashSet<_> = first.iter().collect();
    assert_eq!((distinct.len(), SAID.lock().unwrap().len()), (first.len(), first.len()), "something was said twice");
    let seen = spool.survey();
    assert_eq!(seen.items.len(), 6, "{:?}", seen.items);
    assert!(seen.closed.is_empty() && seen.foreign.len() > 10, "{seen:?}");
    let shown = spool.show(&"k.huge".parse().unwrap()).unwrap();
    assert_eq!((shown.bytes, spool.payload(&shown.item, 1 << 20).unwrap()), (1 << 40, None));
    assert!(ready.join(".hidden").exists());
    let notes: Vec<String> = spool.examine().into_iter().map(|check| check.detail).collect();
    assert!(notes.iter().any(|note| note.contains("`README`")), "{notes:#?}");
}

#[test]
fn a_damaged_checkpoint_costs_no_attempt() {
    let (_folder, spool) = spool();
    spool.add_bytes(&NewItem::default(), b"x").unwrap();
    let mut worker = claimer(&spool);
    let first = worker.claim().unwrap().unwrap();
    spool.checkpoint(&first, &leasehold_core::Checkpoint::new("page 1").unwrap()).unwrap();
    let note = |epoch| spool.root().join(format!("notes/{}.e{epoch}.checkpoint", first.name().id));
    fs::write(note(2), b"\xff\xfe").unwrap();
    fs::write(note(3), [b'x'; 5_000]).unwrap();
    pipe(note(4));
    symlink("/nowhere", note(5)).unwrap();
    fs::create_dir(note(6)).unwrap();
    let mut grant = first.clone();
    while grant.token().epoch.get() < 7 {
        spool.give_back(&grant).unwrap();
        grant = worker.claim().unwrap().unwrap();
    }
    assert_eq!(spool.checkpoint_for(grant.name()).unwrap().as_str(), "page 1");
}

/// Input that comes when the test says so.
struct Slow(Receiver<Vec<u8>>);

impl Read for Slow {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Ok(bytes) = self.0.recv() else { return Ok(0) };
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

#[test]
fn a_producer_that_waits_for_its_input_keeps_its_file() {
    const SILENCE: Duration = Duration::from_millis(400);
    let (_folder, spool) = spool();
    let spool = Arc::new(spool.abandoning_after(SILENCE));
    let staged = || fs::read_dir(spool.root().join("tmp")).unwrap().flatten().next().map(|entry| entry.path());
    let (sender, input) = channel();
    let producer = {
        let spool = spool.clone();
        std::thread::spawn(move || spool.add(&NewItem::default(), &mut Slow(input)))
    };
    sender.send(b"half ".to_vec()).unwrap();
    wait_until("it is being written", || staged().is_some_and(|path| fs::metadata(path).unwrap().len() == 5));
    let path = staged().unwrap();
    // It gives signs of life while it waits, for those who cannot see its lock.
    let changed = || fs::metadata(&path).map(|m| (m.ctime(), m.ctime_nsec())).unwrap();
    let before = changed();
    wait_until("it beats", || changed() != before);
    // A shell's file is nobody's to judge within a day, unless it has taken a key.
    for name in ["shell", "keyed"] {
        fs::write(spool.root().join("tmp").join(name), "x").unwrap();
    }
    fs::hard_link(spool.root().join("tmp/keyed"), spool.root().join("keys/invoice-7")).unwrap();
    wait_until("what was cut off is removed with its key", || {
        spool.clean().unwrap();
        assert!(path.exists(), "a living producer's file was removed");
        !spool.root().join("tmp/keyed").exists() && !spool.root().join("keys/invoice-7").exists()
    });
    assert!(spool.root().join("tmp/shell").exists());
    sender.send(b"a letter".to_vec()).unwrap();
    drop(sender);
    producer.join().unwrap().unwrap();
    let mut worker = claimer(&spool);
    assert_eq!(fs::read_to_string(worker.claim().unwrap().unwrap().path()).unwrap(), "half a letter");
}

#[test]
fn a_producer_whose_file_was_removed_is_told_why() {
    let (_folder, spool) = spool();
    let (sender, input) = channel();
    let there = spool.clone();
    let producer = std::thread::spawn(move || there.add(&NewItem::default(), &mut Slow(input)));
    sender.send(b"half".to_vec()).unwrap();
    let tmp = spool.root().join("tmp");
    wait_until("it is being written", || fs::read_dir(&tmp).unwrap().next().is_some());
    for entry in fs::read_dir(&tmp).unwrap().flatten() {
        fs::remove_file(entry.path()).unwrap();
    }
    drop(sender);
    let error = producer.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), leasehold_core::Kind::Unavailable);
    assert!(error.to_string().contains("nothing was added") && error.to_string().contains("add it again"), "{error}");
    assert_eq!(spool.everything().unwrap(), []);
}

/// A folder that answers when this time has come.
#[derive(Debug)]
struct Late(Moment);

impl Observer<SpoolStep> for Late {
    fn reach(&self, step: SpoolStep) -> std::io::Result<()> {
        if step == SpoolStep::Touch {
            wait_until("the claim has run out", || SystemClock.now() >= self.0);
        }
        Ok(())
    }
}

#[test]
fn a_sign_of_life_that_comes_too_late_renews_nothing() {
    let (_folder, spool) = spool();
    spool.add_bytes(&NewItem::default(), b"x").unwrap();
    let mut worker = SpoolClaimer::new(spool.clone(), &"worker".parse().unwrap(), "1s".parse().unwrap()).unwrap();
    let mut grant = worker.claim().unwrap().unwrap();
    let late = Late(grant.live().trust_until);
    let error = spool.clone().with_observer(Arc::new(late)).renew(&mut grant).unwrap_err();
    assert_eq!(error.kind(), leasehold_core::Kind::Lost, "somebody may be putting it back: {error}");
}
