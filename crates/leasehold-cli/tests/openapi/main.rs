//! The API as docs/openapi.json describes it: schemathesis makes requests from the description alone, good and bad ones, and
//! compares what the real server answers.
//!
//! Promise: no answer is an error of the server, or has a status, a content type or a body that is not described; what the
//! description does not allow is refused. Non-promise: the stream of events, which has no end, has tests of its own.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "made for the tests of the server, of which this is not one")]
#[path = "../serve/rig.rs"]
mod rig;

use common::{Home, On, Running, within};
use leasehold_testbed::python_environment;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A run takes a quarter of a minute; a machine may be busy.
const AT_MOST: Duration = Duration::from_secs(300);
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,\
                      allow_header_conformance,ignored_auth";

#[test]
fn no_request_that_the_description_allows_or_not_makes_an_error_of_the_server_on_sqlite() {
    as_described(On::Sqlite);
}

#[test]
fn no_request_that_the_description_allows_or_not_makes_an_error_of_the_server_on_a_directory() {
    as_described(On::Dir);
}

#[test]
fn no_request_about_keys_that_the_description_allows_or_not_makes_an_error_of_the_server() {
    let home = Home::new(On::Sqlite);
    let key = rig::key(&home, &["--namespace", "*", "--allow", "read,hold,work,operate,admin"]);
    let report = asked(&home, &key, &["--include-path-regex", "^/v1/keys"]);
    let described = routes(|path| path.starts_with("/v1/keys"));
    assert!(
        described >= 4 && report.contains(&format!("{described} selected")),
        "it knows every route of keys: {report}"
    );
    // Not refused alone: what it made and ended is there, besides the key of its own.
    let listed: serde_json::Value =
        serde_json::from_str(&home.done(&["key", "ls", "--json"]).expect(0).stdout).unwrap();
    let others = listed.as_array().unwrap().iter().filter(|other| other["id"] != rig::id(&key)).count();
    assert!(others > 1, "{listed}");
}

fn as_described(on: On) {
    let home = Home::new(on);
    let key = rig::key(&home, &["--namespace", "*", "--allow", "read,hold,work,operate"]);
    // A job to look at.
    let team = format!("{}?namespace=team", home.store);
    home.done(&["run", "--store", &team, "a", "--slot", "@hourly", "--", "true"]).expect(0);
    let report = asked(&home, &key, &["--exclude-path-regex", "/events$"]);
    let total = routes(|_| true);
    let selected = format!("{} selected / {total} total", total - 1);
    assert!(report.contains(&selected), "it knows every route but that of events: {report}");
}

/// Asks a server in this home with this key, and gives the report.
fn asked(home: &Home, key: &str, which: &[&str]) -> String {
    let server = rig::serve(home, &["--max-rate", "100000"]);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python_environment("python-schemathesis").join("bin/schemathesis"));
    command
        .arg("run")
        .arg(here.join("../../docs/openapi.json"))
        .args(["--url", &format!("http://{}", server.address), "--header", &format!("Authorization: Bearer {key}")])
        .args(which)
        .args(["--checks", CHECKS, "--max-examples", "15"])
        .args(["--generation-deterministic", "--continue-on-failure", "--request-timeout", "30", "--no-color"])
        .env("SCHEMATHESIS_HOOKS", here.join("tests/openapi/hooks.py"))
        .env("OPENAPI_OWN_KEY", rig::id(key))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(home.path(""));
    let output = File::create(home.path("report")).unwrap();
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let mut running = Running::from(command.spawn().unwrap());
    within(AT_MOST, "schemathesis ends", || running.is_over());
    let done = running.end();
    let report = home.read("report");
    assert_eq!(done.code, 0, "{report}\nthe server's log:\n{}", home.read(&server.log));
    for phase in ["Coverage", "Fuzzing", "Stateful"] {
        assert!(report.contains(&format!("✅  {phase}")), "{phase} was run: {report}");
    }
    assert_eq!(rig::get(server.address, "/livez", &[]).status, 200, "it lives on");
    report
}

/// How many operations the description has at paths like these.
fn routes(is_meant: impl Fn(&str) -> bool) -> usize {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")).unwrap();
    let description: serde_json::Value = serde_json::from_str(&text).unwrap();
    let paths = description["paths"].as_object().unwrap().iter().filter(|(path, _)| is_meant(path));
    paths.map(|(_, path)| path.as_object().unwrap().keys().filter(|key| *key != "parameters").count()).sum()
}
