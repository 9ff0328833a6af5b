//! The hooks by which a git server refuses pushes that go around the fence: the real binary and real git.

#![allow(clippy::unwrap_used)]

mod common;

use common::Done;
use common::remote::Remote;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn a_second_install_keeps_what_the_first_protected() {
    let remote = Remote::new();
    let install =
        |protection: &str| remote.home.done(&["git-hook", "install", "--repo", "remote.git", "--protect", protection]);
    install("refs/heads/main=job").expect(0);
    let second = install("refs/heads/release/*=release").expect(0);
    for protection in ["refs/heads/main=job", "refs/heads/release/*=release"] {
        assert!(second.stderr.contains(&format!("protected: {protection}")), "{second:?}");
    }
    let refused = install("refs/heads/main=other").expect(64);
    assert!(refused.stderr.contains("is protected as `refs/heads/main=job` already"), "{refused:?}");
    let kept = remote.git("remote.git", &["config", "--get-all", "leasehold.protect"]);
    assert_eq!(kept, "refs/heads/main=job\nrefs/heads/release/*=release");
}

#[test]
fn a_servers_hooks_refuse_whoever_goes_around_the_fence() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    let install = ["git-hook", "install", "--repo", "remote.git", "--protect", "refs/heads/main=job"];
    remote.home.done(&install).expect(0);
    remote.home.done(&install).expect(0);
    remote.commit("two");
    let refused = |words: &[&str], why: &str| {
        let refs = remote.refs();
        let done = Done::from(remote.git_command("work", words).output().unwrap()).expect(1);
        assert!(done.stderr.contains(why), "{words:?}: {done:?}");
        assert_eq!(remote.refs(), refs, "{words:?}");
    };
    let is_fenced = "ref `refs/heads/main` is fenced by lease `job`";
    refused(&["push", "origin", "main"], is_fenced);
    refused(&["push", "--force", "origin", "main"], is_fenced);
    refused(&["push", "origin", ":main"], is_fenced);
    refused(&["push", "origin", ":refs/fence/job"], "fence `refs/fence/job` is never deleted");
    refused(&["push", "origin", "+main:refs/fence/job"], "`refs/fence/job` on the remote is not a fence");
    // With a fence that moves, but not in one transaction.
    let fence = remote.git("remote.git", &["rev-parse", "refs/fence/job"]);
    remote.git("work", &["fetch", "-q", "origin", "refs/fence/job"]);
    let text = remote.git("work", &["log", "-1", "--format=%B", &fence]);
    let tree = remote.git("work", &["rev-parse", &format!("{fence}^{{tree}}")]);
    let inscribed = |from: &str, to: &str| remote.git("work", &["commit-tree", &tree, "-m", &text.replace(from, to)]);
    let next = inscribed("seq: 1", "seq: 2");
    let mut apart = remote.git_command("work", &["push", "-f", "origin", &format!("{next}:refs/fence/job"), "main"]);
    let apart = Done::from(apart.output().unwrap()).expect(128);
    assert!(apart.stderr.contains(is_fenced), "{apart:?}");
    assert_eq!(remote.subject("main"), "one", "landed without --atomic");
    // With a fence that is set back, that stands still, or is of nobody.
    for (from, to, why) in [
        ("epoch: 1", "epoch: 0", "held=0 seen=1"),
        ("nonce: ", "nonce: 0", "a wrong `nonce`"),
        ("lease: job", "lease: jobs", "`refs/fence/job` is not the fence of lease `jobs`"),
        ("seq: 1", "seq: 0", "held seq=0 seen seq=2"),
        ("push: ", "pull: ", "no field `push`"),
        ("push: ", "push: ", "held seq=1 seen seq=2"),
    ] {
        let bad = inscribed(from, to);
        refused(&["push", "-f", "--atomic", "origin", &format!("{bad}:refs/fence/job"), "main"], why);
    }
    // The holder pushes, others push elsewhere, and housekeeping goes on.
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    assert_eq!(remote.subject("main"), "two");
    remote.git("work", &["push", "-q", "origin", "main:free"]);
    remote.git("remote.git", &["gc", "-q", "--prune=now"]);
    remote.git("remote.git", &["pack-refs", "--all"]);
    // A ref that is packed can no more be deleted than one that is not.
    for (name, why) in [("refs/heads/main", is_fenced), ("refs/fence/job", "is never deleted")] {
        let refs = remote.refs();
        let done = Done::from(remote.git_command("remote.git", &["update-ref", "-d", name]).output().unwrap());
        let done = done.expect(128);
        assert!(done.stderr.contains(why), "{name}: {done:?}");
        assert_eq!(remote.refs(), refs, "{name}");
    }
    // Seals pass, older holders do not, though they bring a fence.
    let newer = remote.transfer();
    remote.push(&newer, &["origin", "main"]).expect(0);
    remote.push(&remote.token, &["origin", "main", "--store", "dir:/nowhere/at/all"]).expect(13);
    // A hook that is somebody else's is not touched.
    fs::write(remote.home.path("remote.git/hooks/pre-receive"), "#!/bin/sh\n").unwrap();
    let refused = remote.home.done(&install).expect(78);
    assert!(refused.stderr.contains("not leasehold's"), "{}", refused.stderr);
    let not_bare =
        remote.home.done(&["git-hook", "install", "--repo", "work", "--protect", "refs/heads/main=job"]).expect(64);
    assert!(not_bare.stderr.contains("it is not bare"), "{}", not_bare.stderr);
}

/// What the refusal advises is what the next install takes.
#[test]
fn a_hook_of_others_that_runs_ours_is_kept_and_protects() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    let install =
        || remote.home.done(&["git-hook", "install", "--repo", "remote.git", "--protect", "refs/heads/main=job"]);
    let hook = remote.home.path("remote.git/hooks/pre-receive");
    let theirs = "#!/bin/sh\necho 'a word of theirs'\n";
    let write = |text: &str, mode: u32| {
        fs::write(&hook, text).unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(mode)).unwrap();
    };
    write(theirs, 0o755);
    let refused = install().expect(78);
    let line = refused.stderr.split("the line `").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
    for wrong in [format!("# {line}\n"), line.replace("pre-receive", "reference-transaction"), format!("{line}-not\n")]
    {
        write(&format!("{theirs}{wrong}"), 0o755);
        install().expect(78);
    }
    let joined = format!("{theirs}{line}\n");
    // git passes over a hook that cannot be executed.
    write(&joined, 0o644);
    let refused = install().expect(78);
    assert!(refused.stderr.contains("cannot be executed"), "{}", refused.stderr);
    assert!(!remote.git("remote.git", &["config", "--list"]).contains("leasehold."), "nothing was recorded");
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap().display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    let plain_push = || {
        let done = remote.git_command("work", &["push", "origin", "main"]).env("PATH", &path).output().unwrap();
        Done::from(done)
    };
    // Our line without our settings admits nothing.
    write(&joined, 0o755);
    remote.commit("two");
    let refused = plain_push().expect(1);
    assert!(refused.stderr.contains("leasehold git-hook install"), "{refused:?}");
    let done = install().expect(0);
    assert!(done.stderr.contains("kept") && done.stderr.contains("protected: refs/heads/main=job"), "{done:?}");
    assert_eq!(fs::read_to_string(&hook).unwrap(), joined);
    assert!(remote.home.path("remote.git/hooks/reference-transaction").exists());
    install().expect(0);
    let refused = plain_push().expect(1);
    assert!(refused.stderr.contains("is fenced by lease `job`"), "{refused:?}");
    assert!(refused.stderr.contains("a word of theirs"), "{refused:?}");
    assert_eq!(remote.subject("main"), "one");
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    assert_eq!(remote.subject("main"), "two");
}

/// Hooks that are kept elsewhere are installed by hand, as the page says.
#[test]
fn hooks_that_are_elsewhere_are_installed_by_hand() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    fs::create_dir(remote.home.path("hooks")).unwrap();
    let shared = remote.home.path("hooks").display().to_string();
    remote.git("remote.git", &["config", "core.hooksPath", &shared]);
    let words = ["git-hook", "install", "--repo", "remote.git", "--protect", "refs/heads/main=job"];
    let refused = remote.home.done(&words).expect(78);
    assert!(refused.stderr.contains("docs/guards/git.md"), "{refused:?}");
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guards/git.md")).unwrap();
    let (_, section) = page.split_once("\n### By hand\n").unwrap();
    let script: Vec<_> = section
        .lines()
        .skip(1)
        .skip_while(|line| !line.starts_with("    "))
        .take_while(|line| line.starts_with("    "))
        .collect();
    let script = script
        .join("\n")
        .replace("/srv/git/site.git", &remote.home.path("remote.git").display().to_string())
        .replace("=report", "=job");
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap().display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    let done = Command::new("sh").args(["-ec", &script]).current_dir(&shared).env("PATH", &path).output().unwrap();
    Done::from(done).expect(0);
    remote.commit("two");
    let refused =
        Done::from(remote.git_command("work", &["push", "origin", "main"]).env("PATH", &path).output().unwrap())
            .expect(1);
    assert!(refused.stderr.contains("is fenced by lease `job`"), "{refused:?}");
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    assert_eq!(remote.subject("main"), "two");
}
