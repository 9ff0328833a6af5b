//! Every named step, on either side, x {stopped, killed, failed, answer lost} x {transfer before, after}.

use crate::field::{Backend, Field, Transport};
use crate::pusher::{Order, Pusher};
use crate::trap::{Point, Trap};
use leasehold_guards::GitStep;
use std::path::PathBuf;

/// The remote and two who push to it. `old` says whether the victim has pushed before, and so knows the fence.
struct Cell {
    field: Field,
    victim: PathBuf,
    newer: PathBuf,
    name: String,
}

impl Cell {
    fn new(backend: Backend, old: bool, name: String) -> Self {
        let field = Field::new(backend, Transport::File);
        let (victim, newer) = (field.repository("victim"), field.repository("newer"));
        let cell = Cell { field, victim, newer, name };
        if old {
            cell.expect(&Pusher::run(&cell.field, &cell.victim, &Order::push(5).mark(9)), "pushed");
        } else {
            cell.expect(&Pusher::run(&cell.field, &cell.newer, &Order::push(1)), "pushed");
        }
        cell
    }

    #[track_caller]
    fn expect(&self, answer: &str, expected: &str) {
        assert_eq!(answer.split(' ').next(), Some(expected), "{}: {answer}", self.name);
    }

    #[track_caller]
    fn shows(&self, epoch: u64, mark: u64) {
        assert_eq!(self.field.author(), Some((epoch, mark)), "{}", self.name);
    }

    /// The next holder comes and is never held up.
    fn transfer(&self) {
        self.expect(&Pusher::run(&self.field, &self.newer, &Order::seal(6)), "pushed");
        self.expect(&Pusher::run(&self.field, &self.newer, &Order::push(6)), "pushed");
        self.shows(6, 0);
    }

    /// Whatever was before: the old holder is out, from its own repository and from any other, and the remote is whole.
    fn end(&self) {
        self.expect(&Pusher::run(&self.field, &self.victim, &Order::push(5)), "fenced");
        self.expect(&Pusher::run(&self.field, &self.field.repository("third"), &Order::push(5)), "fenced");
        self.expect(&Pusher::run(&self.field, &self.newer, &Order::push(6).rival(1)), "regressed");
        self.shows(6, 0);
        self.field.fsck();
    }
}

/// Gives how many cells were played.
pub fn at_our_steps(backend: Backend) -> usize {
    let cells: Vec<_> = (0..GitStep::ALL.len())
        .flat_map(|step| ["stop", "kill", "fail"].map(|fault| (step, fault)))
        .flat_map(|(step, fault)| {
            [(true, true), (true, false), (false, true), (false, false)].map(|(a, b)| (step, fault, a, b))
        })
        // One who knows the fence does not read it.
        .filter(|(step, _, _, old)| !(*old && GitStep::ALL[*step] == GitStep::ReadFence))
        .collect();
    in_two_lanes(&cells, |&(step, fault, transfer_first, old)| {
        let step_name = GitStep::ALL[step];
        let name = format!("{backend:?} {step_name:?} {fault} transfer first {transfer_first} old {old}");
        let cell = Cell::new(backend, old, name);
        let before = cell.field.author().unwrap();
        let mut victim = Pusher::start(&cell.field, &cell.victim, &Order::push(5).with(fault, step));
        cell.expect(&victim.line(), "at");
        let has_landed = matches!(step_name, GitStep::Reply | GitStep::WriteCache);
        if fault == "stop" {
            victim.wait_stopped();
        }
        if transfer_first {
            cell.transfer();
        }
        let answer = match fault {
            "stop" => {
                victim.resume();
                Some(victim.line())
            }
            "kill" => {
                victim.wait_killed();
                None
            }
            _ => {
                victim.go();
                Some(victim.line())
            }
        };
        if let Some(answer) = answer {
            let expected = match (has_landed, fault, transfer_first) {
                // The answer was lost, and the next holder has overwritten the branch.
                (true, "fail", true) if step_name == GitStep::Reply => "indeterminate",
                (true, ..) | (false, "stop", false) => "pushed",
                (false, "stop", true) => "fenced",
                _ => "unavailable",
            };
            cell.expect(&answer, expected);
        }
        if transfer_first {
            cell.shows(6, 0);
        } else {
            let (epoch, mark) = if has_landed || fault == "stop" { (5, 0) } else { before };
            cell.shows(epoch, mark);
            cell.expect(&Pusher::run(&cell.field, &cell.field.repository("third"), &Order::push(5).mark(3)), "pushed");
            cell.expect(&Pusher::run(&cell.field, &cell.victim, &Order::push(5).mark(4)), "pushed");
            cell.shows(5, 4);
            cell.transfer();
        }
        cell.end();
    });
    cells.len()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    StopUs,
    KillUs,
    KillRemote,
}

/// Gives how many cells were played.
pub fn at_the_remotes_points(backend: Backend) -> usize {
    let cells: Vec<_> = [Point::Sent, Point::Applied]
        .into_iter()
        .flat_map(|point| [Side::StopUs, Side::KillUs, Side::KillRemote].map(|side| (point, side)))
        .flat_map(|(point, side)| {
            [(true, true), (true, false), (false, true), (false, false)].map(|(a, b)| (point, side, a, b))
        })
        .collect();
    in_two_lanes(&cells, |&(point, side, transfer_first, old)| {
        let name = format!("{backend:?} {point:?} {side:?} transfer first {transfer_first} old {old}");
        let cell = Cell::new(backend, old, name);
        let before = cell.field.author().unwrap();
        let trap = Trap::set(&cell.field, point);
        let victim = Pusher::start(&cell.field, &cell.victim, &Order::push(5));
        let remote = trap.sprung();
        let has_landed = point == Point::Applied;
        let victim = match side {
            Side::StopUs => {
                victim.stop();
                Some(victim)
            }
            Side::KillUs => {
                victim.kill();
                None
            }
            Side::KillRemote => Some(victim),
        };
        if transfer_first {
            cell.transfer();
        } else if side == Side::KillUs {
            // The first push is still on its way to the refs; the same tenure's second must not be undone by it.
            cell.expect(&Pusher::run(&cell.field, &cell.field.repository("third"), &Order::push(5).mark(2)), "pushed");
        }
        match side {
            Side::KillRemote => trap.kill(remote),
            _ => trap.open(),
        }
        match victim {
            Some(victim) => {
                victim.resume();
                let expected = match (has_landed, transfer_first, side) {
                    // The next holder has overwritten the branch: whether this push was there before, nobody can tell.
                    (true, true, Side::KillRemote) => "indeterminate",
                    (true, ..) | (false, false, Side::StopUs) => "pushed",
                    (false, true, _) => "fenced",
                    _ => "unavailable",
                };
                cell.expect(&victim.line(), expected);
                if !transfer_first {
                    let (epoch, mark) = if expected == "pushed" { (5, 0) } else { before };
                    cell.shows(epoch, mark);
                }
            }
            None => {
                trap.wait_gone(remote);
                if !transfer_first {
                    cell.shows(5, 2);
                }
            }
        }
        if transfer_first {
            cell.shows(6, 0);
        } else {
            cell.transfer();
        }
        cell.end();
    });
    cells.len()
}

/// A remote that breaks down between the fence and the branch, as the files back end can: the fence alone is no proof.
pub fn torn_by_a_crash(backend: Backend) {
    for transfer_first in [false, true] {
        let cell = Cell::new(backend, true, format!("{backend:?} torn, transfer first {transfer_first}"));
        let old = cell.field.git(&cell.field.bare, &["rev-parse", "refs/heads/main"]);
        let trap = Trap::set(&cell.field, Point::Applied);
        let victim = Pusher::start(&cell.field, &cell.victim, &Order::push(5).mark(2));
        let remote = trap.sprung();
        // What the crash leaves behind.
        let back = ["-c", "core.hooksPath=/dev/null", "update-ref", "refs/heads/main", &old];
        cell.field.git(&cell.field.bare, &back);
        if transfer_first {
            victim.stop();
            trap.kill(remote);
            cell.transfer();
            victim.resume();
            cell.expect(&victim.line(), "indeterminate");
        } else {
            trap.kill(remote);
            cell.expect(&victim.line(), "indeterminate");
            cell.shows(5, 9);
            cell.expect(&Pusher::run(&cell.field, &cell.victim, &Order::push(5).mark(3)), "pushed");
            cell.shows(5, 3);
            cell.transfer();
        }
        cell.end();
    }
}

/// Two at a time; a panic of one is a panic of all.
pub fn in_two_lanes<T: Sync>(cells: &[T], play: impl Fn(&T) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, std::sync::atomic::Ordering::SeqCst)) {
                    play(cell);
                }
            });
        }
    });
}
