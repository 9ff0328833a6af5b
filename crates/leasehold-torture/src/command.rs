//! What the jobs and items run: it says what it does, does it for a while, and ends as it was asked to.

use crate::check::child_of;
use crate::log::{Line, Log, Step, now_ms};
use crate::random;
use crate::site::{QUEUE_BACKOFF, SPOOL, Site};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// The code of a command that cannot leave its result.
const NOT_LEFT: u8 = 98;
/// Between two signs of life.
const TICK: Duration = Duration::from_millis(100);
/// The variable with the shortest and the longest time of a run, in milliseconds: `300-900`.
pub(crate) const RUN_MS: &str = "TORTURE_RUN_MS";
/// The variable whose presence makes a run tell in advance when it ends: an absence of the store can be aimed at it.
pub(crate) const TELLS: &str = "TORTURE_TELLS";
/// The variable with the code to exit with.
pub(crate) const EXIT: &str = "TORTURE_EXIT";
/// How the payload of a poison item begins; then comes one of the two that follow.
pub(crate) const POISON: u8 = 0xFF;
/// It is completed at the second attempt, with the largest result.
pub(crate) const HEAVY: u8 = 0x80;
/// It fails at most attempts, with the longest reason, and is then completed with the largest result.
pub(crate) const BITTER: u8 = 0x81;
/// In JSON each of these takes two bytes.
const REASON: &str = "\"";
const REASON_BYTES: usize = 500;
/// How many attempts of such an item fail.
const BITTER_ATTEMPTS: u32 = 10;
const RESULT_BYTES: usize = 16 * 1024;
const CHECKPOINT_BYTES: usize = 4 * 1024;
const FOLLOW_UP_BYTES: usize = 9 * 1024;

/// What is to be done.
struct Task {
    line: Line,
    run_ms: u64,
    code: u8,
    /// The item that its completion adds.
    child: bool,
    poison: bool,
    bitter: bool,
}

pub(crate) fn main() -> ExitCode {
    match work() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("torture: a command cannot do its part: {error}");
            ExitCode::from(99)
        }
    }
}

fn work() -> std::io::Result<u8> {
    let site = Site::of_command()?;
    let mut log = Log::open(&site.at("log"))?;
    let Task { line, run_ms, code, child, poison, bitter } = task()?;
    let mut tell = |step, code| log.put(&Line { at: now_ms(), step, code, ..line.clone() });
    tell(Step::Start, None)?;
    if poison {
        // Control characters take six times their size in JSON.
        let checkpoint: String = (0..CHECKPOINT_BYTES).map(|n| char::from(1 + (n % 8) as u8)).collect();
        let queue = variable("LEASEHOLD_QUEUE");
        let _ = quiet(&site, &["queue", "progress", &queue, "--checkpoint", &checkpoint]).status();
    }
    let until = now_ms() + run_ms;
    if !variable(TELLS).is_empty() {
        std::fs::write(site.at("next-end"), until.to_string())?;
    }
    while now_ms() < until {
        std::thread::sleep(TICK.min(Duration::from_millis(until - now_ms().min(until))));
        tell(Step::Tick, None)?;
    }
    if std::env::var_os("LEASEHOLD_QUEUE").is_none() {
        let out = site.at(format!("out/{}", line.work)).display().to_string();
        let from = format!("{out}.{}", line.pids[0]);
        std::fs::write(&from, format!("{} {}", line.id, line.epoch))?;
        tell(Step::Writing, None)?;
        let wrote = quiet(&site, &["write", &out, "--from", &from]).status()?;
        let _ = std::fs::remove_file(from);
        tell(Step::Wrote, wrote.code().or(Some(-1)))?;
    }
    let mut left = Ok(());
    if child && code == 0 {
        // That of a poison item is as long as may be beside all that the item has: its events have to give way.
        let width = if poison { FOLLOW_UP_BYTES } else { 0 };
        let mut item = serde_json::json!({ "payload": format!("{:width$}", child_of(&line.id)) });
        if line.work != SPOOL {
            item["backoff"] = QUEUE_BACKOFF.into();
        }
        left = std::fs::write(variable("LEASEHOLD_FOLLOW_UPS"), format!("{item}\n"));
    }
    if poison && code == 0 && left.is_ok() {
        left = std::fs::write(variable("LEASEHOLD_RESULT"), vec![POISON; RESULT_BYTES]);
    }
    // A cleaner of temporary files was there: the attempt fails, as a script's would.
    let code = if left.is_ok() { code } else { NOT_LEFT };
    tell(Step::End, Some(code.into()))?;
    if bitter {
        let (queue, why) = (variable("LEASEHOLD_QUEUE"), REASON.repeat(REASON_BYTES));
        let _ = quiet(&site, &["queue", "fail", &queue, "--why", &why, "--retry-in", "100ms"]).status();
    }
    Ok(code)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn quiet(site: &Site, words: &[&str]) -> Command {
    let mut command = Command::new(site.leasehold());
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn task() -> std::io::Result<Task> {
    let queue = variable("LEASEHOLD_QUEUE");
    let slot = variable("LEASEHOLD_SLOT");
    let (work, id) = if queue.is_empty() {
        (variable("LEASEHOLD_NAME"), slot_ms(&slot).map(|ms| ms.to_string()).unwrap_or(slot))
    } else {
        let name = Path::new(queue.strip_prefix("spool:").unwrap_or(&queue)).file_name();
        (name.unwrap_or_default().to_string_lossy().into_owned(), variable("LEASEHOLD_ITEM"))
    };
    let number = |name: &str| variable(name).parse::<u64>().unwrap_or(0);
    let attempt = number("LEASEHOLD_ATTEMPT").max(1) as u32;
    let (epoch, pids) = (number("LEASEHOLD_EPOCH"), ancestors());
    let mut line =
        Line { at: 0, step: Step::Start, work, id, epoch, attempt, pids, code: None, payload: String::new() };
    if queue.is_empty() {
        let (least, most) = range(&variable(RUN_MS));
        let run_ms = least + random::of_text(&line.id) % (most - least + 1);
        return Ok(Task { line, run_ms, code: number(EXIT) as u8, child: false, poison: false, bitter: false });
    }
    let payload = std::fs::read(variable("LEASEHOLD_PAYLOAD"))?;
    let poison = payload.first() == Some(&POISON);
    let text = String::from_utf8_lossy(&payload[..payload.len().min(200)]).trim().to_owned();
    let (kind, ms) = text.split_once(' ').unwrap_or((&text, ""));
    let bitter = poison && payload.get(1) == Some(&BITTER) && attempt <= BITTER_ATTEMPTS;
    let fails = kind == "never" || bitter || (attempt == 1 && (kind == "twice" || poison));
    let run_ms = ms.parse().unwrap_or(100);
    let child = poison || matches!(kind, "plain" | "twice");
    line.payload = if poison { "poison".into() } else { text };
    Ok(Task { line, run_ms, code: fails.into(), child, poison, bitter })
}

fn range(text: &str) -> (u64, u64) {
    let (least, most) = text.split_once('-').unwrap_or(("100", "100"));
    (least.parse().unwrap_or(100), most.parse().unwrap_or(100))
}

/// This process and those above it: dead-man, supervisor, and who started that.
fn ancestors() -> [i32; 4] {
    let mut pids = [std::process::id().cast_signed(), 0, 0, 0];
    for at in 1..pids.len() {
        pids[at] = crate::processes::parent(pids[at - 1]).unwrap_or(0);
    }
    pids
}

/// `2026-11-15T03:00:00Z`, with or without a fraction, in milliseconds since 1970.
pub(crate) fn slot_ms(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<jiff::Timestamp>().ok()?.as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_read() {
        assert_eq!(slot_ms("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(slot_ms("2026-11-15T03:00:00Z"), Some(1_794_711_600_000));
        assert_eq!(slot_ms("2024-02-29T23:59:59.5Z"), Some(1_709_251_199_500));
        assert_eq!(slot_ms("tomorrow"), None);
    }
}
