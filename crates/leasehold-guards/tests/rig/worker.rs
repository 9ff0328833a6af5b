//! The writer process itself.

use super::artifact::{source, text};
use super::control;
use super::dice::Dice;
use crate::common::{theirs, token};
use leasehold_core::guard::Policy;
use leasehold_core::observe::Observer;
use leasehold_guards::{FileGuard, FileStep, FolderGuard};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The longest pause at one step, in turns of a loop.
const PAUSE: u64 = 8_000;

/// Obeys orders until there are no more.
pub fn main() {
    let mut line = String::new();
    loop {
        line.clear();
        if io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        say(&obey(line.trim_end()));
    }
}

fn say(what: &str) {
    let mut out = io::stdout().lock();
    out.write_all(format!("{what}\n").as_bytes()).and_then(|()| out.flush()).expect("the test listens");
}

fn obey(order: &str) -> String {
    let mut words = order.splitn(6, ' ');
    let mut word = || words.next().unwrap();
    let (how, epoch, rival): (_, u64, u64) = (word(), word().parse().unwrap(), word().parse().unwrap());
    let (fault, step): (_, usize) = (word(), word().parse().unwrap());
    let path = Path::new(word());
    let token = token(epoch, rival);
    let steps = Arc::new(Saboteur {
        at: FileStep::ALL[step % FileStep::ALL.len()],
        fault: fault.into(),
        struck: AtomicBool::new(fault == "None"),
        dice: Mutex::new(Dice::new(step as u64)),
    });
    let file = || FileGuard::new(path, Policy::Reentrant).unwrap().with_observer(steps.clone());
    // As many in all as the guard makes on its way.
    let pause = || (0..5).for_each(|_| steps.dawdle());
    let answer = match how {
        "Naive" => return control::write(path, epoch, rival, pause).err().unwrap_or("written".into()),
        "Seal" => file().seal_now(&token),
        "Theirs" => file().write_from(&theirs(epoch), text(epoch, rival).as_bytes()),
        "Adopt" => file().high_water_now().and_then(|from| {
            let from = from.expect("somebody has fenced it");
            file().adopt_now(&from, &theirs(epoch), &"ann".parse()?, &"a drill".parse()?)
        }),
        "File" => file().write_from(&token, text(epoch, rival).as_bytes()),
        _ => {
            let from = source(path, epoch, rival);
            FolderGuard::new(path, Policy::Reentrant).unwrap().with_observer(steps.clone()).publish(&token, &from)
        }
    };
    match answer {
        Ok(_) => "written".into(),
        Err(e) => format!("{} {e}", e.kind().as_str()),
    }
}

/// Strikes once, at one step.
#[derive(Debug)]
struct Saboteur {
    at: FileStep,
    fault: String,
    struck: AtomicBool,
    dice: Mutex<Dice>,
}

impl Saboteur {
    fn dawdle(&self) {
        if self.fault == "Dawdle" {
            self.dice.lock().unwrap().dawdle(PAUSE);
        }
    }
}

impl Observer<FileStep> for Saboteur {
    fn reach(&self, step: FileStep) -> io::Result<()> {
        self.dawdle();
        if self.fault == "Dawdle" || step != self.at || self.struck.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        say("at");
        let failed = match self.fault.as_str() {
            "Stop" => return Ok(kill_process(getpid(), Signal::STOP)?),
            "Kill" => return Ok(kill_process(getpid(), Signal::KILL)?),
            "Eio" => Errno::IO,
            _ => Errno::NOSPC,
        };
        let mut go = String::new();
        io::stdin().read_line(&mut go)?;
        Err(failed.into())
    }
}
