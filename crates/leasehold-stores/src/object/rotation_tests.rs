//! Tests in which keys are replaced while a bucket is in use, or credentials cannot be used.

use super::config::{self, Builder};
use super::*;
use leasehold_testbed::{Flaw, StandIn, aws_credentials, new_service_account};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ObjectStore, ObjectStoreExt};

fn address(text: &str) -> Address {
    let (scheme, rest) = text.split_once(':').unwrap();
    Address::parse(scheme, rest).unwrap()
}

fn env(pairs: &[(&str, &str)]) -> Env {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn key(name: &str) -> Key {
    Key::new(Shelf::Probe, &LeaseName::new(name).unwrap())
}

fn s3(port: u16, folder: &std::path::Path) -> Bucket {
    let file = folder.join("credentials");
    let env = env(&[("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap()), ("AWS_REGION", "eu-west-3")]);
    config::bucket(&address(&format!("s3://b/p?endpoint=http://127.0.0.1:{port}")), &env).unwrap()
}

/// A real token is sent to a real endpoint over TLS only, but also to this one, because it is on loopback.
fn google(port: u16, account: &std::path::Path) -> Bucket {
    let env = env(&[("GOOGLE_APPLICATION_CREDENTIALS", account.to_str().unwrap())]);
    let endpoint = format!("http://127.0.0.1:{port}");
    let builder = Box::new(GoogleCloudStorageBuilder::new().with_base_url(&endpoint));
    let built = (Builder::Google { builder, has_token: false }, Some(endpoint));
    config::bucket_by(built, &address("gs://b/p"), &env).unwrap()
}

/// Reads, writes and lists. Before each, `rotate` replaces the credentials, and the server refuses the previous ones.
async fn continues(server: &StandIn, bucket: Bucket, rotate: impl Fn(usize)) {
    let store: &dyn Store = &BucketStore::within(bucket, &Namespace::default());
    store.swap(&key("a"), None, b"1").await.unwrap();
    let replace = |turn| {
        rotate(turn);
        server.refuse(server.authorization().split(',').next().unwrap());
    };
    replace(1);
    assert_eq!(store.read(&key("a")).await.unwrap().value.unwrap().bytes, b"1");
    replace(2);
    assert!(matches!(store.swap(&key("b"), None, b"2").await.unwrap(), Swap::Done { .. }));
    replace(3);
    assert_eq!(store.list(Shelf::Probe, Range::new(None, 9)).await.unwrap().entries.len(), 2);
    // Credentials that are refused permanently are an error. The next request looks them up again.
    server.refuse(server.authorization().split(',').next().unwrap());
    if server.authorization().starts_with("AWS4") {
        assert_eq!(store.read(&key("a")).await.unwrap_err().kind(), Kind::Unsupported);
    }
    rotate(4);
    store.read(&key("a")).await.unwrap();
}

#[tokio::test]
async fn a_key_of_s3_that_was_replaced_is_looked_up_again() {
    let (server, folder) = (StandIn::s3(Flaw::None), tempfile::tempdir().unwrap());
    aws_credentials(folder.path(), "KEY0", "s");
    let bucket = s3(server.port(), folder.path());
    continues(&server, bucket, |turn| drop(aws_credentials(folder.path(), &format!("KEY{turn}"), "s"))).await;
}

#[tokio::test]
async fn a_key_of_google_that_was_replaced_is_looked_up_again() {
    let (server, folder) = (StandIn::google(Flaw::None), tempfile::tempdir().unwrap());
    let bucket = google(server.port(), &new_service_account(folder.path()));
    continues(&server, bucket, |_| drop(new_service_account(folder.path()))).await;
}

#[tokio::test]
async fn a_guards_client_looks_them_up_again_too() {
    let (server, folder) = (StandIn::s3(Flaw::None), tempfile::tempdir().unwrap());
    aws_credentials(folder.path(), "KEY0", "s");
    let cloud: Arc<dyn ObjectStore> = s3(server.port(), folder.path()).cloud;
    cloud.put(&Path::from("x"), "1".into()).await.unwrap();
    server.refuse("KEY0");
    aws_credentials(folder.path(), "KEY1", "s");
    cloud.get(&Path::from("x")).await.unwrap_err();
    cloud.get(&Path::from("x")).await.unwrap();
}

#[tokio::test]
async fn credentials_that_only_a_person_can_mend_are_no_reason_to_try_again() {
    let server = StandIn::s3(Flaw::None);
    let at = address(&format!("s3://b/p?endpoint=http://127.0.0.1:{}&region=eu-west-3", server.port()));
    let role = ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/worker");
    for (vars, kind) in [
        (&[("AWS_WEB_IDENTITY_TOKEN_FILE", "/no/such/token"), role][..], Kind::Unsupported),
        (&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9/c")], Kind::Unsupported),
        (
            &[("AWS_WEB_IDENTITY_TOKEN_FILE", "/dev/null"), role, ("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")],
            Kind::Unavailable,
        ),
    ] {
        let store: &dyn Store = &BucketStore::new(&at, &Namespace::default(), &env(vars)).unwrap();
        let read = store.read(&key("a")).await.unwrap_err();
        let write = store.swap(&key("a"), None, b"1").await.unwrap_err();
        assert_eq!((read.kind(), write.kind()), (kind, kind), "{read}; {write}");
    }
    // Credentials that are removed while in use.
    let folder = tempfile::tempdir().unwrap();
    let file = aws_credentials(folder.path(), "KEY0", "s");
    let store: &dyn Store = &BucketStore::within(s3(server.port(), folder.path()), &Namespace::default());
    store.swap(&key("a"), None, b"1").await.unwrap();
    std::fs::remove_file(file).unwrap();
    server.refuse("KEY0");
    for _ in 0..2 {
        assert_eq!(store.read(&key("a")).await.unwrap_err().kind(), Kind::Unsupported);
    }
}
