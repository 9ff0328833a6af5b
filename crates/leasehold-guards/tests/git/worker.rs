//! The pushing process itself: our guard, or one of the controls.

use crate::common::token;
use leasehold_core::guard::{Guard, Policy};
use leasehold_core::observe::Observer;
use leasehold_guards::git::PushOptions;
use leasehold_guards::{GitGuard, GitStep};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use std::io::{self, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub fn main() {
    let words: Vec<String> = std::env::args().skip(2).collect();
    let [how, epoch, rival, commit, fault, step] = &words[..] else { panic!("{words:?}") };
    let token = token(epoch.parse().unwrap(), rival.parse().unwrap());
    let steps = Arc::new(Saboteur {
        at: GitStep::ALL[step.parse::<usize>().unwrap()],
        fault: fault.clone(),
        struck: AtomicBool::new(fault == "none"),
    });
    let refspec = format!("+{commit}:refs/heads/main");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let policy = if how == "once" { Policy::OncePerEpoch } else { Policy::Reentrant };
    let guard = GitGuard::new("origin", policy).unwrap().with_observer(steps);
    let answer = runtime.block_on(async {
        match how.as_str() {
            "seal" => guard.seal(&token).await.map(drop),
            "push" | "once" => {
                let refspecs = [refspec.parse().unwrap()];
                guard.push(&token, &refspecs, PushOptions::default(), async || Ok(())).await.map(drop)
            }
            control => {
                say(if control_push(control, &refspec) { "pushed" } else { "refused" });
                std::process::exit(0)
            }
        }
    });
    match answer {
        Ok(()) => say("pushed"),
        Err(e) => say(&format!("{} {e}", e.kind().as_str())),
    }
}

/// The negative controls: pushes as people write them at first. Each reads the fence before, as ours does.
fn control_push(how: &str, refspec: &str) -> bool {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap().trim().to_owned())
    };
    let fence = "refs/fence/job";
    let seen = git(&["ls-remote", "origin", fence]).1.split('\t').next().unwrap_or_default().to_owned();
    let next = git(&["commit-tree", "4b825dc642cb6eb9a060e54bf8d69288fbee4904", "-m", refspec]).1;
    let lease = format!("--force-with-lease={fence}:{seen}");
    let (same, moved) = (format!("{seen}:{fence}"), format!("{next}:{fence}"));
    match how {
        // No fence at all.
        "plain" => git(&["push", "-q", "origin", refspec]).0,
        // Compared, but not moved: git does not send it, so the remote does not compare.
        "unmoved" => {
            git(&["fetch", "-q", "origin", fence]);
            git(&["push", "-q", "--atomic", &lease, "origin", &same, refspec]).0
        }
        // Moved, but each ref for itself.
        "apart" => git(&["push", "-q", &lease, "origin", &moved, refspec]).0,
        // Expected to be what was last fetched, by whomever.
        "implicit" => {
            say("at");
            wait_for_go().unwrap();
            git(&["push", "-q", "--atomic", &format!("--force-with-lease={fence}"), "origin", &moved, refspec]).0
        }
        other => panic!("no control `{other}`"),
    }
}

pub fn say(what: &str) {
    let mut out = io::stdout().lock();
    out.write_all(format!("{what}\n").as_bytes()).and_then(|()| out.flush()).expect("the test listens");
}

fn wait_for_go() -> io::Result<()> {
    io::stdin().read_line(&mut String::new()).map(drop)
}

/// Strikes once, at one step.
#[derive(Debug)]
struct Saboteur {
    at: GitStep,
    fault: String,
    struck: AtomicBool,
}

impl Observer<GitStep> for Saboteur {
    fn reach(&self, step: GitStep) -> io::Result<()> {
        if step != self.at || self.struck.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        say("at");
        match self.fault.as_str() {
            "stop" => Ok(nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP)?),
            "kill" => Ok(kill_process(getpid(), Signal::KILL)?),
            _ => wait_for_go().and(Err(Errno::IO.into())),
        }
    }
}
