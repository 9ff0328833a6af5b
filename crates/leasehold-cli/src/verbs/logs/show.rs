//! Showing output: whole, its last lines, or as it comes.

use super::find::{Chosen, Content, Finder};
use crate::config::DEFAULT_OUTPUT_SIZE;
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::run_output::Keeping;
use crate::run_output::file::{Stretch, gap_line, is_being_written};
use crate::run_output::followed::Followed;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Error, Kind, Result};
use leasehold_work::schedule::slot_text;
use serde_json::json;
use std::io::IsTerminal;
use std::time::Duration;

/// How often a file is looked at that is being written.
const LOOK: Duration = Duration::from_millis(200);
/// How often the store is asked whether a run that has printed nothing still runs.
const ASK: Duration = Duration::from_secs(2);

pub fn text(chosen: &Chosen, tail: Option<usize>) -> Result<Exit> {
    let bytes = whole(&chosen.content);
    output::deliver_bytes(&shown(last_lines(&bytes, tail)))?;
    say_where(chosen);
    Ok(Exit::Done)
}

pub fn json(chosen: &Chosen) -> Result<Exit> {
    let (source, location) = match &chosen.content {
        Content::File(path, _) => ("file", Some(path.display().to_string())),
        Content::Bucket(url, _) => ("bucket", Some(url.clone())),
        Content::Tail(_) => ("record", None),
        Content::None => ("none", None),
    };
    let record = chosen.record.as_ref();
    let usage = record.and_then(|record| record.usage);
    output::json(&json!({
        "name": chosen.name,
        "item": chosen.item,
        "epoch": chosen.epoch,
        "slot": chosen.slot.map(slot_text),
        "host": chosen.host,
        "running": chosen.runs,
        "ended_at": record.map(|record| output::rfc3339(record.at)),
        "exit": record.and_then(|record| record.exit),
        "cpu_ms": usage.map(|usage| usage.cpu_ms),
        "peak_memory_bytes": usage.map(|usage| usage.peak_memory_bytes),
        "bytes": record.map(|record| record.bytes),
        "source": source,
        "place": location,
        "is_cut": is_cut(chosen),
        "text": String::from_utf8_lossy(&whole(&chosen.content)),
    }))?;
    Ok(Exit::Done)
}

fn is_cut(chosen: &Chosen) -> bool {
    match &chosen.content {
        Content::Tail(_) => chosen.record.as_ref().is_some_and(|record| record.is_cut),
        Content::File(_, stretches) | Content::Bucket(_, stretches) => {
            let there: u64 = stretches.iter().map(|(_, bytes)| bytes.len() as u64).sum();
            let end = stretches.last().map_or(0, |(at, bytes)| at + bytes.len() as u64);
            there < chosen.record.as_ref().map_or(end, |record| record.bytes.max(end))
        }
        Content::None => false,
    }
}

/// Prints what comes until the run is over.
pub async fn follow(finder: &Finder<'_>, chosen: &Chosen, tail: Option<usize>) -> Result<Exit> {
    if chosen.runs && !chosen.runs_here {
        let host = chosen.host.as_deref().unwrap_or("another machine");
        let message = format!("`{}`, epoch {}, is running on {host}: follow it there", chosen.name, chosen.epoch);
        return Err(Error::new(Kind::Unsupported, message));
    }
    let Some(path) = chosen.path.clone().filter(|path| chosen.runs_here || is_being_written(path)) else {
        return text(chosen, tail);
    };
    let (mut file, mut position, mut asked) = (None::<Followed>, None::<u64>, SystemClock.now());
    // Of what was written before; what comes is read as it comes.
    let most = finder.keeping.map_or(DEFAULT_OUTPUT_SIZE.0, Keeping::most_shown);
    loop {
        // Open from its first byte on: it may be removed, or moved to a bucket, as soon as the run has ended.
        file = file.or_else(|| Followed::open(&path).ok());
        // Before the look: what is written until it is over is seen.
        let is_over = file.as_ref().is_some_and(Followed::is_over);
        let (stretches, is_all) = file.as_mut().map_or_else(|| (Vec::new(), true), |file| file.read_new(most));
        if !stretches.is_empty() {
            let new = match position {
                None => last_lines(&joined(&stretches, 0), tail).to_vec(),
                Some(position) => joined(&stretches, position),
            };
            position = stretches.iter().map(|(at, bytes)| at + bytes.len() as u64).chain(position).max();
            if output::deliver_bytes(&shown(&new))? == Reader::Gone {
                return Ok(Exit::Done);
            }
        }
        if !is_all {
            continue;
        }
        if is_over {
            // A disk that is full ends the keeping before the run, and a supervisor that is killed before its lease.
            if finder.is_live(chosen).await? {
                output::say(&format!(
                    "`{}`, epoch {}, still has its lease or item, but nobody writes its output here any more: its supervisor was \
                     killed, or could not keep more of it",
                    chosen.name, chosen.epoch
                ));
            }
            return Ok(Exit::Done);
        }
        if position.is_none() && SystemClock.now().saturating_since(asked) >= ASK {
            asked = SystemClock.now();
            if !finder.is_live(chosen).await? {
                return ended_unseen(finder, chosen, tail).await;
            }
        }
        SystemClock.sleep_until(SystemClock.now() + LOOK).await;
    }
}

/// For a run that is over, and whose file was never seen here: what it printed may have gone to a bucket or the store.
async fn ended_unseen(finder: &Finder<'_>, chosen: &Chosen, tail: Option<usize>) -> Result<Exit> {
    if let Some(found) = finder.again(chosen).await?.filter(|found| !matches!(found.content, Content::None)) {
        return text(&found, tail);
    }
    output::say(&format!("`{}`, epoch {}, is over; nothing that it printed is kept", chosen.name, chosen.epoch));
    Ok(Exit::Done)
}

fn whole(content: &Content) -> Vec<u8> {
    match content {
        Content::File(_, stretches) | Content::Bucket(_, stretches) => joined(stretches, 0),
        Content::Tail(text) => text.clone().into_bytes(),
        Content::None => Vec::new(),
    }
}

/// The output from this byte on, with a line where some of it is missing.
fn joined(stretches: &[Stretch], from: u64) -> Vec<u8> {
    let (mut all, mut end) = (Vec::new(), from);
    for (at, bytes) in stretches {
        if *at > end {
            all.extend_from_slice(gap_line(at - end).as_bytes());
        }
        let known = usize::try_from(end.saturating_sub(*at)).unwrap_or(usize::MAX);
        all.extend_from_slice(bytes.get(known..).unwrap_or_default());
        end = end.max(at + bytes.len() as u64);
    }
    all
}

fn last_lines(bytes: &[u8], count: Option<usize>) -> &[u8] {
    let Some(count) = count else { return bytes };
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    match count {
        0 => &[],
        count => &bytes[ends.nth(count - 1).unwrap_or(0)..],
    }
}

/// As it is for programs. On a terminal a command's output must not be able to give orders: colours stay, every other
/// control character is shown, not obeyed.
fn shown(bytes: &[u8]) -> Vec<u8> {
    if std::io::stdout().is_terminal() {
        harmless(&String::from_utf8_lossy(bytes)).into_bytes()
    } else {
        bytes.to_vec()
    }
}

fn harmless(text: &str) -> String {
    let (mut harmless, mut is_coloured, mut rest) = (String::with_capacity(text.len()), false, text);
    while let Some(c) = rest.chars().next() {
        if let Some(length) = colour(rest) {
            harmless.push_str(&rest[..length]);
            (is_coloured, rest) = (true, &rest[length..]);
            continue;
        }
        match c {
            '\n' | '\t' => harmless.push(c),
            c if c.is_control() => harmless.extend(c.escape_default()),
            c => harmless.push(c),
        }
        rest = &rest[c.len_utf8()..];
    }
    if is_coloured {
        harmless.push_str("\x1b[0m");
    }
    harmless
}

/// The length of the colour sequence that a text begins with.
fn colour(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.bytes().position(|byte| !matches!(byte, b'0'..=b'9' | b';' | b':'))?;
    (end <= 40 && parameters.as_bytes()[end] == b'm').then_some(end + 3)
}

/// On standard error, so that what is printed is output only.
fn say_where(chosen: &Chosen) {
    let (Content::Tail(_), Some(record)) = (&chosen.content, &chosen.record) else { return };
    if !record.is_cut {
        return;
    }
    let here = leasehold_system::host::name();
    output::say(&match &record.file {
        Some(_) if record.host == here => {
            format!("these are the last lines of {} bytes; the file with all of them is no longer here", record.bytes)
        }
        Some(_) => format!("these are the last lines of {} bytes; the rest is kept on {}", record.bytes, record.host),
        None => format!("these are the last lines of {} bytes; the rest was not kept", record.bytes),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_given_no_orders() {
        for (text, expected) in [
            ("\x1b[1;31mred\x1b[m plain", "\x1b[1;31mred\x1b[m plain\x1b[0m"),
            ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            ("\x1b[2Jgone", "\\u{1b}[2Jgone"),
            ("a\tb\nc\u{9b}31m", "a\tb\nc\\u{9b}31m"),
            ("\x1b[", "\\u{1b}["),
            ("é\x1b[38:5:1mx", "é\x1b[38:5:1mx\x1b[0m"),
        ] {
            assert_eq!(harmless(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_last_lines_are_counted_as_tail_does() {
        let bytes = b"one\ntwo\nthree\n";
        for (count, expected) in [(0, &b""[..]), (1, b"three\n"), (2, b"two\nthree\n"), (3, bytes), (9, bytes)] {
            assert_eq!(last_lines(bytes, Some(count)), expected);
        }
        assert_eq!(last_lines(b"one\ntwo", Some(1)), b"two");
        assert_eq!(last_lines(bytes, None), bytes);
    }

    #[test]
    fn what_is_missing_between_two_stretches_is_said() {
        let stretches = [(0, b"abc".to_vec()), (10, b"xyz".to_vec())];
        let text = String::from_utf8(joined(&stretches, 0)).unwrap();
        assert_eq!(text, format!("abc{}xyz", gap_line(7)));
        assert_eq!(joined(&stretches, 2), [b"c", gap_line(7).as_bytes(), b"xyz"].concat());
        assert_eq!(joined(&stretches, 12), b"z");
        assert_eq!(joined(&stretches, 13), b"");
    }
}
