//! Short texts that people enter: labels, names of operators, reasons, progress markers.
//!
//! Promise: one printable line of bounded length, so a record stays small and a log line stays one line.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One non-empty printable line of at most `MAX` bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Line<const MAX: usize>(String);

/// Who a holder says it is; need not be unique.
pub type Label = Line<64>;
/// Who gave an operator's request.
pub type Who = Line<100>;
/// Why an operator gave it.
pub type Why = Line<500>;
/// How far the work has come, in the worker's own words.
pub type Marker = Line<200>;

impl<const MAX: usize> Line<MAX> {
    /// Parses a line, or says what is wrong with it.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        Line::named("text", text)
    }

    /// The same, with the field's name in error messages.
    pub fn named(field: &str, text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        let wrong = if text.trim().is_empty() {
            "it is empty".to_owned()
        } else if text.len() > MAX {
            format!("it has {} bytes", text.len())
        } else if text.chars().any(breaks_a_line) {
            "it has a line break or a control character".to_owned()
        } else {
            return Ok(Line(text));
        };
        Err(Error::invalid(field, &text, format!("{wrong}; use one printable line of at most {MAX} bytes")))
    }

    /// The nearest line to any text: line breaks and control characters are dropped, and it is cut at the limit. If
    /// nothing is left, the same of `fallback`; if nothing is left of that either, `-`.
    pub fn lossy(text: &str, fallback: &str) -> Self {
        let kept = |text: &str| {
            let mut kept = String::new();
            for c in text.trim().chars().filter(|c| !breaks_a_line(*c)) {
                if kept.len() + c.len_utf8() > MAX {
                    break;
                }
                kept.push(c);
            }
            Some(Line(kept)).filter(|line| !line.0.trim().is_empty())
        };
        kept(text).or_else(|| kept(fallback)).unwrap_or_else(|| Line("-".into()))
    }

    /// The text, without line breaks.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a character has no place in one printable line. Unicode's line and paragraph separators are not control characters, but
/// break lines all the same. Those that turn the direction of writing show what comes after them, outside this text too, in another
/// order than it was written.
pub fn breaks_a_line(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl<const MAX: usize> fmt::Display for Line<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<const MAX: usize> FromStr for Line<MAX> {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Line::new(s)
    }
}

impl<const MAX: usize> TryFrom<String> for Line<MAX> {
    type Error = Error;

    fn try_from(s: String) -> Result<Self> {
        Line::new(s)
    }
}

/// What the next attempt needs to continue: any text of at most 4096 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Checkpoint(String);

impl Checkpoint {
    /// The most bytes a checkpoint may have.
    pub const MAX_BYTES: usize = 4096;

    /// A checkpoint of this text; an error above [`Checkpoint::MAX_BYTES`].
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        if text.len() > Checkpoint::MAX_BYTES {
            let form = format!("it has {} bytes; use at most {}", text.len(), Checkpoint::MAX_BYTES);
            return Err(Error::invalid("checkpoint", &text, form));
        }
        Ok(Checkpoint(text))
    }

    /// The text, which may have several lines.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Checkpoint {
    type Error = Error;

    fn try_from(s: String) -> Result<Self> {
        Checkpoint::new(s)
    }
}
