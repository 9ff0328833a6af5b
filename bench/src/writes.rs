//! A fenced write of a file, beside a plain atomic one: in the process, and as a process.

use crate::measure::{Contestant, contest};
use crate::plain;
use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use anyhow::{Context, Result, bail};
use leasehold_core::guard::Policy;
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, MemoryStore, Token};
use leasehold_guards::FileGuard;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const DEMAND: Demand = Demand::AtMostTheTime(1.5);
const PAYLOAD: [u8; 4096] = [b'x'; 4096];
/// One turn in the process.
const OPERATIONS: u32 = 5;

/// Times fenced and plain writes, in turns.
pub fn compare(scratch: &Scratch, leasehold: &Path, limit: Duration) -> Result<Vec<Row>> {
    let token = token()?;
    // Apart, because what one writes the other's fsync of the folder would pay for.
    let (ours, theirs) = (scratch.folder("fenced")?.join("out"), scratch.folder("plain")?.join("out"));
    let guard = FileGuard::new(&ours, Policy::Reentrant)?;
    let [fenced, plain] = contest(
        limit,
        [
            Contestant::new("fenced write", OPERATIONS, || {
                (0..OPERATIONS).try_for_each(|_| guard.write_from(&token, &PAYLOAD[..]).map(drop).map_err(Into::into))
            }),
            Contestant::new("plain write", OPERATIONS, || {
                (0..OPERATIONS).try_for_each(|_| plain::write(&theirs, &PAYLOAD))
            }),
        ],
    )?;
    let what = "fenced write, 4 KiB (FileGuard)";
    let within = Row::new(what, "write+fsync+rename+fsync", Unit::Milliseconds, fenced, Some(plain), DEMAND);

    let payload = scratch.path().join("payload");
    std::fs::write(&payload, PAYLOAD)?;
    let turn = |command: &mut Command| -> Result<()> {
        let input = File::open(&payload).context("cannot open the payload")?;
        let status = command.stdin(input).stdout(Stdio::null()).status()?;
        if !status.success() {
            bail!("{command:?} ended with {status}");
        }
        Ok(())
    };
    let mut fenced = Command::new(leasehold);
    fenced.arg("write").arg(&ours).env("LEASEHOLD_TOKEN", token.wire());
    let mut plain = Command::new(std::env::current_exe()?);
    plain.arg(plain::ARGUMENT).arg(&theirs);
    let [fenced, plain] = contest(
        limit,
        [
            Contestant::new("leasehold write", 1, || turn(&mut fenced)),
            Contestant::new("a process that writes plainly", 1, || turn(&mut plain)),
        ],
    )?;
    let what = "leasehold write, 4 KiB (process)";
    let whole = Row::new(what, "the same as a process", Unit::Milliseconds, fenced, Some(plain), Demand::None);
    Ok(vec![within, whole])
}

fn token() -> Result<Token> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let leases = Coordinator::new(Arc::new(MemoryStore::default()));
    let ask = Ask::new(HolderId::new(None), "90s".parse()?);
    match runtime.block_on(leases.acquire(&"job".parse()?, &ask))? {
        Acquired::Granted(grant) => Ok(grant.token().clone()),
        Acquired::Refused { refusal, .. } => bail!("refused: {refusal:?}"),
    }
}
