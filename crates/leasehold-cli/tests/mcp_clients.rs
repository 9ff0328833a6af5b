//! The MCP server and the MCP gate, spoken to by clients that are not ours: the official SDKs of both generations.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On};
use leasehold_testbed::{node_module, python_environment, python_program};
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// Runs a client in a home, to its end. It says `well`, or it has failed.
#[track_caller]
fn client(home: &Home, program: &Path, script: &str, args: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp").join(script);
    let leasehold = home.leasehold(&[]);
    let environment = leasehold.get_envs().map(|(name, value)| (name.to_owned(), value.unwrap().to_owned()));
    let mut command = Command::new(program);
    command.arg(script).args(args).current_dir(home.folder.path()).env_clear().envs(environment);
    let done = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out == "well\n", "{args:?}: {out}\n{err}");
}

#[test]
fn the_python_sdk_with_a_handshake_is_served_and_gated() {
    let home = Home::new(On::Sqlite);
    client(&home, &python_program("python"), "python1.py", &[PROGRAM]);
    assert_eq!(home.show("agent")["state"], "free", "what was held was not given back");
}

/// By itself it asks first; it can also be told to shake hands, or to take a version for granted.
#[test]
fn the_python_sdk_without_a_handshake_is_served_and_gated() {
    for (mode, state) in [("auto", "held"), ("2026-07-28", "held"), ("legacy", "free")] {
        let home = Home::new(On::Sqlite);
        client(&home, &python_environment("python-mcp2").join("bin/python"), "python2.py", &[PROGRAM, mode]);
        assert_eq!(home.show("agent")["state"], state, "{mode}");
        assert_eq!(home.read("out"), "x", "{mode}");
    }
}

#[test]
fn the_typescript_sdk_with_a_handshake_is_served_and_gated() {
    let home = Home::new(On::Sqlite);
    let module = |file: &str| node_module(&format!("@modelcontextprotocol/sdk/dist/esm/client/{file}"));
    typescript(&home, &module("index.js"), &module("stdio.js"), "sdk");
    assert_eq!(home.show("agent")["state"], "free", "what was held was not given back");
}

#[test]
fn the_typescript_sdk_without_a_handshake_is_served_and_gated() {
    for (mode, state) in [("auto", "held"), ("pin", "held"), ("legacy", "free")] {
        let home = Home::new(On::Sqlite);
        let module = |file: &str| node_module(&format!("@modelcontextprotocol/client/dist/{file}"));
        typescript(&home, &module("index.mjs"), &module("stdio.mjs"), mode);
        assert_eq!(home.show("agent")["state"], state, "{mode}");
    }
}

#[track_caller]
fn typescript(home: &Home, module: &Path, transport: &Path, mode: &str) {
    let args = [PROGRAM, module.to_str().unwrap(), transport.to_str().unwrap(), mode];
    client(home, &leasehold_testbed::program("node"), "typescript.mjs", &args);
}

/// Every tool, in both generations, is called well and badly; an independent validator reads what was sent and answered.
#[test]
fn every_answer_fits_the_schema_of_its_tool() {
    for form in ["session", "alone"] {
        let home = Home::new(On::Sqlite);
        let git = "git init -q --bare remote && git init -q -b main . && git remote add origin ./remote && mkdir site && \
                   echo hello > site/index && \
                   git -c user.name=t -c user.email=t@example.org commit -q --allow-empty -m first";
        let made = Command::new("sh").args(["-c", git]).current_dir(home.folder.path()).status().unwrap();
        assert!(made.success(), "{made}");
        client(&home, &python_environment("python-mcp2").join("bin/python"), "schemas.py", &[PROGRAM, form]);
    }
}
