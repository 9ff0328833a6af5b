//! Lines of a command's output, as a log wants them: a progress line that is written over and over is one line.
//!
//! Promise: of a line with carriage returns, what was written last is kept; a piece is at most [`LONGEST`] bytes long, so
//! that it can be passed on in one write. Non-promise: bytes before a carriage return are gone, so binary data with that
//! byte in it does not come out as it went in.

/// The longest piece. With a name before it, it fits into what a pipe takes in one step.
pub const LONGEST: usize = 3_800;

/// Whether a piece is followed by more of the same line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It ends the line.
    Line,
    /// The line is longer.
    Open,
}

/// A stream that is cut into lines.
#[derive(Debug, Default)]
pub struct Lines {
    line: Vec<u8>,
    /// A piece of this line was given out.
    is_begun: bool,
    /// The last byte was a carriage return.
    returned: bool,
}

impl Lines {
    /// Takes what was read, and gives every line, or piece of a long one, that is complete by it.
    pub fn take(&mut self, mut bytes: &[u8], mut give: impl FnMut(&[u8], End)) {
        while !bytes.is_empty() {
            let stop = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (text, rest) = bytes.split_at(stop.unwrap_or(bytes.len()));
            if !text.is_empty() {
                self.add(text, &mut give);
            }
            match rest.first() {
                Some(b'\n') => self.end(&mut give),
                Some(_) => self.returned = true,
                None => {}
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
    }

    /// Gives what has no end of line after it.
    pub fn finish(&mut self, mut give: impl FnMut(&[u8], End)) {
        if !self.line.is_empty() || self.is_begun {
            self.end(&mut give);
        }
    }

    fn add(&mut self, mut text: &[u8], give: &mut impl FnMut(&[u8], End)) {
        if std::mem::take(&mut self.returned) {
            // What was given out cannot be taken back.
            if self.is_begun {
                self.end(give);
            }
            self.line.clear();
        }
        loop {
            let (fits, rest) = text.split_at(text.len().min(LONGEST - self.line.len()));
            self.line.extend_from_slice(fits);
            if rest.is_empty() {
                return;
            }
            give(&self.line, End::Open);
            self.is_begun = true;
            self.line.clear();
            text = rest;
        }
    }

    fn end(&mut self, give: &mut impl FnMut(&[u8], End)) {
        give(&self.line, End::Line);
        self.line.clear();
        (self.is_begun, self.returned) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out, with `|` where a piece ends within a line.
    fn through(parts: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        let mut give = |piece: &[u8], end: End| {
            out.extend_from_slice(piece);
            out.push(if end == End::Line { b'\n' } else { b'|' });
        };
        parts.iter().for_each(|part| lines.take(part, &mut give));
        lines.finish(give);
        out
    }

    #[test]
    fn the_last_state_of_a_progress_line_is_kept() {
        for (parts, expected) in [
            (&[b"10%\r20%\r100%\ndone\n" as &[u8]] as &[&[u8]], b"100%\ndone\n" as &[u8]),
            (&[b"10%\r", b"20%\r", b"\n"], b"20%\n"),
            (&[b"10%\r20%\r"], b"20%\n"),
            (&[b"dos\r\nline\r", b"\nends"], b"dos\nline\nends\n"),
            (&[b"a\r\r\nb"], b"a\nb\n"),
            (&[b"\r\n\n"], b"\n\n"),
            (&[b"\rfirst", b" and more\n"], b"first and more\n"),
            (&[b"\xff\xfe\0\n"], b"\xff\xfe\0\n"),
            (&[b""], b""),
        ] {
            assert_eq!(through(parts), expected, "{parts:?}");
        }
    }

    #[test]
    fn a_long_line_comes_in_pieces_and_nothing_of_it_is_lost() {
        let long = vec![b'x'; LONGEST * 2 + 7];
        let out = through(&[&long, b"\ny\n"]);
        let pieces: Vec<usize> = out.split(|byte| matches!(byte, b'|' | b'\n')).map(<[u8]>::len).collect();
        assert_eq!(pieces, [LONGEST, LONGEST, 7, 1, 0]);
        // What was given out of it stays, and what is written over it is a line of its own.
        let over = through(&[&long, b"\rshort\n"]);
        assert!(over.ends_with(b"xxxxxxx\nshort\n"), "{}", String::from_utf8_lossy(&over[over.len() - 20..]));
    }
}
