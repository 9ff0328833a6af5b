//! A home of its own for each test: a store, a state directory, and the real binary.

#![allow(dead_code, clippy::unwrap_used)]

pub mod mcp;
pub mod remote;
pub mod slots;
pub mod state;
pub mod traced;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Long enough for anything on a busy machine; a test that needs it all has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Which store a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    Sqlite,
    Dir,
    /// A server of its own in front of SQLite, for clients that have a key and not the store.
    Served,
}

impl On {
    /// The store of a test that would do on any. `LEASEHOLD_TEST_ON=served` puts a server in front of each.
    fn chosen(self) -> Self {
        match std::env::var("LEASEHOLD_TEST_ON") {
            Ok(word) if word == "served" => On::Served,
            Ok(word) => panic!("LEASEHOLD_TEST_ON={word}: use served"),
            Err(_) => self,
        }
    }
}

/// How commands are ended: in a control group of their own where one can be had, or by walking the process table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Cgroup,
    Walk,
}

impl Way {
    pub const BOTH: [Way; 2] = [Way::Cgroup, Way::Walk];
}

/// A folder with a store in it.
pub struct Home {
    /// Before the folder: it ends before the folder is removed.
    served: Option<Served>,
    pub folder: TempDir,
    pub store: String,
    pub way: Way,
}

/// A server that goes with its home, and a key that may do everything in namespace `default`.
struct Served {
    _server: Running,
    key: String,
}

impl Home {
    pub fn new(on: On) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let store = match on.chosen() {
            On::Sqlite | On::Served => format!("sqlite:{path}/leases.db"),
            On::Dir => format!("dir:{path}/leases"),
        };
        let home = Home { folder, ..Home::at(store) };
        if on.chosen() == On::Served { home.behind_a_server() } else { home }
    }

    /// A folder for a store that is elsewhere.
    pub fn at(store: String) -> Self {
        Home { folder: tempfile::tempdir().unwrap(), store, way: Way::Cgroup, served: None }
    }

    fn behind_a_server(self) -> Self {
        let folder = tempfile::tempdir().unwrap().keep();
        let file = |name: &str| folder.join(name);
        let mut key = self.leasehold(&["key", "create", "--label", "test", "--allow", "read,hold,work,operate"]);
        let key = Done::from(key.output().unwrap()).expect(0).stdout.trim().to_owned();
        let mut server = self.leasehold(&["serve", "--listen", "127.0.0.1:0"]);
        let (out, log) = (std::fs::File::create(file("out")).unwrap(), std::fs::File::create(file("log")).unwrap());
        let mut server = Running::from(server.stdout(out).stderr(log).spawn().unwrap());
        let read = |name: &str| std::fs::read_to_string(file(name)).unwrap_or_default();
        eventually("it listens", || {
            assert!(!server.is_over(), "{}", read("log"));
            read("out").ends_with('\n')
        });
        let said = read("out");
        let address = said.trim().rsplit("//").next().unwrap().split('/').next().unwrap();
        let store = format!("leasehold+http://{address}/default");
        std::fs::remove_dir_all(folder).unwrap();
        Home { store, served: Some(Served { _server: server, key }), ..self }
    }

    /// Where the page of this home's server is, and the key.
    pub fn page(&self) -> (String, String) {
        let address = self.store.trim_start_matches("leasehold+").trim_end_matches("/default");
        (address.to_owned(), self.served.as_ref().map(|served| served.key.clone()).unwrap())
    }

    pub fn ending_by(self, way: Way) -> Self {
        Home { way, ..self }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The real binary, in this home, with nothing of the caller's environment that could leak in.
    pub fn leasehold(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        let bin = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap().display().to_string();
        command
            .args(args)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", format!("{bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"))
            .env("HOME", self.folder.path())
            .env("TMPDIR", std::env::temp_dir())
            .env("LEASEHOLD_STORE", &self.store)
            .env("LEASEHOLD_CGROUP", if self.way == Way::Walk { "off" } else { "auto" })
            .stdin(Stdio::null());
        if let Some(served) = &self.served {
            command.env("LEASEHOLD_KEY", &served.key);
        }
        command
    }

    /// Runs it to its end.
    pub fn done(&self, args: &[&str]) -> Done {
        Done::from(self.leasehold(args).output().unwrap())
    }

    /// Starts it and goes on.
    pub fn start(&self, args: &[&str]) -> Running {
        let child = self.leasehold(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running(Some(child))
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn touch(&self, name: &str) {
        std::fs::write(self.path(name), "").unwrap();
    }

    /// Waits until a file is there and has something in it, and gives its words.
    pub fn words(&self, name: &str) -> Vec<String> {
        eventually(&format!("{name} is written"), || self.read(name).ends_with('\n'));
        self.read(name).split_whitespace().map(String::from).collect()
    }

    pub fn show(&self, lease: &str) -> serde_json::Value {
        serde_json::from_str(&self.done(&["show", lease, "--json"]).expect(0).stdout).unwrap()
    }

    pub fn history(&self, lease: &str) -> Vec<serde_json::Value> {
        serde_json::from_str(&self.done(&["history", lease, "--json"]).expect(0).stdout).unwrap()
    }

    pub fn count(&self, lease: &str, event: &str) -> u64 {
        let stats: serde_json::Value =
            serde_json::from_str(&self.done(&["stats", lease, "--json"]).expect(0).stdout).unwrap();
        stats[0]["counts"][event].as_u64().unwrap()
    }
}

/// The verbs that a page of help lists, below those of `path`.
pub fn verbs(home: &Home, path: &[&str]) -> Vec<String> {
    let page = home.done(&[path, &["-h"]].concat()).expect(0).stdout;
    let lists = page.split("\n\n").filter(|part| !part.starts_with("Options") && !part.starts_with("Arguments"));
    let lines = lists.flat_map(str::lines).filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help" && name.starts_with(|c: char| c.is_ascii_lowercase()));
    names.map(String::from).collect()
}

/// A finished command.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Done {
            code: code(output.status),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Done {
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }
}

/// The code as a shell would show it.
pub fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// A command that is running; killed if the test fails.
pub struct Running(Option<Child>);

impl From<Child> for Running {
    fn from(child: Child) -> Self {
        Running(Some(child))
    }
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.0.as_ref().unwrap().id() as i32
    }

    pub fn is_over(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    pub fn end(mut self) -> Done {
        Done::from(self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            for pid in descendants(child.id() as i32) {
                signal(pid, "KILL");
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn signal(pid: i32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

/// Everything below a process, nearest first.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut found = vec![];
    let mut queue = vec![pid];
    while let Some(pid) = queue.pop() {
        // Each thread has children of its own.
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
                found.push(child);
                queue.insert(0, child);
            }
        }
    }
    found
}

/// Whether any thread of it is alive: the first one may have exited while others work on.
pub fn is_alive(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    // The name in it is any bytes.
    threads.map(|thread| std::fs::read(thread.path().join("stat")).unwrap_or_default()).any(|stat| {
        let stat = String::from_utf8_lossy(&stat);
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        matches!(state, Some(state) if state != "Z" && state != "X")
    })
}

/// Waits for a condition; the bound is only for failing.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(PATIENCE, what, condition);
}

#[track_caller]
pub fn within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = leasehold_core::clock::Clock::now(&leasehold_core::clock::SystemClock);
    while !condition() {
        let now = leasehold_core::clock::Clock::now(&leasehold_core::clock::SystemClock);
        assert!(now.saturating_since(start) < limit, "not so after {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
