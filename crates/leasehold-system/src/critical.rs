//! Sections in which this process must not be stopped, because others wait for its locks.
//!
//! A process that stops while it has a lock, as on Ctrl-Z, keeps that lock until it is continued. So code that takes
//! such a lock [enters](enter) first. Code that is about to stop the process [pauses](pause): that waits until no
//! thread is inside, and lets none in during the pause.
//!
//! Promise: during a pause no thread of this process is inside. Non-promise: a signal that cannot be handled (SIGSTOP) does not
//! wait. Entering twice on one thread can deadlock.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

static GATE: Gate = Gate { state: Mutex::new(State { inside: 0, is_paused: false }), changed: Condvar::new() };

struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    inside: usize,
    is_paused: bool,
}

/// The thread that has this is inside.
#[derive(Debug)]
pub struct Inside(());

/// No thread is inside while this exists.
#[derive(Debug)]
pub struct Pause(());

/// Enters; waits for the end of a pause first.
pub fn enter() -> Inside {
    let mut state = GATE.state();
    while state.is_paused {
        state = GATE.wait(state);
    }
    state.inside += 1;
    Inside(())
}

/// Waits until no thread is inside, and lets none in until the result is dropped. One pause at a time.
pub fn pause() -> Pause {
    let mut state = GATE.state();
    while state.is_paused {
        state = GATE.wait(state);
    }
    // From here on no thread enters, so this ends when those inside are done.
    state.is_paused = true;
    while state.inside > 0 {
        state = GATE.wait(state);
    }
    Pause(())
}

/// For a thread that is inside, but holds no lock and only waits: if a pause is
/// due, waits until it is over. Says whether there was one.
pub fn let_pause_pass() -> bool {
    let mut state = GATE.state();
    if !state.is_paused {
        return false;
    }
    state.inside = state.inside.saturating_sub(1);
    GATE.changed.notify_all();
    while state.is_paused {
        state = GATE.wait(state);
    }
    state.inside += 1;
    true
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = GATE.state();
        state.inside = state.inside.saturating_sub(1);
        if state.is_paused {
            GATE.changed.notify_all();
        }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        GATE.state().is_paused = false;
        GATE.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// One test, because there is one gate.
    #[test]
    fn a_pause_waits_for_those_inside_and_keeps_others_out() {
        let inside = enter();
        let (tell, told) = channel();
        let pausing = std::thread::spawn({
            let tell = tell.clone();
            move || {
                let pause = pause();
                tell.send("paused").unwrap();
                pause
            }
        });
        while !GATE.state().is_paused {
            std::thread::yield_now();
        }
        let entering = std::thread::spawn(move || {
            let inside = enter();
            tell.send("entered").unwrap();
            drop(inside);
        });
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        drop(inside);
        assert_eq!(told.recv().unwrap(), "paused");
        let pause = pausing.join().unwrap();
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        drop(pause);
        assert_eq!(told.recv().unwrap(), "entered");
        entering.join().unwrap();

        // A thread that only waits lets the pause happen.
        let inside = enter();
        assert!(!let_pause_pass());
        let pausing = std::thread::spawn(|| drop(self::pause()));
        while !let_pause_pass() {
            std::thread::yield_now();
        }
        pausing.join().unwrap();
        drop(inside);
        assert_eq!(GATE.state().inside, 0);
    }
}
