//! Ctrl-Z: the signals by which a terminal stops a process, held back until no other process waits for this one.
//!
//! A process that is stopped in the middle of a commit to SQLite blocks every lease on the machine. So these signals are
//! handled, on a thread of its own, because commits run on threads of their own and the main one may be reading: it waits
//! until the commit under way is done and lets none begin, and then the process is stopped as it would have been at once.
//!
//! Promise: none of them stops this process in the middle of a commit. Non-promise: SIGSTOP cannot be handled.

use leasehold_system::critical;
use leasehold_system::descriptor::with_default_action;
use leasehold_system::process::{Signal, is_ignored};
use leasehold_system::terminal::Terminal;
use signal_hook::consts::{SIGTSTP, SIGTTIN, SIGTTOU};
use signal_hook::iterator::Signals;

/// Ctrl-Z, reading from the background, and writing from there.
const STOPPING: [i32; 3] = [SIGTSTP, SIGTTIN, SIGTTOU];

/// Handles them from now on. What our caller had ignored stays so.
pub fn hold_back() {
    let handled: Vec<i32> = STOPPING.into_iter().filter(|signal| !is_ignored(*signal)).collect();
    // Without them everything works; only a stop may come at a bad moment.
    let Ok(mut signals) = Signals::new(handled) else { return };
    let _ = std::thread::Builder::new().name("stopping".into()).spawn(move || {
        loop {
            let Some(signal) = signals.wait().next() else { continue };
            let _pause = critical::pause();
            // A job may have been brought to the front while it waited to be stopped for being in the background.
            if signal == SIGTSTP || !Terminal::of_session().is_some_and(|terminal| terminal.is_ours()) {
                // As it would have been done: not at all in a group that no shell is left to continue.
                let _ = with_default_action(signal, || signal_hook::low_level::raise(signal));
            }
            // SIGCONT discards pending stop signals. A process that still uses the terminal gets another one.
            signals.pending().for_each(drop);
        }
    });
}

/// Stops the whole group of this process, as the terminal would have done it; returns when it is continued.
pub fn stop_group() {
    let _pause = critical::pause();
    let _ = with_default_action(SIGTSTP, || rustix::process::kill_current_process_group(Signal::TSTP));
}

/// Reaches for the terminal, for which the system stops this process until its group is in front: not in the middle of a
/// commit, and also where our caller had that signal ignored, for then nothing would keep us from taking it.
pub fn reach(reach: impl FnOnce() -> bool) -> bool {
    let _pause = critical::pause();
    with_default_action(SIGTTOU, reach).unwrap_or(false)
}
