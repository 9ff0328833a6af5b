//! A command under a lease, beside the same under `flock` and under `etcdctl lock`: whole processes.
//!
//! `flock` makes nothing durable and forgets everything; `etcdctl` needs a running server, whose start does not count.

use crate::etcd::Etcd;
use crate::measure::{Contestant, contest};
use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const AGAINST_FLOCK: Demand = Demand::AtMostTheTime(4.0);
const AGAINST_ETCD: Demand = Demand::AtLeastTheSpeed(3.0);

/// Runs `true` in all the ways.
pub fn compare(scratch: &Scratch, leasehold: &Path, limit: Duration) -> Result<Vec<Row>> {
    let folder = scratch.folder("runs")?;
    let ours = |store: String| {
        let mut command = Command::new(leasehold);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("LEASEHOLD_") {
                command.env_remove(variable);
            }
        }
        command.args(["run", "--store", &store, "job", "--", "true"]);
        command
    };
    let mut sqlite = ours(format!("sqlite:{}", folder.join("leases.db").display()));
    let mut dir = ours(format!("dir:{}", folder.join("leases").display()));
    let mut flock = Command::new("flock");
    flock.arg(folder.join("flock")).arg("true");
    let turn = |command: &mut Command| -> Result<()> {
        let status = command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if !status.success() {
            bail!("{command:?} ended with {status}");
        }
        Ok(())
    };
    let etcd = Etcd::start(&scratch.path().join("etcd"))
        .inspect_err(|error| eprintln!("leasehold-bench: without etcd, whose rows count as not met: {error:#}"));
    let ours_and_flock = [
        Contestant::new("leasehold run (sqlite)", 1, || turn(&mut sqlite)),
        Contestant::new("leasehold run (dir)", 1, || turn(&mut dir)),
        Contestant::new("flock", 1, || turn(&mut flock)),
    ];
    let (sqlite, dir, flock, etcdctl) = match &etcd {
        Ok(etcd) => {
            let mut lock = etcd.client();
            lock.args(["lock", "job", "true"]);
            let [one, two, three] = ours_and_flock;
            let four = Contestant::new("etcdctl lock", 1, || turn(&mut lock));
            let [sqlite, dir, flock, etcdctl] = contest(limit, [one, two, three, four])?;
            (sqlite, dir, flock, Some(etcdctl))
        }
        Err(_) => {
            let [sqlite, dir, flock] = contest(limit, ours_and_flock)?;
            (sqlite, dir, flock, None)
        }
    };
    let mut rows = Vec::new();
    for (store, took) in [("sqlite", sqlite), ("dir", dir)] {
        let what = format!("run x -- true ({store})");
        let unit = Unit::Milliseconds;
        rows.push(Row::new(what.clone(), "flock f true", unit, took, Some(flock), AGAINST_FLOCK));
        rows.push(Row::new(what, "etcdctl lock k true", unit, took, etcdctl, AGAINST_ETCD));
    }
    Ok(rows)
}
