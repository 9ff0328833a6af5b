//! Tests in which keys are replaced while DynamoDB or Firestore is in use. Buckets have the same test.

use crate::credentials::Env;
use crate::dynamodb::DynamoStore;
use crate::firestore::FirestoreStore;
use crate::url::{Address, Namespace};
use leasehold_core::store::Store;
use leasehold_core::{Key, Kind, LeaseName, Shelf};
use leasehold_testbed::{aws_credentials, new_service_account};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A server without data, which refuses the credentials that it is told to refuse.
#[derive(Debug, Default)]
struct Strict {
    /// The credentials of the last request.
    authorization: Mutex<String>,
    refused: Mutex<String>,
    requests: Mutex<usize>,
}

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

impl Strict {
    fn start(good: &'static str, bad: (&'static str, &'static str)) -> (Arc<Self>, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (server, port) = (Arc::new(Strict::default()), listener.local_addr().unwrap().port());
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serving.answer(stream.unwrap(), good, bad);
            }
        });
        (server, port)
    }

    fn answer(&self, mut stream: TcpStream, good: &str, bad: (&str, &str)) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).unwrap() > 2 {
            let (name, value) = line.trim().split_once(": ").unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "authorization" => value.split(',').next().unwrap().clone_into(&mut self.authorization.lock().unwrap()),
                "content-length" => length = value.parse().unwrap(),
                _ => {}
            }
            line.clear();
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
        *self.requests.lock().unwrap() += 1;
        let is_refused = *self.authorization.lock().unwrap() == *self.refused.lock().unwrap();
        let (status, body) = if is_refused { bad } else { ("200 OK", good) };
        let head =
            format!("HTTP/1.1 {status}\r\nDate: {DATE}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    }

    /// From now on the server refuses the credentials of the last request.
    fn refuse(&self) {
        self.refused.lock().unwrap().clone_from(&self.authorization.lock().unwrap());
    }

    async fn sees_one_that_continues(&self, store: impl Store, rotate: impl Fn()) {
        let key = Key::new(Shelf::Probe, &LeaseName::new("a").unwrap());
        store.read(&key).await.unwrap();
        rotate();
        self.refuse();
        store.read(&key).await.unwrap();
        assert_eq!(*self.requests.lock().unwrap(), 3, "it was sent once more");
        assert_ne!(*self.authorization.lock().unwrap(), *self.refused.lock().unwrap());
    }
}

fn address(text: &str) -> Address {
    let (scheme, rest) = text.split_once(':').unwrap();
    Address::parse(scheme, rest).unwrap()
}

#[tokio::test]
async fn a_key_of_dynamodb_that_was_replaced_is_looked_up_again() {
    let refusal = r#"{"__type":"com.amazon.coral.service#UnrecognizedClientException","message":"no"}"#;
    let (server, port) = Strict::start("{}", ("400 Bad Request", refusal));
    let folder = tempfile::tempdir().unwrap();
    let file = aws_credentials(folder.path(), "OLD", "s");
    let at = format!("dynamodb://eu-west-3/table?endpoint=http://127.0.0.1:{port}&credentials={}", file.display());
    let store = DynamoStore::new(&address(&at), &Namespace::default(), Env::new()).unwrap();
    server.sees_one_that_continues(store.clone(), || drop(aws_credentials(folder.path(), "NEW", "s"))).await;
    // Unchanged credentials are not sent twice.
    server.refuse();
    let key = Key::new(Shelf::Probe, &LeaseName::new("a").unwrap());
    assert_eq!(store.read(&key).await.unwrap_err().kind(), Kind::Unsupported);
    assert_eq!(*server.requests.lock().unwrap(), 4);
}

#[tokio::test]
async fn a_key_of_firestore_that_was_replaced_is_looked_up_again() {
    let refusal = r#"{"error":{"code":401,"message":"no","status":"UNAUTHENTICATED"}}"#;
    let good = r#"[{"missing":"x","readTime":"2026-01-01T00:00:00Z"}]"#;
    let (server, port) = Strict::start(good, ("401 Unauthorized", refusal));
    let folder = tempfile::tempdir().unwrap();
    let file = new_service_account(folder.path());
    let at = format!("firestore://demo/leases?endpoint=http://127.0.0.1:{port}&credentials={}", file.display());
    let store = FirestoreStore::new(&address(&at), &Namespace::default(), Env::new()).unwrap();
    server.sees_one_that_continues(store, || drop(new_service_account(folder.path()))).await;
}
