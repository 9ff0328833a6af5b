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

/// Prints data. Returns whether it is still read, for verbs that print without end.
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

/// Prints a message for the user, on standard error.
pub fn say(text: &str) {
    tracing::info!(target: log::SAY, "{}", without_keys(text));
}

/// The same for what should not be missed where only warnings are shown.
pub fn warn(text: &str) {
    tracing::warn!(target: log::SAY, "{}", without_keys(text));
}

/// The same for what went wrong, where it is not the error that ends the command.
pub fn complain(text: &str) {
    tracing::error!(target: log::SAY, "{}", without_keys(text));
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
}
