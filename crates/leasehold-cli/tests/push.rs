//! `push` and `run --guard git:`: the real binary, real git, and every input that is refused.

#![allow(clippy::unwrap_used)]

mod common;

use common::remote::Remote;
use common::{Done, Home, On, descendants, eventually, is_alive, signal};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_push_lands_for_the_holder_and_is_refused_for_the_one_before() {
    let remote = Remote::new();
    remote.git("work", &["checkout", "-q", "-b", "lone"]);
    let done = remote.push(&remote.token, &["--json"]).expect(64);
    assert!(done.stderr.contains("leasehold push origin lone"), "{}", done.stderr);
    remote.git("work", &["checkout", "-q", "main"]);
    let done = remote.push(&remote.token, &["--json"]).expect(0);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(json, serde_json::json!({ "resource": "git:origin", "epoch": 1, "strength": "atomic" }));
    remote.commit("two");
    remote.push(&remote.token, &[]).expect(0);
    assert_eq!(remote.subject("main"), "two");
    let newer = remote.transfer();
    remote.commit("three");
    // The store knows already; so it is refused before the fence has heard of it.
    let refused = remote.push(&remote.token, &[]).expect(13);
    assert!(refused.stderr.contains("stale epoch refused: resource=`git:origin` held=1 seen=2"), "{}", refused.stderr);
    remote.push(&newer, &[]).expect(0);
    assert_eq!(remote.subject("main"), "three");
    // Without any store, the fence alone refuses.
    remote.commit("four");
    let refused = remote.push(&remote.token, &["--store", "dir:/nowhere/at/all"]).expect(13);
    assert!(refused.stderr.contains("held=1 seen=2"), "{}", refused.stderr);
    assert_eq!(remote.subject("main"), "three");
}

#[test]
fn one_push_per_epoch_where_that_is_asked_for() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main", "--once"]).expect(0);
    remote.commit("two");
    let refused = remote.push(&remote.token, &["origin", "main", "--once"]).expect(13);
    assert!(refused.stderr.contains("admits one write per epoch, 1 has had it"), "{}", refused.stderr);
    assert_eq!(remote.subject("main"), "one");
}

#[test]
fn a_branch_that_is_behind_is_rebased_only_when_that_is_asked_for() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    remote.git(".", &["clone", "-q", "remote.git", "other"]);
    fs::write(remote.home.path("other/theirs"), "x").unwrap();
    remote.git("other", &["add", "theirs"]);
    remote.git("other", &["-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-q", "-m", "theirs"]);
    remote.git("other", &["push", "-q"]);
    fs::write(remote.home.path("work/ours"), "x").unwrap();
    remote.git("work", &["add", "ours"]);
    remote.git("work", &["commit", "-q", "-m", "ours"]);
    let refs = remote.refs();
    let refused = remote.push(&remote.token, &["origin", "main"]).expect(69);
    assert!(refused.stderr.contains("--rebase"), "{}", refused.stderr);
    assert_eq!(remote.refs(), refs);
    remote.push(&remote.token, &["origin", "main", "--rebase"]).expect(0);
    assert_eq!(remote.subject("main"), "ours");
    assert_eq!(remote.subject("main^"), "theirs");
    // A conflict is for people: the branch is as it was.
    remote.git("other", &["pull", "-q", "--ff-only"]);
    for (folder, text) in [("other", "1"), ("work", "2")] {
        fs::write(remote.home.path(folder).join("ours"), text).unwrap();
    }
    remote.git("other", &["-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-q", "-am", "conflict"]);
    remote.git("other", &["push", "-q"]);
    remote.git("work", &["commit", "-q", "-am", "mine"]);
    let head = remote.git("work", &["rev-parse", "HEAD"]);
    let refused = remote.push(&remote.token, &["origin", "main", "--rebase=3"]).expect(69);
    assert!(refused.stderr.contains("your branch is as it was"), "{}", refused.stderr);
    assert_eq!(remote.git("work", &["rev-parse", "HEAD"]), head);
    assert_eq!(remote.git("work", &["for-each-ref", "refs/leasehold"]), "");
    // While it rebases the lease goes on to somebody else: nothing more is tried.
    remote.transfer();
    remote.push(&remote.token, &["origin", "+main", "--rebase"]).expect(13);
    assert_eq!(remote.subject("main"), "conflict");
}

#[test]
fn a_run_shuts_older_holders_out_before_the_command_starts() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    remote.home.done(&["release", "--token", &remote.token]).expect(0);
    let script = "git -C ../remote.git log -1 --format=%B refs/fence/job >../seen; git commit -q --allow-empty -m two; leasehold push origin main";
    let words = ["run", "job", "--guard", "git:origin", "--", "sh", "-c", script];
    let done = Done::from(remote.home.leasehold(&words).current_dir(remote.home.path("work")).output().unwrap());
    done.expect(0);
    assert!(remote.home.read("seen").contains("epoch: 2\n"), "{}", remote.home.read("seen"));
    assert!(remote.home.read("seen").contains("seq: 0\n"), "{}", remote.home.read("seen"));
    assert_eq!(remote.subject("main"), "two");
    // A remote that is none is refused before the lease is taken.
    let words = ["run", "job", "--guard", "git:nowhere", "--", "true"];
    let done =
        Done::from(remote.home.leasehold(&words).current_dir(remote.home.path("work")).output().unwrap()).expect(64);
    assert!(done.stderr.contains("there is no remote of that name"), "{}", done.stderr);
    assert_eq!(remote.home.show("job")["epoch"], 2);
    let words = ["run", "job", "--guard", "git:../gone.git", "--", "true"];
    Done::from(remote.home.leasehold(&words).current_dir(remote.home.path("work")).output().unwrap()).expect(69);
}

#[test]
fn a_rolled_back_store_is_distinguished_and_healed() {
    let remote = Remote::new();
    let (store, copy) = (remote.home.path("leases"), remote.home.path("copy"));
    let restore = |from: &Path, to: &Path| {
        let _ = fs::remove_dir_all(to);
        assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    };
    restore(&store, &copy);
    let newer = remote.transfer();
    remote.push(&newer, &["origin", "main"]).expect(0);
    // The store is restored from before the hand-off, and grants epoch 2 once more.
    restore(&copy, &store);
    let again = remote.transfer();
    assert!(again.starts_with("job:2:"), "{again}");
    remote.commit("two");
    let refused = remote.push(&again, &["origin", "main"]).expect(65);
    let heal = "leasehold advance job --past 2 --store ";
    assert!(refused.stderr.contains("store regressed") && refused.stderr.contains(heal), "{}", refused.stderr);
    // And with a lower epoch than the fence has seen, though the store says that it holds the lease.
    restore(&copy, &store);
    let refused = remote.push(&remote.token, &["origin", "main"]).expect(65);
    assert!(refused.stderr.contains(heal), "{}", refused.stderr);
    remote.home.done(&["advance", "job", "--past", "2", "--why", "store was restored"]).expect(0);
    let healed = remote.acquire("job");
    remote.push(&healed, &["origin", "main"]).expect(0);
    assert_eq!(remote.subject("main"), "two");
    // A store that was lost and created again has another line of epochs, whatever its number.
    fs::remove_dir_all(&store).unwrap();
    let begun_anew = remote.acquire("job");
    remote.commit("three");
    let refused = remote.push(&begun_anew, &["origin", "main"]).expect(64);
    assert!(refused.stderr.contains("not this lease"), "{}", refused.stderr);
    assert_eq!(remote.subject("main"), "two");
}

#[test]
fn fences_may_be_branches_or_tags() {
    for namespace in ["refs/heads/00-fence", "refs/tags/fence", "refs/heads/zz-fence/"] {
        let remote = Remote::new();
        remote.git("remote.git", &["config", "receive.hideRefs", "refs/fence"]);
        let refused = remote.push(&remote.token, &["origin", "main"]).expect(78);
        assert!(refused.stderr.contains("--fence-namespace"), "{}", refused.stderr);
        assert_eq!(remote.refs(), "");
        remote.push(&remote.token, &["origin", "main", "--fence-namespace", namespace]).expect(0);
        let newer = remote.transfer();
        remote.commit("two");
        remote.push(&newer, &["origin", "main", "--fence-namespace", namespace]).expect(0);
        remote.commit("three");
        let words = ["origin", "main", "--fence-namespace", namespace, "--store", "dir:/nowhere/at/all"];
        remote.push(&remote.token, &words).expect(13);
        assert_eq!(remote.subject("main"), "two");
        assert!(remote.refs().contains(&format!("{}/job", namespace.trim_end_matches('/'))), "{}", remote.refs());
    }
}

/// A run and its pushes keep their fences in one place, whoever says where; and so does whoever comes too late.
#[test]
fn a_run_seals_where_its_pushes_look() {
    let remote = Remote::new();
    let (tags, nowhere) = ("refs/tags/fence", "dir:/nowhere/at/all");
    let run = |variable: Option<&str>, words: &[&str]| {
        let mut command = remote.home.leasehold(&[&["run", "job"], words].concat());
        command.envs(variable.map(|value| ("LEASEHOLD_FENCE_NAMESPACE", value)));
        Done::from(command.current_dir(remote.home.path("work")).output().unwrap())
    };
    remote.push(&remote.token, &["origin", "main", "--fence-namespace", tags]).expect(0);
    remote.home.done(&["release", "--token", &remote.token]).expect(0);
    run(None, &["--guard", "git:origin", "--fence-namespace", tags, "--", "true"]).expect(0);
    assert!(!remote.refs().contains("refs/fence/"), "{}", remote.refs());
    remote.commit("too late");
    let stale =
        remote.push(&remote.token, &["origin", "main", "--fence-namespace", tags, "--store", nowhere]).expect(13);
    assert!(stale.stderr.contains("held=1 seen=2"), "{}", stale.stderr);
    // The pushes of its command need no flag; nor does the run, if the variable says it.
    let push = ["--", "leasehold", "push", "origin", "main"];
    for (variable, words) in
        [(None, &["--fence-namespace", tags][..]), (Some(tags), &[]), (Some("refs/x"), &["--fence-namespace", tags])]
    {
        remote.commit("in time");
        run(variable, &[&["--guard", "git:origin"], words, &push].concat()).expect(0);
        assert_eq!(remote.refs().lines().count(), 2, "{}", remote.refs());
        assert_eq!(remote.subject("main"), "in time");
    }
    // Without a guard it is handed on all the same.
    let done = run(None, &["--fence-namespace", tags, "--", "printenv", "LEASEHOLD_FENCE_NAMESPACE"]).expect(0);
    assert_eq!(done.stdout.trim(), tags);
    // A wrong one is named by where it came from, before anything is taken.
    let epoch = remote.home.show("job")["epoch"].clone();
    let wrong = run(None, &["--fence-namespace", "refs/", "--", "true"]).expect(64);
    assert!(wrong.stderr.contains("`refs/`: it names nothing below `refs/`"), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("--fence-namespace"), "{}", wrong.stderr);
    let wrong = run(Some("refs/remotes/x"), &["--guard", "git:origin", "--", "true"]).expect(64);
    assert!(
        wrong.stderr.contains("LEASEHOLD_FENCE_NAMESPACE") && wrong.stderr.contains("git uses it itself"),
        "{}",
        wrong.stderr
    );
    assert_eq!(remote.home.show("job")["epoch"], epoch);
}

/// What is said of a push that failed is the reason, whole, and not that it failed.
#[test]
fn the_reason_of_a_refused_push_is_reported_in_full() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    let head = remote.git("work", &["rev-parse", "HEAD"]);
    let refused = remote.push(&remote.token, &["origin", &format!("{head}:somewhere")]).expect(64);
    assert!(refused.stderr.contains("(i.e., starting with \"refs/\")"), "{}", refused.stderr);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    // A remote that cannot store anything would not store a fence of another name either.
    remote.git("remote.git", &["config", "receive.maxInputSize", "1"]);
    remote.commit("two");
    let refused = remote.push(&remote.token, &["origin", "main"]).expect(69);
    let says = "the remote could not store what was sent: resource=`git:origin`:";
    assert!(refused.stderr.contains(says), "{}", refused.stderr);
    assert!(refused.stderr.contains("pack exceeds maximum allowed size"), "{}", refused.stderr);
    let newer = remote.acquire("another");
    let refused = remote.push(&newer, &["origin", "main"]).expect(69);
    assert!(refused.stderr.contains(says) && !refused.stderr.contains("--fence-namespace"), "{}", refused.stderr);
}

#[test]
fn a_push_that_is_told_to_end_takes_git_with_it() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    remote.commit("two");
    let refs = remote.refs();
    let hook = remote.home.path("remote.git/hooks/pre-receive");
    let (reached, go) = (remote.home.path("reached"), remote.home.path("go"));
    let script = format!(
        "#!/bin/sh\n: >'{0}'\nwhile [ -e '{0}' ] && [ ! -e '{1}' ]; do sleep 0.05; done\n",
        reached.display(),
        go.display()
    );
    fs::write(&hook, script).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    for (name, code) in [("TERM", 143), ("INT", 130)] {
        let mut command = remote.home.leasehold(&["push", "--token", &remote.token, "origin", "main"]);
        let command = command.current_dir(remote.home.path("work")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = common::Running::from(command.spawn().unwrap());
        eventually("the remote's hook runs", || reached.exists());
        let below = descendants(running.pid());
        assert!(below.len() > 2, "{below:?}");
        signal(running.pid(), name);
        let ended = running.end();
        assert_eq!(ended.code, code, "{ended:?}");
        assert!(ended.stderr.contains("git was stopped too"), "{ended:?}");
        let left: Vec<_> = below.into_iter().filter(|pid| is_alive(*pid)).collect();
        assert_eq!(left, Vec::<i32>::new(), "{name}");
        assert_eq!(remote.refs(), refs, "{name}");
        fs::remove_file(&reached).unwrap();
    }
    // Nothing was left that holds up the next one.
    fs::write(&go, "").unwrap();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    assert_eq!(remote.subject("main"), "two");
}

#[test]
fn every_name_of_a_lease_has_a_fence_of_its_own() {
    let remote = Remote::new();
    let leases = ["a", "a/b", "a/b/c", "x.lock", "..x", "y.", "HEAD", "a..b"];
    for lease in leases {
        let token = remote.acquire(lease);
        remote.push(&token, &["origin", "+main"]).expect(0);
        remote.commit(lease);
    }
    assert_eq!(remote.refs().lines().filter(|line| line.contains("refs/fence/")).count(), leases.len());
    remote.git("remote.git", &["fsck", "--strict"]);
}

#[test]
fn hooks_credentials_and_old_gits() {
    let remote = Remote::new();
    // The user's own hook has its say, and nothing is pushed.
    let hook = remote.home.path("work/.git/hooks/pre-push");
    fs::write(&hook, "#!/bin/sh\necho the hook says no >&2\nexit 1\n").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = remote.push(&remote.token, &["origin", "main"]).expect(78);
    let says = "refused by the pre-push hook: resource=`git:origin`: the hook says no; nothing was pushed";
    assert!(refused.stderr.contains(says), "{}", refused.stderr);
    assert_eq!(remote.refs(), "");
    fs::write(&hook, "#!/bin/sh\necho the hook says yes >&2\n").unwrap();
    let done = remote.push(&remote.token, &["origin", "main"]).expect(0);
    assert!(done.stderr.contains("the hook says yes"), "{}", done.stderr);
    // What git says before it asks the hook is not put down to it.
    fs::write(&hook, "#!/bin/sh\nexit 1\n").unwrap();
    let refused = remote.push(&remote.token, &["origin", "nobody"]).expect(64);
    assert!(refused.stderr.contains("src refspec") && !refused.stderr.contains("pre-push"), "{}", refused.stderr);
    fs::remove_file(&hook).unwrap();
    // No password is shown, whether from the flag or from git's settings.
    let url = "http://joe:s3cret@127.0.0.1:1/x.git";
    remote.git("work", &["remote", "add", "far", url]);
    for name in [url, "far"] {
        let refused = remote.push(&remote.token, &[name, "main"]).expect(69);
        assert!(!refused.stderr.contains("s3cret"), "{}", refused.stderr);
    }
    let notes = fs::read_dir(remote.home.path("work/.git/leasehold")).unwrap();
    for note in notes {
        assert!(!fs::read_to_string(note.unwrap().path()).unwrap().contains("s3cret"));
    }
    // A git that is too old is told apart; so is none.
    let bin = remote.home.path("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("git"), "#!/bin/sh\n[ \"$1\" = version ] && echo git version 2.24.4 && exit\nexec /usr/bin/env -u GIT_TRACE2_EVENT PATH=\"$REST\" git \"$@\"\n").unwrap();
    fs::set_permissions(bin.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
    let rest = std::env::var("PATH").unwrap();
    let words = ["push", "--token", &remote.token, "origin", "main"];
    let mut command = remote.home.leasehold(&words);
    command.current_dir(remote.home.path("work")).env("REST", &rest).env("PATH", format!("{}:{rest}", bin.display()));
    let refused = Done::from(command.output().unwrap()).expect(78);
    assert!(refused.stderr.contains("git 2.24 is too old: 2.25 or newer"), "{}", refused.stderr);
    let mut command = remote.home.leasehold(&words);
    let refused =
        Done::from(command.current_dir(remote.home.path("work")).env("PATH", "/nowhere").output().unwrap()).expect(78);
    assert!(refused.stderr.contains("`git` is not on the PATH"), "{}", refused.stderr);
}

#[test]
fn a_fence_is_given_to_the_lease_of_another_store() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    let elsewhere = ["--store", "dir:elsewhere"];
    let acquire = [&["acquire", "job", "--ttl", "24h"][..], &elsewhere].concat();
    let in_work = |words: &[&str]| {
        Done::from(remote.home.leasehold(words).current_dir(remote.home.path("work")).output().unwrap())
    };
    let second = in_work(&acquire).expect(0).stdout.trim().to_owned();
    remote.commit("two");
    let refused = remote.push(&second, &[&["origin", "main"][..], &elsewhere].concat()).expect(64);
    assert!(refused.stderr.contains("not this lease"), "{}", refused.stderr);
    let adopt = ["adopt", "git:origin", "--token", &second, "--why", "the old store goes away"];
    in_work(&[&adopt[..], &elsewhere].concat()).expect(0);
    let refused = remote.push(&remote.token, &["origin", "main"]).expect(64);
    assert!(refused.stderr.contains("not this lease"), "{}", refused.stderr);
    assert_eq!(remote.subject("main"), "one");
    remote.push(&second, &[&["origin", "main"][..], &elsewhere].concat()).expect(0);
    assert_eq!(remote.subject("main"), "two");
}

/// Some of what git says is known by its words alone: these are the words of the git at hand.
#[test]
fn what_git_says_is_understood() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    let blob = remote.git("work", &["hash-object", "-w", "-t", "blob", "/dev/null"]);
    let tip = remote.git("work", &["rev-parse", "main"]);
    let before = remote.refs();
    for (refspec, says) in [
        (format!("{blob}:refs/heads/blob"), "non-commit object"),
        (format!("{tip}:nowhere"), "not a full refname"),
        ("main~99:main".to_owned(), "src refspec"),
    ] {
        let refused = remote.push(&remote.token, &["origin", &refspec]).expect(64);
        assert!(refused.stderr.contains(says), "{refspec}: {}", refused.stderr);
    }
    remote.git("remote.git", &["config", "receive.advertiseAtomic", "false"]);
    let refused = remote.push(&remote.token, &["origin", "main:other"]).expect(78);
    assert!(refused.stderr.contains("does not support --atomic"), "{}", refused.stderr);
    let heads =
        |refs: &str| refs.lines().filter(|line| line.contains("refs/heads")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(heads(&remote.refs()), heads(&before));
    // Where git does not know who is at work, it is told, in either object format.
    remote.git(".", &["init", "-q", "--bare", "--object-format=sha256", "-b", "main", "long.git"]);
    remote.git(".", &["init", "-q", "--object-format=sha256", "-b", "main", "long"]);
    remote.git(
        "long",
        &["-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-q", "--allow-empty", "-m", "one"],
    );
    remote.git("long", &["config", "user.useConfigOnly", "true"]);
    let words = ["push", "--token", &remote.token, "../long.git", "main"];
    Done::from(remote.home.leasehold(&words).current_dir(remote.home.path("long")).output().unwrap()).expect(0);
    let author = ["log", "-1", "--format=%an <%ae> %cn <%ce>", "refs/fence/job"];
    let ours = "leasehold <leasehold@localhost>";
    assert_eq!(remote.git("long.git", &author), format!("{ours} {ours}"));
}

#[test]
fn no_password_is_left_in_the_repository() {
    let remote = Remote::new();
    let server = leasehold_testbed::git_http();
    let url = server.url(&remote.home.path("remote.git")).replacen("://", "://someone:hunter2@", 1);
    remote.push(&remote.token, &[&url, "main"]).expect(0);
    let found = Command::new("grep").args(["-rl", "hunter2", ".git"]).current_dir(remote.home.path("work")).output();
    assert_eq!(String::from_utf8(found.unwrap().stdout).unwrap(), "", "these files have it");
}

#[test]
fn a_second_push_starts_three_gits_and_sees_every_change_of_the_settings() {
    let remote = Remote::new();
    let (bin, log, rest) = (remote.home.path("bin"), remote.home.path("log"), std::env::var("PATH").unwrap());
    fs::create_dir(&bin).unwrap();
    let script = format!("#!/bin/sh\necho \"$1\" >>'{}'\nPATH='{rest}' exec git \"$@\"\n", log.display());
    fs::write(bin.join("git"), script).unwrap();
    fs::set_permissions(bin.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
    let push_in = |folder: &str| {
        let _ = fs::remove_file(&log);
        let mut command = remote.home.leasehold(&["push", "--token", &remote.token, "origin", "main"]);
        command.current_dir(remote.home.path(folder)).env("PATH", format!("{}:{rest}", bin.display()));
        let done = Done::from(command.output().unwrap());
        let mut started: Vec<String> =
            fs::read_to_string(&log).unwrap_or_default().lines().map(str::to_owned).collect();
        // Git starts itself again for what it does on its way.
        let on_its_way =
            ["send-pack", "receive-pack", "pack-objects", "unpack-objects", "rev-list", "maintenance", "gc"];
        started.retain(|verb| !on_its_way.contains(&&**verb));
        // Two of them start at the same time.
        started.sort_unstable();
        (done, started)
    };
    let push = || push_in("work");
    let (done, started) = push();
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(started.len() > 3, "{started:?}");
    for message in ["two", "three"] {
        remote.commit(message);
        let (done, started) = push();
        assert_eq!((done.code, started.join(" ")), (0, "commit-tree config push".to_owned()), "{}", done.stderr);
        assert_eq!(remote.git("remote.git", &["log", "-1", "--format=%s", "main"]), message);
    }
    // Every worktree, and every folder of one, knows the fence that another has moved.
    remote.git("work", &["worktree", "add", "-q", "--detach", "../beside"]);
    fs::create_dir(remote.home.path("work/below")).unwrap();
    for (folder, starts) in [("beside", "commit-tree config push"), ("work/below", "commit-tree config push rev-parse")]
    {
        remote.commit(folder);
        let (done, started) = push_in(folder);
        assert_eq!((done.code, started.join(" ")), (0, starts.to_owned()), "{folder}: {}", done.stderr);
        assert_eq!(remote.git("remote.git", &["log", "-1", "--format=%s", "main"]), folder);
    }
    // The fence's commit is one that git has nothing against, and its author is the one that git knows.
    remote.git("remote.git", &["fsck", "--strict", "--no-dangling"]);
    assert_eq!(remote.git("remote.git", &["log", "-1", "--format=%cn <%ce>", "refs/fence/job"]), "a <a@localhost>");
    remote.commit("four");
    let refused = |says: &str| {
        let refs = remote.refs();
        let (done, started) = push();
        assert!(done.code == 78 && done.stderr.contains(says), "{says}: {done:?}");
        assert!(started.contains(&"config".to_owned()), "{started:?}");
        assert_eq!(remote.refs(), refs, "{says}");
    };
    remote.git("work", &["config", "remote.origin.mirror", "true"]);
    refused("is a mirror");
    remote.git("work", &["config", "--unset", "remote.origin.mirror"]);
    for url in ["../remote.git", "../other.git"] {
        remote.git("work", &["config", "--add", "remote.origin.pushurl", url]);
    }
    refused("has 2 push URLs");
    remote.git("work", &["config", "--unset-all", "remote.origin.pushurl"]);
    // Settings of the user's own, in a file that was not there before.
    remote.git("work", &["config", "--global", "remote.origin.mirror", "true"]);
    refused("is a mirror");
    remote.git("work", &["config", "--global", "--unset", "remote.origin.mirror"]);
    let (done, _) = push();
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(remote.git("remote.git", &["log", "-1", "--format=%s", "main"]), "four");
}

/// Words after `push --token T`, and the code they end with.
const HOSTILE: &[(&[&str], i32)] = &[
    (&["origin", "HEAD^{tree}:refs/heads/tree"], 64),
    (&["", "main"], 64),
    (&["--", "--upload-pack=touch pwned", "main"], 64),
    (&["--", "--receive-pack=touch pwned", "main"], 64),
    (&["--", "-oProxyCommand=touch pwned", "main"], 64),
    (&["--", "--mirror", "main"], 64),
    (&["--", "--all", "main"], 64),
    (&["--", "-f", "main"], 64),
    (&["--receive-pack=touch pwned", "main"], 64),
    (&["--mirror"], 64),
    (&["--force", "origin", "main"], 64),
    (&["--exec=touch pwned", "origin", "main"], 64),
    (&["ext::sh -c 'touch pwned'", "main"], 64),
    (&["ext::touch% pwned", "main"], 64),
    (&["fd::7", "main"], 64),
    (&["foo::bar", "main"], 64),
    (&["persistent-https::x", "main"], 64),
    (&["ssh://-oProxyCommand=touch pwned/x", "main"], 64),
    (&["ssh://joe@-oProxyCommand=touch pwned/x", "main"], 64),
    (&["-oProxyCommand=touch:x", "main"], 64),
    (&["origin\n--mirror", "main"], 64),
    (&["origin\t", "main"], 64),
    (&[" origin", "main"], 64),
    (&["origin ", "main"], 64),
    (&["orig\u{7}in", "main"], 64),
    (&["nowhere", "main"], 64),
    (&["twice", "main"], 78),
    (&["helper", "main"], 64),
    (&["mirrored", "main"], 78),
    (&["origin", ""], 64),
    (&["origin", ":"], 64),
    (&["origin", "+"], 64),
    (&["origin", "+:"], 64),
    (&["origin", "main:"], 64),
    (&["--", "origin", "--mirror"], 64),
    (&["--", "origin", "--prune"], 64),
    (&["--", "origin", "+--force"], 64),
    (&["--", "origin", "-d"], 64),
    (&["--", "origin", "main:-x"], 64),
    (&["origin", "^main"], 64),
    (&["origin", "*"], 64),
    (&["origin", "refs/*:refs/*"], 64),
    (&["origin", "+refs/*:refs/*"], 64),
    (&["origin", "refs/heads/*:refs/heads/*"], 64),
    (&["origin", ":refs/heads/*"], 64),
    (&["origin", "main:refs/fence/job"], 64),
    (&["origin", "main:refs/fence/other"], 64),
    (&["origin", "main:fence/other"], 64),
    (&["origin", ":refs/fence/job"], 64),
    (&["origin", ":fence/other"], 64),
    (&["origin", "+main:refs/fence"], 64),
    (&["origin", "main:refs/FENCE/job"], 64),
    (&["origin", "main:refs/fence/a%/b"], 64),
    (&["origin", "main:refs/heads/a b"], 64),
    (&["origin", "main:refs/heads/a\nb"], 64),
    (&["origin", "main:refs/heads/.hidden"], 64),
    (&["origin", "main:refs/heads/../../config"], 64),
    (&["origin", "main:refs/heads/x.lock"], 64),
    (&["origin", "main:refs/heads/x~1"], 64),
    (&["origin", "main:refs/heads/x^"], 64),
    (&["origin", "main:refs/heads/x:y"], 64),
    (&["origin", "main:refs//heads/x"], 64),
    (&["origin", "main:/x"], 64),
    (&["origin", "main:x/"], 64),
    (&["origin", "main:x@{1}"], 64),
    (&["origin", "main:@"], 64),
    (&["origin", "main:x\\y"], 64),
    (&["origin", "main:x?"], 64),
    (&["origin", "main:x["], 64),
    (&["origin", "nobody"], 64),
    (&["origin", "main", "main:refs/fence/x"], 64),
    (&["origin", "main", "--fence-namespace", "fence"], 64),
    (&["origin", "main", "--fence-namespace", "refs"], 64),
    (&["origin", "main", "--fence-namespace", "refs/"], 64),
    (&["origin", "main", "--fence-namespace", "refs/heads"], 64),
    (&["origin", "main", "--fence-namespace", "refs/heads/"], 64),
    (&["origin", "main", "--fence-namespace", "refs/remotes/x"], 64),
    (&["origin", "main", "--fence-namespace", "refs/heads/a b"], 64),
    (&["origin", "main", "--fence-namespace", "refs/heads/*"], 64),
    (&["origin", "main", "--fence-namespace", "refs/heads/../x"], 64),
    (&["origin", "main", "--fence-namespace", "-x"], 64),
    (&["origin", "main", "--fence-namespace="], 64),
    (&["origin", "main:00-fence/x", "--fence-namespace", "refs/heads/00-fence"], 64),
    (&["origin", "main", "--rebase=0"], 64),
    (&["origin", "main", "--rebase=1000"], 64),
    (&["origin", "main", "--rebase=x"], 64),
    (&["origin", "main", "--repo", "nowhere"], 64),
    (&["origin", "main", "--repo", "/"], 64),
    (&["origin", "main", "--repo", "--bare"], 64),
    (&["origin", "main", "--repo", ""], 64),
];

#[test]
fn hostile_words_are_refused_with_a_clear_line_and_change_nothing() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    remote.commit("two");
    remote.git("work", &["remote", "add", "twice", "../remote.git"]);
    remote.git("work", &["config", "--add", "remote.twice.url", "../other.git"]);
    remote.git("work", &["remote", "add", "helper", "ext::sh -c 'touch pwned'"]);
    remote.git("work", &["remote", "add", "mirrored", "../remote.git"]);
    remote.git("work", &["config", "remote.mirrored.mirror", "true"]);
    let refs = remote.refs();
    assert!(HOSTILE.len() >= 60);
    for (words, code) in HOSTILE {
        let done = remote.push(&remote.token, words);
        assert_eq!(done.code, *code, "{words:?}: {}", done.stderr);
        assert_eq!(done.stdout, "", "{words:?}");
        assert!(!done.stderr.contains("panicked"), "{words:?}: {}", done.stderr);
        let line = done.stderr.lines().next().unwrap_or_default();
        assert!(line.starts_with("leasehold: ") || line.starts_with("error: "), "{words:?}: {}", done.stderr);
        assert_eq!(remote.refs(), refs, "{words:?}");
    }
    for folder in ["", "work", "remote.git"] {
        assert!(!remote.home.path(folder).join("pwned").exists());
    }
}

#[test]
fn hostile_environments_and_hook_words_are_refused() {
    let remote = Remote::new();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    let refs = remote.refs();
    let nonce = "0".repeat(32);
    for token in [
        "",
        "job",
        "job:1",
        "-x:1:n:0",
        &format!("--mirror:0:{nonce}:{nonce}:0"),
        &format!("a b:1:{nonce}:{nonce}:0"),
        &format!("../x:1:{nonce}:{nonce}:0"),
    ] {
        let mut command = remote.home.leasehold(&["push", "origin", "main"]);
        let done =
            Done::from(command.current_dir(remote.home.path("work")).env("LEASEHOLD_TOKEN", token).output().unwrap());
        assert_eq!(done.code, 64, "{token}: {}", done.stderr);
    }
    // With --repo, nothing in the environment leads elsewhere.
    for (name, value) in [
        ("GIT_DIR", "/nowhere"),
        ("GIT_WORK_TREE", "/nowhere"),
        ("GIT_OBJECT_DIRECTORY", "/nowhere"),
        ("GIT_NAMESPACE", "x"),
    ] {
        remote.commit(name);
        let words = ["push", "origin", "main", "--repo", "work", "--token", &remote.token];
        Done::from(remote.home.leasehold(&words).env(name, value).output().unwrap()).expect(0);
        assert_eq!(remote.subject("main"), name);
    }
    assert_ne!(remote.refs(), refs);
    let refs = remote.refs();
    for protection in [
        "",
        "main=job",
        "refs/heads/main",
        "refs/heads/main=",
        "refs/heads/main=a b",
        "refs/heads/*x=job",
        "refs/fence/job=job",
        "-x=job",
        "refs/heads/a..b=job",
    ] {
        let done = remote.home.done(&["git-hook", "install", "--repo", "remote.git", "--protect", protection]);
        assert_eq!(done.code, 64, "{protection}: {}", done.stderr);
    }
    for hook in ["", "update", "../x", "-x"] {
        assert_eq!(remote.home.done(&["git-hook", "run", hook]).code, 64, "{hook}");
    }
    assert!(!remote.home.path("remote.git/hooks/reference-transaction").exists());
    assert_eq!(remote.refs(), refs);
}

/// The example of docs/guards/git.md, as it stands there.
#[test]
fn the_example_of_the_page_works() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guards/git.md")).unwrap();
    let script = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let home = Home::new(On::Sqlite);
    let mut command = Command::new("sh");
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap().display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    command.args(["-ec", script]).current_dir(home.folder.path()).env("HOME", home.folder.path()).env("PATH", path);
    command.env("LEASEHOLD_STORE", &home.store).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_AUTHOR_NAME", "a");
    command
        .env("GIT_AUTHOR_EMAIL", "a@localhost")
        .env("GIT_COMMITTER_NAME", "a")
        .env("GIT_COMMITTER_EMAIL", "a@localhost");
    let done = Done::from(command.output().unwrap()).expect(0);
    assert!(done.stderr.contains("stale epoch refused: resource=`git:origin` held=2 seen=3"), "{}", done.stderr);
    assert!(done.stdout.contains("the second report"), "{}", done.stdout);
}
