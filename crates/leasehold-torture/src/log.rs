//! The log that the commands write: one line of JSON for each step, appended in one write.
//!
//! Promise: a line is there when the step that it tells of has happened, also if its process is killed right after it.
//! Non-promise: the order of lines of two processes is not the order of their steps; their times are.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// What a command has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// The command began.
    Start,
    /// The command is still running.
    Tick,
    /// It is about to write under its fence.
    Writing,
    /// The fence has answered; `code` is what it said.
    Wrote,
    /// It is about to exit with `code`.
    End,
}

/// One line of the log: what happened, to what, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Milliseconds since boot.
    pub at: u64,
    pub step: Step,
    /// The job or the queue.
    pub work: String,
    /// The slot or the item.
    pub id: String,
    pub epoch: u64,
    /// 1 for the first; of a slot always 1.
    pub attempt: u32,
    /// The command, its dead-man, their supervisor, and who started that.
    pub pids: [i32; 4],
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Of the start of an item: how its payload begins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub payload: String,
}

/// Milliseconds since boot, the same in every process of this machine.
pub(crate) fn now_ms() -> u64 {
    leasehold_system::clock::now().as_nanos() / 1_000_000
}

/// A log that is open for appending.
#[derive(Debug)]
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        OpenOptions::new().append(true).open(path).map(Log)
    }

    /// Appends a line; all but ticks are synced, for the reader relies on them.
    pub(crate) fn put(&mut self, line: &Line) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.0.write_all(&text)?;
        if line.step == Step::Tick { Ok(()) } else { self.0.sync_data() }
    }
}

/// All lines, in the order of their times. A last line that was cut off is left out.
pub(crate) fn parse(text: &str) -> Result<Vec<Line>, String> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parsed = whole.lines().map(|line| serde_json::from_str(line).map_err(|e| format!("log line `{line}`: {e}")));
    let mut lines = parsed.collect::<Result<Vec<Line>, String>>()?;
    lines.sort_by_key(|line| line.at);
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_in_order() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = |at, step| Line {
            at,
            step,
            work: "mail".into(),
            id: "a".into(),
            epoch: 3,
            attempt: 1,
            pids: [4, 3, 2, 1],
            code: None,
            payload: String::new(),
        };
        let mut log = Log::open(file.path()).unwrap();
        log.put(&line(9, Step::End)).unwrap();
        log.put(&line(5, Step::Start)).unwrap();
        let mut text = std::fs::read_to_string(file.path()).unwrap();
        text.push_str("{\"at\":1");
        assert_eq!(parse(&text).unwrap(), [line(5, Step::Start), line(9, Step::End)]);
        assert!(parse("{\"at\":1}\n").is_err());
    }
}
