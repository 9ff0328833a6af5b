//! One real server process: started, paused, killed and started again.

use crate::programs::output_of;
use leasehold_core::Nonce;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

/// How long a server may take until it answers.
const READY: Duration = Duration::from_secs(60);
/// How long one answer may take while it comes up.
const ANSWER: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);
/// Starts the server, says its pid, and ends it when the test process lets go of the other end of the pipe. If that is
/// because it is gone (a server that is kept in a static, a kill, Ctrl-C, which it hears itself), it removes the server's
/// files too: nobody else will.
const GUARDIAN: &str = r#"trap : HUP INT TERM
"$@" </dev/null >>"$LEASEHOLD_LOG" 2>&1 & echo $!
read -r word
exec 2>/dev/null
tries=0
[ "$LEASEHOLD_END" = KILL ] || kill -s "$LEASEHOLD_END" $! || tries=100
while [ "$LEASEHOLD_END" != KILL ] && [ $tries -lt 100 ] && kill -0 $!; do sleep 0.05; tries=$((tries+1)); done
kill -9 $!
wait
rm -f $LEASEHOLD_SOCKETS
[ "$word" = keep ] || rm -rf "$LEASEHOLD_FOLDER" "$LEASEHOLD_LOG""#;

static PORTS: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Where ports are looked for: below those that the system gives to outgoing connections, of which one could otherwise have
/// it before the server does.
const RANGE: Range<u16> = 10_240..32_768;

/// A loopback port that nobody listens on, and that this process has not given out before.
pub fn free_port() -> u16 {
    let mut given = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let random = u16::from_str_radix(&Nonce::random().to_string()[..4], 16).unwrap();
        let port = RANGE.start + random % (RANGE.end - RANGE.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && given.get_or_insert_default().insert(port) {
            return port;
        }
    }
}

/// Waits until something is so.
///
/// # Panics
/// If it is not so after a minute.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..READY.as_millis() / PAUSE.as_millis() {
        if is_so() {
            return;
        }
        sleep(PAUSE);
    }
    panic!("gave up waiting until {what}");
}

/// What a server on this port answers to a request as it stands, until it closes the connection.
pub(crate) fn answer_to(port: u16, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// How to start a server.
#[derive(Debug, Clone)]
pub struct Spec {
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    user: Option<&'static str>,
    end: &'static str,
    sockets: String,
    port: u16,
}

impl Spec {
    /// This program, which will listen on this port of the loopback address.
    pub fn new(program: PathBuf, port: u16) -> Self {
        Spec { program, args: Vec::new(), env: Vec::new(), user: None, end: "KILL", sockets: String::new(), port }
    }

    /// Adds arguments after those given before.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs it as this user if the tests are root: some servers refuse to be.
    #[must_use]
    pub const fn user(mut self, user: &'static str) -> Self {
        self.user = Some(user);
        self
    }

    /// Ends it by this signal when the test is over: killed, some leave behind what outlives their processes.
    #[must_use]
    pub const fn ends_by(mut self, signal: &'static str) -> Self {
        self.end = signal;
        self
    }

    /// Removes these sockets when it has ended: some are made outside of its folder, whatever it is told. No path has a
    /// blank in it.
    #[must_use]
    pub fn sockets(mut self, paths: &[String]) -> Self {
        self.sockets = paths.join(" ");
        self
    }

    /// The command line, with the change of user in front where it is needed.
    fn words(&self) -> Vec<String> {
        let mut words = match self.user.filter(|_| rustix::process::geteuid().is_root()) {
            Some(user) => {
                let ids = [format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()];
                [vec!["setpriv".to_owned()], ids.to_vec()].concat()
            }
            None => Vec::new(),
        };
        words.push(self.program.display().to_string());
        words.extend(self.args.iter().cloned());
        words
    }

    /// Runs it to its end, for programs that set a server's folder up.
    ///
    /// # Panics
    /// If it fails; the message has its output.
    pub fn run_to_end(&self) {
        let words = self.words();
        output_of(Command::new(&words[0]).args(&words[1..]).envs(self.env.clone()));
    }
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    spec: Spec,
    folder: TempDir,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    guardian: Child,
    // When it closes, the guardian ends the server.
    lifeline: ChildStdin,
    pid: Pid,
}

impl Server {
    /// A temporary folder for its files.
    pub fn temporary_folder() -> TempDir {
        tempfile::Builder::new().prefix("leasehold-server-").tempdir().unwrap()
    }

    /// The same for a server that runs as this user.
    pub fn folder_for(user: &str) -> TempDir {
        let folder = Server::temporary_folder();
        if rustix::process::geteuid().is_root() {
            output_of(Command::new("chown").arg(user).arg(folder.path()));
        }
        folder
    }

    /// Starts a server that keeps its files in the folder, and waits until it listens.
    pub fn start(spec: Spec, folder: TempDir) -> Self {
        let mut server = Server { spec, folder, running: None };
        server.restart();
        server
    }

    /// The port that it listens on.
    pub const fn port(&self) -> u16 {
        self.spec.port
    }

    /// Where it keeps its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The server's process id, while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.running.as_ref().map(|running| running.pid.as_raw_nonzero().get())
    }

    /// What it printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        let name = self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        std::env::temp_dir().join(format!("{name}.log"))
    }

    /// Starts it again, on the same port and folder, and waits until it listens.
    ///
    /// # Panics
    /// If it does not come up; the message has what it printed.
    pub fn restart(&mut self) {
        self.kill();
        let mut guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .args(self.spec.words())
            // What it does not remove itself goes with its folder.
            .env("TMPDIR", self.folder())
            .envs(self.spec.env.clone())
            .env("LEASEHOLD_LOG", self.log_file())
            .env("LEASEHOLD_FOLDER", self.folder())
            .env("LEASEHOLD_END", self.spec.end)
            .env("LEASEHOLD_SOCKETS", &self.spec.sockets)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lifeline = guardian.stdin.take().unwrap();
        let mut line = String::new();
        BufReader::new(guardian.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        self.running = Some(Running { guardian, lifeline, pid });
        for _ in 0..READY.as_millis() / PAUSE.as_millis() {
            if TcpStream::connect(("127.0.0.1", self.spec.port)).is_ok() {
                return;
            }
            assert!(children_and_self(pid).is_some(), "{} ended: {}", self.spec.program.display(), self.log());
            sleep(PAUSE);
        }
        panic!("{} does not listen: {}", self.spec.program.display(), self.log());
    }

    /// Kills it and all its processes, as a power cut would.
    pub fn kill(&mut self) {
        if let Some(running) = &self.running {
            kill_tree(running.pid);
        }
        self.end();
    }

    /// Has it end as it should.
    fn end(&mut self) {
        self.resume();
        let Some(mut running) = self.running.take() else { return };
        let _ = writeln!(running.lifeline, "keep");
        drop(running.lifeline);
        let _ = running.guardian.wait();
    }

    /// Stops it: connections stay open, nothing answers.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a stopped server run again.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal_: Signal) {
        if let Some(running) = &self.running {
            signal(running.pid, signal_);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        match self.spec.end {
            "KILL" => self.kill(),
            _ => self.end(),
        }
        let _ = std::fs::remove_file(self.log_file());
    }
}

fn signal(pid: Pid, signal: Signal) {
    for pid in children_and_self(pid).into_iter().flatten() {
        let _ = kill_process(pid, signal);
    }
}

/// Kills a process and all below it. Each is stopped first, so that none can start another in between; and listed before
/// the first is killed, for then nobody knows any more whose children the others were.
pub(crate) fn kill_tree(root: Pid) {
    let mut stopped = Vec::new();
    while let Some(pid) = children_and_self(root).into_iter().flatten().find(|pid| !stopped.contains(pid)) {
        let _ = kill_process(pid, Signal::STOP);
        stopped.push(pid);
    }
    for pid in stopped {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// A process and all below it; none if it is gone.
fn children_and_self(root: Pid) -> Option<Vec<Pid>> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The program's name is in brackets and may hold anything.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (state, parent) = (fields.next(), fields.next().and_then(|field| field.parse::<i32>().ok()));
        if let (Some(pid), Some(parent), true) = (Pid::from_raw(pid), parent, state != Some("Z")) {
            parents.push((pid, parent));
        }
    }
    parents.iter().find(|(pid, _)| *pid == root)?;
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at].as_raw_nonzero().get();
        found.extend(parents.iter().filter(|(_, above)| *above == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    Some(found)
}
