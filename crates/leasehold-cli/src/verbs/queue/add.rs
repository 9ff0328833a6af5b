//! `queue add`: one item, or one per line.

use super::{attempts, open};
use crate::args::Add as Args;
use crate::bar::Bar;
use crate::config::{blame_flag, duration_of};
use crate::context::{Context, Target, with_backlog};
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Kind, Result};
use leasehold_work::Backlog;
use leasehold_work::queue::{ItemId, NewItem, Payload};
use serde_json::json;
use std::io::{BufRead, Read};
use std::time::Duration;

/// The most bytes of a line for a spool, whose items may have any size: a line is in memory as a whole.
const MAX_SPOOL_LINE: usize = 16 * 1024 * 1024;

pub async fn add(context: &Context, args: Args) -> Result<Exit> {
    let target = Target::parse(&args.queue)?;
    target.check_ours("add to")?;
    let flag = |name: &'static str| move |e| blame_flag(e, name);
    let priority = args.priority.as_deref().map(str::parse).transpose().map_err(flag("--priority"))?;
    let key = args.key.as_deref().map(str::parse).transpose().map_err(flag("--key"))?;
    let template = NewItem {
        payload: Payload::default(),
        priority: priority.unwrap_or_default(),
        delay: duration_of("--delay", args.delay.as_deref())?.unwrap_or(Duration::ZERO),
        attempts: attempts(args.attempts, args.backoff.as_deref()).map_err(flag("--backoff"))?,
        key,
    };
    if args.backoff.is_some() && matches!(target, Target::Spool(_)) {
        return Err(Error::new(Kind::Invalid, "--backoff is not kept in a spool; give `queue fail --retry-in`"));
    }
    let source: Box<dyn Read + Send> = match (args.text, &args.from) {
        (Some(text), _) => Box::new(std::io::Cursor::new(text.into_bytes())),
        (None, Some(path)) => Box::new(open(path, "--from ")?),
        (None, None) => Box::new(std::io::stdin()),
    };
    with_backlog!(context.queue(&target).await?, backlog => {
        if args.each_line {
            let most = if let Target::Spool(_) = target { MAX_SPOOL_LINE } else { Payload::MAX_BYTES };
            return lines(context, &backlog, &template, most).await;
        }
        let (id, is_new) = Backlog::add(&backlog, template, source).await?;
        tell(context, &id, is_new)?;
    });
    Ok(Exit::Done)
}

fn tell(context: &Context, id: &ItemId, is_new: bool) -> Result<()> {
    if !is_new && !context.common.json {
        output::say(&format!("there is an item `{id}` already; nothing was added"));
    }
    context.print(|| json!({ "id": id.as_str(), "new": is_new }), || format!("{id}\n")).map(drop)
}

async fn lines<B: Backlog>(context: &Context, backlog: &B, template: &NewItem, most: usize) -> Result<Exit> {
    let mut batch = Vec::new();
    let mut input = std::io::stdin().lock();
    let (mut done, bar) = (0, Bar::begin());
    loop {
        let number = done + batch.len() + 1;
        let line = read_line(&mut input, number, most).map_err(|error| stopped_at(done, error))?;
        let is_last = line.is_none();
        batch.extend(line);
        if batch.len() == B::BATCH || (is_last && !batch.is_empty()) {
            let mut added = Vec::with_capacity(batch.len());
            let outcome = backlog.add_lines(template, std::mem::take(&mut batch), &mut added).await;
            for (id, is_new) in &added {
                tell(context, id, *is_new)?;
                done += 1;
            }
            bar.at(&format!("{done} lines added"));
            outcome.map_err(|error| stopped_at(done, error))?;
        }
        if is_last {
            bar.clear();
            return Ok(Exit::Done);
        }
    }
}

/// The error for lines of which the first `done` were added: *surely nothing was applied* would be wrong.
fn stopped_at(done: usize, error: Error) -> Error {
    if done == 0 {
        return error;
    }
    let (kind, fate) = match error.kind() {
        Kind::Indeterminate => (Kind::Indeterminate, "may or may not have been: look for it"),
        _ if error.is_retryable() => (Kind::Indeterminate, "was not"),
        kind => (kind, "was not"),
    };
    let next = done + 1;
    let added = match done {
        1 => "the first line was added, and its id is printed".to_owned(),
        done => format!("the first {done} lines were added, and their ids are printed"),
    };
    let message =
        format!("{added}; line {next} {fate}, and no later one was. Go on from there, not from the beginning");
    Error::new(kind, message).with_source(error)
}

/// The next line, without its end; none at the end of the input. No more of a line is read than it may have.
fn read_line(input: &mut impl BufRead, number: usize, most: usize) -> Result<Option<String>> {
    let mut line = Vec::new();
    let longest = most as u64 + "\r\n".len() as u64;
    let unread =
        |error| Error::new(Kind::Invalid, format!("cannot read line {number} of standard input")).with_source(error);
    if input.take(longest).read_until(b'\n', &mut line).map_err(unread)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        line.pop_if(|last| *last == b'\r');
    }
    if line.len() > most {
        let message = format!(
            "line {number} of standard input has more than {most} bytes; keep it elsewhere and give a path or a URL, or add it by \
             itself to a spool (spool:/path), where it may have any size"
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    let invalid = |_| Error::new(Kind::Invalid, format!("line {number} of standard input is not UTF-8"));
    String::from_utf8(line).map(Some).map_err(invalid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_to_their_bound_and_no_further() {
        let mut input = &b"one\ntwo\r\n\nsix"[..];
        for expected in [Some("one"), Some("two"), Some(""), Some("six"), None] {
            assert_eq!(read_line(&mut input, 1, 3).unwrap().as_deref(), expected);
        }
        for text in ["four", "four\n", "four\r\n", "fou\r\r\n"] {
            let error = read_line(&mut text.as_bytes(), 7, 3).unwrap_err().to_string();
            assert!(error.starts_with("line 7 of standard input has more than 3 bytes"), "{text:?}: {error}");
        }
        let error = read_line(&mut &b"\xff\n"[..], 2, 3).unwrap_err().to_string();
        assert_eq!(error, "line 2 of standard input is not UTF-8");
        // Without an end.
        let mut endless = std::io::BufReader::new(std::io::repeat(b'x'));
        assert!(read_line(&mut endless, 1, Payload::MAX_BYTES).is_err());
    }
}
