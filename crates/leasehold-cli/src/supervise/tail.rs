//! The end of a command's output, in memory: small enough for a record and a message.

use leasehold_work::output::plain;
use std::collections::VecDeque;

/// How many bytes of the end are kept.
pub const TAIL_BYTES: usize = 4 * 1024;

/// The last lines of a run's output, as text that any reader can show: no control characters but line ends and tabs, no
/// colours, U+FFFD for what is not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tail {
    /// At most [`TAIL_BYTES`].
    pub text: String,
    /// Whether there was more before it.
    pub is_cut: bool,
}

/// Keeps the end of what passes by.
#[derive(Debug, Default)]
pub struct TailBuffer {
    bytes: VecDeque<u8>,
    is_cut: bool,
}

impl TailBuffer {
    pub fn push(&mut self, bytes: &[u8]) {
        let fits = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let surplus = (self.bytes.len() + fits.len()).saturating_sub(TAIL_BYTES);
        self.is_cut |= surplus > 0 || fits.len() < bytes.len();
        self.bytes.drain(..surplus);
        self.bytes.extend(fits);
    }

    pub fn tail(&self) -> Tail {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let mut bytes = &bytes[..];
        if self.is_cut {
            // From the first whole line on, unless it is all one line.
            let line = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            bytes = if line < bytes.len() { &bytes[line..] } else { bytes };
        }
        let mut text = plain(&String::from_utf8_lossy(bytes));
        let mut is_cut = self.is_cut;
        if text.len() > TAIL_BYTES {
            // Replacement characters are longer than what they stand for.
            let from = (text.len() - TAIL_BYTES..=text.len()).find(|at| text.is_char_boundary(*at));
            text.drain(..from.unwrap_or(0));
            is_cut = true;
        }
        Tail { text, is_cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_from_a_whole_line_on() {
        let mut buffer = TailBuffer::default();
        for number in 0..2_000 {
            buffer.push(format!("line {number}\n").as_bytes());
        }
        let tail = buffer.tail();
        assert!(tail.is_cut && tail.text.starts_with("line ") && tail.text.ends_with("line 1999\n"));
        assert!(tail.text.len() <= TAIL_BYTES && tail.text.len() > TAIL_BYTES - 20);
        let mut whole = TailBuffer::default();
        whole.push(b"one\ntwo");
        assert_eq!(whole.tail(), Tail { text: "one\ntwo".into(), is_cut: false });
        let mut long = TailBuffer::default();
        long.push(&vec![b'x'; 10_000]);
        assert_eq!(long.tail().text.len(), TAIL_BYTES);
    }

    #[test]
    fn any_bytes_give_text_that_is_safe_and_small() {
        let mut binary = TailBuffer::default();
        binary.push(&[0xff; TAIL_BYTES]);
        let tail = binary.tail();
        assert!(tail.text.len() <= TAIL_BYTES && tail.is_cut && tail.text.chars().all(|c| c == '\u{fffd}'));
        for (text, expected) in [
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}a\u{1b}]8;;http://x\u{1b}\\b", "ab"),
            ("a\u{8}\u{0}\tb\u{9b}c\n", "a\tbc\n"),
            ("cut \u{1b}[", "cut "),
            ("\u{1b}", ""),
        ] {
            assert_eq!(plain(text), expected, "{text:?}");
        }
    }
}
