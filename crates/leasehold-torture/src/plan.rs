//! The plan of faults: a pure function of seed and length.
//!
//! Each minute has every kind of fault at least once; between them come kills at random.

use crate::processes::Role;
use crate::random::Random;

/// Chooses among those who are there when its time comes.
pub(crate) type Pick = u64;
/// Milliseconds.
pub(crate) type Ms = u64;

/// What is done to the fleet, chosen by the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(Role, Pick),
    Stop(Role, Pick, Ms),
    /// The server is killed, and started again after so long.
    ServerDown(Ms),
    /// Every connection is cut, once.
    Cut,
    /// No connection can be made for so long.
    Sever(Ms),
    /// The same, from just before the end of a longer run on.
    SeverAtAnEnd(Ms),
    /// Nothing passes for so long, and nothing is closed.
    Freeze(Ms),
    /// The server does what it is asked, and one answer, after so many others, does not arrive.
    LoseReply(u64),
    /// The server's clock is set forward by so much, and after a while back by as much.
    ClockAhead(Ms, Ms),
    /// And the other way round.
    ClockBehind(Ms, Ms),
    /// An item with the worst payload that is allowed: of which kind, and in which store, is picked.
    Poison(Pick),
    /// A job's journal is overwritten with garbage.
    DamageJournal(Pick),
    /// An item's record is overwritten with garbage.
    DamageItem(Pick),
    /// A checkpoint that is not text appears in the spool.
    BadNote(Pick),
    /// A file that only its owner can read appears in the spool.
    SecretFile(Pick),
    /// A folder that is closed to others appears among the workers' folders of the spool.
    ClosedFolder,
    /// A cleaner of temporary files removes every lane's folder.
    CleanTemporary,
}

/// A fault and when it comes, in milliseconds from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub at: u64,
    pub fault: Fault,
}

const MINUTE: u64 = 60_000;
/// Nothing in the first seconds: everybody is to be there first; and little in the last.
const LEAD_IN: u64 = 4_000;
const LEAD_OUT: u64 = 3_000;
const ROLES: [Role; 7] = [Role::Scheduler, Role::Manager, Role::Lane, Role::Lane, Role::Run, Role::Run, Role::Command];

/// In hundredths of a calm minute: while the server's clock is behind, no lane is killed but one at the right time.
const SPELL: (u64, u64) = (26, 76);
const OF_JOBS: [Role; 3] = [Role::Scheduler, Role::Run, Role::Command];

/// All orders of a storm of this length.
pub(crate) fn plan(seed: u64, storm_ms: u64) -> Vec<Order> {
    let mut random = Random::new(seed);
    let mut orders = Vec::new();
    let mut begin = 0;
    while begin < storm_ms {
        let end = (begin + MINUTE).min(storm_ms);
        minute(&mut random, begin, end.saturating_sub(LEAD_OUT).max(begin + LEAD_IN + 1), &mut orders);
        begin += MINUTE;
    }
    orders.sort_by_key(|order| order.at);
    orders
}

/// One minute. Every other one, beginning with the first, has calm spells in which only one thing happens beside kills, so
/// that what it does is not excused by another; in the others anything may meet anything.
fn minute(random: &mut Random, begin: u64, end: u64, orders: &mut Vec<Order>) {
    let from = begin + LEAD_IN;
    let length = end - from;
    let is_calm = (begin / MINUTE).is_multiple_of(2);
    // What keeps everybody from the server, and where: not before this part of a minute.
    let rough = if is_calm { from + length * 3 / 4 } else { from };
    let place = |random: &mut Random, orders: &mut Vec<Order>, fault| {
        orders.push(Order { at: random.between(rough, end), fault });
    };
    let times = if is_calm { 1 } else { 2 };
    for _ in 0..times {
        let ms = random.between(300, 2_500);
        place(random, orders, Fault::ServerDown(ms));
    }
    for _ in 0..times {
        let ms = random.between(500, 4_000);
        place(random, orders, Fault::Sever(ms));
    }
    for number in 1..4 {
        let ms = random.between(800, 2_000);
        let at = if is_calm { from + length * number / 16 } else { random.between(from, end) };
        orders.push(Order { at, fault: Fault::SeverAtAnEnd(ms) });
    }
    let ms = random.between(500, 3_000);
    place(random, orders, Fault::Freeze(ms));
    for _ in 0..=times {
        place(random, orders, Fault::Cut);
        let after = random.between(0, 12);
        place(random, orders, Fault::LoseReply(after));
    }
    clock(random, from, length, orders);
    // What is damaged early has the longest time to do harm.
    let early = from + length / 3;
    for fault in [
        // Both kinds in both stores.
        Fault::Poison(0),
        Fault::Poison(1),
        Fault::Poison(2),
        Fault::Poison(3),
        Fault::DamageJournal(begin),
        Fault::DamageItem(random.next()),
        Fault::BadNote(random.next()),
        Fault::SecretFile(random.next()),
        Fault::ClosedFolder,
        Fault::CleanTemporary,
    ] {
        orders.push(Order { at: random.between(from, early), fault });
    }
    let (pick, ms) = (random.next(), random.between(500, 9_000));
    let until = if is_calm { from + length * SPELL.0 / 200 } else { end };
    orders.push(Order { at: random.between(from, until + 1), fault: Fault::Stop(Role::Lane, pick, ms) });
    let mut at = from;
    while at < end {
        let is_spell = is_calm && (from + length * SPELL.0 / 100..from + length * SPELL.1 / 100).contains(&at);
        let roles = if is_spell { &OF_JOBS[..] } else { &ROLES[..] };
        let (role, pick) = (roles[random.between(0, roles.len() as u64) as usize], random.next());
        let fault = match random.between(0, 4) {
            0 => Fault::Stop(role, pick, random.between(500, 9_000)),
            _ => Fault::Kill(role, pick),
        };
        orders.push(Order { at, fault });
        at += random.between(800, 3_500);
    }
}

/// Steps of the clock, one after the other: each is taken back, so that most of a minute is not spent waiting for the
/// clock to reach again what it had shown.
fn clock(random: &mut Random, from: u64, length: u64, orders: &mut Vec<Order>) {
    let small = Fault::ClockAhead(random.between(1_000, 8_000), random.between(500, 3_000));
    // For long enough to see who waits for the clock instead of for a lane.
    let back = Fault::ClockBehind(random.between(30_000, 60_000), length / 2);
    let large = Fault::ClockAhead(random.between(10_000, 90_000), random.between(1_000, 5_000));
    for (hundredths, fault) in [(0, small), (SPELL.0, back), (86, large)] {
        let begin = from + length * hundredths / 100;
        orders.push(Order { at: random.between(begin, begin + length / 20 + 1), fault });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_another() {
        assert_eq!(plan(7, 600_000), plan(7, 600_000));
        assert_ne!(plan(7, 600_000), plan(8, 600_000));
    }

    #[test]
    fn every_minute_has_every_kind_of_fault() {
        for seed in 0..50 {
            let orders = plan(seed, 120_000);
            for minute in orders.chunk_by(|a, b| a.at / MINUTE == b.at / MINUTE) {
                let kinds: std::collections::HashSet<_> =
                    minute.iter().map(|order| std::mem::discriminant(&order.fault)).collect();
                assert_eq!(kinds.len(), 17, "seed {seed}: {minute:?}");
            }
        }
    }

    #[test]
    fn a_short_storm_is_planned_too() {
        assert!(plan(1, 6_000).iter().all(|order| order.at < 6_000));
    }
}
