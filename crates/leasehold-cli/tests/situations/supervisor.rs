//! A task that a supervisor reassigns, between two scripted agents on the official SDK's MCP client.

use crate::common::{Home, On, PATIENCE, Running, signal, within};
use crate::{git, git_settings, program, repository, subjects};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// An agent under `run`, in its own clone.
fn agent(home: &Home, name: &str, more: &[&str]) -> Command {
    let (python, script) =
        (leasehold_testbed::python_program("python"), repository("crates/leasehold-cli/tests/programs/agent.py"));
    let report = format!("file:{}", home.path("report.txt").display());
    let mut command = program(home, env!("CARGO_BIN_EXE_leasehold"));
    command.args(["run", "task", "--guard", "git:origin", "--guard", &report]).args(more);
    command.arg("--").arg(python).arg(script).arg(name).current_dir(home.path(name));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_reassigned_agent_is_stopped_at_its_next_tool_call_and_nothing_of_it_lands() {
    let home = Home::new(On::Dir);
    git_settings(&home);
    git(&home, ".", &["init", "-q", "--bare", "remote.git"]);
    for clone in ["first", "second"] {
        git(&home, ".", &["clone", "-q", "remote.git", clone]);
    }
    let mut first = Running::from(agent(&home, "first", &["--label", "runner-1", "--ttl", "10m"]).spawn().unwrap());
    within(PATIENCE * 4, "the first has done its part", || home.path("parted").exists() || first.is_over());
    if first.is_over() {
        panic!("{:#?}", first.end());
    }
    // The first one's `run` hears nothing: what stops the agent is the boundary.
    signal(first.pid(), "STOP");
    let why = "runner-1 is too slow";
    let handed = home.done(&["hand-off", "task", "--to", "runner-2", "--ttl", "10m", "--why", why]).expect(0);
    home.touch("reassigned");
    within(PATIENCE * 4, "the first was stopped", || home.path("first.json").exists());
    let told: Value = serde_json::from_str(&home.read("first.json")).unwrap();
    let reason = told["hook"].as_str().unwrap();
    for part in ["lease `task` was lost: held=1 seen=2", why, "now held by runner-2", "Stop, and report"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(told["gate"]["refused"], true, "{told}");
    assert!(told["gate"]["text"].as_str().unwrap().contains("tool call refused: resource=`mcp:task` held=1 seen=2"));
    for answer in told["server"].as_array().unwrap() {
        assert_eq!(answer[0], true, "{told}");
        assert!(answer[1].as_str().unwrap().contains("held=1 seen=2"), "{told}");
    }
    assert_eq!(told["commands"], json!([13, 13]));
    assert_eq!((home.read("report.txt").as_str(), subjects(&home, "remote.git")), ("part 1\n", vec!["part 1".into()]));
    signal(first.pid(), "CONT");
    let ended = first.end().expect(75);
    assert!(ended.stderr.contains("lost `task:1`"), "{ended:#?}");

    Running::from(agent(&home, "second", &["--token", handed.stdout.trim()]).spawn().unwrap()).end().expect(0);
    let landed = ["part 2", "part 1"];
    assert_eq!(subjects(&home, "remote.git"), landed);
    assert_eq!(home.read("report.txt"), "part 1\npart 2\n");
    // Where the store cannot be asked, the fences remember.
    let old: String = serde_json::from_str(&home.read("parted")).unwrap();
    for words in [&["push", "origin", "+main"][..], &["write", "../report.txt"]] {
        let mut command = program(&home, env!("CARGO_BIN_EXE_leasehold"));
        command.args(words).args(["--token", &old, "--store", "dir:/nowhere/at/all"]).current_dir(home.path("first"));
        let refused = crate::Done::from(command.output().unwrap()).expect(13);
        assert!(refused.stderr.contains("held=1 seen=2"), "{refused:#?}");
    }
    assert_eq!(subjects(&home, "remote.git"), landed);
    assert_eq!(home.read("report.txt"), "part 1\npart 2\n");
}
