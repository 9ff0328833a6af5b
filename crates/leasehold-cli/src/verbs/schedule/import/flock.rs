//! Lines that keep their runs apart with `flock LOCKFILE COMMAND`: a job's lease does that, on every machine.
//!
//! Promise: a lock is replaced only if a line takes it for its whole command, for itself alone: of `flock -n x a; b` the lock is
//! around `a` only, and `b` would get under the lease. Non-promise: whether something outside the crontab uses the same file.

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

/// A command that is under `flock` as a whole, taken apart; none if it is not.
pub fn flocked(command: &str) -> Option<Flocked> {
    taken_apart(command).filter(|_| !has_several(command))
}

/// Whether only a part of a line is under the `flock` that it begins with.
pub fn is_partly_flocked(command: &str) -> bool {
    taken_apart(command).is_some() && has_several(command)
}

/// Whether a shell finds more than one command in this text: `;`, `&`, `|` or a line break that is neither in quotes nor part of
/// a redirection. Text whose quotes are not closed may hold anything.
fn has_several(text: &str) -> bool {
    let (mut letters, mut before, mut quote) = (text.chars(), ' ', None);
    while let Some(c) = letters.next() {
        match (quote, c) {
            (Some('\''), '\\') => {}
            (_, '\\') => {
                letters.next();
            }
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            // `2>&1` and `>|` are redirections.
            (None, '&') if matches!(before, '>' | '<') => {}
            (None, '|') if before == '>' => {}
            (None, ';' | '&' | '|' | '\n') => return true,
            _ => {}
        }
        before = c;
    }
    quote.is_some()
}

/// A command that begins with `flock`, taken apart, whatever comes behind it; none if it does something else with it.
pub fn taken_apart(command: &str) -> Option<Flocked> {
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
        for (command, lock) in [
            ("flock -n x a; b", "x"),
            ("flock -n x a;b", "x"),
            ("flock -n x a | b", "x"),
            ("flock -n x a|b", "x"),
            ("flock -n x a && b", "x"),
            ("flock -n x a || b", "x"),
            ("flock -n x a &", "x"),
            ("flock -n x a\nb", "x"),
            ("flock -n x a &> log", "x"),
            ("flock -n x -c 'a; b'; c", "x"),
            ("flock -n x a \"it's\"; b 'c'", "x"),
            ("flock -n x a 'open", "x"),
        ] {
            assert_eq!(flocked(command), None, "{command}");
            assert!(is_partly_flocked(command), "{command}");
            assert_eq!(taken_apart(command).unwrap().lock, lock, "{command}");
        }
        for command in [
            "flock -n x a 'b; c' \"d | e\" \\; f",
            "flock -n x a >>log 2>&1",
            "flock -n x a >|log",
            "flock -n x a \"say \\\"x; y\\\"\"",
            "flock -n x find . -exec rm {} \\;",
        ] {
            assert!(flocked(command).is_some() && !is_partly_flocked(command), "{command}");
        }
        for command in
            ["a", "", "flock", "flock -n x.lock", "flock -s x.lock a", "flock -n 9 && a", "flock -n \"$HOME/x\" a"]
        {
            assert_eq!(flocked(command), None, "{command}");
        }
    }
}
