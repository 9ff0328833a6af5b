//! Every request and answer in docs/api.md is run, in one shell for the whole page.

use crate::blocks::{PAGE, Shell, blocks, run_all};
use crate::rig::{Rig, text};
use leasehold_work::schedule::{Definitions, FileRevision, Job, Publisher};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[tokio::test]
async fn every_request_and_answer_of_the_page_is_as_it_says() {
    let rig = Rig::start().await;
    let table = json!({ "name": "report", "cron": "0 3 * * *", "tz": "UTC", "command": "make report" });
    let job = Job::read(serde_json::from_value(table).unwrap(), 1).unwrap();
    let revision = FileRevision::new(None, Duration::from_secs(1), "text");
    let publisher = Publisher { owner: "jobs.toml".into(), revision, host: "box-1".into() };
    Definitions::new(rig.leases().await).publish(&[Arc::new(job)], &publisher).await.unwrap();
    let secret = rig.secret("team", "read,hold,work,operate", &["*"]).await;
    let admin = rig.secret("team", "read,hold,work,operate,admin", &["*"]).await;
    let folder = tempfile::tempdir().unwrap();
    let variables = [("URL", rig.base.as_str()), ("KEY", secret.reveal()), ("ADMIN", admin.reveal())];
    let mut shell = Shell::start(&variables, folder.path());
    let run = run_all(&mut shell, secret.id().as_str(), |language| !language.ends_with(" exchange")).await;
    assert!(run >= 25, "{run} blocks were run");
}

/// The scripts that the page begins with, by the number of lines that it promises.
#[derive(Clone, Copy)]
enum Script {
    Five,
    Ten,
}

/// One of these scripts, run by itself: its exit code, and what it printed.
async fn run(script: Script, url: &str, key: &str) -> (Option<i32>, String) {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let lines: Vec<&str> = page.lines().collect();
    let (at, length) = match script {
        Script::Five => (0, 5),
        Script::Ten => (2, 10),
    };
    let block = &blocks(&lines)[at];
    assert_eq!((block.language.as_str(), block.to - block.from), ("sh", length), "the page promises so many lines");
    let script = lines[block.from..block.to].join("\n");
    let mut command = tokio::process::Command::new("sh");
    let output = command.args(["-c", &script]).env("URL", url).env("KEY", key).output().await.unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// A script's exit code at a server that gives these answers, one after the other: a status, or nothing. The work is done only if
/// there are two before it.
async fn run_at(script: Script, answers: &'static [Option<u16>]) -> Option<i32> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            // Every body is an object, and ends with its brace.
            while !request.ends_with(b"}") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0, "a request has an end");
            }
            let Some(status) = answer else { continue };
            let body = r#"{"token":"nightly:1:secret"}"#;
            let head = format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        }
    });
    let (code, printed) = run(script, &url, "lh_w_any").await;
    server.await.expect("the script asked as often as it should");
    assert_eq!(!printed.is_empty(), answers.len() > 2, "{answers:?}: {printed}");
    code
}

#[tokio::test]
async fn the_scripts_that_the_page_begins_with_do_nothing_without_the_lease() {
    let rig = Rig::start().await;
    let key = rig.all().await;
    let worked = "the work, while it is held\n".to_owned();
    // If somebody else holds it, if the key is refused, and if nobody listens there any more.
    for (script, lease, codes) in [(Script::Five, "hourly", [1, 1, 1]), (Script::Ten, "nightly", [11, 78, 69])] {
        let [held, refused, gone] = codes.map(|code| (Some(code), String::new()));
        let done = (Some(0), worked.clone());
        assert_eq!(run(script, &rig.base, &key).await, done);
        let at = |verb: &str| format!("leases/{lease}/{verb}");
        let other = rig.post(&key, &at("acquire"), json!({ "ttl": "1h", "label": "box-2" })).await.ok();
        assert_eq!(run(script, &rig.base, &key).await, held);
        rig.post(&key, &at("release"), json!({ "token": text(&other, "token") })).await.ok();
        let reader = rig.key("read", &["*"]).await;
        for wrong in ["lh_w_nonsense", "", &reader] {
            assert_eq!(run(script, &rig.base, wrong).await, refused);
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(run(script, &format!("http://{free}"), &key).await, gone);
        assert_eq!(run(script, &rig.base, &key).await, done, "the first run released it");
    }
}

#[tokio::test]
async fn the_scripts_that_the_page_begins_with_tell_what_is_known_of_a_request_that_failed() {
    let cases: [(&[Option<u16>], i32); 15] = [
        (&[Some(200), Some(200), Some(200)], 0),
        (&[Some(409)], 11),
        (&[Some(200), Some(409)], 12),
        (&[Some(200), Some(200), Some(409)], 12),
        (&[Some(429)], 69),
        (&[Some(503)], 69),
        (&[Some(200), Some(503)], 69),
        (&[None], 70),
        (&[Some(504)], 70),
        (&[Some(502)], 70),
        (&[Some(401)], 78),
        (&[Some(200), Some(401)], 78),
        (&[Some(403)], 78),
        (&[Some(404)], 78),
        (&[Some(500)], 78),
    ];
    for (answers, code) in cases {
        assert_eq!(run_at(Script::Ten, answers).await, Some(code), "{answers:?}");
        assert_eq!(run_at(Script::Five, answers).await, Some(code.min(1)), "{answers:?}");
    }
}
