//! The watch over the tests, on small scripts that leave things behind in every way.

#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::process::{Command, Output, Stdio};

fn watch(script: &str) -> Command {
    // `nohup` and a shell's `&` leave signals ignored, and the watch respects that.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,TERM", env!("CARGO_BIN_EXE_xtask"), "watch", "sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// The folder for temporary files that the script printed.
fn folder(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find(|line| line.starts_with("/tmp/lh-")).unwrap().to_owned()
}

fn is_alive(pid: &str) -> bool {
    std::fs::exists(format!("/proc/{pid}")).unwrap()
}

#[test]
fn what_clears_up_passes_and_what_fails_does_not() {
    let output = watch("echo $TMPDIR; file=$(mktemp); sleep 0.1 & rm $file").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!std::fs::exists(folder(&output)).unwrap());
    assert!(!watch("exit 3").output().unwrap().status.success());
    assert!(!watch("kill -9 $$").output().unwrap().status.success());
}

#[test]
fn files_are_named_and_removed() {
    let output = watch("echo $TMPDIR; mktemp -d; : >$TMPDIR/file").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    let (folder, said) = (folder(&output), said(&output));
    assert!(said.contains(&format!("left behind: {folder}/file")), "{said}");
    assert!(said.contains("2 things were left behind"), "{said}");
    assert!(!std::fs::exists(folder).unwrap());
}

/// An orphan in a session of its own, without a variable of ours, and stopped.
#[test]
fn processes_are_named_and_killed_wherever_they_went() {
    let output = watch("(setsid env -i sh -c 'echo $$ >&2; kill -STOP $$' &)").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    let said = said(&output);
    assert!(said.contains("(state T): sh -c echo $$"), "{said}");
    let pid = String::from_utf8_lossy(&output.stderr).lines().next().unwrap().to_owned();
    assert!(pid.parse::<u32>().is_ok() && !is_alive(&pid), "{said}");
}

#[test]
fn a_signal_ends_all_of_it_and_leaves_nothing() {
    for signal in ["INT", "TERM", "HUP"] {
        let mut child = watch(
            "trap '' INT TERM HUP; (setsid sleep 1000 &) ; mktemp -d >/dev/null; echo $TMPDIR; \
                               while :; do sleep 0.1; done",
        );
        let mut child = child.spawn().unwrap();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
        let ended = child.wait_with_output().unwrap();
        assert!(!ended.status.success(), "{ended:?}");
        assert!(!std::fs::exists(line.trim()).unwrap(), "{signal}: {ended:?}");
    }
}

/// As libfaketime does for a process that is killed. What bears another process's number is another run's.
#[test]
fn shared_memory_of_a_process_of_the_run_is_named() {
    let script = "name=/dev/shm/faketime_shm_$$; : >$name; : >/dev/shm/faketime_shm_1; echo $name; sleep 1";
    let output = watch(script).output().unwrap();
    let text = said(&output);
    let name = text.lines().find(|line| line.starts_with("/dev/shm/")).unwrap().to_owned();
    std::fs::remove_file(&name).unwrap();
    std::fs::remove_file("/dev/shm/faketime_shm_1").unwrap();
    assert!(!output.status.success() && text.contains(&format!("left behind: {name}")), "{text}");
    assert!(!text.contains("left behind: /dev/shm/faketime_shm_1\n"), "{text}");
}
