//! Files of variables for a job's command, in the format of docker and systemd.
//!
//! Promise: an error names its line, and no value is ever part of a message.
//! Non-promise: variables are not expanded: `$` is an ordinary character.
//!
//! ```
//! use leasehold_work::schedule::env_file;
//! let text = "# comment\nexport TOKEN=a#b  \nNOTE=\"two\\nlines\"\nRAW='$HOME \\n'\nEMPTY=\n";
//! let read = env_file::parse(text).unwrap();
//! let pairs: Vec<(&str, &str)> = read.iter().map(|(name, value)| (&**name, &**value)).collect();
//! assert_eq!(pairs, [("TOKEN", "a#b"), ("NOTE", "two\nlines"), ("RAW", "$HOME \\n"), ("EMPTY", "")]);
//! assert_eq!(env_file::parse("A=1\nB").unwrap_err(), (2, "write NAME=value"));
//! ```

/// The line of the error, counted from 1, and what is wrong with it.
pub type Wrong = (usize, &'static str);

/// Reads the variables of a file, in order. If several have one name, the last one counts.
pub fn parse(text: &str) -> Result<Vec<(String, String)>, Wrong> {
    let mut variables = Vec::new();
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut line = 1;
    while !rest.is_empty() {
        let (first, behind) = rest.split_once('\n').unwrap_or((rest, ""));
        let trimmed = first.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            (rest, line) = (behind, line + 1);
            continue;
        }
        let (name, value) = trimmed.split_once('=').ok_or((line, "write NAME=value"))?;
        let name = check_name(name.strip_prefix("export ").unwrap_or(name).trim()).map_err(|what| (line, what))?;
        let value = value.trim_start();
        let Some(quote) = value.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
            variables.push((name, checked(value.to_owned(), line)?));
            (rest, line) = (behind, line + 1);
            continue;
        };
        // A value in quotes may span several lines, so it is read from the rest of the file.
        let start = first.find(quote).unwrap_or_default() + quote.len_utf8();
        let (value, end) = quoted(&rest[start..], quote).ok_or((line, "a quote is not closed"))?;
        let (after, behind) = rest[start + end..].split_once('\n').unwrap_or((&rest[start + end..], ""));
        if !after.trim().is_empty() && !after.trim().starts_with('#') {
            return Err((line, "something follows the closing quote"));
        }
        variables.push((name, checked(value, line)?));
        line += rest[..rest.len() - behind.len()].matches('\n').count();
        rest = behind;
    }
    Ok(variables)
}

fn checked(value: String, line: usize) -> Result<String, Wrong> {
    if value.contains('\0') { Err((line, "its value has a NUL character")) } else { Ok(value) }
}

fn check_name(name: &str) -> Result<String, &'static str> {
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match is_name {
        false => Err("a name has letters, digits and `_`, and does not begin with a digit"),
        true if name.starts_with("LEASEHOLD_") => Err("names that begin with LEASEHOLD_ are leasehold's own"),
        true => Ok(name.to_owned()),
    }
}

/// The text in quotes, and the position just after the closing quote.
fn quoted(text: &str, quote: char) -> Option<(String, usize)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, c)) = letters.next() {
        match c {
            c if c == quote => return Some((value, at + c.len_utf8())),
            '\\' if quote == '"' => match letters.next()?.1 {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                // A line continuation.
                '\n' => {}
                c @ ('"' | '\\' | '$' | '`') => value.push(c),
                c => value.extend(['\\', c]),
            },
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_read_as_the_page_says() {
        let read = |text: &str| {
            parse(text).map(|pairs| pairs.into_iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>())
        };
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(read("\u{feff}A=1\r\n; no\r\nB = two words \r\n"), Ok(vec!["A=1".into(), "B=two words".into()]));
        assert_eq!(read("A=\"one\ntwo\"  # why\nB=3"), Ok(vec!["A=one\ntwo".into(), "B=3".into()]));
        assert_eq!(read("A='it\\'\nB=\"say \\\"hi\\\"\""), Ok(vec!["A=it\\".into(), "B=say \"hi\"".into()]));
        assert_eq!(read("A=x'y'"), Ok(vec!["A=x'y'".into()]));
        for (text, line) in
            [("A=1\n2B=3", 2), ("A=\"x\n\n", 1), ("LEASEHOLD_TOKEN=1", 1), ("A='x' y", 1), ("=1", 1), ("\nA", 2)]
        {
            assert_eq!(parse(text).unwrap_err().0, line, "{text}");
        }
        assert_eq!(parse("A=\"1\n2\"\n\nB C").unwrap_err().0, 4);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_text_is_read_or_refused_without_showing_a_value(text in "[A-Z=\"'\\\\ \n#s3cret]{0,80}") {
            if let Err((line, what)) = parse(&text) {
                prop_assert!(line <= text.lines().count().max(1));
                prop_assert!(!what.contains("s3"));
            }
        }
    }
}
