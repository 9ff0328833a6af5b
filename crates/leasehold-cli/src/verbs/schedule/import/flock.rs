//! Lines that keep their runs apart with `flock LOCKFILE COMMAND`: a job's lease does that, on every machine.
//!
//! Promise: only a lock that a line takes for its whole command, for itself alone, is known here. Non-promise: whether something
//! outside the crontab uses the same file.

/// A command under `flock`.
#[derive(Debug, PartialEq, Eq)]
pub struct Flocked {
    /// The file that is locked.
    pub lock: String,
    /// What is done while somebody else has the lock.
    pub busy: Busy,
    /// The command without it, for a shell.
    pub command: String,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Busy {
    Skip,
    /// Waits for so many seconds, or for ever.
    Wait(Option<String>),
}

/// A command that begins with `flock`, taken apart; none if it does not, or does something else with it.
pub fn flocked(command: &str) -> Option<Flocked> {
    let (program, mut rest) = word(command)?;
    if program.rsplit('/').next() != Some("flock") {
        return None;
    }
    let mut busy = Busy::Wait(None);
    let lock = loop {
        let (option, behind) = word(rest)?;
        rest = behind;
        if !option.starts_with('-') {
            break option;
        }
        match option {
            "-n" | "--nb" | "--nonblock" | "-xn" | "-nx" | "-en" | "-ne" => busy = Busy::Skip,
            "-x" | "-e" | "--exclusive" | "-o" | "--close" | "-F" | "--no-fork" | "--verbose" => {}
            "-w" | "--wait" | "--timeout" => {
                let (seconds, behind) = word(rest)?;
                (busy, rest) = (waits(seconds)?, behind);
            }
            "-E" | "--conflict-exit-code" => rest = word(rest)?.1,
            option => match option.split_once('=') {
                Some(("--wait" | "--timeout", seconds)) => busy = waits(seconds)?,
                Some(("--conflict-exit-code", _)) => {}
                // A shared lock keeps nobody apart, and the others are not known.
                _ => busy = waits(option.strip_prefix("-w")?)?,
            },
        }
    };
    // The number of an open file: the lock is not around this command alone.
    let is_file =
        !lock.is_empty() && !lock.bytes().all(|b| b.is_ascii_digit()) && !lock.contains(['"', '\'', '$', '`']);
    let command = match rest.strip_prefix("-c").or_else(|| rest.strip_prefix("--command")) {
        Some(line) => format!("sh -c{line}"),
        None => rest.to_owned(),
    };
    (is_file && !rest.is_empty()).then(|| Flocked { lock: lock.to_owned(), busy, command })
}

fn waits(seconds: &str) -> Option<Busy> {
    match seconds.bytes().all(|b| b.is_ascii_digit()) && !seconds.is_empty() {
        true if seconds.bytes().all(|b| b == b'0') => Some(Busy::Skip),
        true => Some(Busy::Wait(Some(seconds.to_owned()))),
        false => None,
    }
}

/// The first word, and what comes behind it.
fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (end > 0).then(|| (&text[..end], text[end..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flock_around_a_command_is_taken_apart() {
        let wait = |seconds: &str| Busy::Wait(Some(seconds.to_owned()));
        for (command, lock, busy, rest) in [
            ("flock -n /tmp/x.lock /bin/backup --full", "/tmp/x.lock", Busy::Skip, "/bin/backup --full"),
            ("/usr/bin/flock -xn x.lock ./a.sh >> log 2>&1", "x.lock", Busy::Skip, "./a.sh >> log 2>&1"),
            ("flock -w 30 x.lock a", "x.lock", wait("30"), "a"),
            ("flock -w30 -E 0 x.lock a", "x.lock", wait("30"), "a"),
            ("flock --timeout=0 x.lock a", "x.lock", Busy::Skip, "a"),
            ("flock x.lock -c 'a; b' > log", "x.lock", Busy::Wait(None), "sh -c 'a; b' > log"),
        ] {
            let expected = Flocked { lock: lock.into(), busy, command: rest.into() };
            assert_eq!(flocked(command), Some(expected), "{command}");
        }
        for command in
            ["a", "", "flock", "flock -n x.lock", "flock -s x.lock a", "flock -n 9 && a", "flock -n \"$HOME/x\" a"]
        {
            assert_eq!(flocked(command), None, "{command}");
        }
    }
}
