//! The process tree, as `ps` shows it. Darwin has no subreaper: a descendant that left its session *and* whose parents
//! have all died belongs to launchd and is not found. docs/guarantees.md says so.

use rustix::process::{Pid, Signal};
use std::collections::HashMap;
use std::process::Command;

pub(crate) const ADOPTS_ORPHANS: bool = false;

pub(crate) fn adopt_orphans() -> std::io::Result<()> {
    Ok(())
}

/// Signals every descendant of this process, and says how many there were. Zombies do not count.
pub(crate) fn signal_descendants(signal: Signal) -> std::io::Result<usize> {
    let output = Command::new("/bin/ps").args(["-axo", "pid=,ppid=,state="]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut parents: HashMap<i32, i32> = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        if let (Some(pid), Some(parent), Some(state)) = (fields.next(), fields.next(), fields.next())
            && let (Ok(pid), Ok(parent)) = (pid.parse(), parent.parse())
            && !state.starts_with('Z')
        {
            parents.insert(pid, parent);
        }
    }
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let mut found = 0;
    for &pid in parents.keys() {
        let mut above = pid;
        for _ in 0..parents.len() {
            match parents.get(&above) {
                Some(&parent) if parent == me => {
                    if let Some(number) = Pid::from_raw(pid)
                        && rustix::process::kill_process(number, signal).is_ok()
                    {
                        found += 1;
                    }
                    break;
                }
                Some(&parent) => above = parent,
                None => break,
            }
        }
    }
    Ok(found)
}
