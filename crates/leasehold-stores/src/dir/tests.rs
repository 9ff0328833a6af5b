//! Processes that are suspended between any two steps of a swap, while others continue.

use super::attempt::Attempt;
use super::layout::Mark;
use super::root::Root;
use super::{VERSIONS_KEPT, layout};
use crate::url::Namespace;
use leasehold_core::store::{Revision, Swap};
use leasehold_core::{Key, Kind, Shelf};
use std::collections::HashMap;
use std::path::Path;
use tempfile::TempDir;

/// In memory if possible: these tests make thousands of fsyncs.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

fn root(folder: &TempDir) -> Root {
    Root::open(folder.path().join("store"), Namespace::default()).unwrap()
}

fn key() -> Key {
    Key::new(Shelf::Probe, &"sleepy".parse().unwrap())
}

fn newest(root: &Root) -> Option<(Mark, Option<Vec<u8>>)> {
    root.newest(&root.folder(&key())).unwrap().map(|version| (version.mark, version.value))
}

fn current(root: &Root) -> Option<Revision> {
    newest(root).filter(|(_, value)| value.is_some()).map(|(mark, _)| mark.revision())
}

fn make_swaps(root: &Root, swaps: u64) {
    for _ in 0..swaps {
        let swap = Attempt::run(root, &key(), current(root).as_ref(), Some(b"awake")).unwrap();
        assert!(matches!(swap, Swap::Done { .. }));
    }
}

fn prepare<'root>(root: &'root Root, expected: Option<&Revision>) -> Attempt<'root> {
    Attempt::prepare(root, &key(), expected, Some(b"sleeper")).unwrap().unwrap()
}

/// How many versions there are when the suspended process checks, and how many swaps happen before it resumes.
fn sleeps() -> impl Iterator<Item = (u64, u64)> {
    [0, 1, 2, 5, VERSIONS_KEPT + 3].into_iter().flat_map(|before| {
        [1, 2, VERSIONS_KEPT - 1, VERSIONS_KEPT, VERSIONS_KEPT + 1, VERSIONS_KEPT + 2, 3 * VERSIONS_KEPT]
            .map(|during| (before, during))
    })
}

#[test]
fn a_process_that_sleeps_before_its_link_never_wins() {
    let mut strays = 0;
    for (before, during) in sleeps() {
        let folder = folder();
        let root = root(&folder);
        make_swaps(&root, before);
        let sleeper = prepare(&root, current(&root).as_ref());
        make_swaps(&root, during);
        let seen = newest(&root);
        if sleeper.publish().unwrap() {
            strays += 1;
            let error = sleeper.confirm().unwrap_err();
            assert_eq!(error.kind(), Kind::Indeterminate, "{before} before, {during} during: {error}");
        }
        assert_eq!(newest(&root), seen, "{before} before, {during} during");
        make_swaps(&root, VERSIONS_KEPT + 2);
        assert_eq!(newest(&root).unwrap().0.number, before + during + VERSIONS_KEPT + 2);
        let numbers = root.numbers(&root.folder(&key())).unwrap();
        assert_eq!(numbers.len() as u64, VERSIONS_KEPT, "strays are collected: {numbers:?}");
    }
    assert!(strays > 0, "no sleeper slept for long enough to matter");
}

#[test]
fn a_process_that_sleeps_after_its_link_is_never_told_that_it_lost() {
    for (before, during) in sleeps() {
        let folder = folder();
        let root = root(&folder);
        make_swaps(&root, before);
        let sleeper = prepare(&root, current(&root).as_ref());
        assert!(sleeper.publish().unwrap());
        assert_eq!(newest(&root).unwrap().1.unwrap(), b"sleeper");
        make_swaps(&root, during);
        match sleeper.confirm() {
            Ok(Swap::Done { revision, .. }) => assert_eq!(Mark::of(&revision).unwrap().number, before + 1),
            Ok(Swap::Mismatch) => panic!("{before} before, {during} during: it won, and was told that it lost"),
            Err(error) => assert_eq!(error.kind(), Kind::Indeterminate, "{error}"),
        }
        assert_eq!(newest(&root).unwrap().1.unwrap(), b"awake");
    }
}

#[test]
fn an_erase_leaves_nothing_of_what_it_erased_and_lets_no_sleeper_win() {
    let mut strays = 0;
    for before in [0, 1, 2, VERSIONS_KEPT + 3] {
        for during in [1, 2, 5] {
            let folder = folder();
            let root = root(&folder);
            make_swaps(&root, before);
            let sleeper = prepare(&root, current(&root).as_ref());
            make_swaps(&root, during);
            let erased = Attempt::run(&root, &key(), current(&root).as_ref(), None).unwrap();
            assert!(matches!(erased, Swap::Done { .. }));
            let number = before + during + 1;
            assert_eq!(root.numbers(&root.folder(&key())).unwrap(), [number], "only the trace is left");
            if sleeper.publish().unwrap() {
                strays += 1;
                assert_eq!(sleeper.confirm().unwrap_err().kind(), Kind::Indeterminate);
            }
            assert_eq!(current(&root), None, "it is erased");
            make_swaps(&root, 1);
            assert_eq!(newest(&root).unwrap().0.number, number + 1, "numbers go on");
        }
    }
    assert!(strays > 0, "no sleeper made a link");
}

#[test]
fn a_stray_version_lets_no_other_sleeper_win() {
    let folder = folder();
    let root = root(&folder);
    make_swaps(&root, 4);
    let one = prepare(&root, current(&root).as_ref());
    let twin = prepare(&root, current(&root).as_ref());
    make_swaps(&root, 1);
    let next = prepare(&root, current(&root).as_ref());
    make_swaps(&root, 3 * VERSIONS_KEPT);
    let seen = newest(&root);
    assert!(one.publish().unwrap(), "number 5 was collected, so the link is made");
    assert!(!twin.publish().unwrap(), "the stray is in the way");
    assert!(next.publish().unwrap(), "number 6 was collected, so the link is made");
    // The process that expects it finds number 5, but it is the stray.
    assert_eq!(next.confirm().unwrap_err().kind(), Kind::Indeterminate);
    assert_eq!(one.confirm().unwrap_err().kind(), Kind::Indeterminate);
    assert_eq!(newest(&root), seen);
}

#[test]
fn a_link_whose_answer_was_lost_is_recognised() {
    let folder = folder();
    let root = root(&folder);
    make_swaps(&root, 3);
    let attempt = prepare(&root, current(&root).as_ref());
    assert!(attempt.publish().unwrap());
    assert!(attempt.publish().unwrap(), "the client sent the link again and was told that it exists");
    assert!(matches!(attempt.confirm().unwrap(), Swap::Done { .. }));
}

#[test]
fn a_number_that_a_crash_freed_is_not_won_again_once_it_was_followed() {
    for lost in 1..4 {
        let folder = folder();
        let root = root(&folder);
        make_swaps(&root, 3);
        let sleeper = prepare(&root, current(&root).as_ref());
        make_swaps(&root, lost + 1);
        let seen = newest(&root);
        // Their folder's sync failed, a durable version followed them, and then the power failed.
        for number in 4..4 + lost {
            std::fs::remove_file(root.folder(&key()).join(layout::file_of(number))).unwrap();
        }
        assert!(sleeper.publish().unwrap(), "the number is free");
        assert_eq!(sleeper.confirm().unwrap_err().kind(), Kind::Indeterminate, "{lost} lost");
        assert_eq!(newest(&root), seen);
    }
}

#[test]
fn nothing_is_left_in_the_staging_folder() {
    let folder = folder();
    let root = root(&folder);
    make_swaps(&root, 5);
    drop(prepare(&root, current(&root).as_ref()));
    assert_eq!(std::fs::read_dir(folder.path().join("store/tmp")).unwrap().count(), 0);
}

#[test]
fn a_damaged_version_is_corrupt_and_stays_as_it_is() {
    let folder = folder();
    let root = root(&folder);
    make_swaps(&root, 2);
    let expected = current(&root).unwrap();
    let file = root.folder(&key()).join(layout::file_of(2));
    let damaged = [&b"leasehold-version-9"[..], &std::fs::read(&file).unwrap()[19..]].concat();
    std::fs::write(&file, &damaged).unwrap();
    assert_eq!(root.newest(&root.folder(&key())).unwrap_err().kind(), Kind::Corrupt);
    let swap = Attempt::run(&root, &key(), Some(&expected), Some(b"x"));
    assert_eq!(swap.unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(std::fs::read(&file).unwrap(), damaged);
}

#[test]
fn a_symlink_is_not_followed() {
    let folder = folder();
    let root = root(&folder);
    make_swaps(&root, 1);
    let elsewhere = folder.path().join("elsewhere");
    std::fs::rename(root.folder(&key()).join(layout::file_of(1)), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, root.folder(&key()).join(layout::file_of(1))).unwrap();
    let error = root.newest(&root.folder(&key())).unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.to_string().starts_with("cannot read"), "{error}");
}

/// How far an actor of the random schedule is in its swap.
enum Step<'root> {
    Idle,
    Prepared(Attempt<'root>, Option<Revision>),
    Published(Attempt<'root>, Option<Revision>),
}

/// Any order of the steps of five actors, three of them slow: every revision is followed by at most one `Done`.
#[test]
fn in_any_order_each_revision_has_one_winner() {
    let seed = leasehold_core::Nonce::random().as_u128() as u64 | 1;
    println!("seed {seed}");
    let mut state = seed;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let folder = folder();
    let root = root(&folder);
    let mut actors: Vec<Step<'_>> = (0..5).map(|_| Step::Idle).collect();
    let mut followed: HashMap<Option<Revision>, Revision> = HashMap::new();
    let (mut done, mut unknown) = (0, 0);
    for _ in 0..6_000 {
        // Actors 2 to 4 are suspended most of the time.
        let at = if random(100) < 96 { random(2) } else { 2 + random(3) } as usize;
        actors[at] = match std::mem::replace(&mut actors[at], Step::Idle) {
            Step::Idle => {
                let expected = current(&root);
                let bytes = if random(10) == 0 { None } else { Some(b"x".as_slice()) };
                let bytes = if expected.is_none() { Some(b"x".as_slice()) } else { bytes };
                match Attempt::prepare(&root, &key(), expected.as_ref(), bytes).unwrap() {
                    // A version after an erase expects nothing; the folder shows which erase it follows.
                    Some(attempt) => {
                        let base = newest(&root).map(|(mark, _)| mark.revision());
                        Step::Prepared(attempt, base)
                    }
                    None => Step::Idle,
                }
            }
            Step::Prepared(attempt, base) => match attempt.publish().unwrap() {
                true => Step::Published(attempt, base),
                false => Step::Idle,
            },
            Step::Published(attempt, base) => {
                match attempt.confirm() {
                    Ok(Swap::Done { revision, .. }) => {
                        done += 1;
                        let other = followed.insert(base.clone(), revision.clone());
                        assert_eq!(other, None, "seed {seed}: {base:?} is followed by {revision:?} too");
                    }
                    Ok(Swap::Mismatch) => panic!("seed {seed}: a published version was a mismatch"),
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Indeterminate, "seed {seed}: {error}");
                        unknown += 1;
                    }
                }
                Step::Idle
            }
        };
    }
    assert!(done > 500, "seed {seed}: only {done} swaps were done");
    assert!(unknown > 0, "seed {seed}: nobody slept for long enough to matter");
    let highest = newest(&root).unwrap().0.number;
    let published = done + unknown + actors.iter().filter(|actor| matches!(actor, Step::Published(..))).count() as u64;
    assert!((done..=published).contains(&highest), "seed {seed}: {done} done, {unknown} unknown, highest {highest}");
}
