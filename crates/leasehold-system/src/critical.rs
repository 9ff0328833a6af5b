//! Sections in which this process must not be stopped, because others wait for what it has locked.
//!
//! A process that stops while it has a lock, as on Ctrl-Z, keeps that lock until it is continued. So code that takes such a lock
//! [enters](enter) first, and code that is about to stop the process [pauses](pause): that waits until no thread is inside, and
//! lets none in while the pause lasts.
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

/// A thread is inside for as long as it has this.
#[derive(Debug)]
pub struct Inside(());

/// Nobody is inside for as long as somebody has this.
#[derive(Debug)]
pub struct Pause(());

/// Goes inside, after the pause if there is one.
pub fn enter() -> Inside {
    let mut state = GATE.state();
    while state.is_paused {
        state = GATE.wait(state);
    }
    state.inside += 1;
    Inside(())
}

/// Waits until nobody is inside, and lets nobody in until it is dropped. One pause at a time.
pub fn pause() -> Pause {
    let mut state = GATE.state();
    while state.is_paused {
        state = GATE.wait(state);
    }
    // From here on nobody enters, so this ends when those inside are done.
    state.is_paused = true;
    while state.inside > 0 {
        state = GATE.wait(state);
    }
    Pause(())
}

/// For a thread that is inside, has nothing locked and only waits: lets a pause pass, if one is due, and says whether
/// there was one.
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

        // A thread that only waits lets it pass.
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
