//! The fire drill, on real resources: every stale write is refused, and nothing is left behind.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, Running, descendants, eventually, is_alive, signal};
use serde_json::Value;
#[cfg(feature = "full")]
use std::io::{Read, Write};
use std::process::{Command, Stdio};

fn drilled(home: &Home, guard: &str) -> Value {
    let done = home.done(&["drill", guard, "--json"]).expect(0);
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    let attempts = report["attempts"].as_array().unwrap();
    let came = |word: &str| attempts.iter().filter(|row| row["came"].as_str().unwrap().starts_with(word)).count();
    assert_eq!(report["safe"], true, "{report}");
    assert!(attempts.iter().all(|row| row["right"] == true), "{report}");
    // The zombie in the middle of its write, from the start and by a seal; and the second grant of one epoch.
    assert_eq!((came("refused"), came("refused: store regressed"), came("admitted")), (4, 1, 4), "{report}");
    report
}

#[test]
fn a_file_withstands_a_drill_and_is_left_as_it_was() {
    let home = Home::new(On::Sqlite);
    std::fs::create_dir(home.path("team")).unwrap();
    std::fs::write(home.path("team/out.json"), "precious").unwrap();
    let report = drilled(&home, "file:team/out.json");
    assert!(
        report["attempts"].as_array().unwrap().iter().any(|row| row["came"] == "written under epoch 2"),
        "{report}"
    );
    let left: Vec<_> = std::fs::read_dir(home.path("team")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out.json"]);
    assert_eq!(std::fs::read_to_string(home.path("team/out.json")).unwrap(), "precious");
}

#[test]
fn a_git_remote_withstands_a_drill_and_has_no_refs_left_of_it() {
    let home = Home::new(On::Sqlite);
    let remote = home.path("remote.git");
    assert!(Command::new("git").args(["init", "-q", "--bare"]).arg(&remote).status().unwrap().success());
    drilled(&home, &format!("git:{}", remote.display()));
    let refs = Command::new("git").arg("-C").arg(&remote).arg("for-each-ref").output().unwrap();
    assert!(refs.status.success() && refs.stdout.is_empty(), "{refs:?}");
}

/// JGit is the engine of Gerrit, and shares no code with git.
#[test]
fn a_remote_of_jgit_withstands_a_drill_and_has_no_refs_left_of_it() {
    let home = Home::new(On::Sqlite);
    let (remote, server) = (home.path("remote.git"), leasehold_testbed::git_jgit());
    assert!(Command::new("git").args(["init", "-q", "--bare"]).arg(&remote).status().unwrap().success());
    drilled(&home, &format!("git:{}", server.url(&remote)));
    let refs = Command::new("git").arg("-C").arg(&remote).arg("for-each-ref").output().unwrap();
    assert!(refs.status.success() && refs.stdout.is_empty(), "{refs:?}");
}

/// As for `push`, the fences may be elsewhere; and git takes a relative address from where the repository is.
#[test]
fn a_remote_is_found_and_fenced_as_git_and_the_flags_have_it() {
    let home = Home::new(On::Sqlite);
    let git = |folder: &str, words: &[&str]| {
        let done = Command::new("git").args(words).current_dir(home.path(folder)).output().unwrap();
        assert!(done.status.success(), "{words:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    git("", &["init", "-q", "--bare", "r.git"]);
    git("", &["init", "-q", "work"]);
    git("work", &["remote", "add", "origin", "../r.git"]);
    std::fs::create_dir(home.path("work/below")).unwrap();
    let drill = |folder: &str, words: &[&str], variable: Option<&str>| {
        let mut command = home.leasehold(&[&["drill", "git:origin"], words].concat());
        command.current_dir(home.path(folder)).envs(variable.map(|value| ("LEASEHOLD_FENCE_NAMESPACE", value)));
        Done::from(command.output().unwrap())
    };
    drill("work", &[], None).expect(0);
    drill("work/below", &[], None).expect(0);
    // A forge that takes only branches and tags.
    git("r.git", &["config", "receive.hideRefs", "refs/fence"]);
    let hidden = drill("work", &[], None).expect(78);
    assert!(hidden.stderr.contains("deny updating a hidden ref"), "{hidden:?}");
    drill("work", &["--fence-namespace", "refs/tags/fence"], None).expect(0);
    drill("work", &["--fence-namespace", "refs/tags/fence"], Some("refs/fence")).expect(0);
    drill("work", &[], Some("refs/tags/fence")).expect(0);
    assert_eq!(git("r.git", &["for-each-ref"]), "");
    let wrong = drill("work", &[], Some("x")).expect(64);
    assert!(wrong.stderr.contains("LEASEHOLD_FENCE_NAMESPACE"), "{wrong:?}");
}

/// Whoever ends a drill early finds things as they were.
#[test]
fn a_drill_that_is_told_to_end_leaves_nothing_behind() {
    let home = Home::new(On::Sqlite);
    std::fs::create_dir(home.path("tmp")).unwrap();
    std::fs::create_dir(home.path("team")).unwrap();
    assert!(Command::new("git").args(["init", "-q", "--bare"]).arg(home.path("r.git")).status().unwrap().success());
    let db = rusqlite::Connection::open(home.path("app.db")).unwrap();
    db.execute_batch("CREATE TABLE totals (n)").unwrap();
    // The pushes of the drill are held up there, but for those that remove what is left.
    let hook = home.path("r.git/hooks/pre-receive");
    let script = "#!/bin/sh\nread old new name\ncase $new in *[!0]*) ;; *) exit 0;; esac\nn=$(cat count 2>/dev/null)x\necho $n >count\n\
                  [ ${#n} -lt $(cat most) ] || { : >reached; while [ -e reached ]; do sleep 0.05; done; }\n";
    std::fs::write(&hook, script).unwrap();
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let listing = |folder: &str| -> Vec<_> {
        std::fs::read_dir(home.path(folder)).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    // The third push is the seal of the next holder, while the zombie is stopped.
    for (most, name, code) in [("1", "TERM", 143), ("2", "INT", 130), ("3", "TERM", 143), ("4", "INT", 130)] {
        let _ = std::fs::remove_file(home.path("r.git/count"));
        let _ = std::fs::remove_file(home.path("r.git/reached"));
        std::fs::write(home.path("r.git/most"), most).unwrap();
        let mut command = home.leasehold(&["drill", "git:r.git"]);
        command.env("TMPDIR", home.path("tmp")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = Running::from(command.spawn().unwrap());
        eventually("a push is held up", || home.path("r.git/reached").exists());
        let below = descendants(running.pid());
        assert!(!below.is_empty());
        signal(running.pid(), name);
        let ended = running.end();
        assert_eq!(ended.code, code, "{most}: {ended:?}");
        let left: Vec<_> = below.into_iter().filter(|pid| is_alive(*pid)).collect();
        assert_eq!(left, Vec::<i32>::new(), "{most}");
        let refs = Command::new("git").arg("-C").arg(home.path("r.git")).arg("for-each-ref").output().unwrap();
        assert!(refs.status.success() && refs.stdout.is_empty(), "{most}: {refs:?} {ended:?}");
        assert_eq!(listing("tmp"), Vec::<std::ffi::OsString>::new(), "{most}");
    }
    // A file and a database, at whatever point it hits.
    for guard in ["file:team/out.json", "sqlite:app.db", "sqlite:new.db"] {
        for wait in [0, 30, 80, 200] {
            let mut command = home.leasehold(&["drill", guard]);
            command.env("TMPDIR", home.path("tmp")).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut running = Running::from(command.spawn().unwrap());
            eventually("it has begun", || !listing("tmp").is_empty() || running.is_over());
            std::thread::sleep(std::time::Duration::from_millis(wait));
            let below = descendants(running.pid());
            signal(running.pid(), "TERM");
            let ended = running.end();
            assert!([0, 143].contains(&ended.code), "{guard} {wait}: {ended:?}");
            assert!(!below.into_iter().any(is_alive), "{guard} {wait}");
            assert_eq!((listing("tmp").len(), listing("team").len()), (0, 0), "{guard} {wait}: {ended:?}");
            assert!(!home.path("new.db").exists(), "{guard} {wait}: {ended:?}");
            let sql = "SELECT group_concat(name) FROM sqlite_master WHERE type = 'table'";
            let names: String = db.query_row(sql, [], |row| row.get(0)).unwrap();
            assert_eq!(names, "totals", "{guard} {wait}: {ended:?}");
        }
    }
}

/// Nothing is left of a drill that could not even begin.
#[cfg(feature = "full")]
#[test]
fn a_drill_that_cannot_be_set_up_leaves_no_folder() {
    let home = Home::new(On::Sqlite);
    std::fs::create_dir(home.path("tmp")).unwrap();
    std::fs::write(home.path("garbage.db"), "this is no database, and long enough to be seen as none".repeat(40))
        .unwrap();
    for (guard, why) in [
        ("postgres://postgres@127.0.0.1:1/postgres", "Connection refused"),
        ("mysql://root@127.0.0.1:1/leases", "Connection refused"),
        ("sqlite:garbage.db", "file is not a database"),
        ("sqlite:no/such/folder.db", "unable to open database file"),
    ] {
        let done = Done::from(home.leasehold(&["drill", guard]).env("TMPDIR", home.path("tmp")).output().unwrap());
        let done = done.expect(69);
        assert!(done.stderr.contains(why), "{guard}: {done:?}");
        assert_eq!(done.stderr.lines().count(), 2, "{guard}: what it is about, and what is wrong: {done:?}");
        assert_eq!(std::fs::read_dir(home.path("tmp")).unwrap().count(), 0, "{guard}: {done:?}");
    }
}

/// A server with our hooks never lets a fence go, but that of a drill; and one that lets nothing go is named.
#[test]
fn a_server_with_hooks_withstands_a_drill_and_has_no_refs_left_of_it() {
    let home = Home::new(On::Sqlite);
    let remote = home.path("remote.git");
    let git = |words: &[&str]| {
        let done = Command::new("git").arg("-C").arg(&remote).args(words).output().unwrap();
        assert!(done.status.success(), "{words:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    assert!(Command::new("git").args(["init", "-q", "--bare"]).arg(&remote).status().unwrap().success());
    let install = ["git-hook", "install", "--repo", "remote.git", "--protect"];
    home.done(&[&install[..], &["refs/heads/main=daily"]].concat()).expect(0);
    drilled(&home, &format!("git:{}", remote.display()));
    assert_eq!(git(&["for-each-ref"]), "");
    // The fence of a lease that protects something is no scratch, whatever its name.
    home.done(&[&install[..], &["refs/heads/x=leasehold-drill-00000000"]].concat()).expect(0);
    let url = remote.display().to_string();
    let push =
        |words: &[&str]| Command::new("git").args(["push", "-q", &url]).args(words).current_dir(home.path("")).output();
    assert!(Command::new("git").args(["init", "-q"]).current_dir(home.path("")).status().unwrap().success());
    let commit = "git -c user.name=a -c user.email=b@localhost commit -q --allow-empty -m x";
    assert!(Command::new("sh").args(["-c", commit]).current_dir(home.path("")).status().unwrap().success());
    for (lease, goes) in [("daily", false), ("leasehold-drill-00000000", false), ("leasehold-drill-11111111", true)] {
        let token = home.done(&["acquire", lease, "--ttl", "1h"]).expect(0).stdout;
        let branch = format!("HEAD:refs/heads/{}", if lease == "daily" { "main" } else { "x" });
        let branch = if goes { "HEAD:refs/heads/free".to_owned() } else { branch };
        home.done(&["push", &url, &branch, "--token", token.trim()]).expect(0);
        let gone = push(&[&format!(":refs/fence/{lease}")]).unwrap();
        assert_eq!(gone.status.code(), Some(if goes { 0 } else { 1 }), "{lease}: {gone:?}");
        let said = String::from_utf8_lossy(&gone.stderr);
        assert!(goes || said.contains("is never deleted"), "{lease}: {said}");
    }
    let hook = "#!/bin/sh\nwhile read old new name; do case $new in *[1-9a-f]*) ;; *) exit 1;; esac; done\n";
    std::fs::write(remote.join("hooks/update"), "#!/bin/sh\nexit 0\n").unwrap();
    std::fs::write(remote.join("hooks/pre-receive"), hook).unwrap();
    let done = home.done(&["drill", &format!("git:{url}")]);
    assert_eq!(done.code, 69, "{done:?}");
    assert!(done.stdout.contains("every stale write was refused"), "{done:?}");
    assert!(
        done.stderr.contains("did not let it remove its refs") && done.stderr.contains("update-ref -d"),
        "{done:?}"
    );
}

#[test]
fn a_database_withstands_a_drill_and_is_left_as_it_was() {
    let home = Home::new(On::Sqlite);
    let path = home.path("app.db");
    let url = format!("sqlite:{}", path.display());
    drilled(&home, &url);
    assert!(!path.exists(), "there was no database before");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch("CREATE TABLE totals (n)").unwrap();
    let names = || -> String {
        db.query_row("SELECT group_concat(name) FROM sqlite_master WHERE type = 'table'", [], |row| row.get(0)).unwrap()
    };
    drilled(&home, &url);
    assert_eq!(names(), "totals");
    home.done(&["sql", &url, "--init"]).expect(0);
    drilled(&home, &url);
    assert_eq!(names(), "totals,leasehold_fence", "a fence table that was there stays");
    let rows: i64 = db.query_row("SELECT count(*) FROM leasehold_fence", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 0);
}

#[cfg(feature = "full")]
#[test]
fn database_servers_withstand_a_drill_and_are_left_as_they_were() {
    let (postgres, mariadb) = (leasehold_testbed::postgres(), leasehold_testbed::mariadb());
    let home = Home::new(On::Sqlite);
    let tables = |name: &str| -> String {
        let sql = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'leasehold_fence' UNION ALL SELECT \
                   count(*) FROM information_schema.routines WHERE routine_name LIKE 'leasehold%'";
        let found = match name {
            "postgres" => postgres.sql(sql),
            _ => leasehold_testbed::mariadb_run(&mariadb, sql),
        };
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let rows = |name: &str| -> String {
        let found = match name {
            "postgres" => postgres.sql("SELECT count(*) FROM leasehold_fence"),
            _ => leasehold_testbed::mariadb_run(&mariadb, "SELECT count(*) FROM leases.leasehold_fence"),
        };
        found.trim().to_owned()
    };
    for (name, url, has) in [
        ("postgres", format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port()), "1 3"),
        ("mysql", format!("mysql://root@127.0.0.1:{}/leases", mariadb.port()), "1 0"),
    ] {
        drilled(&home, &url);
        assert_eq!(tables(name), "0 0", "{name}");
        home.done(&["sql", &url, "--init"]).expect(0);
        drilled(&home, &url);
        assert_eq!((tables(name).as_str(), rows(name).as_str()), (has, "0"), "{name}: what was there stays");
    }
}

#[cfg(feature = "full")]
#[test]
fn a_bucket_withstands_a_drill_and_has_no_objects_left_of_it() {
    let server = leasehold_testbed::moto();
    let home = Home::new(On::Sqlite);
    let bucket = leasehold_testbed::BUCKET;
    let options = format!("endpoint=http://127.0.0.1:{}", server.port());
    let report = drilled(&home, &format!("s3://id:secret@{bucket}/team/out.json?{options}"));
    assert!(!report.to_string().contains("secret"), "{report}");
    let mut listing = String::new();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    write!(stream, "GET /{bucket}?list-type=2 HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    stream.read_to_string(&mut listing).unwrap();
    assert!(listing.contains("<ListBucketResult") && listing.contains("<KeyCount>0</KeyCount>"), "{listing}");
    let done = home.done(&["drill", &format!("s3://id:secret@no-such-bucket/out.json?{options}")]).expect(78);
    assert!(done.stdout.is_empty() && done.stderr.contains("nothing was drilled"), "{done:?}");
    assert!(done.stderr.contains("no-such-bucket") && !done.stderr.contains("secret"), "{done:?}");
}

#[test]
fn what_cannot_be_drilled_on_is_refused_before_anything_is_made() {
    let home = Home::new(On::Sqlite);
    for guard in ["", "nonsense", "file:", "file:/", "git:", "git:--upload-pack=x", "git:ext::sh", "s3:", "http://x"] {
        let done = home.done(&["drill", guard]);
        assert!([64, 78].contains(&done.code), "{guard}: {done:?}");
    }
    for guard in ["http://u:hunter2@x", "https://x", "http:", "proxy:api", "mcp:api", "nonsense"] {
        let done = home.done(&["drill", guard]).expect(64);
        assert!(done.stderr.contains("file:PATH, git:REMOTE, sqlite:PATH"), "{guard}: {done:?}");
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
    }
    let done = home.done(&["drill", "file:no-such-folder/out.json"]).expect(64);
    assert!(done.stderr.contains("does not exist") && !home.path("no-such-folder").exists(), "{done:?}");
}
