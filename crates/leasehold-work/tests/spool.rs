//! Spools in a temporary folder: order, fences, attempts, follow-ups, the janitor, and workers that only know `mv`.
#![allow(clippy::unwrap_used)]

use leasehold_core::{Checkpoint, HolderId, Kind, Label, Ttl};
use leasehold_testbed::wait_until;
use leasehold_work::backlog::Ordered;
use leasehold_work::queue::protocol::Order;
use leasehold_work::queue::{Attempts, Chores, ItemId, NewItem, Payload};
use leasehold_work::spool::{Spool, SpoolClaimer, SpoolFolder, SpoolGrant};
use std::collections::HashSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;

fn spool() -> (TempDir, Spool) {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(&folder.path().join("mail")).unwrap();
    (folder, spool)
}

fn claimer(spool: &Spool, ttl: &str) -> SpoolClaimer {
    SpoolClaimer::new(spool.clone(), &"worker".parse::<Label>().unwrap(), ttl.parse::<Ttl>().unwrap()).unwrap()
}

fn add(spool: &Spool, text: &str) -> ItemId {
    spool.add(&NewItem::default(), &mut text.as_bytes()).unwrap().0
}

/// What can be claimed next, once there is something.
fn claimed(worker: &mut SpoolClaimer) -> SpoolGrant {
    let mut found = None;
    wait_until("there is something to claim", || {
        found = worker.claim().unwrap();
        found.is_some()
    });
    found.unwrap()
}

fn text(grant: &SpoolGrant) -> String {
    std::fs::read_to_string(grant.path()).unwrap()
}

fn sh(script: &str, root: &Path) -> (bool, String) {
    let output = Command::new("sh").arg("-ec").arg(script).current_dir(root).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

fn ordered(order: Order) -> Ordered {
    Ordered { by: "ada".parse().unwrap(), why: "mended".parse().unwrap(), if_epoch: None, order }
}

#[test]
fn items_come_by_priority_and_age_and_each_goes_to_one_worker() {
    let (_folder, spool) = spool();
    for text in ["a", "b"] {
        add(&spool, text);
    }
    let urgent = NewItem { priority: "9".parse().unwrap(), ..NewItem::default() };
    spool.add(&urgent, &mut "urgent".as_bytes()).unwrap();
    let late = NewItem { delay: Duration::from_secs(3600), ..urgent };
    spool.add(&late, &mut "late".as_bytes()).unwrap();
    let (mut one, mut two) = (claimer(&spool, "10s"), claimer(&spool, "10s"));
    let mut take = |n| if n == 1 { two.claim().unwrap().unwrap() } else { one.claim().unwrap().unwrap() };
    let grants: Vec<_> = (0..3).map(&mut take).collect();
    let texts: Vec<_> = grants.iter().map(text).collect();
    assert_eq!(texts, ["urgent", "a", "b"]);
    assert!(two.claim().unwrap().is_none());
    for grant in &grants {
        assert_eq!(grant.token().epoch.get(), 1);
        spool.complete(grant, Some(&Payload::result("ok").unwrap()), &[]).unwrap();
        let shown = spool.show(&grant.name().id).unwrap();
        assert_eq!((shown.item.folder, shown.notes[0].kind.as_str()), (SpoolFolder::Done, "result"));
    }
    assert_eq!(spool.items(&SpoolFolder::Later).unwrap().len(), 1);
}

#[test]
fn what_expired_is_put_back_and_the_silent_worker_is_fenced() {
    let (_folder, spool) = spool();
    let id = add(&spool, "x");
    let mut slow = claimer(&spool, "1s");
    let mut grant = slow.claim().unwrap().unwrap();
    assert_eq!(format!("{:?}", spool.clean().unwrap()), format!("{:?}", Chores::default()));
    let second = claimed(&mut claimer(&spool, "10s"));
    assert!(second.token().epoch > grant.token().epoch);
    let follow_up = NewItem { payload: Payload::new("zombie").unwrap(), ..NewItem::default() };
    let error = spool.complete(&grant, Some(&Payload::result("zombie").unwrap()), &[follow_up]).unwrap_err();
    assert_eq!(error.kind(), Kind::Fenced);
    assert!(error.to_string().contains("held=1 seen=3, it is claimed now"), "{error}");
    assert_eq!(spool.fail(&grant, &"late".parse().unwrap(), None, false).unwrap_err().kind(), Kind::Fenced);
    assert_eq!(spool.give_back(&grant).unwrap_err().kind(), Kind::Fenced);
    assert_eq!(spool.renew(&mut grant).unwrap_err().kind(), Kind::Lost);
    assert_eq!(spool.adopt(grant.token()).unwrap_err().kind(), Kind::Fenced);
    assert_eq!(spool.checkpoint(&grant, &Checkpoint::new("late").unwrap()).unwrap_err().kind(), Kind::Lost);
    let again = spool.adopt(second.token()).unwrap();
    spool.complete(&again, None, &[]).unwrap();
    spool.clean().unwrap();
    assert_eq!(spool.everything().unwrap().len(), 1, "a zombie's follow-up was added");
    let kinds: Vec<_> = spool.show(&id).unwrap().notes.into_iter().map(|n| (n.epoch, n.kind)).collect();
    assert!(kinds.contains(&(1, "expired".into())), "{kinds:?}");
}

#[test]
fn a_sign_of_life_keeps_an_item() {
    let (_folder, spool) = spool();
    add(&spool, "x");
    let mut worker = claimer(&spool, "1s");
    let mut grant = worker.claim().unwrap().unwrap();
    // Each of these was claimed later, and gives no sign: when it is put back, so would ours be.
    for _ in 0..2 {
        add(&spool, "silent");
        let silent = claimer(&spool, "1s").claim().unwrap().unwrap();
        let id = &silent.name().id;
        wait_until("what gives no sign is put back", || {
            spool.renew(&mut grant).unwrap();
            spool.clean().unwrap();
            spool.find(id).unwrap().folder == SpoolFolder::Ready
        });
        assert_eq!(spool.items(&SpoolFolder::Ready).unwrap().len(), 1, "what gave signs of life was put back");
        let again = claimer(&spool, "10s").claim().unwrap().unwrap();
        spool.complete(&again, None, &[]).unwrap();
    }
    spool.complete(&grant, None, &[]).unwrap();
}

#[test]
fn failures_back_off_and_end_as_a_dead_letter_that_says_why() {
    let (_folder, spool) = spool();
    let (id, _) = spool
        .add(
            &NewItem { attempts: Attempts { most: 2, ..Attempts::default() }, ..NewItem::default() },
            &mut "x".as_bytes(),
        )
        .unwrap();
    let mut worker = claimer(&spool, "10s");
    let grant = worker.claim().unwrap().unwrap();
    spool.checkpoint(&grant, &Checkpoint::new("page 3").unwrap()).unwrap();
    assert_eq!(
        spool.fail(&grant, &"no".parse().unwrap(), Some(Duration::from_millis(50)), false).unwrap().folder,
        SpoolFolder::Later
    );
    assert!(worker.claim().unwrap().is_none());
    let grant = claimed(&mut worker);
    assert_eq!(spool.checkpoint_for(grant.name()).unwrap().as_str(), "page 3");
    assert_eq!(spool.fail(&grant, &"no again".parse().unwrap(), None, false).unwrap().folder, SpoolFolder::Failed);
    let shown = spool.show(&id).unwrap();
    assert_eq!(shown.item.folder, SpoolFolder::Failed);
    assert!(shown.notes.iter().any(|note| note.kind == "failed" && note.text == "no again\n"));
    let last = shown.item.name.epoch;
    assert!(spool.operate(&id, &ordered(Order::Retry { past: None })).unwrap().0.name.epoch > last);
    let grant = worker.claim().unwrap().unwrap();
    let to = HolderId::new(Some("grace".parse().unwrap()));
    let (_, token) = spool.operate(&id, &ordered(Order::HandOff { to, ttl: "10s".parse().unwrap() })).unwrap();
    let token = token.unwrap();
    assert_eq!(spool.complete(&grant, None, &[]).unwrap_err().kind(), Kind::Fenced);
    let late = Ordered { if_epoch: Some(last), ..ordered(Order::Cancel) };
    assert_eq!(spool.operate(&id, &late).unwrap_err().kind(), Kind::Fenced, "it was decided on another epoch");
    spool.operate(&id, &ordered(Order::Cancel)).unwrap();
    assert_eq!(spool.adopt(&token).unwrap_err().kind(), Kind::Fenced);
    let kinds: Vec<_> = spool.show(&id).unwrap().notes.into_iter().map(|n| n.kind).collect();
    for kind in ["retried", "handed_off", "cancelled"] {
        assert!(kinds.iter().any(|k| k == kind), "{kind} is not in {kinds:?}");
    }
}

#[test]
fn follow_ups_are_added_once_and_keys_are_taken_once() {
    let (_folder, spool) = spool();
    add(&spool, "parent");
    let mut worker = claimer(&spool, "10s");
    let grant = worker.claim().unwrap().unwrap();
    let keyed = NewItem { key: Some("child".parse().unwrap()), ..NewItem::default() };
    let children: Vec<_> = [keyed.clone(), NewItem::default()]
        .into_iter()
        .map(|new| NewItem { payload: Payload::new("child").unwrap(), ..new })
        .collect();
    spool.complete(&grant, None, &children).unwrap();
    assert_eq!(spool.items(&SpoolFolder::Ready).unwrap().len(), 2);
    assert_eq!(spool.add(&keyed, &mut "again".as_bytes()).unwrap(), ("k.child".parse().unwrap(), false));
    spool.clean().unwrap();
    assert_eq!(spool.items(&SpoolFolder::Ready).unwrap().len(), 2);
    assert!(std::fs::read_dir(spool.root().join("outbox")).unwrap().next().is_none());
}

/// The examples of docs/queues.md, as a shell runs them.
#[test]
fn workers_that_only_know_mv_can_join() {
    let (_folder, spool) = spool();
    let docs = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/queues.md")).unwrap();
    let example = |title: &str| {
        let rest = docs.split(&format!("<!-- example: {title} -->")).nth(1).unwrap_or_else(|| panic!("no `{title}`"));
        rest.split("```sh\n").nth(1).unwrap().split("```").next().unwrap().to_owned()
    };
    // A producer that knows nothing but `mv`.
    assert!(sh(&example("add with mv"), spool.root()).0);
    add(&spool, "from leasehold");
    // A worker that knows nothing but `mv` takes both, and completes them.
    for _ in 0..2 {
        let (ok, out) = sh(&example("work with mv"), spool.root());
        assert!(ok, "{out}");
    }
    let done = spool.items(&SpoolFolder::Done).unwrap();
    assert_eq!(done.len(), 2, "{done:?}");
    assert!(done.iter().all(|name| name.epoch.get() == 1), "{done:?}");
    assert!(spool.items(&SpoolFolder::Ready).unwrap().is_empty());
    // Of two additions with one key, by shells and by leasehold, in either order, one counts.
    let once = || sh(&example("add once with ln"), spool.root());
    assert_eq!(once(), (true, String::new()));
    assert_eq!(once(), (true, "there is one\n".into()));
    let keyed = |key: &str| NewItem { key: Some(key.parse().unwrap()), ..NewItem::default() };
    let (id, is_new) = spool.add(&keyed("invoice-7"), &mut "again".as_bytes()).unwrap();
    assert_eq!((id.as_str(), is_new), ("k.invoice-7", false));
    let mut worker = claimer(&spool, "10s");
    let grant = worker.claim().unwrap().unwrap();
    assert_eq!(grant.name().id, id);
    spool.complete(&grant, None, &[]).unwrap();
    assert_eq!(once().1, "there is one\n", "what is done has its key still");
    assert!(worker.claim().unwrap().is_none());
    drop(worker);
    // A plain name whose key is taken, or that is none, gets an id of its own.
    for name in ["letter-1", "not a key", "a.txt.exe"] {
        std::fs::write(spool.root().join("ready").join(name), "x").unwrap();
        let (ok, out) = sh(&example("work with mv"), spool.root());
        assert!(ok, "{name}: {out}");
    }
    let done = spool.items(&SpoolFolder::Done).unwrap();
    let ids: HashSet<_> = done.iter().map(|name| name.id.clone()).collect();
    assert_eq!((done.len(), ids.len()), (6, 6), "{done:?}");
    assert!(ids.contains(&"k.a.txt.exe".parse().unwrap()), "{ids:?}");
    assert_eq!(sh(&example("work with mv"), spool.root()), (true, String::new()), "nothing is left to claim");
    // One that fell silent loses its item, and finds that its completion fails.
    add(&spool, "x");
    let slow = example("work with mv").replace("alice.10m", "slow.2s");
    let slow = slow.replace("wc -c < \"$worker/$new\"", "while ! test -e go; do sleep 0.05; done");
    let root = spool.root().to_owned();
    let worker = std::thread::spawn(move || sh(&slow, &root));
    wait_until("it is put back", || spool.clean().unwrap().requeued == 1);
    std::fs::write(spool.root().join("go"), "").unwrap();
    assert!(!worker.join().unwrap().0, "its completion was not refused");
    std::fs::remove_file(spool.root().join("go")).unwrap();
    assert_eq!(spool.items(&SpoolFolder::Done).unwrap().len(), 6);
    assert_eq!(claimer(&spool, "10s").claim().unwrap().unwrap().token().epoch.get(), 3);
}

#[test]
fn a_folder_that_is_not_a_spool_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("thesis.tex"), "x").unwrap();
    let error = Spool::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("is not a spool and holds `thesis.tex`"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let error = Spool::open(Path::new("relative")).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
}

#[test]
fn what_is_not_a_plain_file_is_skipped_and_nothing_spins() {
    static WARNED: AtomicUsize = AtomicUsize::new(0);
    let (folder, spool) = spool();
    let ready = spool.root().join("ready");
    let item = format!("4-{:013}-{}.t0-5.e0", 7, "k.folder");
    for name in ["lost+found", &item] {
        std::fs::create_dir(ready.join(name)).unwrap();
    }
    std::fs::write(folder.path().join("secret"), "elsewhere").unwrap();
    symlink(folder.path().join("secret"), ready.join("link")).unwrap();
    symlink("/nowhere", ready.join("dangling")).unwrap();
    assert!(Command::new("mkfifo").arg(ready.join("pipe")).status().unwrap().success());
    std::fs::write(spool.root().join("claimed/file"), "").unwrap();
    let mut worker = claimer(&spool, "10s").warning(|error| {
        assert!(error.to_string().contains("skipped"), "{error}");
        WARNED.fetch_add(1, Ordering::Relaxed);
    });
    let (sender, answers) = std::sync::mpsc::channel();
    let (id, there) = (add(&spool, "real"), spool.clone());
    std::thread::spawn(move || {
        let first = worker.claim().unwrap().map(|grant| grant.name().id.clone());
        let second = worker.claim().unwrap().is_none();
        // A janitor removes what has long been empty, the folder of an idle worker too.
        let mine = std::fs::read_dir(there.root().join("claimed")).unwrap().flatten();
        for entry in mine.filter(|entry| entry.path().is_dir()) {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
        let more = add(&there, "more");
        sender.send((first, second, worker.claim().unwrap().is_some_and(|grant| grant.name().id == more))).unwrap();
    });
    let answer = answers.recv_timeout(Duration::from_secs(30)).expect("claiming goes on for ever");
    assert_eq!(answer, (Some(id), true, true));
    assert_eq!(WARNED.load(Ordering::Relaxed), 5, "each is named once");
    assert_eq!(std::fs::read_dir(&ready).unwrap().count(), 5, "something was moved");
}

#[test]
fn a_folder_that_is_a_link_is_refused_or_skipped() {
    let (folder, spool) = spool();
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let name = format!("4-{:013}-k.stolen.t0-5.e1", 7);
    std::fs::write(elsewhere.join(&name), "not ours").unwrap();
    symlink(&elsewhere, spool.root().join("claimed/evil.1s")).unwrap();
    symlink(&elsewhere, spool.root().join("outbox/k.a.e1")).unwrap();
    std::fs::write(spool.root().join(format!("done/4-{:013}-k.a.t0-5.e1", 7)), "").unwrap();
    // What was claimed later, for as long, is put back: the janitor has seen that the time of both is over.
    add(&spool, "silent");
    drop(claimer(&spool, "1s").claim().unwrap().unwrap());
    wait_until("what gives no sign is put back", || spool.clean().unwrap().requeued > 0);
    assert!(elsewhere.join(&name).exists(), "the janitor went through a link");
    assert_eq!((spool.items(&SpoolFolder::Ready).unwrap().len(), spool.everything().unwrap().len()), (1, 2));
    let done = spool.root().join("done");
    std::fs::remove_dir_all(&done).unwrap();
    symlink(&elsewhere, &done).unwrap();
    let error = Spool::open(spool.root()).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("done is a link"), "{error}");
    std::fs::remove_file(&done).unwrap();
    // The root itself may be one.
    let link = folder.path().join("link");
    symlink(spool.root(), &link).unwrap();
    Spool::open(&link).unwrap();
}
