//! Schedulers and workers: started, started again after a kill, told to end.

use crate::facts::{Actor, Location};
use crate::log::now_ms;
use crate::processes::{self, Role};
use crate::site::{EMBEDDED_QUEUE, LANES, LOCAL_TTL_S, SERVER_QUEUE, SERVER_TTL_S, SPOOL, Site};
use rustix::process::Signal;
use std::fs::OpenOptions;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

/// Exit codes of one that cannot reach its store at the start.
const NO_STORE: [i32; 2] = [69, 70];
/// What counts as the start.
const START_MS: u64 = 10_000;
/// How long after it is back a server may still refuse a connection.
const SETTLED_MS: u64 = 1_000;
/// How long one that was told to end may take: the longest run, and then some.
const ENDING_MS: u64 = 45_000;

/// The scheduler that has so many jobs that it reads journals page by page.
pub(crate) const PAGING: &str = "scheduler-3";

/// One process of the fleet.
#[derive(Debug)]
pub(crate) struct Member {
    pub name: String,
    pub location: Location,
    words: Vec<String>,
    store: String,
    user: Option<usize>,
    has_lanes: bool,
    child: Option<Child>,
    started: u64,
    /// Not before this, if it is not there.
    again_at: u64,
    killed: bool,
    ended: Option<(u64, i32)>,
}

/// Every actor of a run.
#[derive(Debug)]
pub(crate) struct Fleet(pub Vec<Member>);

impl Fleet {
    pub(crate) fn new(site: &Site, server: &str) -> Self {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        let member = |name: &str, location, words: Vec<String>, store: &str, user| Member {
            name: name.into(),
            location,
            has_lanes: words[0] == "work",
            words,
            store: store.to_owned(),
            user,
            child: None,
            started: 0,
            again_at: 0,
            killed: false,
            ended: None,
        };
        let embedded = site.embedded();
        let schedule =
            |location| words(&format!("schedule run --quiet --file {}", site.write_jobs(location).display()));
        let work = |queue: &str, ttl| {
            let text = format!("work {} -j {LANES} --ttl {ttl}s --grace 500ms --", site.queue(queue));
            [words(&text), site.command_words().to_vec()].concat()
        };
        let (server_jobs, local_jobs) = (schedule(Location::Server), schedule(Location::Embedded));
        Fleet(vec![
            member("scheduler-1", Location::Server, server_jobs.clone(), server, None),
            member("scheduler-2", Location::Server, server_jobs, server, None),
            member(PAGING, Location::Embedded, local_jobs, &embedded, None),
            member("worker-1", Location::Server, work(SERVER_QUEUE, SERVER_TTL_S), server, None),
            member("worker-2", Location::Server, work(SERVER_QUEUE, SERVER_TTL_S), server, None),
            member("worker-3", Location::Embedded, work(EMBEDDED_QUEUE, LOCAL_TTL_S), &embedded, None),
            member("spool-worker-1", Location::Spool, work(SPOOL, LOCAL_TTL_S), &embedded, Some(0)),
            member("spool-worker-2", Location::Spool, work(SPOOL, LOCAL_TTL_S), &embedded, Some(1)),
        ])
    }

    /// Starts who is not there and should be; notes who ended. The server can be reached if `server_is_there`.
    pub(crate) fn tend(&mut self, site: &Site, server_is_there: bool, was_away: impl Fn(u64, u64) -> bool) {
        for member in &mut self.0 {
            member.notice_end(&was_away);
            let can = member.location != Location::Server || server_is_there;
            if member.child.is_none() && can && now_ms() >= member.again_at {
                member.start(site);
            }
        }
    }

    pub(crate) fn pid_of(&self, name: &str) -> Option<i32> {
        self.0.iter().find(|member| member.name == name).and_then(Member::pid)
    }

    /// That one was killed: it is started again.
    pub(crate) fn killed(&mut self, pid: i32) {
        for member in &mut self.0 {
            if member.pid() == Some(pid) {
                member.killed = true;
            }
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.0.iter().all(|member| member.child.is_some())
    }

    /// Tells everybody to end, and says how they did.
    pub(crate) fn end(mut self, site: &Site, stalled_ms: impl Fn() -> u64) -> Vec<Actor> {
        let processes = processes::of(&site.at("bin"));
        let lanes = |pid| processes.iter().filter(|p| p.role == Role::Lane && p.parent == pid).count();
        let counts: Vec<Option<(usize, usize)>> = self
            .0
            .iter()
            .map(|member| Some((LANES, member.pid().map_or(0, lanes))).filter(|_| member.has_lanes))
            .collect();
        for member in &mut self.0 {
            member.notice_end(&|_, _| false);
            member.pid().map(|pid| processes::signal(pid, Signal::TERM));
        }
        let (begun, before) = (now_ms(), stalled_ms());
        let mut actors = Vec::new();
        for (mut member, lanes) in self.0.into_iter().zip(counts) {
            let mut told = None;
            while let Some(child) = &mut member.child {
                if let Ok(Some(status)) = child.try_wait() {
                    told = Some(code(status));
                    break;
                }
                if now_ms() > begun + ENDING_MS + (4 * (stalled_ms() - before)).min(ENDING_MS) {
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            let said = std::fs::read_to_string(site.actor_log(&member.name)).unwrap_or_default();
            let mut lost_lanes = lane_codes(&said);
            // A store that is away at the start is most likely misspelt, and said to be.
            lost_lanes.retain(|code| member.location != Location::Server || !NO_STORE.contains(code));
            actors.push(Actor { name: member.name, ended: member.ended, told, lanes, lost_lanes });
        }
        actors
    }
}

impl Member {
    pub(crate) fn pid(&self) -> Option<i32> {
        self.child.as_ref().map(|child| child.id().cast_signed())
    }

    fn start(&mut self, site: &Site) {
        let log = OpenOptions::new().create(true).append(true).open(site.actor_log(&self.name)).unwrap();
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let mut command = site.verb(&words, &self.store, self.user);
        // In a group of its own: a key at the terminal is for the harness.
        command.stdout(Stdio::null()).stderr(log).process_group(0);
        self.child = Some(command.spawn().unwrap());
        (self.started, self.killed) = (now_ms(), false);
    }

    fn notice_end(&mut self, was_away: &impl Fn(u64, u64) -> bool) {
        let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) else { return };
        let (now, code) = (now_ms(), code(status));
        self.child = None;
        self.again_at = now + 700;
        let at_start = now < self.started + START_MS && NO_STORE.contains(&code);
        // A store that is away at the start is most likely misspelt, and said to be.
        let excused =
            self.location == Location::Server && at_start && was_away(self.started.saturating_sub(SETTLED_MS), now);
        if !self.killed && !excused && self.ended.is_none() {
            println!("torture: {} ended by itself with {code}", self.name);
            self.ended = Some((now, code));
        }
    }
}

/// The codes of the lanes that a worker says to have ended; those that were killed have none.
fn lane_codes(said: &str) -> Vec<i32> {
    let codes =
        said.lines().filter_map(|line| line.split_once("a lane was ended with exit code ")?.1.split(';').next());
    codes.filter_map(|code| code.parse().ok()).collect()
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_ended_by_themselves_are_distinguished_from_those_that_were_killed() {
        let said = "leasehold: a lane was ended by signal 9; starting another in 1s\n\
                    leasehold: a lane was ended with exit code 69; starting another in 2s\n";
        assert_eq!(lane_codes(said), [69]);
    }
}
