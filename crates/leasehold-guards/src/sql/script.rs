//! A script of statements that run in one transaction: split as the server would do it, and checked first.
//!
//! Promise: a statement that would end the transaction, or that this lexer and the server could read differently, is
//! refused before anything is sent. Non-promise: what a procedure does is not known here; after the script the guard
//! checks that the transaction is still the same.

use super::Dialect;
use leasehold_core::{Error, Kind, Result, printable};

/// The most that a script may hold: it is kept in memory.
pub const MAX_SCRIPT_BYTES: usize = 16 * 1024 * 1024;

/// One statement of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The text without the closing `;`.
    pub text: String,
    /// Where it begins, counted from 1.
    pub line: usize,
}

/// Statements that stay inside their transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    statements: Vec<Statement>,
}

impl Script {
    /// Splits a script and refuses what may not be in it.
    pub fn parse(dialect: Dialect, text: &str) -> Result<Self> {
        if text.len() > MAX_SCRIPT_BYTES {
            let allowed = format!("at most {} MiB", MAX_SCRIPT_BYTES >> 20);
            return Err(Error::invalid("script", format!("{} bytes", text.len()), allowed));
        }
        let mut statements = Vec::new();
        let mut lexer = Lexer { dialect, bytes: text.as_bytes(), at: 0 };
        let refuse = |at: usize, what: &str| {
            let line = 1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
            let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
            let shown = text[start..].lines().next().unwrap_or_default();
            Error::new(Kind::Invalid, format!("invalid statement in line {line} `{}`: {what}", printable(shown.trim())))
        };
        let mut open: Option<Open> = None;
        loop {
            let token = lexer.next().map_err(|(at, what)| refuse(at, &what))?;
            let is_end = match (&token, &mut open) {
                (None, _) => true,
                (Some(Token { kind: TokenKind::Mark(b';'), .. }), Some(open)) => !open.is_inside_a_trigger(dialect),
                (Some(Token { kind: TokenKind::Mark(b';'), .. }), None) => continue,
                _ => false,
            };
            if is_end {
                if let Some(done) = open.take() {
                    let end = token.as_ref().map_or(text.len(), |token| token.start);
                    let raw = text[done.start..end].trim_end();
                    refusal(dialect, &done.words, raw).map_or(Ok(()), |what| Err(refuse(done.start, &what)))?;
                    let line = 1 + text.as_bytes()[..done.start].iter().filter(|byte| **byte == b'\n').count();
                    statements.push(Statement { text: raw.to_owned(), line });
                }
                if token.is_none() {
                    break;
                }
                continue;
            }
            let Some(token) = token else { break };
            open.get_or_insert_with(|| Open { start: token.start, words: Vec::new() }).take(&token, text);
        }
        if statements.is_empty() {
            return Err(Error::new(Kind::Invalid, "no statement was given; use -c SQL or -f FILE"));
        }
        Ok(Script { statements })
    }

    /// The statements, in order.
    pub fn statements(&self) -> &[Statement] {
        &self.statements
    }
}

/// A statement that is being read.
struct Open {
    start: usize,
    /// Its words and marks outside of quotes, in capitals.
    words: Vec<String>,
}

impl Open {
    fn take(&mut self, token: &Token, text: &str) {
        self.words.push(match token.kind {
            TokenKind::Word => text[token.start..token.end].to_ascii_uppercase(),
            TokenKind::Mark(mark) => char::from(mark).to_string(),
            TokenKind::Quoted => "'".into(),
        });
    }

    /// A trigger's body holds statements of its own; it ends with `; END`, as SQLite itself tells it.
    fn is_inside_a_trigger(&mut self, dialect: Dialect) -> bool {
        if dialect != Dialect::Sqlite || self.words.first().is_none_or(|word| word != "CREATE") {
            return false;
        }
        let mut second = self.words.iter().skip(1).filter(|word| !matches!(word.as_str(), "TEMP" | "TEMPORARY"));
        if second.next().is_none_or(|word| word != "TRIGGER") {
            return false;
        }
        let is_over = matches!(&self.words[..], [.., semicolon, end] if semicolon == ";" && end == "END");
        if !is_over {
            self.words.push(";".into());
        }
        !is_over
    }
}

/// Why a statement may not be in a script.
fn refusal(dialect: Dialect, words: &[String], raw: &str) -> Option<String> {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let (first, second) = (word(0), word(1));
    let ends = |what: &str| Some(format!("{what} would end the transaction that the guard is in; leave it out"));
    let lower = raw.to_ascii_lowercase();
    if lower.contains("leasehold_fence") {
        return Some("the fence is the guard's own table; leave it alone".into());
    }
    let is_to_savepoint = first == "ROLLBACK" && (second == "TO" || word(2) == "TO");
    if matches!(first, "COMMIT" | "END" | "ABORT" | "BEGIN") || (first == "ROLLBACK" && !is_to_savepoint) {
        return ends(first);
    }
    if first == "START" && matches!(dialect, Dialect::Postgres) {
        return ends("START TRANSACTION");
    }
    match dialect {
        Dialect::Postgres => {
            if first == "PREPARE" && second == "TRANSACTION" {
                return ends("PREPARE TRANSACTION");
            }
            if lower.contains("standard_conforming_strings") {
                return Some("how strings are read may not be changed in a script".into());
            }
            if first == "COPY" && words.iter().any(|word| word == "STDIN" || word == "STDOUT") {
                return Some(
                    "COPY cannot use standard input or output here; use INSERT or a file of the server".into(),
                );
            }
            if words.windows(2).any(|pair| pair[0] == "BEGIN" && pair[1] == "ATOMIC") {
                return Some("write the body of a function in dollar quotes instead of BEGIN ATOMIC".into());
            }
            None
        }
        Dialect::Mysql => mysql_refusal(words, &lower),
        Dialect::Sqlite => match first {
            "ATTACH" | "DETACH" | "VACUUM" | "PRAGMA" => {
                Some(format!("{first} is not for the inside of a transaction"))
            }
            _ => None,
        },
    }
}

/// Only what is known to stay inside a transaction: MySQL commits before and after most other statements, unasked.
fn mysql_refusal(words: &[String], lower: &str) -> Option<String> {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    match word(0) {
        "SELECT" | "INSERT" | "UPDATE" | "DELETE" | "REPLACE" | "WITH" | "VALUES" | "TABLE" | "CALL" | "DO"
        | "SHOW" | "EXPLAIN" | "DESCRIBE" | "DESC" | "SAVEPOINT" | "RELEASE" | "ROLLBACK" | "(" => None,
        "CREATE" | "DROP" if word(1) == "TEMPORARY" && word(2) == "TABLE" => None,
        "SET" => {
            let changes = ["autocommit", "sql_mode", "completion_type", "password", "statement", "default"];
            let found = changes.iter().find(|name| lower.contains(*name));
            found.map(|name| format!("SET with `{name}` may end the transaction that the guard is in; leave it out"))
        }
        "DELIMITER" => Some("DELIMITER is for the mysql program; the server does not know it".into()),
        "PREPARE" | "EXECUTE" | "DEALLOCATE" => {
            Some("a prepared text cannot be looked at before it runs; write the statement itself".into())
        }
        "USE" => Some("name tables as `database.table` instead".into()),
        first => Some(format!(
            "{} would end the transaction that the guard is in, or cannot run inside one; leave it out",
            printable(first)
        )),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Word,
    Quoted,
    Mark(u8),
}

#[derive(Debug)]
struct Token {
    kind: TokenKind,
    start: usize,
    end: usize,
}

struct Lexer<'a> {
    dialect: Dialect,
    bytes: &'a [u8],
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn starts_with(&self, text: &[u8]) -> bool {
        self.bytes[self.at..].starts_with(text)
    }

    /// The next token outside of comments; an error has the place and what is wrong there.
    fn next(&mut self) -> Result<Option<Token>, (usize, String)> {
        self.skip()?;
        let start = self.at;
        if start >= self.bytes.len() {
            return Ok(None);
        }
        let mysql = self.dialect == Dialect::Mysql;
        let kind = match self.peek(0) {
            0 => return Err((start, "it has a zero byte".into())),
            b'\\' if self.dialect == Dialect::Postgres => {
                return Err((start, "commands with a backslash are for psql; the server does not know them".into()));
            }
            quote @ (b'\'' | b'"') => self.quoted(quote, mysql)?,
            b'`' if self.dialect != Dialect::Postgres => self.quoted(b'`', false)?,
            b'[' if self.dialect == Dialect::Sqlite => self.until(b"]", "an identifier in brackets")?,
            b'$' if self.dialect == Dialect::Postgres => self.dollar()?,
            byte if is_word(byte) => {
                while is_word(self.peek(0)) || (self.peek(0) == b'$' && self.dialect == Dialect::Postgres) {
                    self.at += 1;
                }
                let is_escape = self.dialect == Dialect::Postgres && matches!(&self.bytes[start..self.at], b"e" | b"E");
                if is_escape && self.peek(0) == b'\'' { self.quoted(b'\'', true)? } else { TokenKind::Word }
            }
            mark => {
                self.at += 1;
                TokenKind::Mark(mark)
            }
        };
        Ok(Some(Token { kind, start, end: self.at }))
    }

    /// Skips blanks and comments.
    fn skip(&mut self) -> Result<(), (usize, String)> {
        let mysql = self.dialect == Dialect::Mysql;
        while self.at < self.bytes.len() {
            let start = self.at;
            if self.peek(0).is_ascii_whitespace() || self.peek(0) == 0x0b || self.starts_with("\u{feff}".as_bytes()) {
                self.at += if self.peek(0) == 0xef { 3 } else { 1 };
            } else if mysql && (self.starts_with(b"/*!") || self.starts_with(b"/*M!")) {
                return Err((start, "what stands in `/*!` is run by the server; write it without the comment".into()));
            } else if self.starts_with(b"/*") {
                self.comment()?;
            } else if (mysql && self.peek(0) == b'#')
                || (self.starts_with(b"--") && (!mysql || self.peek(2) <= b' ' || self.peek(2) == 0x7f))
            {
                let ends: &[u8] = if self.dialect == Dialect::Postgres { b"\n\r" } else { b"\n" };
                let rest = &self.bytes[start..];
                self.at += rest.iter().position(|byte| ends.contains(byte)).unwrap_or(rest.len());
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    fn comment(&mut self) -> Result<(), (usize, String)> {
        let start = self.at;
        let mut depth = 0_usize;
        while self.at < self.bytes.len() {
            if self.starts_with(b"/*") && (depth == 0 || self.dialect == Dialect::Postgres) {
                depth += 1;
                self.at += 2;
            } else if self.starts_with(b"*/") {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    return Ok(());
                }
            } else {
                self.at += 1;
            }
        }
        Err((start, "a comment does not end".into()))
    }

    /// A string or an identifier; the quote in it is doubled, or escaped where `escapes`.
    fn quoted(&mut self, quote: u8, escapes: bool) -> Result<TokenKind, (usize, String)> {
        let start = self.at;
        self.at += 1;
        while self.at < self.bytes.len() {
            let byte = self.peek(0);
            if (byte == b'\\' && escapes) || (byte == quote && self.peek(1) == quote) {
                self.at += 2;
            } else {
                self.at += 1;
                if byte == quote {
                    return Ok(TokenKind::Quoted);
                }
            }
        }
        self.at = self.bytes.len();
        Err((start, "a quoted text does not end".into()))
    }

    /// `$tag$ … $tag$`, or a parameter.
    fn dollar(&mut self) -> Result<TokenKind, (usize, String)> {
        let rest = &self.bytes[self.at + 1..];
        let length = rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len());
        let is_tag = rest.get(length) == Some(&b'$') && !rest.first().is_some_and(u8::is_ascii_digit);
        if !is_tag {
            self.at += 1;
            return Ok(TokenKind::Mark(b'$'));
        }
        let tag = self.bytes[self.at..self.at + length + 2].to_vec();
        self.at += tag.len() - 1;
        self.until(&tag, "a text in dollar quotes")
    }

    fn until(&mut self, end: &[u8], what: &str) -> Result<TokenKind, (usize, String)> {
        let start = self.at;
        let rest = &self.bytes[start + 1..];
        match rest.windows(end.len()).position(|part| part == end) {
            Some(found) => {
                self.at = start + 1 + found + end.len();
                Ok(TokenKind::Quoted)
            }
            None => Err((start, format!("{what} does not end"))),
        }
    }
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}
