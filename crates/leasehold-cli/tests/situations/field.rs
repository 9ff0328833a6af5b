//! The field test: three weeks, five slots a day, two sandboxes that both fire each of them, one repository. 210 runs under
//! leases, and beside them the same 210 without.

use crate::common::{Home, On, Running, eventually, signal};
use crate::{git, git_settings, program, read, repository, skips, subjects};
use std::collections::BTreeSet;
use std::process::Stdio;

const DAYS: usize = 21;
const HOURS: [u32; 5] = [1, 6, 11, 16, 21];
const JOB: &str = "brush-up";
const BOXES: [&str; 2] = ["box-1", "box-2"];

/// How the two sandboxes come to a slot.
#[derive(Clone, Copy)]
enum Meeting {
    /// Both in the same minute.
    Together,
    /// The second when the first has finished.
    Late,
    /// The first freezes before its push, and the supervisor lets the second do it.
    Frozen,
    /// The first is still at this slot when the next one comes.
    Overtaken,
}

/// Three days of it: 15 slots, as an overtaken slot brings the next one with it.
const MEETINGS: [Meeting; 14] = {
    use Meeting::{Frozen, Late, Overtaken, Together};
    [
        Together, Together, Late, Together, Together, Frozen, Together, Late, Together, Together, Overtaken, Together,
        Late, Together,
    ]
};

/// What came of the runs of a fleet.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    runs: usize,
    pushed: usize,
    duplicates: usize,
    conflicts: usize,
    skipped: usize,
    lost: usize,
    /// Late pushes that the fence refused.
    refused: usize,
}

/// Two sandboxes and their repository.
struct Fleet {
    home: Home,
    is_leased: bool,
    tally: Tally,
}

impl Fleet {
    fn new(is_leased: bool) -> Self {
        let home = Home::new(On::Dir);
        git_settings(&home);
        git(&home, ".", &["init", "-q", "--bare", "remote.git"]);
        git(&home, ".", &["clone", "-q", "remote.git", BOXES[0]]);
        std::fs::write(home.path(BOXES[0]).join("log"), "").unwrap();
        git(&home, BOXES[0], &["add", "log"]);
        git(&home, BOXES[0], &["commit", "-q", "-m", "start"]);
        git(&home, BOXES[0], &["push", "-q", "origin", "main"]);
        git(&home, ".", &["clone", "-q", "remote.git", BOXES[1]]);
        std::fs::create_dir(home.path("marks")).unwrap();
        Fleet { home, is_leased, tally: Tally::default() }
    }

    /// A sandbox's trigger fires.
    fn fire(&mut self, slot: &str, who: &str) -> Running {
        self.tally.runs += 1;
        let _ = std::fs::remove_file(self.home.path(&format!("marks/at.{who}")));
        let _ = std::fs::remove_file(self.home.path(&format!("marks/go.{who}")));
        let mut words = vec![];
        if self.is_leased {
            let run = ["run", JOB, "--label", who, "--slot-at", slot, "--guard", "git:origin", "--"];
            words.push(env!("CARGO_BIN_EXE_leasehold"));
            words.extend(run);
        }
        let script = repository("crates/leasehold-cli/tests/programs/field.sh");
        let marks = self.home.path("marks");
        words.extend(["sh", script.to_str().unwrap(), slot, who, marks.to_str().unwrap()]);
        words.push(if self.is_leased { env!("CARGO_BIN_EXE_leasehold") } else { "git" });
        words.push("push");
        let mut command = program(&self.home, words[0]);
        command.args(&words[1..]).current_dir(self.home.path(who)).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::from(command.spawn().unwrap())
    }

    /// Waits until it is about to push, or over.
    fn arrive(&self, running: &mut Running, who: &str) {
        let at = self.home.path(&format!("marks/at.{who}"));
        eventually("a run is about to push, or over", || at.exists() || running.is_over());
    }

    /// Lets it push, and counts what came of it.
    fn finish(&mut self, running: Running, who: &str) {
        self.home.touch(&format!("marks/go.{who}"));
        let done = running.end();
        let is_skipped = done.stderr.contains("leasehold: skipped: ");
        match done.code {
            0 if is_skipped => self.tally.skipped += 1,
            0 => self.tally.pushed += 1,
            // Without leases: what a person has to look at.
            3 if !self.is_leased => {}
            75 if self.is_leased => self.tally.lost += 1,
            _ => panic!("{done:#?}"),
        }
    }

    fn whole(&mut self, slot: &str, who: &str) {
        let mut running = self.fire(slot, who);
        self.arrive(&mut running, who);
        self.finish(running, who);
    }

    fn meet(&mut self, meeting: Meeting, slots: &mut impl Iterator<Item = String>) {
        let [one, two] = BOXES;
        let slot = slots.next().unwrap();
        match meeting {
            Meeting::Together => {
                let (mut first, mut second) = (self.fire(&slot, one), self.fire(&slot, two));
                self.arrive(&mut first, one);
                self.arrive(&mut second, two);
                self.finish(first, one);
                self.finish(second, two);
            }
            Meeting::Late => BOXES.iter().for_each(|who| self.whole(&slot, who)),
            Meeting::Frozen => {
                let mut frozen = self.fire(&slot, one);
                self.arrive(&mut frozen, one);
                if self.is_leased {
                    // Its `run` hears nothing, so that the late push is left to the fence.
                    signal(frozen.pid(), "STOP");
                    self.home.done(&["revoke", JOB, "--why", "box-1 does not answer"]).expect(0);
                }
                self.whole(&slot, two);
                if self.is_leased {
                    self.home.touch(&format!("marks/go.{one}"));
                    let late = format!("{slot} by {one}\n");
                    eventually("the late push is refused", || self.home.read("marks/refused").ends_with(&late));
                    signal(frozen.pid(), "CONT");
                }
                self.finish(frozen, one);
            }
            Meeting::Overtaken => {
                let next = slots.next().unwrap();
                let mut slow = self.fire(&slot, one);
                self.arrive(&mut slow, one);
                self.whole(&slot, two);
                self.whole(&next, two);
                self.finish(slow, one);
                self.whole(&next, one);
            }
        }
    }

    /// Lives through the weeks.
    fn live(mut self) -> (Tally, Home) {
        let days = (0..DAYS).flat_map(|day| HOURS.map(move |hour| (day, hour)));
        let mut slots = days.map(|(day, hour)| format!("2026-03-{:02}T{hour:02}:00:00Z", day + 1));
        for _ in 0..DAYS / 3 {
            MEETINGS.iter().for_each(|meeting| self.meet(*meeting, &mut slots));
        }
        assert_eq!(slots.next(), None);
        let mut landed = subjects(&self.home, "remote.git");
        assert_eq!(landed.pop().as_deref(), Some("start"));
        assert_eq!(landed.len(), self.tally.pushed);
        let distinct: BTreeSet<&String> = landed.iter().collect();
        assert_eq!(distinct.len(), DAYS * HOURS.len(), "each slot was run");
        self.tally.duplicates = landed.len() - distinct.len();
        self.tally.refused = self.home.read("marks/refused").lines().count();
        self.tally.conflicts = self.home.read("marks/conflicts").lines().count();
        (self.tally, self.home)
    }
}

#[test]
fn three_weeks_of_two_sandboxes_have_no_duplicate_push_and_no_conflict() {
    let (ours, control) = std::thread::scope(|scope| {
        let control = scope.spawn(|| Fleet::new(false).live().0);
        (Fleet::new(true).live(), control.join().unwrap())
    });
    let (ours, home) = ours;
    let slots = DAYS * HOURS.len();
    println!("under leases: {ours:?}\nwithout: {control:?}");
    assert_eq!(ours, Tally { runs: 210, pushed: slots, duplicates: 0, conflicts: 0, skipped: 98, lost: 7, refused: 7 });
    // What was counted is what leasehold says of itself: skips are no failures.
    let counts = ["succeeded", "evicted", "lost", "failed", "died"].map(|event| home.count(JOB, event));
    assert_eq!((counts, skips(&home, JOB)), ([slots as u64, 7, 0, 0, 0], 98));
    // The same script without us: everything that a lease spares it.
    assert_eq!(
        control,
        Tally { runs: 210, pushed: 133, duplicates: 28, conflicts: 77, skipped: 0, lost: 0, refused: 0 }
    );
    let figures = format!("| duplicate pushes | {} | {} |", control.duplicates, ours.duplicates);
    assert!(read("docs/agents.md").contains(&figures), "docs/agents.md says otherwise: {figures}");
    let figures = format!("| conflicts that somebody has to resolve | {} | {} |", control.conflicts, ours.conflicts);
    assert!(read("docs/agents.md").contains(&figures), "docs/agents.md says otherwise: {figures}");
}
