//! Doing what the plan says, and writing down what was done and when.

use crate::actors::{Fleet, PAGING};
use crate::adder::{Adder, Producer};
use crate::facts::{Added, Happened, What};
use crate::log::now_ms;
use crate::plan::Fault;
use crate::processes::{self, Process, Role};
use crate::served::Served;
use crate::site::{EMBEDDED_QUEUE, HURT, LANES, LOCAL_TTL_S, SERVER_QUEUE, SPOOL, Site, is_root, open_to_all};
use leasehold_testbed::{self as testbed, Postgres, Proxy};
use rustix::process::Signal;
use std::path::{Path, PathBuf};

/// An answer that is to be lost is lost within this.
const LOST_WITHIN_MS: u64 = 1_500;

/// What has to be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Later {
    ServerUp,
    Heal,
    Thaw,
    Continue(usize),
    Step(i64),
    SeverAtAnEnd(u64),
    SeverNow(u64),
    /// Kill a lane of the server's queue that is at something.
    KillALane,
}

/// An absence that is aimed at an end begins so long before it.
const BEFORE_MS: u64 = 200;
/// How long an end is waited for.
const AIMING_MS: u64 = 5_000;
/// How long after the clock was set back a lane is killed: it has renewed twice since, and so by the new time.
const RENEWED_MS: u64 = 5_500;
/// How many items wait when the clock is set back.
const BURST: usize = 10;

/// The world that faults happen to.
pub(crate) struct World<'a> {
    pub site: &'a Site,
    pub server: Postgres,
    /// What stands before it, if anything does.
    pub served: Option<Served>,
    pub proxy: Proxy,
    pub clock_file: &'a Path,
    pub producer: Producer,
    /// What the server's clock is off by now, and was at most.
    pub offset_ms: i64,
    pub most_ms: i64,
    pub happened: Vec<Happened>,
    pub damaged: Vec<String>,
    later: Vec<(u64, u64, Later)>,
    stopped: Vec<Process>,
    closed: Vec<PathBuf>,
    count: usize,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        site: &'a Site,
        server: Postgres,
        served: Option<Served>,
        proxy: Proxy,
        clock_file: &'a Path,
        producer: Producer,
    ) -> Self {
        World {
            site,
            server,
            served,
            proxy,
            clock_file,
            producer,
            offset_ms: 0,
            most_ms: 0,
            happened: Vec::new(),
            damaged: Vec::new(),
            later: Vec::new(),
            stopped: Vec::new(),
            closed: Vec::new(),
            count: 0,
        }
    }

    /// Whether nothing keeps anybody from the server.
    pub(crate) fn server_is_there(&self) -> bool {
        !self.later.iter().any(|(.., later)| matches!(later, Later::ServerUp | Later::Heal | Later::Thaw))
    }

    /// Whether the server was away in this time, or is.
    pub(crate) fn was_away(&self, from: u64, to: u64) -> bool {
        let is_meant = |h: &&Happened| h.what == What::Away && h.from <= to && h.to >= from;
        !self.server_is_there() || self.happened.iter().any(|h| is_meant(&h))
    }

    pub(crate) fn inject(&mut self, fault: Fault, fleet: &mut Fleet, adder: &Adder) {
        let now = now_ms();
        self.count += 1;
        let mut put_off = |ms, later| self.later.push((now + ms, now, later));
        match fault {
            Fault::Kill(role, pick) => self.kill(pick, fleet, |process| process.role == role),
            Fault::Stop(role, pick, ms) => {
                let victim = self.victim(pick, |process| process.role == role);
                if let Some(victim) = victim.filter(|victim| processes::signal(victim.pid, Signal::STOP)) {
                    self.later.push((now + ms, now, Later::Continue(self.stopped.len())));
                    self.stopped.push(victim);
                }
            }
            Fault::ServerDown(ms) => {
                // Killed by another fault already, it is only down for longer.
                match self.served.as_mut().filter(|_| self.count.is_multiple_of(2)) {
                    Some(served) => served.kill(),
                    None => self.server.kill(),
                }
                self.later.push((now + ms, now, Later::ServerUp));
            }
            Fault::Cut => {
                self.proxy.cut();
                self.note(now, now_ms(), What::Away);
            }
            Fault::Sever(ms) => {
                put_off(ms, Later::Heal);
                self.proxy.sever();
            }
            Fault::SeverAtAnEnd(ms) => put_off(0, Later::SeverAtAnEnd(ms)),
            Fault::Freeze(ms) => {
                put_off(ms, Later::Thaw);
                self.proxy.freeze();
            }
            Fault::LoseReply(after) => {
                self.proxy.arm(testbed::Fault::CutReply, after);
                self.note(now, now + LOST_WITHIN_MS, What::Away);
            }
            Fault::ClockAhead(ms, for_ms) => {
                put_off(for_ms, Later::Step(-ms.cast_signed()));
                self.step(ms.cast_signed());
            }
            Fault::ClockBehind(ms, for_ms) => {
                self.burst(adder);
                let now = now_ms();
                self.later.push((now + for_ms, now, Later::Step(ms.cast_signed())));
                self.later.push((now + RENEWED_MS.min(for_ms / 2), now, Later::KillALane));
                self.step(-ms.cast_signed());
            }
            Fault::Poison(pick) => {
                let queue = [SERVER_QUEUE, EMBEDDED_QUEUE][pick as usize / 2 % 2];
                if let Some(added) = self.producer.poison(queue, &format!("poison-{}", self.count), pick) {
                    adder.note(added);
                }
            }
            Fault::DamageJournal(pick) => self.damage_journal(pick, fleet),
            Fault::DamageItem(pick) => self.damage_item(pick, adder),
            Fault::BadNote(pick) => self.bad_note(pick, adder),
            Fault::SecretFile(pick) => self.secret_file(pick),
            Fault::ClosedFolder => self.closed_folder(),
            Fault::CleanTemporary => self.clean_temporary(),
        }
    }

    /// Takes back what is due to be.
    pub(crate) fn take_back(&mut self, all: bool, fleet: &mut Fleet) {
        let now = now_ms();
        let (due, rest): (Vec<_>, Vec<_>) = self.later.drain(..).partition(|(at, ..)| all || *at <= now);
        self.later = rest;
        for (_, since, later) in due {
            match later {
                Later::ServerUp => {
                    if self.server.pid().is_none() {
                        self.server.restart();
                        self.server.wait_until_ready();
                    }
                    if let Some(served) = self.served.as_mut().filter(|served| !served.is_there()) {
                        served.restart();
                    }
                    self.note(since, now_ms(), What::Away);
                }
                Later::Heal => {
                    self.proxy.heal();
                    self.note(since, now_ms(), What::Away);
                }
                Later::Thaw => {
                    self.proxy.thaw();
                    self.note(since, now_ms(), What::Away);
                }
                Later::Continue(number) => {
                    let Process { pid, owner, role, .. } = self.stopped[number].clone();
                    processes::signal(pid, Signal::CONT);
                    self.note(since, now_ms(), What::Stopped(pid, owner, lanes_of(role)));
                }
                Later::Step(ms) => self.step(ms),
                Later::SeverAtAnEnd(_) | Later::SeverNow(_) | Later::KillALane if all => {}
                Later::SeverAtAnEnd(ms) => self.aim(ms, since),
                Later::SeverNow(ms) => {
                    self.later.push((now + ms, now, Later::Heal));
                    self.proxy.sever();
                }
                Later::KillALane => self.kill_a_lane(fleet),
            }
        }
    }

    /// Heals everything. The clock continues from the latest time that it ever showed: what is due by then must have a fate.
    pub(crate) fn heal(&mut self, fleet: &mut Fleet) {
        self.take_back(true, fleet);
        self.proxy.disarm();
        // Or nobody but root can remove them with the rest.
        self.closed.drain(..).for_each(|folder| open_to_all(&folder, 0o755));
        if self.most_ms > self.offset_ms {
            self.step(self.most_ms - self.offset_ms);
        }
    }

    /// The server's time, in milliseconds since 1970.
    pub(crate) fn server_ms(&self) -> u64 {
        leasehold_system::clock::wall_ms().saturating_add_signed(self.offset_ms)
    }

    fn note(&mut self, from: u64, to: u64, what: What) {
        self.happened.push(Happened { from, to, what });
    }

    fn step(&mut self, ms: i64) {
        self.offset_ms += ms;
        self.most_ms = self.most_ms.max(self.offset_ms);
        set_clock(self.clock_file, self.offset_ms);
        let by = ms.unsigned_abs();
        let now = now_ms();
        self.note(now, now, if ms < 0 { What::Back(by) } else { What::Forward(by) });
    }

    fn victim(&self, pick: u64, is_meant: impl Fn(&Process) -> bool) -> Option<Process> {
        let mut found = processes::of(&self.site.at("bin"));
        found.retain(is_meant);
        let at = pick as usize % found.len().max(1);
        found.into_iter().nth(at)
    }

    fn kill(&mut self, pick: u64, fleet: &mut Fleet, is_meant: impl Fn(&Process) -> bool) {
        let Some(Process { pid, owner, role, .. }) = self.victim(pick, is_meant) else { return };
        let now = now_ms();
        // First, for it may be seen to have ended at once.
        fleet.killed(pid);
        processes::signal(pid, Signal::KILL);
        self.note(now, now_ms(), What::Killed(pid, owner, lanes_of(role)));
    }

    fn kill_a_lane(&mut self, fleet: &mut Fleet) {
        let all = processes::of(&self.site.at("bin"));
        let parent = |process: &Process| all.iter().find(|other| other.pid == process.parent);
        let is_meant = |process: &&Process| process.role == Role::Lane && process.owner == SERVER_QUEUE;
        // Whose command, which its dead-man has started, has been there for the longest: it was renewed.
        let commands = all.iter().filter(|process| process.role == Role::Command);
        let lane = commands.filter_map(|command| parent(parent(command)?)).find(is_meant).map(|lane| lane.pid);
        self.kill(0, fleet, |process| Some(process.pid) == lane);
    }

    /// Cuts everybody off just before the end of a run, if one is known.
    fn aim(&mut self, ms: u64, since: u64) {
        let now = now_ms();
        let end = std::fs::read_to_string(self.site.at("next-end")).ok().and_then(|text| text.parse::<u64>().ok());
        match end.filter(|end| *end > now + BEFORE_MS) {
            Some(end) => self.later.push((end - BEFORE_MS, now, Later::SeverNow(ms))),
            None if now > since + AIMING_MS => {}
            None => self.later.push((now + BEFORE_MS, since, Later::SeverAtAnEnd(ms))),
        }
    }

    /// Items for all lanes, longer than a renewal, and some that wait for a lane.
    fn burst(&mut self, adder: &Adder) {
        for number in 0..BURST {
            let text = if number < 2 * LANES { "plain 9000" } else { "plain 200" };
            let key = format!("burst-{}-{number}", self.count);
            let words = ["--text", text, "--attempts", "20"];
            if let Some(added) = self.producer.add_once(SERVER_QUEUE, &key, &words, true) {
                adder.note(added);
            }
        }
    }

    fn damage_journal(&mut self, pick: u64, fleet: &mut Fleet) {
        let name = HURT[(pick / 60_000) as usize % HURT.len()];
        let names: Vec<&str> = if pick == 0 { HURT.to_vec() } else { vec![name] };
        for name in names {
            self.overwrite("runs", name);
            self.damaged.push(name.to_owned());
        }
        // Journals are read page by page at the start.
        let paging = fleet.pid_of(PAGING);
        self.kill(0, fleet, |process| Some(process.pid) == paging);
    }

    /// One item that waits, of each store.
    fn damage_item(&mut self, pick: u64, adder: &Adder) {
        for queue in [SERVER_QUEUE, EMBEDDED_QUEUE] {
            let key = format!("damaged-{}-{pick}", self.count);
            // One that nobody has begun.
            let words = ["--text", "plain 100", "--delay", "3s"];
            let Some(added) = self.producer.add_once(queue, &key, &words, false) else { continue };
            let name = format!("{queue}/{}", added.id);
            self.overwrite("item", &name);
            self.damaged.push(name);
            adder.note(added);
        }
    }

    /// Garbage in the place of a record, by the store's own client. In whichever store has it. With another revision, as
    /// what is restored or written by others has: an item is claimed by its copy in line where that has the same.
    fn overwrite(&self, shelf: &str, name: &str) {
        let by = format!("WHERE shelf = '{shelf}' AND name = '{name}'");
        let _ = self
            .server
            .try_sql(&format!("UPDATE leasehold_record SET value = 'garbage'::bytea, revision = revision + 1 {by}"));
        let embedded = rusqlite::Connection::open(self.site.at("leases.db")).and_then(|database| {
            database.busy_timeout(std::time::Duration::from_secs(5))?;
            database.execute(
                &format!("UPDATE record SET value = CAST('garbage' AS BLOB), revision = revision + 1 {by}"),
                [],
            )
        });
        if let Err(error) = embedded {
            println!("torture: cannot damage {name}: {error}");
        }
    }

    /// For an item that nobody has begun, in each of its epochs.
    fn bad_note(&self, pick: u64, adder: &Adder) {
        let (key, words) = (format!("noted-{}", self.count), ["--text", "plain 100", "--delay", "2s"]);
        let Some(added) = self.producer.add_once(SPOOL, &key, &words, true) else { return };
        for epoch in 0..4 {
            let path = self.site.spool().join(format!("notes/{}.e{epoch}.checkpoint", added.id));
            if std::fs::write(&path, [0xFF, 0xFE, pick as u8, 0x80]).is_ok() {
                open_to_all(&path, 0o664);
            }
        }
        adder.note(Added { at: added.at + 2_000, ..added });
    }

    /// As somebody would put it there with `mv`.
    fn secret_file(&self, pick: u64) {
        let spool = self.site.spool();
        // Two attempts only: the pause after a failure is long in a spool.
        let now = leasehold_system::clock::wall_ms();
        let to = spool.join(format!("ready/4-{now}-k.secret-{}.t0-2.e0", pick % 1_000_000));
        let from = spool.join("tmp/secret");
        if std::fs::write(&from, "plain 100").is_ok() {
            open_to_all(&from, if is_root() { 0o600 } else { 0o000 });
            let _ = std::fs::rename(from, to);
        }
    }

    /// As of a worker whose user shares nothing.
    fn closed_folder(&mut self) {
        let folder = self.site.spool().join(format!("claimed/closed-{}.{LOCAL_TTL_S}s", self.count));
        if std::fs::create_dir(&folder).is_ok() {
            open_to_all(&folder, if is_root() { 0o700 } else { 0o000 });
            self.closed.push(folder);
        }
    }

    fn clean_temporary(&self) {
        for folder in std::fs::read_dir(self.site.at("tmp")).unwrap().flatten() {
            let _ = std::fs::remove_dir_all(folder.path());
        }
    }
}

/// How many items of its queue nobody runs while this one is away.
const fn lanes_of(role: Role) -> usize {
    if matches!(role, Role::Manager) { LANES } else { 1 }
}

/// Sets the file that libfaketime reads.
pub(crate) fn set_clock(file: &Path, offset_ms: i64) {
    let sign = if offset_ms < 0 { '-' } else { '+' };
    let (seconds, millis) = (offset_ms.unsigned_abs() / 1_000, offset_ms.unsigned_abs() % 1_000);
    let next = file.with_extension("next");
    std::fs::write(&next, format!("{sign}{seconds}.{millis:03}\n")).unwrap();
    open_to_all(&next, 0o644);
    std::fs::rename(next, file).unwrap();
}
