//! What `leasehold mcp-gate` adds to a tool call, beside the same server without it.

use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use anyhow::{Context, Result, bail};
use leasehold_core::clock::{Clock, SystemClock};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const MOST: Duration = Duration::from_millis(1);
const LINE: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"write\",\"arguments\":{\"path\":\"a\"}}}\n";

/// A server that answers each line with the line, gone with the measurement.
struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let input = input.context("no standard input")?;
        Ok(Server { child, input, output: BufReader::new(output.context("no standard output")?) })
    }

    fn call(&mut self) -> Result<Duration> {
        let asked = SystemClock.now();
        self.input.write_all(LINE)?;
        let mut line = Vec::new();
        self.output.read_until(b'\n', &mut line)?;
        if line != LINE {
            bail!("the call did not pass: {}", String::from_utf8_lossy(&line));
        }
        Ok(SystemClock.now().saturating_since(asked))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Times tool calls through the gate and without it, in turns.
pub fn compare(scratch: &Scratch, leasehold: &Path, limit: Duration) -> Result<Vec<Row>> {
    let folder = scratch.folder("mcp")?;
    let store = format!("sqlite:{}", folder.join("leases.db").display());
    let acquired = Command::new(leasehold).args(["acquire", "agent", "--ttl", "1h", "--store", &store]).output()?;
    let token = String::from_utf8(acquired.stdout)?.trim().to_owned();
    let mut gated = Command::new(leasehold);
    gated.args(["mcp-gate", "--guard", "bench", "--store", &store, "--state"]).arg(folder.join("state"));
    gated.args(["--", "cat"]).env("LEASEHOLD_TOKEN", token);
    let (mut gated, mut plain) = (Server::start(gated)?, Server::start(Command::new("cat"))?);
    for _ in 0..50 {
        gated.call()?;
        plain.call()?;
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let end = SystemClock.now() + limit;
    while SystemClock.now() < end {
        ours.push(gated.call()?);
        theirs.push(plain.call()?);
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    let added = ours.saturating_sub(theirs);
    let what = "MCP gate, added to a tool call";
    Ok(vec![Row::new(what, "none", Unit::Milliseconds, added, None, Demand::AtMost(MOST))])
}
