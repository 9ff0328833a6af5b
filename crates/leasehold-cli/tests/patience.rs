//! Remotes that take a connection and never answer: whoever waits is told what for, gives up, and leaves nothing behind.

#![allow(clippy::unwrap_used)]

mod common;

use common::remote::Remote;
use common::{Done, Home, On, Running, descendants, eventually, is_alive, signal};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

/// Accepts, and says nothing.
struct Silent {
    port: u16,
    callers: Arc<Mutex<Vec<TcpStream>>>,
}

impl Silent {
    fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let callers: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let all = callers.clone();
        std::thread::spawn(move || listener.incoming().flatten().for_each(|caller| all.lock().unwrap().push(caller)));
        Silent { port, callers }
    }

    fn has_callers(&self) -> bool {
        !self.callers.lock().unwrap().is_empty()
    }
}

/// Starts a command that waits for an answer that never comes, with a folder for temporary files of its own.
fn start(home: &Home, args: &[&str]) -> Running {
    let _ = std::fs::create_dir(home.path("tmp"));
    let mut command = home.leasehold(args);
    command.env("TMPDIR", home.path("tmp")).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::from(command.spawn().unwrap())
}

/// Waits for its end: nothing that it started is alive, and nothing that it made is there.
fn end(home: &Home, running: Running, silent: &Silent) -> Done {
    eventually("it has called", || silent.has_callers());
    let below = descendants(running.pid());
    let done = running.end();
    assert!(!below.into_iter().any(is_alive), "{done:?}");
    assert_eq!(std::fs::read_dir(home.path("tmp")).unwrap().count(), 0, "{done:?}");
    done
}

fn says(done: &Done, words: &[&str]) {
    for word in words {
        assert!(done.stderr.contains(word), "{word}: {done:?}");
    }
}

/// All at once, for each takes as long as it is told to.
#[test]
fn each_verb_says_what_it_waits_for_and_gives_up() {
    let remote = Remote::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (silent, home) = (Silent::listen(), &remote.home);
            let url = format!("git://127.0.0.1:{}/r.git", silent.port);
            let words = ["push", "--repo", "work", "--token", &remote.token, "--timeout", "7s", &url, "main"];
            let done = end(home, start(home, &words), &silent).expect(69);
            says(&done, &["still waiting for `git:git://127.0.0.1", "to show its fence", "gives up after 7s"]);
            says(&done, &["gave up after 7s", "nothing had been pushed", "--timeout"]);
        });
        scope.spawn(|| {
            let (silent, home) = (Silent::listen(), Home::new(On::Sqlite));
            let url = format!("git:git://127.0.0.1:{}/r.git", silent.port);
            let done = end(&home, start(&home, &["drill", &url, "--timeout", "7s"]), &silent).expect(69);
            says(&done, &["still waiting for refs/heads/leasehold-drill-", "gives up after 7s", "gave up after 7s"]);
        });
        scope.spawn(|| {
            let (silent, home) = (Silent::listen(), Home::new(On::Sqlite));
            let url = format!("etcd://127.0.0.1:{}/", silent.port);
            if cfg!(feature = "full") {
                // It gives up before the store's own limits are all used up.
                let done = end(&home, start(&home, &["doctor", &url, "--timeout", "7s"]), &silent).expect(69);
                says(&done, &["still waiting for `etcd://127.0.0.1"]);
            }
        });
    });
}

/// A signal is heeded at once, however long the wait may be.
#[test]
fn a_signal_ends_the_wait() {
    for verb in ["push", "drill"] {
        let (silent, remote) = (Silent::listen(), Remote::new());
        let url = format!("git://127.0.0.1:{}/r.git", silent.port);
        let guard = format!("git:{url}");
        let words = match verb {
            "push" => vec!["push", "--repo", "work", "--token", &remote.token, &url, "main"],
            _ => vec!["drill", &guard],
        };
        let running = start(&remote.home, &words);
        eventually("it has called", || silent.has_callers());
        signal(running.pid(), "TERM");
        end(&remote.home, running, &silent).expect(143);
    }
}

#[test]
fn a_limit_has_to_be_one() {
    let remote = Remote::new();
    for words in [
        &["push", "--token", &remote.token, "--timeout", "0s", "remote.git", "main"][..],
        &["drill", "git:remote.git", "--timeout", "soon"],
        &["doctor", "--timeout", "1 fortnight"],
        &["doctor", "--timeout="],
    ] {
        let done = remote.home.done(words).expect(64);
        says(&done, &["--timeout"]);
    }
}

/// The remote stops answering between two pushes of one tenure. The second asks for nothing before it pushes, so whether it
/// landed is unknown.
#[test]
fn a_push_that_may_have_been_accepted_is_reported_as_such() {
    use leasehold_testbed::{Proxy, git_http};
    let remote = Remote::new();
    let server = git_http();
    let proxy = Proxy::start(server.server().port());
    let url = format!("http://127.0.0.1:{}/git{}", proxy.port(), remote.home.path("remote.git").display());
    remote.git("work", &["remote", "set-url", "origin", &url]);
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    remote.commit("two");
    proxy.freeze();
    let done = remote.push(&remote.token, &["--timeout", "2s", "origin", "main"]);
    assert_eq!(done.code, 70, "{done:?}");
    says(&done, &["gave up after 2s", "to take the push", "git ls-remote origin"]);
    proxy.thaw();
    remote.push(&remote.token, &["origin", "main"]).expect(0);
    assert_eq!(remote.subject("main"), "two");
}

/// It holds a lease on its scratch namespace, which would keep the next one out.
#[test]
fn a_doctor_that_is_told_to_end_empties_its_scratch_namespace() {
    let home = Home::new(On::Dir);
    let running = start(&home, &["doctor"]);
    // The namespace is a folder of its own, beside the leases.
    let url = home.store.strip_prefix("dir:").unwrap().to_owned();
    let has_scratch = || walk(std::path::Path::new(&url)).iter().any(|path| path.contains("doctor"));
    eventually("it is at work", has_scratch);
    signal(running.pid(), "TERM");
    let done = running.end();
    // It may have ended by itself meanwhile.
    assert!([0, 143].contains(&done.code), "{done:?}");
    // Not "another doctor is at work", nor "has leases".
    home.done(&["doctor"]).expect(0);
}

fn walk(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| [vec![path.display().to_string()], walk(&path)].concat()).collect()
}
