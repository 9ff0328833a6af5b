//! The run's folder: copies of the programs, the commands' log, the embedded store, the spool, and who may use what.

use crate::facts::{Location, Work};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The queue in the server, the one in the embedded store, and the spool's folder.
pub(crate) const SERVER_QUEUE: &str = "mail";
pub(crate) const EMBEDDED_QUEUE: &str = "post";
pub(crate) const SPOOL: &str = "drop";
/// The group of the two users who share the spool, and the users. They need no entry in any table.
const GROUP: u32 = 20_000;
const USERS: [u32; 2] = [20_001, 20_002];
/// From so many jobs on a scheduler reads the journals page by page.
const IDLE_JOBS: usize = 256;
/// How many items of a queue run at once.
pub(crate) const LANES: usize = 2;
/// What every item of a queue waits after a failed attempt, follow-ups too.
pub(crate) const QUEUE_BACKOFF: &str = "1s";
const QUEUE_BACKOFF_MS: u64 = 1_000;
/// The ends of runs with so long a TTL are aimed at.
const AIMED_TTL_S: u64 = 15;
/// A spool's backoff is not for users to set.
const SPOOL_BACKOFF_MS: u64 = 10_000;

/// A job: its name, its TTL and its period in seconds, how long it runs, and more lines of its table.
struct JobPlan {
    name: &'static str,
    location: Location,
    ttl_s: u64,
    period_s: u64,
    run_ms: &'static str,
    more: &'static str,
    code: u8,
}

const JOBS: [JobPlan; 8] = [
    job("brisk", Location::Server, 6, 4, "300-900", "busy = \"wait 30s\"\ncatch_up = 5"),
    job("long", Location::Server, 12, 20, "11000-13000", "busy = \"wait 60s\""),
    job("steady", Location::Server, 15, 5, "1600-2600", "catch_up = 2"),
    job("crowded", Location::Server, 9, 3, "1000-5000", "busy = \"skip\""),
    JobPlan { code: 3, ..job("failing", Location::Server, 6, 11, "100-300", "retries = 1\nbackoff = \"1s\"") },
    job("hurt", Location::Server, 6, 5, "200-400", ""),
    job("beat", Location::Embedded, 3, 5, "500-1500", "busy = \"wait 20s\"\ncatch_up = 3"),
    job("wound", Location::Embedded, 3, 6, "200-400", ""),
];

const fn job(
    name: &'static str,
    location: Location,
    ttl_s: u64,
    period_s: u64,
    run_ms: &'static str,
    more: &'static str,
) -> JobPlan {
    JobPlan { name, location, ttl_s, period_s, run_ms, more, code: 0 }
}

/// The jobs whose journals are overwritten.
pub(crate) const HURT: [&str; 2] = ["hurt", "wound"];

/// Everything that is judged.
pub(crate) fn works() -> Vec<Work> {
    let queue = |name: &str, location, ttl_s: u64, backoff_ms, lanes| Work {
        name: name.into(),
        location,
        ttl_ms: ttl_s * 1_000,
        period_ms: 0,
        lanes,
        backoff_ms,
    };
    let jobs = JOBS.iter().map(|job| Work {
        name: job.name.into(),
        location: job.location,
        ttl_ms: job.ttl_s * 1_000,
        period_ms: job.period_s * 1_000,
        lanes: 1,
        backoff_ms: 0,
    });
    let queues = [
        queue(SERVER_QUEUE, Location::Server, SERVER_TTL_S, QUEUE_BACKOFF_MS, 2 * LANES),
        queue(EMBEDDED_QUEUE, Location::Embedded, LOCAL_TTL_S, QUEUE_BACKOFF_MS, LANES),
        queue(SPOOL, Location::Spool, LOCAL_TTL_S, SPOOL_BACKOFF_MS, 2 * LANES),
    ];
    jobs.chain(queues).collect()
}

/// The TTL of items in the server, and elsewhere, in seconds.
pub(crate) const SERVER_TTL_S: u64 = 6;
pub(crate) const LOCAL_TTL_S: u64 = 3;

/// The folder of one torture run, and what is in it.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    root: PathBuf,
    /// What the fleet shows to a server.
    key: Option<String>,
}

impl Site {
    /// Makes the folder and its settings.
    pub(crate) fn new(root: &Path, leasehold: &Path) -> Self {
        let site = Site { root: root.to_owned(), key: None };
        open_to_all(root, 0o755);
        for folder in ["bin", "out", "logs"] {
            std::fs::create_dir(root.join(folder)).unwrap();
        }
        let myself = std::env::current_exe().unwrap();
        for (from, to) in [(leasehold, site.leasehold()), (&myself, site.command())] {
            std::fs::hard_link(from, &to).or_else(|_| std::fs::copy(from, &to).map(drop)).unwrap();
        }
        for folder in ["tmp", "home"] {
            std::fs::create_dir(root.join(folder)).unwrap();
            open_to_all(&root.join(folder), 0o1777);
        }
        std::fs::write(site.at("log"), "").unwrap();
        open_to_all(&site.at("log"), 0o666);
        let spool = root.join(SPOOL);
        std::fs::create_dir(&spool).unwrap();
        if is_root() {
            chown(&spool, Some(USERS[0]), Some(GROUP)).unwrap();
        }
        open_to_all(&spool, 0o2775);
        site
    }

    pub(crate) fn with_key(self, key: String) -> Self {
        Site { key: Some(key), ..self }
    }

    /// As a command of it sees it.
    pub(crate) fn of_command() -> std::io::Result<Self> {
        let exe = std::env::current_exe()?;
        let root = exe.parent().and_then(Path::parent).ok_or(std::io::ErrorKind::NotFound)?;
        Ok(Site { root: root.to_owned(), key: None })
    }

    /// A path in it: `log` of the commands, `next-end` of the next run that says when it ends, `tmp`, `bin`, `leases.db`.
    pub(crate) fn at(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join(below)
    }

    pub(crate) fn leasehold(&self) -> PathBuf {
        self.at("bin/leasehold")
    }

    fn command(&self) -> PathBuf {
        self.at("bin/torture")
    }

    pub(crate) fn actor_log(&self, name: &str) -> PathBuf {
        self.at("logs").join(name)
    }

    pub(crate) fn spool(&self) -> PathBuf {
        self.at(SPOOL)
    }

    pub(crate) fn embedded(&self) -> String {
        format!("sqlite:{}", self.at("leases.db").display())
    }

    pub(crate) fn queue(&self, work: &str) -> String {
        if work == SPOOL { format!("spool:{}", self.spool().display()) } else { work.to_owned() }
    }

    /// The words of what a worker runs.
    pub(crate) fn command_words(&self) -> [String; 2] {
        [self.command().display().to_string(), crate::COMMAND.to_owned()]
    }

    /// `leasehold` with these words, on this store, as the user of this number if there are two.
    pub(crate) fn verb(&self, words: &[&str], store: &str, user: Option<usize>) -> Command {
        let mut command = match user.filter(|_| is_root()) {
            Some(number) => {
                let mut command = Command::new("setpriv");
                let user = USERS[number % USERS.len()];
                command.args([format!("--reuid={user}"), format!("--regid={GROUP}")]).arg("--clear-groups");
                command.args(["sh", "-c", "umask 002; exec \"$0\" \"$@\""]).arg(self.leasehold());
                command
            }
            None => Command::new(self.leasehold()),
        };
        command
            .args(words)
            .current_dir(&self.root)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.at("home"))
            .env("TMPDIR", self.at("tmp"))
            .env("LEASEHOLD_STORE", store)
            .stdin(Stdio::null());
        if let Some(key) = self.key.as_ref().filter(|_| store.starts_with("leasehold")) {
            command.env("LEASEHOLD_KEY", key);
        }
        if let Ok(undone) = std::env::var(leasehold_system::undo::VARIABLE) {
            command.env(leasehold_system::undo::VARIABLE, undone);
        }
        command
    }

    /// Writes the jobs of this place; gives the file.
    pub(crate) fn write_jobs(&self, location: Location) -> PathBuf {
        let [program, word] = self.command_words();
        let mut text = String::new();
        for job in JOBS.iter().filter(|job| job.location == location) {
            let JobPlan { name, ttl_s, period_s, run_ms, more, code, .. } = job;
            // One of them by a cron line, which means the same.
            let when = match *name {
                "crowded" => format!("cron = \"*/{period_s} * * * * *\""),
                _ => format!("every = \"{period_s}s\""),
            };
            text.push_str(&format!(
                "[[job]]\nname = \"{name}\"\n{when}\nttl = \"{ttl_s}s\"\ngrace = \"500ms\"\n{more}\n\
                 argv = [\"{program}\", \"{word}\"]\n\
                 env = {{ {} = \"{run_ms}\", {} = \"{code}\", {} = \"{}\" }}\n\n",
                crate::command::RUN_MS,
                crate::command::EXIT,
                crate::command::TELLS,
                // There is time to tell the end after an absence.
                if *ttl_s >= AIMED_TTL_S { "1" } else { "" },
            ));
        }
        if location == Location::Embedded {
            for number in 0..IDLE_JOBS {
                text.push_str(&format!(
                    "[[job]]\nname = \"idle-{number}\"\ncron = \"0 0 29 2 *\"\ncommand = \"true\"\n\n"
                ));
            }
        }
        let path = self.root.join(format!("{location:?}.toml"));
        std::fs::write(&path, text).unwrap();
        path
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn open_to_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
