//! Real processes that race for one record.

use super::scratch::Scratch;
use super::{Finding, Verdict, finding};
use crate::exit::Exit;
use crate::output;
use leasehold::store::Swap;
use leasehold::{Error, Key, Kind, LeaseName, Nonce, Result, Shelf};
use leasehold_stores::StoreUrl;
use std::ffi::OsString;
use std::process::{ExitCode, Stdio};
use tokio::process::Command;

/// The first argument that makes this binary a contender in the race. Not for people.
pub const CONTENDER: &str = "__contend";
const CONTENDERS: u32 = 4;
const WINS_EACH: u32 = 25;
/// A contender gives up after so many attempts: a store that never lets it win must not hang the doctor.
const MAX_ATTEMPTS: u32 = 20_000;

/// Real processes count up one record; every win must show in the final count.
pub async fn race(scratch: &Scratch) -> Result<Finding> {
    let (store, url) = (&scratch.store, &scratch.url);
    let key = &Key::new(Shelf::Probe, &LeaseName::new(format!("doctor/{}", Nonce::random()))?);
    store.swap(key, None, b"0").await?;
    let cannot = |e: std::io::Error| Error::unavailable("cannot start the racing processes", e);
    let program = std::env::current_exe().map_err(cannot)?;
    let start = |_| {
        Command::new(&program)
            .args([CONTENDER, key.name.as_str()])
            .env("LEASEHOLD_STORE", url.portable())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    };
    let contenders = (0..CONTENDERS).map(start).collect::<std::io::Result<Vec<_>>>().map_err(cannot)?;
    let mut wins = 0;
    for contender in contenders {
        let output = contender.wait_with_output().await.map_err(cannot)?;
        match String::from_utf8_lossy(&output.stdout).trim().parse::<u32>() {
            Ok(own) if output.status.success() => wins += own,
            _ => return Ok(finding(Verdict::Bad, "race", "a racing process failed: see its message above")),
        }
    }
    let count = store.read(key).await?.value.and_then(|v| String::from_utf8_lossy(&v.bytes).parse::<u32>().ok());
    let detail = format!("{CONTENDERS} processes won {wins} swaps, the record counted {}", count.unwrap_or(0));
    let sound = count == Some(wins) && wins == CONTENDERS * WINS_EACH;
    Ok(finding(if sound { Verdict::Good } else { Verdict::Bad }, "race", detail))
}

/// Runs as a contender, with the arguments after [`CONTENDER`], and prints how often it won.
pub fn contend(args: &[OsString]) -> ExitCode {
    let count = || -> Result<u32> {
        let name = args.first().and_then(|a| a.to_str()).unwrap_or_default();
        let key = Key::new(Shelf::Probe, &LeaseName::new(name)?);
        let url: StoreUrl = std::env::var("LEASEHOLD_STORE").unwrap_or_default().parse()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::unavailable("cannot start", e))?;
        runtime.block_on(async {
            let store = leasehold_stores::open(&url).await?;
            let mut wins = 0;
            for _ in 0..MAX_ATTEMPTS {
                let Some(value) = store.read(&key).await?.value else { break };
                let seen: u32 = String::from_utf8_lossy(&value.bytes).parse().unwrap_or(0);
                let next = (seen + 1).to_string();
                match store.swap(&key, Some(&value.revision), next.as_bytes()).await {
                    Ok(Swap::Done { .. }) => wins += 1,
                    Ok(Swap::Mismatch) => {}
                    // Nothing was written: the service could not decide between several of us.
                    Err(error) if error.kind() == Kind::Contended => {}
                    Err(error) => return Err(error),
                }
                if wins == WINS_EACH {
                    break;
                }
            }
            Ok(wins)
        })
    };
    match count() {
        Ok(wins) => {
            let _ = output::line(&wins.to_string());
            ExitCode::SUCCESS
        }
        Err(error) => {
            output::say(&error.to_string());
            Exit::from(&error).into()
        }
    }
}
