//! Several lanes: this program again, once for each, and nothing between them.

use super::lane::LANE;
use crate::args::Work as Args;
use crate::commands::queue::Target;
use crate::config::Settings;
use crate::exit::Exit;
use crate::output;
use crate::supervise::Signals;
use leasehold::clock::{Clock, SystemClock};
use leasehold::{Error, Result};
use leasehold_system::process::own_program;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long lies between the sudden death of a lane and its replacement.
const PAUSE: Duration = Duration::from_secs(1);

pub async fn run(settings: &Settings, target: &Target, args: &Args) -> Result<Exit> {
    let mut signals = Signals::listen()?;
    let (ended, mut endings) = mpsc::unbounded_channel();
    let mut lanes: HashMap<u32, ChildStdin> = HashMap::new();
    for _ in 0..args.jobs {
        start(settings, target, args, &ended, &mut lanes)?;
    }
    let (mut draining, mut exit) = (false, Exit::Done);
    while !lanes.is_empty() {
        tokio::select! {
            number = signals.next_ending() => {
                draining = true;
                for pid in lanes.keys().filter_map(|pid| Pid::from_raw(*pid as i32)) {
                    // Each lane is asked; a second time ends what it is at.
                    let _ = kill_process(pid, Signal::from_named_raw(number).unwrap_or(Signal::TERM));
                }
            }
            Some((pid, status)) = endings.recv() => {
                lanes.remove(&pid);
                let status: ExitStatus = status;
                match (status.code(), status.signal()) {
                    (Some(0), _) => {}
                    (None, Some(signal)) if !draining => {
                        output::say(&format!("a lane was ended by signal {signal}; starting another"));
                        SystemClock.sleep_until(SystemClock.now() + PAUSE).await;
                        start(settings, target, args, &ended, &mut lanes)?;
                    }
                    (code, _) => exit = Exit::Code(u8::try_from(code.unwrap_or(1)).unwrap_or(1)),
                }
            }
        }
    }
    Ok(exit)
}

fn start(
    settings: &Settings,
    target: &Target,
    args: &Args,
    ended: &mpsc::UnboundedSender<(u32, ExitStatus)>,
    lanes: &mut HashMap<u32, ChildStdin>,
) -> Result<()> {
    let cannot = |e: std::io::Error| Error::unavailable("cannot start a lane", e);
    let mut command = Command::new(own_program().map_err(cannot)?);
    command.arg0("leasehold").arg("work").arg(target.portable());
    command.arg("--ttl").arg(settings.ttl.value.to_string());
    for (flag, value) in [("--label", &args.label), ("--grace", &args.grace), ("--max-runtime", &args.max_runtime)] {
        if let Some(value) = value {
            command.arg(format!("{flag}={value}"));
        }
    }
    if args.until_empty {
        command.arg("--until-empty");
    }
    command.arg("--").args(args.command.iter().map(OsString::from));
    // In the environment, because it may hold a password; in a group of its own, so that a key reaches it once.
    command.env("LEASEHOLD_STORE", settings.store.value.portable()).env(LANE, "1");
    let mut child: Child = command.stdin(Stdio::piped()).process_group(0).spawn().map_err(cannot)?;
    let (pid, ended) = (child.id(), ended.clone());
    // Closed when this process ends, however it does: then the lane ends too.
    lanes.extend(child.stdin.take().map(|line| (pid, line)));
    std::thread::spawn(move || {
        if let Ok(status) = child.wait() {
            let _ = ended.send((pid, status));
        }
    });
    Ok(())
}
