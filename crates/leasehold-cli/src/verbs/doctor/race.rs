//! Real processes that race for one record.

use super::scratch::Scratch;
use super::{Finding, Verdict, finding};
use crate::exit::Exit;
use crate::output;
use leasehold_core::store::Swap;
use leasehold_core::{Error, Key, Kind, LeaseName, Nonce, Result, Shelf};
use leasehold_stores::StoreUrl;
use std::ffi::OsString;
use std::process::{ExitCode, Stdio};
use tokio::process::Command;

/// The first argument that makes this binary a contender in the race. Not for people.
pub const CONTENDER: &str = "__contend";
const CONTENDERS: u32 = 4;
const WINS_EACH: u32 = 25;
/// A contender gives up after this many attempts: a store that never lets it win must not hang the doctor.
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
    let mut all = Tally::default();
    for contender in contenders {
        let output = contender.wait_with_output().await.map_err(cannot)?;
        match Tally::parse(&String::from_utf8_lossy(&output.stdout)) {
            Some(own) if output.status.success() => {
                all = Tally { wins: all.wins + own.wins, unknown: all.unknown + own.unknown };
            }
            _ => return Ok(finding(Verdict::Bad, "race", "a racing process failed: see its message above")),
        }
    }
    let count = store.read(key).await?.value.and_then(|v| String::from_utf8_lossy(&v.bytes).parse::<u32>().ok());
    let Tally { wins, unknown } = all;
    let mut detail = format!("{CONTENDERS} processes won {wins} swaps, the record counted {}", count.unwrap_or(0));
    if unknown > 0 {
        detail.push_str(&format!("; {unknown} more are unknown"));
    }
    let sound = count.is_some_and(|count| all.explains(count)) && wins == CONTENDERS * WINS_EACH;
    Ok(finding(if sound { Verdict::Good } else { Verdict::Bad }, "race", detail))
}

/// What the swaps of a contender came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    wins: u32,
    /// Swaps without an answer: each was applied or not. A process that slept while the others continued may have some, on a
    /// store that remembers only the last versions.
    unknown: u32,
}

impl Tally {
    fn parse(line: &str) -> Option<Self> {
        let (wins, unknown) = line.trim().split_once(' ')?;
        Some(Tally { wins: wins.parse().ok()?, unknown: unknown.parse().ok()? })
    }

    /// Whether a record can have counted this.
    const fn explains(self, count: u32) -> bool {
        self.wins <= count && count <= self.wins + self.unknown
    }
}

/// Runs as a contender, with the arguments after [`CONTENDER`], and prints how often it won.
pub fn contend(args: &[OsString]) -> ExitCode {
    let count = || -> Result<Tally> {
        let name = args.first().and_then(|a| a.to_str()).unwrap_or_default();
        let key = Key::new(Shelf::Probe, &LeaseName::new(name)?);
        let url: StoreUrl = std::env::var("LEASEHOLD_STORE").unwrap_or_default().parse()?;
        let runtime = crate::runtime().map_err(|e| Error::unavailable("cannot start", e))?;
        runtime.block_on(async {
            let store = leasehold_stores::open(&url).await?;
            let mut tally = Tally::default();
            for _ in 0..MAX_ATTEMPTS {
                let Some(value) = store.read(&key).await?.value else { break };
                let seen: u32 = String::from_utf8_lossy(&value.bytes).parse().unwrap_or(0);
                let next = (seen + 1).to_string();
                match store.swap(&key, Some(&value.revision), next.as_bytes()).await {
                    Ok(Swap::Done { .. }) => tally.wins += 1,
                    Ok(Swap::Mismatch) => {}
                    Err(error) if error.kind() == Kind::Indeterminate => tally.unknown += 1,
                    // Nothing was written: the service could not decide between several of us.
                    Err(error) if error.kind() == Kind::Contended => {}
                    Err(error) => return Err(error),
                }
                if tally.wins == WINS_EACH {
                    break;
                }
            }
            Ok(tally)
        })
    };
    match count() {
        Ok(Tally { wins, unknown }) => {
            let _ = output::line(&format!("{wins} {unknown}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            output::warn(&error.to_string());
            Exit::from(&error).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_swap_counts_or_not_and_a_lost_one_is_found() {
        let tally = Tally::parse("25 2\n").unwrap();
        assert_eq!([24, 25, 26, 27, 28].map(|count| tally.explains(count)), [false, true, true, true, false]);
        assert_eq!(Tally::parse("25"), None);
    }
}
