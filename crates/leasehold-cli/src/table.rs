//! Tables and pages on standard output.
//!
//! Promise: on a terminal a table fits its width where that is possible without losing anything that no other verb shows:
//! names, ids, slots and states are never cut, text is wrapped, and only columns that are marked so are left out. Elsewhere
//! each row is one line, in full. No control character reaches the terminal. Non-promise: a line that is too long even so
//! is not cut: the terminal wraps it.

use Column::{Extra, State, Text, Whole};
use std::io::IsTerminal;

/// A column, by its title and by what becomes of it where a terminal is too narrow. Without any title there is no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Shown in full: what another command takes, and what is short anyway.
    Whole(&'static str),
    /// Shown in full, in the colour of the state that it names.
    State(&'static str),
    /// Left out where the rest would not fit, from the right; `--json` still has it.
    Extra(&'static str),
    /// Wrapped within its column.
    Text(&'static str),
}

impl Column {
    const fn title(self) -> &'static str {
        let (Whole(title) | State(title) | Extra(title) | Text(title)) = self;
        title
    }
}

/// A text column may be as narrow as this before an extra one is left out, and a word in it is not broken unless it is longer.
const READABLE: usize = 24;
/// A text column is not made narrower than this, and then words are broken.
const NARROWEST: usize = 12;

/// A header and rows with aligned columns, two spaces apart.
pub fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    draw(columns, rows, Look::of_stdout())
}

/// What is known of one thing, a line for each field, in full however long. The value of `state` has the state's colour.
pub fn page(rows: impl IntoIterator<Item = Vec<String>>) -> String {
    draw_page(rows, Look::of_stdout())
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

/// A column with its cells, the title among them, and its width.
struct Filled {
    column: Column,
    cells: Vec<String>,
    width: usize,
}

impl Filled {
    fn new(column: Column, cells: Vec<String>) -> Self {
        let width = cells.iter().map(|cell| length(cell)).max().unwrap_or(0);
        Filled { column, cells, width }
    }

    /// The least that it can have without a word of this length being broken.
    fn narrowest(&self, unbroken: usize) -> usize {
        let words = self.cells.iter().flat_map(|cell| cell.split(' '));
        match self.column {
            Text(_) => words.map(length).max().unwrap_or(0).min(unbroken),
            Whole(_) | State(_) | Extra(_) => self.width,
        }
    }

    fn readable(&self) -> usize {
        if let Text(_) = self.column { self.width.min(READABLE) } else { self.width }
    }

    /// The lines of a cell.
    fn lines(&self, row: usize) -> Vec<String> {
        match self.column {
            Text(_) => wrapped(&self.cells[row], self.width),
            Whole(_) | State(_) | Extra(_) => vec![self.cells[row].clone()],
        }
    }
}

fn draw(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>, look: Look) -> String {
    let titles: Vec<String> = columns.iter().map(|column| column.title().to_owned()).collect();
    let has_header = titles.iter().any(|title| !title.is_empty());
    let rows: Vec<Vec<String>> = has_header.then_some(titles).into_iter().chain(rows).collect();
    let filled = |(at, column): (usize, &Column)| {
        let cells = rows.iter().map(|row| row.get(at).map_or_else(String::new, |cell| escaped(cell)));
        Filled::new(*column, cells.collect())
    };
    let mut filled: Vec<Filled> = columns.iter().enumerate().map(filled).collect();
    if let Some(limit) = look.width {
        fit(&mut filled, limit);
    }
    (0..rows.len()).map(|row| draw_row(&filled, row, look)).collect()
}

/// One row, of as many lines as its longest text needs.
fn draw_row(columns: &[Filled], row: usize, look: Look) -> String {
    let cells: Vec<Vec<String>> = columns.iter().map(|column| column.lines(row)).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |line: usize, at: usize| {
        let text = cells[at].get(line).map_or("", String::as_str);
        let gap = if at + 1 == columns.len() { 0 } else { columns[at].width + 2 - length(text) };
        let is_state = matches!(columns[at].column, State(_));
        format!("{}{}", if is_state { coloured(text, look) } else { text.to_owned() }, " ".repeat(gap))
    };
    let line = |line: usize| {
        let cells: String = (0..columns.len()).map(|at| cell(line, at)).collect();
        format!("{}\n", cells.trim_end())
    };
    (0..height).map(line).collect()
}

/// Leaves out extra columns and narrows text until a line fits, or nothing more can be done.
fn fit(columns: &mut Vec<Filled>, limit: usize) {
    let gaps = |columns: &[Filled]| 2 * columns.len().saturating_sub(1);
    while columns.iter().map(Filled::readable).sum::<usize>() + gaps(columns) > limit {
        let Some(last) = columns.iter().rposition(|filled| matches!(filled.column, Extra(_))) else { break };
        columns.remove(last);
    }
    for unbroken in [READABLE, NARROWEST] {
        while columns.iter().map(|filled| filled.width).sum::<usize>() + gaps(columns) > limit {
            let narrowable = columns.iter_mut().filter(|filled| filled.width > filled.narrowest(unbroken));
            let Some(widest) = narrowable.max_by_key(|filled| filled.width) else { break };
            widest.width -= 1;
        }
    }
}

/// The lines of a text that are no longer than this, broken between words where that is possible.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().map_or(0, |line| length(line));
        match lines.last_mut() {
            Some(last) if line == 0 => last.push_str(word),
            Some(last) if line + 1 + length(word) <= width => last.extend([" ", word]),
            _ => lines.push(word.to_owned()),
        }
        while let Some(long) = lines.pop_if(|line| length(line) > width.max(1)) {
            let (at, _) = long.char_indices().nth(width.max(1)).unwrap_or((long.len(), ' '));
            lines.extend([long[..at].to_owned(), long[at..].to_owned()]);
        }
    }
    lines
}

fn draw_page(rows: impl IntoIterator<Item = Vec<String>>, look: Look) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| length(cell)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let is_state = row.first().is_some_and(|field| field == "state");
        let cell = |(at, text): (usize, &String)| {
            let gap = if at + 1 == columns { 0 } else { widths[at] + 2 - length(text) };
            format!("{}{}", if is_state && at > 0 { coloured(text, look) } else { text.clone() }, " ".repeat(gap))
        };
        format!("{}\n", row.iter().enumerate().map(cell).collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}

/// A cell whose text may be anybody's, such as the name of a file: no control character reaches the terminal.
fn escaped(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() }).collect()
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn coloured(text: &str, look: Look) -> String {
    let colour = colour(text).filter(|_| look.is_coloured);
    colour.map_or_else(|| text.to_owned(), |code| format!("\x1b[{code}m{text}\x1b[0m"))
}

/// The terminal's colour for a word that tells a state; none for any other word.
fn colour(text: &str) -> Option<u8> {
    let word = text.split([' ', ',']).next().unwrap_or_default();
    match word {
        "held" | "claimed" | "running" | "ok" | "done" | "succeeded" | "success" => Some(32),
        "paused"
        | "draining"
        | "drained"
        | "expired"
        | "delayed"
        | "note"
        | "late"
        | "moving"
        | "interrupted"
        | "evicted"
        | "dropped_too_old"
        | "dropped_coalesced"
        | "dropped_clock_ahead" => Some(33),
        "failed" | "dead" | "lost" | "fenced" | "bad" | "missed" | "died" | "not_started" => Some(31),
        "free" | "skipped" | "skipped_overlap" | "already_run" | "moved" | "cancelled" | "forgotten" => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Look = Look { width: None, is_coloured: false };

    fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
        cells.map(ToOwned::to_owned).to_vec()
    }

    fn narrow(width: usize) -> Look {
        Look { width: Some(width), ..WIDE }
    }

    #[test]
    fn columns_are_aligned() {
        assert_eq!(draw(&[Whole("A"), Text("B")], [row(["long", "x"])], WIDE), "A     B\nlong  x\n");
        assert_eq!(draw(&[Whole(""), Text("")], [row(["ok", "x"])], WIDE), "ok  x\n");
    }

    #[test]
    fn no_control_character_of_a_cell_reaches_the_terminal() {
        let rude = draw(&[Whole("A"), Whole("B")], [row(["\x1b]0;x\x07\r\n", "é\\"])], WIDE);
        let cell = r"\u{1b}]0;x\u{7}\r\n";
        assert_eq!(rude, format!("A{}  B\n{cell}  é\\\n", " ".repeat(cell.len() - 1)));
    }

    #[test]
    fn text_is_wrapped_and_nothing_of_it_is_lost() {
        let cells =
            row(["nightly", "an operator asked for the end of it: the disk of this machine is nearly full", "3m"]);
        let text = draw(&[Whole("NAME"), Text("WHY"), Whole("AT")], [cells], narrow(40));
        let expected = "NAME     WHY                          AT\n\
                        nightly  an operator asked for the    3m\n         end of it: the disk of this\n         machine is nearly full\n";
        assert_eq!(text, expected);
        // A word that is too long is broken.
        assert_eq!(wrapped("an aaabbbccc d", 3), ["an", "aaa", "bbb", "ccc", "d"]);
        assert_eq!(wrapped("", 3), [""]);
    }

    #[test]
    fn extra_columns_are_left_out_from_the_right_and_only_as_many_as_must() {
        let columns = [Whole("ID"), Extra("CPU"), Text("WHAT"), Extra("MEMORY")];
        let cells = row(["0123456789", "1.5s", "waits for a while and then goes on", "12MB"]);
        let header = |width| draw(&columns, [cells.clone()], narrow(width)).lines().next().unwrap().to_owned();
        assert!(header(60).ends_with("MEMORY"));
        assert!(!header(44).contains("MEMORY") && header(44).contains("CPU"));
        assert!(!header(36).contains("CPU"));
    }

    #[test]
    fn what_other_commands_take_is_never_cut() {
        let id = "a-name-that-is-longer-than-the-terminal-is-wide";
        let text =
            draw(&[Whole("NAME"), State("STATE"), Text("WHY")], [row([id, "skipped_overlap", "x y"])], narrow(20));
        assert!(text.contains(id) && text.contains("skipped_overlap"), "{text}");
    }

    #[test]
    fn a_page_is_never_cut_or_wrapped() {
        let value = "a long value of many words ".repeat(4);
        let text = draw_page([row(["payload", value.trim()]), row(["id", "x"])], narrow(30));
        assert_eq!(text, format!("payload  {}\nid       x\n", value.trim()));
    }

    #[test]
    fn states_have_colours_and_nothing_else_has() {
        let look = Look { width: None, is_coloured: true };
        let text = draw(&[Whole("NAME"), State("STATE")], [row(["failed", "failed"])], look);
        assert_eq!(text, "NAME    STATE\nfailed  \x1b[31mfailed\x1b[0m\n");
        let text = draw_page([row(["state", "dead"]), row(["why", "dead"])], look);
        assert_eq!(text, "state  \x1b[31mdead\x1b[0m\nwhy    dead\n");
    }
}
