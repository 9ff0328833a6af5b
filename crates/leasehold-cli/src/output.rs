//! What is printed: data to standard output, everything else to standard error.

use crate::exit::Exit;
use crate::log;
use leasehold_core::secret::without_keys;
use leasehold_core::{Error, Kind, Result, Timestamp, format_duration};
use serde_json::Value;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::time::Duration;

/// Whether anybody still reads what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    There,
    Gone,
}

/// Why standard output did not take what there was to print.
#[derive(Debug)]
pub struct OutputFailed(std::io::Error);

impl std::fmt::Display for OutputFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for OutputFailed {}

/// Prints data. A reader that went away is no error.
pub fn print(text: &str) -> Result<()> {
    deliver(text).map(|_| ())
}

/// Prints data and says whether it was still wanted, for those who would print for ever.
pub fn deliver(text: &str) -> Result<Reader> {
    deliver_bytes(text.as_bytes())
}

/// The same for what may not be text.
pub fn deliver_bytes(bytes: &[u8]) -> Result<Reader> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => {
            let message = "cannot write to standard output; everything else was done";
            Err(Error::new(Kind::Unavailable, message).with_source(OutputFailed(error)))
        }
    }
}

/// Prints a line of data.
pub fn line(text: &str) -> Result<()> {
    print(&format!("{text}\n"))
}

/// Prints JSON, one document on one line.
pub fn json(value: &Value) -> Result<()> {
    line(&value.to_string())
}

/// Says something to whoever started the command, on standard error.
pub fn say(text: &str) {
    tracing::info!(target: log::SAY, "{}", without_keys(text));
}

/// Says what ended the command, and gives its exit code.
pub fn fail(error: &Error) -> Exit {
    let exit = Exit::from(error);
    tracing::error!(target: log::SAY, exit_code = exit.code(), "{}", without_keys(&error.to_string()));
    exit
}

/// Asks whether to do it; without anybody to ask that is an error, not a yes.
pub fn agreed(what: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        let message =
            format!("nothing was done: this would {what}; there is no terminal to ask on, so add --yes to do it");
        return Err(Error::new(Kind::Invalid, message));
    }
    let _ = write!(std::io::stderr(), "leasehold: {what}? [y/N] ");
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// A time as JSON has it: RFC 3339 in UTC.
pub fn rfc3339(at: Timestamp) -> String {
    i64::try_from(at.as_millis())
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| format!("{}ms", at.as_millis()), |t| t.to_string())
}

/// A time as people have it: `3m ago`, `in 45s`.
pub fn relative(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        format!("in {}", rough(at.saturating_since(now)))
    } else if at == now {
        "now".into()
    } else {
        format!("{} ago", rough(now.saturating_since(at)))
    }
}

/// A duration to two units at most: nobody reads `3h12m7s412ms`.
pub fn rough(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let grain = match ms {
        0..10_000 => 100,
        10_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    let rounded = (ms / grain) * grain;
    if rounded < 10_000 && !rounded.is_multiple_of(1000) {
        return format!("{}.{}s", rounded / 1000, rounded % 1000 / 100);
    }
    format_duration(Duration::from_millis(rounded))
}

/// So many of these: `1 job`, `2 jobs`.
pub fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// A number of bytes, rounded to what people read: `12MB`.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{}KB", bytes.div_ceil(1024)),
        1_048_576..10_737_418_240 => format!("{}MB", bytes / 1_048_576),
        _ => format!("{}GB", bytes / 1_073_741_824),
    }
}

/// A header and rows with aligned columns, two spaces apart. On a terminal the rows fit its width, and states have colours.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    layout(header, rows, Look::of_stdout())
}

/// How a table is drawn.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// The widest that a line may be, if there is a limit.
    width: Option<usize>,
    is_coloured: bool,
}

impl Look {
    fn of_stdout() -> Self {
        let out = std::io::stdout();
        if !out.is_terminal() {
            return Look { width: None, is_coloured: false };
        }
        let width = terminal_size::terminal_size_of(&out).map(|(width, _)| usize::from(width.0));
        let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_coloured = !is_refused && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Look { width, is_coloured }
    }
}

/// The narrowest that a column is cut to.
const NARROWEST: usize = 8;

fn layout(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>, look: Look) -> String {
    let titles: Vec<String> = header.iter().map(ToString::to_string).collect();
    let shown = |row: Vec<String>| row.iter().map(|cell| escaped(cell)).collect();
    let rows = Some(titles).into_iter().filter(|row| !row.is_empty()).chain(rows.into_iter().map(shown));
    let rows: Vec<Vec<String>> = rows.collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..columns).map(width).collect();
    if let Some(limit) = look.width {
        narrow(&mut widths, limit);
    }
    let cell = |(column, text): (usize, &String)| {
        let (width, is_last) = (widths[column], column + 1 == columns);
        let text = if text.chars().count() > width { cut(text, width) } else { text.clone() };
        let gap = if is_last { 0 } else { width + 2 - text.chars().count() };
        let colour = colour(&text).filter(|_| look.is_coloured && (header.is_empty() || is_state(header, column)));
        let text = colour.map_or_else(|| text.clone(), |code| format!("\x1b[{code}m{text}\x1b[0m"));
        format!("{text}{}", " ".repeat(gap))
    };
    let line = |row: &Vec<String>| format!("{}\n", row.iter().enumerate().map(cell).collect::<String>().trim_end());
    rows.iter().map(line).collect()
}

/// A cell whose text may be anybody's, such as the name of a file: no control character reaches the terminal.
fn escaped(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() }).collect()
}

/// Cuts the widest columns until a line fits, or nothing is left to cut.
fn narrow(widths: &mut [usize], limit: usize) {
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
    while total(widths) > limit {
        match widths.iter_mut().max() {
            Some(widest) if *widest > NARROWEST => *widest -= 1,
            _ => return,
        }
    }
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width.saturating_sub(1)).chain(['\u{2026}']).collect()
}

fn is_state(header: &[&str], column: usize) -> bool {
    header.get(column).is_some_and(|title| ["STATE", "FATE", "OUTCOME", "ENDED"].contains(title))
}

/// The terminal's colour for a word that tells a state; none for any other word.
fn colour(text: &str) -> Option<u8> {
    let word = text.split([' ', ',']).next().unwrap_or_default();
    match word {
        "held" | "claimed" | "running" | "ok" | "done" | "succeeded" | "success" => Some(32),
        "paused" | "draining" | "drained" | "expired" | "delayed" | "note" | "late" | "moving" => Some(33),
        "failed" | "dead" | "lost" | "fenced" | "bad" | "missed" | "died" | "not_started" => Some(31),
        "free" | "skipped" | "moved" | "cancelled" => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_and_rough() {
        let at = |ms| Timestamp::from_millis(ms);
        assert_eq!(relative(at(100_000), at(145_000)), "45s ago");
        assert_eq!(relative(at(145_400), at(100_000)), "in 45s");
        assert_eq!(relative(at(1), at(1)), "now");
        assert_eq!(rough(Duration::from_millis(11_527_412)), "3h12m");
        assert_eq!(rough(Duration::from_millis(1_540)), "1.5s");
        assert_eq!(rough(Duration::from_millis(2_000)), "2s");
        assert_eq!(rfc3339(at(0)), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn columns_are_aligned() {
        assert_eq!(table(&["A", "B"], [vec!["long".into(), "x".into()]]), "A     B\nlong  x\n");
    }

    #[test]
    fn no_control_character_of_a_cell_reaches_the_terminal() {
        let rude = table(&["A", "B"], [vec!["\x1b]0;x\x07\r\n".into(), "é\\".into()]]);
        let cell = r"\u{1b}]0;x\u{7}\r\n";
        assert_eq!(rude, format!("A{}  B\n{cell}  é\\\n", " ".repeat(cell.len() - 1)));
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let look = Look { width: Some(40), is_coloured: false };
        let row =
            vec!["nightly".into(), "held".into(), "a holder with a very long name indeed".into(), "in 45s".into()];
        let text = layout(&["NAME", "STATE", "HOLDER", "UNTIL"], [row], look);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains("a holder with") && text.contains('\u{2026}') && text.contains("in 45s"), "{text}");
    }

    #[test]
    fn states_have_colours_and_nothing_else_has() {
        let look = Look { width: None, is_coloured: true };
        let text = layout(&["NAME", "STATE"], [vec!["failed".into(), "failed".into()]], look);
        assert_eq!(text, "NAME    STATE\nfailed  \x1b[31mfailed\x1b[0m\n");
    }
}
