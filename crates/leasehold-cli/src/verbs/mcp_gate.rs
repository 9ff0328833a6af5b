//! `mcp-gate`: an MCP server behind a gate. Lines pass as they came; a call of a holder that lost its lease does not.
//!
//! Promise: what the server writes reaches the client byte for byte, in order, and the gate's own answers stand between
//! its lines. Non-promise: the gate does not outlive its server, nor end it before its input ends.

use super::relay::{Relay, cannot_run, exit_of};
use super::rely_on_the_store;
use crate::args::McpGate as Args;
use crate::config::blame_flag;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Epoch, Error, Kind, LeaseName, Result};
use leasehold_guards::mcp::{Closed, Gate, Judge, STRENGTH, Verdict};
use leasehold_system::sync::Mutex;
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::runtime::Handle;

pub async fn mcp_gate(context: &Context, args: &Args) -> Result<Exit> {
    let token = context.token(args.token.as_deref())?;
    let resource = LeaseName::new(&args.guard).map_err(|e| blame_flag(e, "--guard"))?;
    let state = context.settings()?.state_folder(args.no_state)?;
    let opened = context.open_token(&token).await?;
    let coordinator = context.fence_store(&token).await?;
    let known = Arc::new(opened.tokens.clone());
    let gate = Arc::new(Gate::new(coordinator.clone(), known, token.clone(), &resource, state.as_deref())?);
    match gate.state() {
        Some(folder) => {
            output::say(&format!(
                "keeping the high water of resource=`{}` in `{}` too",
                gate.resource(),
                folder.display()
            ));
        }
        None => rely_on_the_store(coordinator, gate.resource()),
    }
    let mut relay = Relay::listen()?;
    gate.refresh().await;
    let resource_name = gate.resource().to_owned();
    let (program, arguments) = (&args.command[0], &args.command[1..]);
    let server = Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut server = match server {
        Ok(server) => server,
        Err(error) => return Ok(cannot_run(program, &error)),
    };
    output::say(&format!("mcp gate: resource=`{}` epoch={} strength={STRENGTH}", gate.resource(), token.epoch));
    let keeping = tokio::spawn(gate.clone().keep(move |closed: &Closed| output::say(&closed.message)));
    let (input, from_server) = (server.stdin.take(), server.stdout.take());
    let (Some(input), Some(from_server)) = (input, from_server) else {
        return Err(Error::new(Kind::Unavailable, "the server has no standard input and output"));
    };
    let out = Arc::new(Out::default());
    let asker = Asker {
        gate,
        judge: Judge::new(args.tool.clone()),
        every_call: args.every_call,
        max_line: args.max_line as usize,
        out: out.clone(),
        runtime: Handle::current(),
    };
    // Not joined: it may wait for a client that says no more.
    let (pumped, all_pumped) = tokio::sync::oneshot::channel::<()>();
    let threads = thread("to the server", move || asker.pump(input)).and_then(|()| {
        thread("from the server", move || {
            out.pump(from_server);
            drop(pumped);
        })
    });
    if let Err(error) = threads {
        let _ = server.kill();
        let _ = server.wait();
        return Err(Error::unavailable("cannot pass anything on to the server", error));
    }
    // What the server wrote last is passed on before the gate ends.
    let status = relay.wait(server, async { drop(all_pumped.await) }).await;
    keeping.abort();
    if REFUSED.load(Ordering::Relaxed) {
        let newer = Epoch::new(NEWER.load(Ordering::Relaxed)).ok().filter(|newer| *newer > token.epoch);
        opened.count_fenced(&resource_name, newer).await;
    }
    status.map(exit_of)
}

/// Whether a call was refused: one event, however many calls.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// The newer epoch for which it was refused, if it was for one.
static NEWER: AtomicU64 = AtomicU64::new(0);

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// From the client to the server.
struct Asker {
    gate: Arc<Gate>,
    judge: Judge,
    every_call: bool,
    max_line: usize,
    out: Arc<Out>,
    runtime: Handle,
}

impl Asker {
    /// Until the client's input ends; then the server's does.
    fn pump(&self, mut server: ChildStdin) {
        let mut client = BufReader::with_capacity(64 * 1024, std::io::stdin().lock());
        let mut line = Vec::new();
        loop {
            line.clear();
            match self.read_line(&mut client, &mut line) {
                Ok(NextLine::Complete) => {}
                Ok(NextLine::TooLong) => {
                    self.out.answer(&Judge::too_long(self.max_line, "--max-line"));
                    continue;
                }
                Ok(NextLine::End) | Err(_) => return,
            }
            let bare = line.strip_suffix(b"\n").unwrap_or(&line);
            match self.judge.judge(bare, || self.check()) {
                Verdict::Pass => {
                    // A line that the end of input cut short is one all the same.
                    if server.write_all(&line).and_then(|()| server.flush()).is_err() {
                        return;
                    }
                }
                Verdict::Answer(answer) => {
                    if let Some(answer) = answer {
                        self.out.answer(&answer);
                    }
                }
            }
        }
    }

    fn check(&self) -> std::result::Result<(), Closed> {
        if self.every_call {
            self.runtime.block_on(self.gate.refresh());
        }
        let checked = self.gate.check();
        if let Err(closed) = &checked {
            REFUSED.store(true, Ordering::Relaxed);
            if let (Kind::Fenced, Some(seen)) = (closed.kind, closed.seen) {
                NEWER.store(seen.get(), Ordering::Relaxed);
            }
        }
        checked
    }

    /// One line with its break, or the news that it was longer than allowed: then it was read to its end and is gone.
    fn read_line(&self, client: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<NextLine> {
        let limit = self.max_line as u64 + 1;
        client.by_ref().take(limit).read_until(b'\n', line)?;
        if line.is_empty() {
            return Ok(NextLine::End);
        }
        if line.ends_with(b"\n") || line.len() <= self.max_line {
            return Ok(NextLine::Complete);
        }
        line.clear();
        loop {
            let buffer = client.fill_buf()?;
            if buffer.is_empty() {
                return Ok(NextLine::TooLong);
            }
            let found = buffer.iter().position(|byte| *byte == b'\n');
            let used = found.map_or(buffer.len(), |at| at + 1);
            client.consume(used);
            if found.is_some() {
                return Ok(NextLine::TooLong);
            }
        }
    }
}

enum NextLine {
    Complete,
    TooLong,
    End,
}

/// From the server to the client, and the gate's own answers between the server's lines.
#[derive(Default)]
struct Out {
    state: Mutex<OutState>,
}

#[derive(Default)]
struct OutState {
    /// The server is in the middle of a line.
    inside: bool,
    waiting: Vec<u8>,
}

impl Out {
    fn answer(&self, answer: &Value) {
        let mut state = self.state.lock();
        if state.inside {
            state.waiting.extend_from_slice(format!("{answer}\n").as_bytes());
        } else {
            let _ = write(format!("{answer}\n").as_bytes());
        }
    }

    fn pump(&self, mut server: ChildStdout) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = match server.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let mut state = self.state.lock();
            let chunk = &buffer[..read];
            let whole = chunk.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let waiting = if whole > 0 { std::mem::take(&mut state.waiting) } else { Vec::new() };
            state.inside = chunk.last() != Some(&b'\n');
            if write(&chunk[..whole]).and_then(|()| write(&waiting)).and_then(|()| write(&chunk[whole..])).is_err() {
                // The client is gone: the server notices by its input, or by a full pipe.
                return;
            }
        }
        let mut state = self.state.lock();
        if state.inside && !state.waiting.is_empty() {
            let _ = write(b"\n");
        }
        state.inside = false;
        let waiting = std::mem::take(&mut state.waiting);
        let _ = write(&waiting);
    }
}

fn write(bytes: &[u8]) -> std::io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
