//! The end of what a run printed, for people.
//!
//! Promise: it is plain text, as a terminal would show it in the end. Non-promise: it is not all of it; a file of the machine that
//! ran it may be.

use super::times::{When, thousands};
use leasehold_core::Timestamp;
use leasehold_work::output::RunOutput;

/// The most of an output that is shown: its end.
const TAIL: usize = 32 * 1024;

/// The end of what a run printed.
pub struct Printed {
    pub epoch: u64,
    pub at: When,
    pub host: String,
    pub bytes: String,
    pub is_cut: bool,
    /// Where all of it is, if it is kept.
    pub file: Option<String>,
    pub text: String,
}

impl Printed {
    /// As it was stored.
    pub fn of(output: &RunOutput, now: Timestamp) -> Self {
        Printed {
            epoch: output.epoch.get(),
            at: When::new(output.at, now),
            host: output.host.clone(),
            bytes: thousands(output.bytes),
            is_cut: output.is_cut || output.tail.len() > TAIL,
            file: output.file.clone(),
            text: fold(tail(&output.tail)),
        }
    }
}

/// The end of a text, from a whole character on.
fn tail(text: &str) -> &str {
    let from = text.len().saturating_sub(TAIL);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}

/// What a terminal would show in the end: a carriage return writes over its line, and colours are left out.
fn fold(text: &str) -> String {
    let lines = text.split('\n').map(|line| {
        let line = line.strip_suffix('\r').unwrap_or(line);
        plain(line.rsplit('\r').find(|part| !part.is_empty()).unwrap_or_default())
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Without escape sequences and other control characters, tabs apart.
fn plain(line: &str) -> String {
    let (mut plain, mut chars) = (String::new(), line.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' if chars.peek() == Some(&'[') => {
                chars.next();
                while chars.next().is_some_and(|c| !('\u{40}'..='\u{7e}').contains(&c)) {}
            }
            '\t' => plain.push(c),
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carriage_return_writes_over_its_line() {
        assert_eq!(fold("10%\r50%\r100%\ndone\r\n\rx\r"), "100%\ndone\nx");
        assert_eq!(fold("\u{1b}[31mred\u{1b}[0m\tand\u{7}plain\u{1b}["), "red\tandplain");
    }

    #[test]
    fn the_end_of_an_output_begins_with_a_whole_character() {
        let text = "é".repeat(TAIL);
        assert!(tail(&text).len() <= TAIL && tail(&text).starts_with('é'));
        assert_eq!(tail("short"), "short");
    }
}
