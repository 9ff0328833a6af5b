//! `agents`: what the hosts of agents are set up with.
//!
//! The forms below are written from the hosts' documentation: a key that a host does not know fails here.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

/// One group of hooks, as Claude Code, Codex and Gemini CLI have it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    matcher: String,
    hooks: Vec<Handler>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Handler {
    #[serde(rename = "type")]
    kind: String,
    command: String,
    timeout: u32,
    /// Gemini CLI only.
    #[serde(default, rename = "name")]
    _name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    command: String,
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Codex: variables that it passes on.
    #[serde(default)]
    env_vars: Vec<String>,
    /// Codex: a session without this server does not begin.
    #[serde(default)]
    required: bool,
    /// VS Code.
    #[serde(default, rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    hooks: BTreeMap<String, Vec<Group>>,
    #[serde(default, rename = "mcpServers", alias = "mcp_servers", alias = "servers")]
    servers: BTreeMap<String, Server>,
}

fn project(home: &Home) -> String {
    let project = home.path("project");
    std::fs::create_dir_all(&project).unwrap();
    project.to_str().unwrap().to_owned()
}

fn install(home: &Home, host: &str, more: &[&str]) -> Done {
    home.done(&[&["agents", "install", host, "--project", &project(home)], more].concat())
}

fn read<T: DeserializeOwned>(home: &Home, path: &str) -> T {
    let text = home.read(&format!("project/{path}"));
    if path.ends_with(".toml") { toml::from_str(&text).unwrap() } else { serde_json::from_str(&text).unwrap() }
}

#[test]
fn what_is_installed_is_what_each_host_reads() {
    let home = Home::new(On::Sqlite);
    for (host, before, after, hooks, servers) in [
        ("claude", "PreToolUse", "PostToolUse", ".claude/settings.json", ".mcp.json"),
        ("codex", "PreToolUse", "PostToolUse", ".codex/config.toml", ".codex/config.toml"),
        ("gemini", "BeforeTool", "AfterTool", ".gemini/settings.json", ".gemini/settings.json"),
        ("cursor", "", "", "", ".cursor/mcp.json"),
        ("vscode", "", "", "", ".vscode/mcp.json"),
    ] {
        let shown = install(&home, host, &["--dry-run"]).expect(0);
        assert!(shown.stdout.contains("+++ ") && !home.path("project").join(servers).exists(), "{shown:?}");
        install(&home, host, &["--yes"]).expect(0);
        let again = install(&home, host, &[]).expect(0);
        assert!(again.stdout.is_empty() && again.stderr.contains("nothing was changed"), "{again:?}");

        let settings: Settings = read(&home, servers);
        let server = &settings.servers["leasehold"];
        assert_eq!((server.command.as_str(), &server.args[..]), ("leasehold", &["mcp".to_owned()][..]));
        assert_eq!(server.required, host == "codex");
        assert_eq!(server.kind.as_deref(), (host == "vscode").then_some("stdio"));
        let passed = |name: &str| server.env.contains_key(name) || server.env_vars.iter().any(|one| one == name);
        assert!(passed("LEASEHOLD_CONTEXT") && passed("LEASEHOLD_STORE"), "{host}");
        if hooks.is_empty() {
            continue;
        }
        let settings: Settings = read(&home, hooks);
        assert_eq!(settings.hooks.keys().collect::<Vec<_>>().len(), 2);
        for (event, is_denied) in [(before, true), (after, false)] {
            let [group] = &settings.hooks[event][..] else { panic!("{host} {event}") };
            let [handler] = &group.hooks[..] else { panic!("{host} {event}") };
            assert_eq!((handler.kind.as_str(), group.matcher.is_empty()), ("command", false));
            // Gemini CLI counts milliseconds.
            assert_eq!(handler.timeout, if host == "gemini" { 5000 } else { 5 });
            run_as_the_host_does(&home, host, &handler.command, event, is_denied);
        }
    }
}

/// The command is a refusal without a lease, and also where the program is missing.
fn run_as_the_host_does(home: &Home, host: &str, command: &str, event: &str, is_denied: bool) {
    let run = |path: Option<&str>| {
        let plain = home.leasehold(&[]);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", command]).env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        path.map(|path| shell.env("PATH", path));
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let event = json!({ "hook_event_name": event, "tool_name": "Bash" });
        let _ = child.stdin.take().unwrap().write_all(event.to_string().as_bytes());
        Done::from(child.wait_with_output().unwrap())
    };
    let done = run(None).expect(0);
    let answer: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(answer != json!({}), is_denied, "{host} {event}: {answer}");
    let missing = run(Some("/nowhere"));
    assert_eq!(missing.code == 2 && !missing.stderr.trim().is_empty(), is_denied, "{host} {event}: {missing:?}");
}

#[test]
fn what_is_there_stays() {
    let home = Home::new(On::Sqlite);
    project(&home);
    let mine = "{\n  // mine\n  \"model\": \"x\",\n  \"hooks\": {\n    \"PreToolUse\": [{ \"matcher\": \"Edit\", \"hooks\": [] }]\n  }\n}\n";
    std::fs::create_dir(home.path("project/.claude")).unwrap();
    std::fs::write(home.path("project/.claude/settings.json"), mine).unwrap();
    std::fs::write(home.path("project/.mcp.json"), "{ broken").unwrap();
    // One file that cannot be merged into leaves all of them.
    let refused = install(&home, "claude", &["--yes"]).expect(64);
    assert!(refused.stderr.contains(".mcp.json") && refused.stderr.contains("nothing was changed"), "{refused:?}");
    assert_eq!(home.read("project/.claude/settings.json"), mine);

    let other = r#"{ "mcpServers": { "leasehold": { "command": "/opt/leasehold" } } }"#;
    std::fs::write(home.path("project/.mcp.json"), other).unwrap();
    let left = install(&home, "claude", &["--yes", "--allow-unleased"]).expect(78);
    assert!(left.stderr.contains("mcpServers.leasehold.command") && left.stderr.contains("/opt/leasehold"), "{left:?}");
    let merged = home.read("project/.claude/settings.json");
    assert!(merged.contains("// mine") && merged.contains("\"Edit\""), "{merged}");
    assert!(merged.contains("leasehold hook claude --allow-unleased"), "{merged}");
    assert!(home.read("project/.mcp.json").contains("/opt/leasehold"));

    // A hook with other words is not ours to change, and not what was asked for.
    let strict = install(&home, "claude", &["--yes"]).expect(78);
    assert!(strict.stderr.contains("hooks.PreToolUse") && strict.stderr.contains("was left"), "{strict:?}");

    // Without anybody to ask, asking is an error, and nothing is changed.
    let asked = install(&home, "gemini", &[]).expect(64);
    assert!(asked.stderr.contains("--yes") && !home.path("project/.gemini").exists(), "{asked:?}");
    install(&home, "crontab", &["--yes"]).expect(64);
    install(&home, "gemini", &["--yes", "--project", "/nowhere"]).expect(64);
}

#[test]
fn lines_end_as_they_did_and_a_link_stays_one() {
    let home = Home::new(On::Sqlite);
    project(&home);
    std::fs::create_dir(home.path("project/.codex")).unwrap();
    std::fs::write(home.path("project/.codex/config.toml"), "# mine\r\nmodel = \"x\"\r\n").unwrap();
    install(&home, "codex", &["--yes"]).expect(0);
    let merged = home.read("project/.codex/config.toml");
    assert_eq!(merged.matches('\n').count(), merged.matches("\r\n").count(), "{merged:?}");
    assert!(merged.contains("mcp_servers.leasehold"), "{merged:?}");
    // One that leads nowhere is no file to be made.
    std::fs::create_dir(home.path("project/.cursor")).unwrap();
    let link = home.path("project/.cursor/mcp.json");
    std::os::unix::fs::symlink(home.path("elsewhere.json"), &link).unwrap();
    let refused = install(&home, "cursor", &["--yes"]).expect(78);
    assert!(refused.stderr.contains("is a link that leads nowhere; nothing was changed"), "{refused:?}");
    assert!(link.is_symlink() && !home.path("elsewhere.json").exists());
    // One that leads somewhere is written through.
    std::fs::write(home.path("elsewhere.json"), "{}\n").unwrap();
    install(&home, "cursor", &["--yes"]).expect(0);
    assert!(link.is_symlink() && home.read("elsewhere.json").contains("leasehold"));
}

#[test]
fn print_prints_what_install_writes() {
    let home = Home::new(On::Sqlite);
    for host in ["claude", "codex", "gemini", "cursor", "vscode"] {
        install(&home, host, &["--yes"]).expect(0);
        let printed: Vec<Value> =
            serde_json::from_str(&home.done(&["agents", "print", host, "--json"]).expect(0).stdout).unwrap();
        assert!(!printed.is_empty());
        for file in printed {
            let path = format!("project/{}", file["path"].as_str().unwrap());
            assert_eq!(home.read(&path), file["text"].as_str().unwrap(), "{path}");
        }
    }
    let crontab = home.done(&["agents", "print", "crontab"]).expect(0).stdout;
    assert!(crontab.contains("leasehold run brush-up --slot") && crontab.contains("--guard git:origin"), "{crontab}");
}
