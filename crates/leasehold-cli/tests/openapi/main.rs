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

fn as_described(on: On) {
    let home = Home::new(on);
    let key = rig::key(&home, &["--namespace", "*", "--allow", "read,hold,work,operate"]);
    // A job to look at.
    let team = format!("{}?namespace=team", home.store);
    home.done(&["run", "--store", &team, "a", "--slot", "@hourly", "--", "true"]).expect(0);
    let server = rig::serve(&home, &["--max-rate", "100000"]);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python_environment("python-schemathesis").join("bin/schemathesis"));
    command
        .arg("run")
        .arg(here.join("../../docs/openapi.json"))
        .args(["--url", &format!("http://{}", server.address), "--header", &format!("Authorization: Bearer {key}")])
        .args(["--exclude-path-regex", "/events$", "--checks", CHECKS, "--max-examples", "15"])
        .args(["--generation-deterministic", "--continue-on-failure", "--request-timeout", "30", "--no-color"])
        .env("SCHEMATHESIS_HOOKS", here.join("tests/openapi/hooks.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(home.path(""));
    let output = File::create(home.path("report")).unwrap();
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let mut running = Running::from(command.spawn().unwrap());
    within(AT_MOST, "schemathesis ends", || running.is_over());
    let done = running.end();
    let report = home.read("report");
    assert_eq!(done.code, 0, "{report}\nthe server's log:\n{}", home.read(&server.log));
    let routes = routes(&here.join("../../docs/openapi.json"));
    let selected = format!("{} selected / {routes} total", routes - 1);
    assert!(report.contains(&selected), "it knows every route but that of events: {report}");
    for phase in ["Coverage", "Fuzzing", "Stateful"] {
        assert!(report.contains(&format!("✅  {phase}")), "{phase} was run: {report}");
    }
    assert_eq!(rig::get(server.address, "/livez", &[]).status, 200, "it lives on");
}

/// How many operations a description has.
fn routes(description: &Path) -> usize {
    let text = std::fs::read_to_string(description).unwrap();
    let description: serde_json::Value = serde_json::from_str(&text).unwrap();
    let paths = description["paths"].as_object().unwrap().values();
    paths.map(|path| path.as_object().unwrap().keys().filter(|key| *key != "parameters").count()).sum()
}
