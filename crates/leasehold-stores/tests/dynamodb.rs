//! The DynamoDB store, against dynalite and moto; and what it makes of errors that neither gives.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_core::store::{Range, Store, Swap};
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Key, Kind, LeaseName, Shelf, Ttl};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::suite::{self, Opener};
use leasehold_testbed::{Server, aws_credentials, dynalite, moto};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

const SECRET: &str = "hunter2";

fn url(port: u16, folder: &Path) -> StoreUrl {
    let credentials = aws_credentials(folder, "AKIAEXAMPLE", SECRET);
    let options = format!("endpoint=http://127.0.0.1:{port}&credentials={}", credentials.display());
    format!("dynamodb://us-east-1/leases?{options}").parse().unwrap()
}

async fn store(server: &Server) -> Arc<dyn Store> {
    open(&url(server.port(), server.folder())).await.unwrap()
}

fn opener(server: &Server) -> Opener {
    let folder = server.folder().to_owned();
    Opener::new(move |port| {
        let url = url(port, &folder);
        async move { open(&url).await }
    })
}

fn key(name: &str) -> Key {
    Key::new(Shelf::Probe, &LeaseName::new(name).unwrap())
}

async fn keeps_every_promise(server: Server) {
    let url = url(server.port(), server.folder());
    let bench = Bench::new(Effort::LIGHT, move || {
        let url = url.clone();
        async move { open(&url).await }
    });
    exercise(&bench).await.assert_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamodb_keeps_every_promise() {
    keeps_every_promise(dynalite(0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamodb_keeps_every_promise_on_moto() {
    keeps_every_promise(moto()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_withstands_faults_with_few_round_trips() {
    let mut server = dynalite(0);
    let opener = opener(&server);
    suite::withstands_faults(&mut server, &opener).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_writers_make_one_table_and_lookers_none() {
    let server = dynalite(700);
    let store_ = store(&server).await;
    let table = |survey: leasehold_core::store::Survey| format!("{:?}", survey.remarks);
    assert_eq!(store_.read(&key("x")).await.unwrap().value, None);
    assert!(store_.list(Shelf::Lease, Range::new(None, 10)).await.unwrap().entries.is_empty());
    let never = leasehold_core::store::Revision("never".into());
    assert_eq!(store_.swap(&key("x"), Some(&never), b"x").await.unwrap(), Swap::Mismatch);
    assert_eq!(store_.erase(&key("x"), &never).await.unwrap(), Swap::Mismatch);
    assert!(table(store_.survey().await.unwrap()).contains("not made yet"));

    let mut writers = Vec::new();
    for _ in 0..8 {
        let store = store(&server).await;
        writers.push(tokio::spawn(async move { store.swap(&key("x"), None, b"x").await.unwrap() }));
    }
    let mut done = 0;
    for writer in writers {
        done += usize::from(matches!(writer.await.unwrap(), Swap::Done { .. }));
    }
    assert_eq!(done, 1, "one of many first writes is done");
    let found = table(store_.survey().await.unwrap());
    assert!(found.contains("deletion protection") && found.contains("global table"), "{found}");

    let team = url(server.port(), server.folder()).in_namespace("team".parse().unwrap());
    suite::namespaces_are_apart(store_, open(&team).await.unwrap()).await;
}

#[tokio::test]
async fn a_listing_continues_where_a_page_of_the_server_ends() {
    let server = dynalite(0);
    let store = store(&server).await;
    // A page of DynamoDB's ends after a megabyte.
    for number in 0..24 {
        store.swap(&key(&format!("large-{number:02}")), None, &vec![number; 60 * 1024]).await.unwrap();
    }
    let page = store.list(Shelf::Probe, Range::new(None, 100)).await.unwrap();
    let names: Vec<String> = page.entries.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!((names.len(), page.more), (24, false));
    assert!(names.is_sorted() && page.entries.iter().all(|(_, value)| value.bytes.len() == 60 * 1024));
    let page = store.list(Shelf::Probe, Range::new(Some(&page.entries[2].0), 20)).await.unwrap();
    assert_eq!((page.entries.len(), page.more, page.entries[0].0.as_str()), (20, true, "large-03"));
}

/// One request of AWS's query protocol to moto, which finds the service in the credential scope.
async fn iam(client: &reqwest::Client, port: u16, form: &str) -> String {
    let scope =
        "AWS4-HMAC-SHA256 Credential=AKIAADMIN/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=0";
    let request = client.post(format!("http://127.0.0.1:{port}/")).header("authorization", scope);
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let answer = request.body(format!("{form}&Version=2010-05-08")).send().await.unwrap();
    assert!(answer.status().is_success(), "{form}: {}", answer.status());
    answer.text().await.unwrap()
}

async fn checks_signatures(client: &reqwest::Client, port: u16, after: &str) {
    let reset = client.post(format!("http://127.0.0.1:{port}/moto-api/reset-auth")).body(after.to_owned());
    assert!(reset.send().await.unwrap().status().is_success());
}

fn between<'a>(text: &'a str, tag: &str) -> &'a str {
    let start = text.find(&format!("<{tag}>")).unwrap() + tag.len() + 2;
    &text[start..start + text[start..].find('<').unwrap()]
}

#[tokio::test]
async fn signatures_are_right_and_revoked_keys_are_a_clear_error() {
    let server = moto();
    let port = server.port();
    // Opened first: it installs the process's cryptography, which a bare client needs.
    let leases = Coordinator::new(store(&server).await);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    iam(&client, port, "Action=CreateUser&UserName=worker").await;
    let policy = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"dynamodb:*","Resource":"*"}]}"#;
    let policy: String = policy.bytes().map(|byte| format!("%{byte:02X}")).collect();
    iam(&client, port, &format!("Action=PutUserPolicy&UserName=worker&PolicyName=p&PolicyDocument={policy}")).await;
    let made = iam(&client, port, "Action=CreateAccessKey&UserName=worker").await;
    let (id, secret) = (between(&made, "AccessKeyId"), between(&made, "SecretAccessKey"));
    checks_signatures(&client, port, "0").await;
    aws_credentials(server.folder(), id, secret);

    let (lease, ask) = (LeaseName::new("x").unwrap(), Ask::new(HolderId::new(None), Ttl::MAX));
    let Acquired::Granted(mut grant) = leases.acquire(&lease, &ask).await.unwrap() else { panic!("it is free") };
    // The file changes under the client: it goes on with what it knows until that is refused.
    aws_credentials(server.folder(), id, SECRET);
    leases.renew(&mut grant, None).await.unwrap();
    checks_signatures(&client, port, "1000").await;
    iam(&client, port, &format!("Action=DeleteAccessKey&UserName=worker&AccessKeyId={id}")).await;
    checks_signatures(&client, port, "0").await;
    for _ in 0..2 {
        let failed = [
            leases.renew(&mut grant, None).await.unwrap_err(),
            leases.acquire(&LeaseName::new("y").unwrap(), &ask).await.unwrap_err(),
        ];
        for error in failed {
            assert_eq!(error.kind(), Kind::Unsupported, "{error}");
            let text = format!("{error} {error:?}");
            assert!(text.contains("refused the AWS credentials") && text.contains("AWS_PROFILE"), "{text}");
            assert!(!text.contains(SECRET) && !text.contains(secret), "{text}");
        }
    }
    checks_signatures(&client, port, "1000").await;
    let made = iam(&client, port, "Action=CreateAccessKey&UserName=worker").await;
    checks_signatures(&client, port, "0").await;
    aws_credentials(server.folder(), between(&made, "AccessKeyId"), between(&made, "SecretAccessKey"));
    leases.renew(&mut grant, None).await.unwrap();
}

/// Gives the documented error answers that no server here gives. Each request is answered by what `answer` makes of
/// its action.
fn stand_in(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let (mut request, mut part) = (Vec::new(), [0; 8192]);
            loop {
                let count = stream.read(&mut part).unwrap_or(0);
                request.extend_from_slice(&part[..count]);
                let text = String::from_utf8_lossy(&request).to_lowercase();
                let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
                let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
                if count == 0 || text.split_once("\r\n\r\n").is_some_and(|(_, body)| body.len() >= length) {
                    break;
                }
            }
            let text = String::from_utf8_lossy(&request);
            let action = text.split("DynamoDB_20120810.").nth(1).unwrap_or_default();
            let action: String = action.chars().take_while(|c| c.is_ascii_alphabetic()).collect();
            let (status, body) = answer(&action);
            let date = "Date: Sun, 15 Nov 2026 23:27:25 GMT\r\nConnection: close";
            let head = format!("HTTP/1.1 {status} X\r\n{date}\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    port
}

fn error_body(code: &str) -> String {
    error_saying(code, "said by the server")
}

fn error_saying(code: &str, message: &str) -> String {
    format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"{message}"}}"#)
}

#[tokio::test]
async fn a_record_that_is_too_large_is_known_by_what_the_service_says() {
    let folder = tempfile::tempdir().unwrap();
    let said = "Item size has exceeded the maximum allowed size";
    let port = stand_in(move |_| (400, error_saying("ValidationException", said)));
    let store = open(&url(port, folder.path())).await.unwrap();
    let error = store.swap(&key("x"), None, b"x").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains(said), "{error}");
}

#[tokio::test]
async fn every_documented_error_is_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    for (status, code, reading, writing) in [
        (400, "ProvisionedThroughputExceededException", Kind::Unavailable, Kind::Unavailable),
        (400, "ThrottlingException", Kind::Unavailable, Kind::Unavailable),
        (400, "RequestLimitExceeded", Kind::Unavailable, Kind::Unavailable),
        (400, "ReplicatedWriteConflictException", Kind::Unavailable, Kind::Unavailable),
        (400, "UnrecognizedClientException", Kind::Unsupported, Kind::Unsupported),
        (400, "ExpiredTokenException", Kind::Unsupported, Kind::Unsupported),
        (400, "InvalidSignatureException", Kind::Unsupported, Kind::Unsupported),
        (400, "AccessDeniedException", Kind::Unsupported, Kind::Unsupported),
        (400, "ValidationException", Kind::Unsupported, Kind::Unsupported),
        (404, "UnknownThing", Kind::Unsupported, Kind::Unsupported),
        (500, "InternalServerError", Kind::Unavailable, Kind::Indeterminate),
        (503, "ServiceUnavailable", Kind::Unavailable, Kind::Indeterminate),
        (200, "no JSON {", Kind::Unavailable, Kind::Indeterminate),
    ] {
        let port = stand_in(move |_| (status, if status == 200 { code.to_owned() } else { error_body(code) }));
        let store = open(&url(port, folder.path())).await.unwrap();
        let read = store.read(&key("x")).await.unwrap_err();
        let write = store.swap(&key("x"), None, b"x").await.unwrap_err();
        assert_eq!((read.kind(), write.kind()), (reading, writing), "{code}: {read}; {write}");
        for error in [read, write] {
            assert!(!format!("{error} {error:?}").contains(SECRET) && !error.to_string().contains('\n'), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_table_that_may_not_be_made_is_asked_for_by_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let port = stand_in(|action| match action {
        "CreateTable" => (400, error_body("AccessDeniedException")),
        _ => (400, error_body("ResourceNotFoundException")),
    });
    let store = open(&url(port, folder.path())).await.unwrap();
    let error = store.swap(&key("x"), None, b"x").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    let command = "aws dynamodb create-table --region us-east-1 --table-name leases --billing-mode PAY_PER_REQUEST";
    assert!(error.to_string().contains(command), "{error}");
}

#[tokio::test]
async fn settings_that_matter_are_pointed_out() {
    let folder = tempfile::tempdir().unwrap();
    let port = stand_in(|action| match action {
        "DescribeTable" => {
            let replicas = r#"[{"RegionName":"eu-west-1"}]"#;
            (200, format!(r#"{{"Table":{{"TableStatus":"ACTIVE","Replicas":{replicas}}}}}"#))
        }
        "DescribeTimeToLive" => {
            let on = r#"{"TimeToLiveStatus":"ENABLED","AttributeName":"ttl"}"#;
            (200, format!(r#"{{"TimeToLiveDescription":{on}}}"#))
        }
        _ => (400, error_body("UnknownOperationException")),
    });
    let survey = open(&url(port, folder.path())).await.unwrap().survey().await.unwrap();
    assert_eq!(survey.class, leasehold_core::store::Class::B);
    let advised: Vec<&str> =
        survey.remarks.iter().filter(|remark| remark.advice.is_some()).map(|remark| remark.setting.as_str()).collect();
    assert_eq!(advised, ["global table", "deletion protection", "time to live"]);
}
