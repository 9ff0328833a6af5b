//! Unit files of systemd: sections of `Key=value` lines.

use leasehold_core::Result;
use std::path::Path;
use std::time::Duration;

/// One assignment, with the line that it begins in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub section: String,
    pub key: String,
    pub value: String,
    pub location: String,
}

/// A unit with its drop-ins.
#[derive(Debug, Default)]
pub struct Unit(Vec<Setting>);

impl Unit {
    /// Reads a unit and what lies in `NAME.d/`.
    pub fn read(path: &Path) -> Result<Self> {
        let mut unit = Unit(parse(&super::read(path)?, &path.display().to_string()));
        let mut folder = path.as_os_str().to_owned();
        folder.push(".d");
        let entries = std::fs::read_dir(Path::new(&folder)).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|end| end == "conf"));
        files.sort();
        for file in files {
            unit.0.extend(parse(&super::read(&file)?, &file.display().to_string()));
        }
        Ok(unit)
    }

    /// All of a section.
    pub fn section<'a>(&'a self, section: &str) -> impl Iterator<Item = &'a Setting> {
        self.0.iter().filter(move |setting| setting.section == section)
    }

    /// What a key that may be given several times has: an empty value forgets those before it.
    pub fn all(&self, section: &str, key: &str) -> Vec<&Setting> {
        let mut found = Vec::new();
        for setting in self.section(section).filter(|setting| setting.key == key) {
            if setting.value.is_empty() { found.clear() } else { found.push(setting) }
        }
        found
    }

    /// What a key has that is given once: the last counts.
    pub fn last(&self, section: &str, key: &str) -> Option<&Setting> {
        self.section(section).filter(|setting| setting.key == key).last().filter(|setting| !setting.value.is_empty())
    }

    pub fn is_true(&self, section: &str, key: &str) -> bool {
        let value = self.last(section, key).map(|setting| setting.value.to_ascii_lowercase());
        value.is_some_and(|value| matches!(value.as_str(), "1" | "yes" | "y" | "true" | "t" | "on"))
    }
}

fn parse(text: &str, file: &str) -> Vec<Setting> {
    let (mut settings, mut section) = (Vec::new(), String::new());
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let mut line = line.trim().to_owned();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        // A line that ends with a backslash continues on the next; comments in between do not count.
        while line.ends_with('\\') {
            line.pop();
            let more = lines.by_ref().map(|(line, _)| line.trim()).find(|line| !line.starts_with(['#', ';']));
            line.push(' ');
            line.push_str(more.unwrap_or_default());
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some((key, value)) = line.split_once('=') {
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            settings.push(Setting { section: section.clone(), key, value, location: format!("{file}, line {number}") });
        }
    }
    settings
}

/// The commands of an `ExecStart=`: a semicolon that is a word of its own, without quotes, is between two.
pub fn commands(text: &str) -> Vec<&str> {
    let (mut found, mut from, mut quote, mut is_escaped, mut is_start) = (Vec::new(), 0, None, false, true);
    for (at, c) in text.char_indices() {
        let was_start = std::mem::replace(&mut is_start, quote.is_none() && !is_escaped && c.is_whitespace());
        match (c, quote) {
            _ if is_escaped => is_escaped = false,
            ('\\', _) => is_escaped = true,
            (c, Some(end)) if c == end => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            (';', None) if was_start && !text[at + 1..].starts_with(|next: char| !next.is_whitespace()) => {
                found.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    found.push(&text[from..]);
    found.into_iter().map(str::trim).filter(|command| !command.is_empty()).collect()
}

/// The words of a command line, without their quotes; none if a quote is open or an escape is not known.
pub fn words(text: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        match (c, quote) {
            (c, Some(end)) if c == end => quote = None,
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('\\', _) => {
                let escaped = match letters.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    's' => ' ',
                    c @ ('\\' | '"' | '\'' | '$' | '`' | ' ') => c,
                    // Numbers of characters, and what is not known.
                    _ => return None,
                };
                word.get_or_insert_default().push(escaped);
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// A time span: `5min`, `1h 30min`, `90` (seconds). None if it is not one, or if it is `infinity`.
pub fn span(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit_ms: u64 = match &rest[..letters] {
            "ms" | "msec" => 1,
            "" | "s" | "sec" | "second" | "seconds" => 1_000,
            "m" | "min" | "minute" | "minutes" => 60_000,
            "h" | "hr" | "hour" | "hours" => 3_600_000,
            "d" | "day" | "days" => 86_400_000,
            "w" | "week" | "weeks" => 604_800_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(number.checked_mul(unit_ms)?))?;
        rest = rest[letters..].trim_start();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_words_are_read_as_systemd_reads_them() {
        assert_eq!(span("1h 30min"), Some(Duration::from_secs(5400)));
        assert_eq!(span("90"), Some(Duration::from_secs(90)));
        assert_eq!((span("infinity"), span(""), span("5 parsecs")), (None, None, None));
        let read = |text| words(text).unwrap();
        assert_eq!(read(r#"/bin/a "b c" 'd "e"' f\sg """#), ["/bin/a", "b c", "d \"e\"", "f g", ""]);
        assert_eq!(words("\"open"), None);
    }

    #[test]
    fn only_a_semicolon_that_stands_alone_is_between_two_commands() {
        assert_eq!(commands("/bin/a x ; -/bin/b ;"), ["/bin/a x", "-/bin/b"]);
        for one in ["/bin/a ';' b", "/bin/a \" ; \" b", "/bin/a b; c", "/bin/a ;b", "/bin/a \\; b", "/bin/a \\ ; b"] {
            assert_eq!(commands(one), [one]);
        }
    }

    #[test]
    fn an_empty_assignment_forgets_those_before_it() {
        let unit = Unit(parse("[Service]\nExecStart=a\nExecStart=\n# no\nExecStart=b \\\n# within\n  c\n", "x"));
        assert_eq!(unit.all("Service", "ExecStart")[0].value, "b  c");
        assert_eq!(unit.all("Service", "ExecStart").len(), 1);
    }
}
