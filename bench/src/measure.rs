//! Contests: several contestants take turns, so that what disturbs the machine disturbs them all.

use anyhow::{Context, Result};
use leasehold_core::clock::{Clock, SystemClock};
use std::time::Duration;

/// Rounds that do not count: caches, folders and connections come to be in them.
const WARM_UP: usize = 3;
/// Fewer rounds than this have no median to speak of, even when the time is over.
const FEWEST: usize = 5;
/// More tell nothing new.
const MOST: usize = 2_000;

/// One that takes part.
pub struct Contestant<'a> {
    name: &'static str,
    /// How many operations one turn is.
    operations: u32,
    turn: Box<dyn FnMut() -> Result<()> + 'a>,
}

impl<'a> Contestant<'a> {
    /// A contestant whose turn is so many operations.
    pub fn new(name: &'static str, operations: u32, turn: impl FnMut() -> Result<()> + 'a) -> Self {
        Contestant { name, operations, turn: Box::new(turn) }
    }
}

/// Lets everybody take turns for this long; gives each one's median time for one operation.
pub fn contest<const N: usize>(limit: Duration, mut contestants: [Contestant<'_>; N]) -> Result<[Duration; N]> {
    let mut turns: [Vec<Duration>; N] = std::array::from_fn(|_| Vec::new());
    let mut end = SystemClock.now() + limit;
    for round in 0..WARM_UP + MOST {
        if round == WARM_UP {
            end = SystemClock.now() + limit;
        }
        if round >= WARM_UP + FEWEST && SystemClock.now() >= end {
            break;
        }
        for index in 0..N {
            // Nobody always follows the same one.
            let at = if round % 2 == 0 { (round / 2 + index) % N } else { (round / 2 + N - 1 - index) % N };
            let contestant = &mut contestants[at];
            let started = SystemClock.now();
            (contestant.turn)().with_context(|| format!("{} failed", contestant.name))?;
            let took = SystemClock.now().saturating_since(started);
            if round >= WARM_UP {
                turns[at].push(took / contestant.operations);
            }
        }
    }
    Ok(turns.map(median))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let (low, high) = (times[(times.len() - 1) / 2], times[times.len() / 2]);
    (low + high) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let ms = Duration::from_millis;
        assert_eq!(median(vec![ms(9), ms(1), ms(3)]), ms(3));
        assert_eq!(median(vec![ms(9), ms(1), ms(3), ms(5)]), ms(4));
    }

    #[test]
    fn contestants_take_turns_and_none_goes_first_every_time() {
        let order = RefCell::new(Vec::new());
        let turn = |name| {
            let order = &order;
            Contestant::new(name, 1, move || {
                order.borrow_mut().push(name);
                Ok(())
            })
        };
        contest(Duration::ZERO, [turn("a"), turn("b")]).unwrap();
        let order = order.into_inner();
        assert_eq!(order.len(), 2 * (WARM_UP + FEWEST));
        for round in order.chunks(2) {
            assert_ne!(round[0], round[1]);
        }
        assert!(order.chunks(2).any(|round| round[0] == "a") && order.chunks(2).any(|round| round[0] == "b"));
    }
}
