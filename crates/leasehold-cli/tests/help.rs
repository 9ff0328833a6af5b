//! Help pages, manual pages and completions, as readers and shells meet them.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On, verbs};
use std::io::Write;
use std::process::{Command, Stdio};

/// What a program prints that reads `input`; nothing may be wrong with it.
#[track_caller]
fn through(program: &mut Command, input: &str) -> String {
    let mut child =
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it is installed");
    let (mut pipe, input) = (child.stdin.take().unwrap(), input.to_owned());
    let writing = std::thread::spawn(move || pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_verb_has_a_manual_page_of_its_own() {
    let home = Home::new(On::Sqlite);
    let written = home.done(&["man", "--all", "pages"]).expect(0).stdout;
    assert!(written.lines().count() > 40, "{written}");
    for verb in verbs(&home, &[]) {
        let name = format!("pages/leasehold-{verb}.1");
        assert!(written.lines().any(|line| line == name), "{name} is missing in {written}");
        assert_eq!(home.done(&["man", &verb]).expect(0).stdout, home.read(&name), "{verb}");
    }
    assert!(written.contains("pages/leasehold-queue-add.1\n"), "{written}");
    for name in written.lines() {
        let page = home.read(name);
        assert!(page.contains(".SH EXIT STATUS\n") && page.contains(".SH NAME\n"), "{name}: {page}");
        assert!(page.contains(concat!("\"leasehold ", env!("CARGO_PKG_VERSION"), "\"")), "the foot of {name}: {page}");
        let text = through(Command::new("groff").args(["-man", "-Tutf8", "-ww"]), &page);
        assert!(text.len() > 500, "{name}: {text}");
    }
    let all = home.done(&["man"]).expect(0).stdout;
    for verb in verbs(&home, &[]) {
        assert!(all.contains(&format!("leasehold\\-{}", verb.replace('-', "\\-"))), "{verb} is missing");
    }
    home.done(&["man", "frobnicate"]).expect(64);
}

#[test]
fn every_verb_explains_itself() {
    let home = Home::new(On::Sqlite);
    let all = verbs(&home, &[]);
    assert!(all.len() > 30, "{all:?}");
    for verb in all {
        let help = home.done(&[&verb, "--help"]).expect(0);
        let summary = help.stdout.lines().next().unwrap();
        assert!(summary.len() > 10 && summary.starts_with(char::is_uppercase), "{verb}: {summary}");
        assert!(help.stdout.contains(&format!("Usage: leasehold {verb}")), "{verb}");
        assert_eq!(help.stderr, "", "{verb}");
        let short = home.done(&[&verb, "-h"]).expect(0).stdout;
        assert!(short.lines().count() <= help.stdout.lines().count(), "the short help of {verb} is the longer one");
        assert_eq!(home.done(&["help", &verb]).expect(0).stdout, help.stdout);
    }
}

#[test]
fn examples_are_not_wrapped() {
    let home = Home::new(On::Sqlite);
    let help = home.done(&["--help"]).expect(0).stdout;
    let example = "-- sh -c './report >new && leasehold write out.json --from new'\n";
    assert!(help.contains(example), "{help}");
}

#[test]
fn the_likeliest_slips_are_answered_with_what_to_write() {
    let home = Home::new(On::Sqlite);
    let said = home.done(&["run", "nightly", "true"]).expect(64).stderr;
    assert!(said.contains("put `--` before the command"), "{said}");
    let said = home.done(&["rnu", "nightly", "--", "true"]).expect(64).stderr;
    assert!(said.contains("'run'"), "{said}");
    let said = home.done(&["queue", "rm", "mail", "1"]).expect(64).stderr;
    assert!(said.contains("`leasehold queue cancel QUEUE ID") && !said.contains("'run'"), "{said}");
    let said = home.done(&["--log-format", "json", "lock", "nightly"]).expect(64).stderr;
    assert!(said.contains("`leasehold run NAME -- COMMAND`") && said.lines().count() == 1, "{said}");
    let said = home.done(&["run", "nightly", "--tll", "5m", "--", "true"]).expect(64).stderr;
    assert!(said.contains("--ttl") && !said.contains("put `--`"), "{said}");
    let said = home.done(&["run", "nightly", "--frobnicate", "--", "true"]).expect(64).stderr;
    assert!(said.contains("`leasehold run` has no flag `--frobnicate`; `leasehold run --help`"), "{said}");
    assert!(!said.contains("-- --frobnicate"), "{said}");
    let said = home.done(&["--store", "dir:x", "queue", "ls", "--frobnicate"]).expect(64).stderr;
    assert!(said.contains("`leasehold queue ls` has no flag `--frobnicate`"), "{said}");
}

/// A completion script, written where `leasehold` is on the path.
fn script(home: &Home, shell: &str) -> String {
    let script = home.done(&["completions", shell]).expect(0).stdout;
    std::fs::write(home.path(shell), &script).unwrap();
    home.path(shell).display().to_string()
}

#[test]
fn bash_completes_verbs_and_flags() {
    let home = Home::new(On::Sqlite);
    let path = script(&home, "bash");
    let complete = |words: &str| {
        let program = format!(
            "source {path}; COMP_WORDS=(leasehold {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _leasehold leasehold \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        through(Command::new("bash").args(["--norc", "-c", &program]), "")
    };
    assert_eq!(complete("hand"), "hand-off\n");
    assert!(complete("run --max").contains("--max-runtime\n"));
    assert_eq!(complete("queue comp"), "complete\n");
}

#[test]
fn fish_completes_verbs_and_flags() {
    let home = Home::new(On::Sqlite);
    let path = script(&home, "fish");
    let complete = |line: &str| {
        let program = format!("source {path}; complete -C '{line}'");
        let mut fish = Command::new("fish");
        fish.args(["--no-config", "-c", &program]).env("HOME", home.folder.path()).env_remove("XDG_CONFIG_HOME");
        through(&mut fish, "")
    };
    assert!(complete("leasehold hand").contains("hand-off\t"));
    assert!(complete("leasehold run --max").contains("--max-runtime\t"));
    assert!(complete("leasehold queue comp").contains("complete\t"));
}

#[test]
fn zsh_completes_verbs_and_flags() {
    let home = Home::new(On::Sqlite);
    let script = home.done(&["completions", "zsh"]).expect(0).stdout;
    std::fs::create_dir(home.path("functions")).unwrap();
    std::fs::write(home.path("functions/_leasehold"), script).unwrap();
    // A shell in a terminal of its own, in which the key for completion is typed.
    std::fs::write(home.path("type.zsh"), include_str!("programs/complete.zsh")).unwrap();
    let complete = |line: &str| {
        let mut zsh = Command::new("zsh");
        zsh.arg("-f").arg(home.path("type.zsh")).arg(home.path("functions")).arg(line);
        zsh.env("HOME", home.folder.path()).env("TERM", "dumb");
        through(&mut zsh, "")
    };
    assert!(complete("leasehold hand-").contains("hand-off"), "{}", complete("leasehold hand-"));
    assert!(complete("leasehold run --max-r").contains("--max-runtime"));
    assert!(complete("leasehold queue comp").contains("complete"));
}
