//! Settings: flags over environment over the project's file over the user's over defaults, and where each came from.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A command in a folder of this home, with no settings but those that the test gives.
fn bare(home: &Home, folder: &str, args: &[&str]) -> Command {
    let mut command = home.leasehold(args);
    command.env_remove("LEASEHOLD_STORE").current_dir(home.path(folder));
    command
}

fn settings(command: &mut Command) -> Value {
    serde_json::from_str(&Done::from(command.output().unwrap()).expect(0).stdout).unwrap()
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn without_settings_the_defaults_hold() {
    let home = Home::new(On::Sqlite);
    let found = settings(&mut bare(&home, ".", &["config", "--json"]));
    let own = home.path(".local/state/leasehold/leasehold.db");
    for (key, value) in [
        ("store", Value::from(format!("sqlite:{}", own.display()))),
        ("ttl", "1m30s".into()),
        ("label", Value::Null),
        ("grace", Value::Null),
        ("held_exit_code", "0".into()),
    ] {
        assert_eq!(found[key]["value"], value, "{key}");
        assert_eq!(found[key]["source"], "default", "{key}");
    }
    let text = Done::from(bare(&home, ".", &["config"]).output().unwrap()).expect(0).stdout;
    assert!(text.contains("(the machine's name)") && text.contains("(for ever)"), "{text}");
    assert_eq!(text.matches("(a sixth of the ttl, at most 10s)").count(), 1, "{text}");
}

#[test]
fn the_nearer_setting_wins() {
    let home = Home::new(On::Sqlite);
    let user = home.path(".config/leasehold/leasehold.toml");
    write(&user, "store = 'dir:/user'\nttl = '1m'\nlabel = 'user'\ngrace = '1s'\nheld_exit_code = 1\nstate = 'here'\n");
    let outer = home.path("project/leasehold.toml");
    write(&outer, "store = 'dir:/outer'\nttl = '2m'\nlabel = 'outer'\ngrace = '2s'\n");
    write(&home.path("project/deep/er/here/note"), "");
    let file = |path: &Path| format!("file {}", path.display());

    let mut command = bare(&home, "project/deep/er/here", &["config", "--json"]);
    let found = settings(command.env("LEASEHOLD_TTL", "3m").env("LEASEHOLD_GRACE", ""));
    for (key, value, source) in [
        ("store", "dir:/outer", file(&outer)),
        ("ttl", "3m", "environment LEASEHOLD_TTL".into()),
        ("label", "outer", file(&outer)),
        // An empty variable is none.
        ("grace", "2s", file(&outer)),
        ("held_exit_code", "1", file(&user)),
        // Meant from the file that says it.
        ("state", &home.path(".config/leasehold/here").display().to_string(), file(&user)),
    ] {
        assert_eq!(found[key]["value"], value, "{key}");
        assert_eq!(found[key]["source"], source, "{key}");
    }

    // The nearest project file is the project's; one above it is not.
    let inner = home.path("project/deep/leasehold.toml");
    write(&inner, "ttl = '4m'\n");
    let found = settings(&mut bare(&home, "project/deep/er/here", &["config", "--json"]));
    assert_eq!(found["ttl"]["value"], "4m");
    assert_eq!(found["store"]["value"], "dir:/user");
    assert_eq!(found["label"]["source"], file(&user));

    let mut command = bare(&home, "project", &["config", "--json", "--store", "dir:/flag"]);
    let found = settings(command.env("LEASEHOLD_STORE", "dir:/environment"));
    assert_eq!(found["store"]["value"], "dir:/flag");
    assert_eq!(found["store"]["source"], "flag");
    let found = settings(bare(&home, "project", &["config", "--json"]).env("LEASEHOLD_STORE", "dir:/environment"));
    assert_eq!(found["store"]["value"], "dir:/environment");

    let table = Done::from(bare(&home, "project", &["config"]).output().unwrap()).expect(0).stdout;
    assert!(table.starts_with("SETTING"), "{table}");
    assert!(table.lines().any(|l| l.starts_with("ttl ") && l.contains("2m") && l.ends_with(&file(&outer))), "{table}");
}

#[test]
fn xdg_folders_are_respected() {
    let home = Home::new(On::Sqlite);
    write(&home.path("xdg/leasehold/leasehold.toml"), "label = 'xdg'\n");
    write(&home.path(".config/leasehold/leasehold.toml"), "label = 'plain'\n");
    let mut command = bare(&home, ".", &["config", "--json"]);
    let found = settings(command.env("XDG_CONFIG_HOME", home.path("xdg")).env("XDG_STATE_HOME", home.path("state")));
    assert_eq!(found["label"]["value"], "xdg");
    let own = home.path("state/leasehold/leasehold.db");
    assert_eq!(found["store"]["value"], format!("sqlite:{}", own.display()));
}

#[test]
fn a_relative_path_in_a_file_means_from_that_file() {
    let home = Home::new(On::Sqlite);
    write(&home.path("project/leasehold.toml"), "store = 'dir:shared'\n");
    std::fs::create_dir_all(home.path("project/deep/er")).unwrap();
    let found = settings(&mut bare(&home, "project/deep/er", &["config", "--json"]));
    assert_eq!(found["store"]["value"], format!("dir:{}", home.path("project/shared").display()));
    // Two runs from two folders meet in one store.
    Done::from(bare(&home, "project/deep", &["acquire", "job"]).output().unwrap()).expect(0);
    Done::from(bare(&home, "project", &["acquire", "job"]).output().unwrap()).expect(11);
    // From a flag or a variable it means from here.
    let found = settings(&mut bare(&home, "project/deep", &["config", "--json", "--store", "dir:mine"]));
    assert_eq!(found["store"]["value"], format!("dir:{}", home.path("project/deep/mine").display()));
    let found = settings(bare(&home, "project/deep", &["config", "--json"]).env("LEASEHOLD_STORE", "sqlite:x.db"));
    assert_eq!(found["store"]["value"], format!("sqlite:{}", home.path("project/deep/x.db").display()));
    // A command of a run gets the whole, wherever it goes.
    let job = ["run", "other", "--", "sh", "-c", "cd / && echo $LEASEHOLD_STORE"];
    let done = Done::from(bare(&home, "project/deep", &job).output().unwrap()).expect(0);
    assert_eq!(done.stdout.trim(), format!("dir:{}", home.path("project/shared").display()));
}

#[test]
fn settings_take_effect() {
    let home = Home::new(On::Sqlite);
    write(&home.path("leasehold.toml"), "ttl = '2m'\nlabel = 'from-file'\nheld_exit_code = 9\n");
    home.done(&["acquire", "job"]).expect(0);
    let lease = home.show("job");
    assert_eq!(lease["ttl_ms"], 120_000);
    assert_eq!(lease["holder"]["label"], "from-file");
    home.done(&["run", "job", "--", "true"]).expect(9);
    home.done(&["run", "job", "--held-exit-code", "8", "--", "true"]).expect(8);
    let mut command = home.leasehold(&["run", "job", "--", "true"]);
    assert_eq!(command.env("LEASEHOLD_HELD_EXIT_CODE", "7").status().unwrap().code(), Some(7));
    home.done(&["acquire", "other", "--ttl", "5s", "--label", "flag"]).expect(0);
    assert_eq!(home.show("other")["ttl_ms"], 5_000);
    assert_eq!(home.show("other")["holder"]["label"], "flag");
}

#[test]
fn a_mistyped_variable_is_warned_of_and_not_below_a_run() {
    let home = Home::new(On::Sqlite);
    let mut command = home.leasehold(&["run", "nightly", "--", env!("CARGO_BIN_EXE_leasehold"), "ls"]);
    let done = Done::from(command.env("LEASEHOLD_STROE", "dir:/elsewhere").output().unwrap()).expect(0);
    let warned = done.stderr.lines().filter(|line| line.contains("LEASEHOLD_STROE")).collect::<Vec<_>>();
    assert_eq!(warned.len(), 1, "{done:?}");
    assert!(warned[0].contains("did you mean LEASEHOLD_STORE?"), "{done:?}");
}
