//! Object stores: S3 on moto and SeaweedFS, Azure on Azurite, Google on a stand-in, and servers that must be refused.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_core::store::{Class, Range, Store, Swap, Watching};
use leasehold_core::{Key, Kind, LeaseName, Nonce, Shelf};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{
    BUCKET, Fault, Flaw, Opener, Proxy, StandIn, azurite, moto, moto_tls, namespaces_are_apart, seaweed, suite,
};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Every record is a request of several milliseconds here, and each client makes a connection for each.
const LIGHTER: Effort = Effort { clients: 16, swaps_each: 12, tenures: 20 };

fn s3(port: u16) -> StoreUrl {
    format!("s3://id:secret@{BUCKET}/some/prefix?endpoint=http://127.0.0.1:{port}").parse().unwrap()
}

fn google(port: u16) -> StoreUrl {
    format!("gs://:token@{BUCKET}?endpoint=http://127.0.0.1:{port}").parse().unwrap()
}

fn azure(port: u16) -> StoreUrl {
    format!("az://{BUCKET}/leases?account=devstoreaccount1&endpoint=http://127.0.0.1:{port}").parse().unwrap()
}

fn bench(effort: Effort, url: StoreUrl) -> Bench {
    Bench::new(effort, move || {
        let url = url.clone();
        async move { open(&url).await }
    })
}

fn opener(url: fn(u16) -> StoreUrl) -> Opener {
    Opener::new(move |port| async move { open(&url(port)).await })
}

fn probe(name: &str) -> Key {
    Key::new(Shelf::Probe, &LeaseName::new(name).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_keeps_every_promise() {
    let server = moto();
    exercise(&bench(LIGHTER, s3(server.port()))).await.assert_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn azurite_keeps_every_promise() {
    let server = azurite();
    exercise(&bench(LIGHTER, azure(server.port()))).await.assert_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sound_stand_ins_keep_every_promise() {
    let (amazon, other) = (StandIn::s3(Flaw::None), StandIn::google(Flaw::None));
    exercise(&bench(LIGHTER, s3(amazon.port()))).await.assert_kept();
    exercise(&bench(LIGHTER, google(other.port()))).await.assert_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_enforce_conditions_is_refused_before_anything_is_written() {
    let (absence, change) = ("`If-None-Match: *`", "`If-Match`");
    for (server, url, says) in [
        (StandIn::s3(Flaw::IgnoresConditions), s3 as fn(u16) -> StoreUrl, absence),
        (StandIn::s3(Flaw::IgnoresAbsence), s3, absence),
        (StandIn::s3(Flaw::IgnoresChanges), s3, change),
        (StandIn::s3(Flaw::LosesRaces), s3, "simultaneous writes"),
        (StandIn::s3(Flaw::WritesWhatItRefused), s3, "a write that it refused was done"),
        (StandIn::google(Flaw::IgnoresConditions), google, "`x-goog-if-generation-match: 0`"),
        (StandIn::google(Flaw::IgnoresChanges), google, "`x-goog-if-generation-match`"),
        (StandIn::google(Flaw::LosesRaces), google, "simultaneous writes"),
    ] {
        let store = open(&url(server.port())).await.unwrap();
        // Not once, but whenever it is tried.
        for _ in 0..2 {
            let error = store.swap(&probe("x"), None, b"x").await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unsupported, "{server:?}: {error}");
            assert!(error.to_string().contains(says) && !error.to_string().contains('\n'), "{server:?}: {error}");
        }
        assert_eq!(server.keys(), Vec::<String>::new(), "nothing is left behind");
    }
}

#[tokio::test]
async fn a_server_without_a_clock_is_refused() {
    let server = StandIn::s3(Flaw::HasNoClock);
    let store = open(&s3(server.port())).await.unwrap();
    for error in [store.read(&probe("x")).await.unwrap_err(), store.swap(&probe("x"), None, b"x").await.unwrap_err()] {
        assert!(error.to_string().contains("without a readable `Date` header"), "{error}");
    }
    assert!(server.keys().iter().all(|key| !key.contains("/probe/")));
}

#[tokio::test]
async fn looking_makes_nothing_and_the_proof_is_made_once() {
    let server = StandIn::s3(Flaw::None);
    let store = open(&s3(server.port())).await.unwrap();
    assert_eq!(store.read(&probe("x")).await.unwrap().value, None);
    assert!(store.list(Shelf::Probe, Range::new(None, 10)).await.unwrap().entries.is_empty());
    let survey = store.survey().await.unwrap();
    assert_eq!((survey.class, store.capabilities().watch), (Class::B, Watching::None));
    assert!(server.keys().is_empty());
    assert!(matches!(store.swap(&probe("x"), None, b"x").await.unwrap(), Swap::Done { .. }));
    let marker = format!("some/prefix/default/proof/http-127.0.0.1-{}", server.port());
    assert_eq!(server.keys(), ["some/prefix/default/probe/x".to_owned(), marker]);
    let survey = store.survey().await.unwrap();
    assert_eq!(survey.class, Class::A);
    assert!(survey.remarks.iter().any(|remark| remark.setting == "lifecycle rules" && remark.advice.is_some()));
    // A later process sees the proof: one look, one write.
    let proxy = Proxy::start(server.port());
    let later = open(&s3(proxy.port())).await.unwrap();
    later.swap(&probe("y"), None, b"y").await.unwrap();
    let again = open(&s3(proxy.port())).await.unwrap();
    let before = proxy.exchanges();
    again.swap(&probe("z"), None, b"z").await.unwrap();
    assert_eq!(proxy.exchanges() - before, 2);
}

#[tokio::test]
async fn undecided_is_not_refused() {
    for (server, url) in [(StandIn::s3(Flaw::None), s3 as fn(u16) -> StoreUrl), (StandIn::google(Flaw::None), google)] {
        let store = open(&url(server.port())).await.unwrap();
        let Swap::Done { revision, .. } = store.swap(&probe("x"), None, b"1").await.unwrap() else { panic!("fresh") };
        server.conflict(2);
        let Swap::Done { revision, .. } = store.swap(&probe("x"), Some(&revision), b"2").await.unwrap() else {
            panic!("a write that was undecided at first is done in the end")
        };
        server.conflict(2);
        assert!(matches!(store.swap(&probe("y"), None, b"1").await.unwrap(), Swap::Done { .. }));
        server.conflict(1_000);
        for (key, expected) in [(probe("x"), Some(&revision)), (probe("z"), None)] {
            let error = store.swap(&key, expected, b"3").await.unwrap_err();
            assert_eq!(error.kind(), Kind::Contended, "{error}");
        }
        server.conflict(0);
        assert_eq!(store.read(&probe("x")).await.unwrap().value.unwrap().bytes, b"2");
        assert_eq!(store.read(&probe("z")).await.unwrap().value, None);
    }
}

#[tokio::test]
async fn revoked_credentials_are_a_clear_error_and_never_a_grant() {
    let server = StandIn::s3(Flaw::None);
    let store = open(&s3(server.port())).await.unwrap();
    let Swap::Done { revision, .. } = store.swap(&probe("x"), None, b"1").await.unwrap() else { panic!("fresh") };
    server.lock_out(true);
    let fresh = open(&s3(server.port())).await.unwrap();
    for error in [
        store.read(&probe("x")).await.unwrap_err(),
        store.swap(&probe("x"), Some(&revision), b"2").await.unwrap_err(),
        store.list(Shelf::Probe, Range::new(None, 10)).await.unwrap_err(),
        fresh.swap(&probe("y"), None, b"2").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("403 AccessDenied") && text.contains("AWS_ACCESS_KEY_ID"), "{text}");
        assert!(!text.contains("secret@") && !error.to_string().contains('\n'), "{text}");
    }
    server.lock_out(false);
    assert_eq!(store.read(&probe("x")).await.unwrap().value.unwrap().bytes, b"1");
    assert!(matches!(store.swap(&probe("x"), Some(&revision), b"2").await.unwrap(), Swap::Done { .. }));
}

#[tokio::test]
async fn a_tombstone_is_absent() {
    let server = StandIn::google(Flaw::None);
    let store = open(&google(server.port())).await.unwrap();
    let key = probe("x");
    let Swap::Done { revision: first, .. } = store.swap(&key, None, b"1").await.unwrap() else { panic!("fresh") };
    let Swap::Done { revision: erased, .. } = store.erase(&key, &first).await.unwrap() else { panic!("erased") };
    assert_eq!(store.read(&key).await.unwrap().value, None);
    assert!(store.list(Shelf::Probe, Range::new(None, 10)).await.unwrap().entries.is_empty());
    for old in [&first, &erased] {
        assert_eq!(store.swap(&key, Some(old), b"2").await.unwrap(), Swap::Mismatch);
        assert_eq!(store.erase(&key, old).await.unwrap(), Swap::Mismatch);
    }
    let Swap::Done { revision: second, .. } = store.swap(&key, None, b"1").await.unwrap() else { panic!("absent") };
    assert!(second != first && second != erased);
    assert_eq!(store.swap(&key, None, b"1").await.unwrap(), Swap::Mismatch);
    assert_eq!(store.swap(&key, Some(&erased), b"2").await.unwrap(), Swap::Mismatch);
}

#[tokio::test]
async fn a_damaged_object_hides_no_other() {
    let server = StandIn::s3(Flaw::None);
    let store = open(&s3(server.port())).await.unwrap();
    for name in ["a", "b", "c"] {
        store.swap(&probe(name), None, b"1").await.unwrap();
    }
    let damaged = server.keys().into_iter().find(|key| key.ends_with("/b")).unwrap();
    server.damage(&damaged);
    assert_eq!(store.read(&probe("b")).await.unwrap_err().kind(), Kind::Corrupt);
    let entries = store.list(Shelf::Probe, Range::new(None, 10)).await.unwrap().entries;
    let shown: Vec<_> = entries.iter().map(|(name, value)| (name.as_str(), value.bytes.as_slice())).collect();
    assert_eq!(shown, [("a", &b"1"[..]), ("b", b""), ("c", b"1")]);
}

#[tokio::test]
async fn a_listing_passes_many_tombstones_in_full_pages() {
    let server = StandIn::s3(Flaw::None);
    let proxy = Proxy::start(server.port());
    let store = open(&s3(proxy.port())).await.unwrap();
    for number in 0..60 {
        let key = probe(&format!("x{number:03}"));
        let Swap::Done { revision, .. } = store.swap(&key, None, b"1").await.unwrap() else { panic!("fresh") };
        if number < 58 {
            store.erase(&key, &revision).await.unwrap();
        }
    }
    let before = proxy.exchanges();
    let page = store.list(Shelf::Probe, Range::new(None, 2)).await.unwrap();
    assert_eq!(page.entries.len(), 2);
    assert!(proxy.exchanges() - before <= 4, "{} requests: two pages and two records", proxy.exchanges() - before);
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_the_write_is_sent_once() {
    let server = StandIn::s3(Flaw::None);
    let proxy = Proxy::start(server.port());
    let store = open(&s3(proxy.port())).await.unwrap();
    let Swap::Done { revision, .. } = store.swap(&probe("x"), None, b"1").await.unwrap() else { panic!("fresh") };
    let before = proxy.exchanges();
    proxy.arm_on(Fault::CutReply, 0, b"PUT /");
    let error = store.swap(&probe("x"), Some(&revision), b"2").await.unwrap_err();
    assert!(!proxy.disarm(), "the fault struck");
    assert_eq!(error.kind(), Kind::Indeterminate, "{error}");
    assert_eq!(proxy.exchanges() - before, 1, "a write is never sent twice");
    assert_eq!(store.read(&probe("x")).await.unwrap().value.unwrap().bytes, b"2", "it was done");
    proxy.sever();
    let error = store.swap(&probe("x"), Some(&revision), b"3").await.unwrap_err();
    assert!(matches!(error.kind(), Kind::Unavailable | Kind::Indeterminate), "{error}");
    proxy.heal();
    // The client recovers by itself, once connections that were being made when the cut was healed are gone too.
    let mut reading = store.read(&probe("x")).await;
    for _ in 0..50 {
        if reading.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        reading = store.read(&probe("x")).await;
    }
    assert_eq!(reading.unwrap().value.unwrap().bytes, b"2");
}

#[tokio::test]
async fn a_bucket_that_is_missing_is_said_to_be() {
    let (amazon, other) = (moto(), azurite());
    for (url, says) in [
        (s3(amazon.port()), "aws s3api create-bucket --bucket no-such"),
        (azure(other.port()), "az storage container create --name no-such"),
    ] {
        let url: StoreUrl = url.portable().replace(BUCKET, "no-such").parse().unwrap();
        let store = open(&url).await.unwrap();
        for error in [
            store.read(&probe("x")).await.unwrap_err(),
            store.swap(&probe("x"), None, b"x").await.unwrap_err(),
            store.list(Shelf::Lease, Range::new(None, 1)).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Unsupported, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_of_a_bucket_are_apart() {
    let (amazon, other) = (moto(), azurite());
    for url in [s3(amazon.port()), azure(other.port())] {
        let team = url.in_namespace("team".parse().unwrap());
        namespaces_are_apart(open(&url).await.unwrap(), open(&team).await.unwrap()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn azurite_round_trips_are_few_and_faults_do_no_harm() {
    let server = azurite();
    suite::round_trips_are_few(server.port(), &opener(azure)).await;
    suite::cut_connections_do_no_harm(server.port(), &opener(azure)).await;
    // The proof, which the first write makes, takes longer than this test's TTL on a busy machine.
    open(&azure(server.port())).await.unwrap().swap(&probe("x"), None, b"x").await.unwrap();
    suite::a_paused_server_loses_the_lease(&server, &opener(azure)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moto_round_trips_are_few_and_faults_do_no_harm() {
    let server = moto();
    suite::round_trips_are_few(server.port(), &opener(s3)).await;
    suite::cut_connections_do_no_harm(server.port(), &opener(s3)).await;
    suite::a_frozen_server_is_given_up_on(server.port(), &opener(s3)).await;
}

/// The other servers keep everything in memory. This one takes long over simultaneous writes to one object, of which the
/// proof makes many, so it is only used for what the others cannot show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_seaweed_never_reissues_an_epoch() {
    let mut server = seaweed();
    suite::a_killed_server_never_reissues_an_epoch(&mut server, &opener(s3)).await;
}

#[tokio::test]
async fn names_that_differ_little_are_listed_in_order_over_many_pages() {
    let server = azurite();
    let store = open(&azure(server.port())).await.unwrap();
    let mut names: Vec<LeaseName> =
        (0..40).map(|at| LeaseName::new(format!("n{}/{}.x", at % 7, at)).unwrap()).collect();
    for name in &names {
        store.swap(&Key::new(Shelf::Counters, name), None, name.as_str().as_bytes()).await.unwrap();
    }
    names.sort();
    for limit in [1, 7, 100] {
        let mut listed: Vec<LeaseName> = Vec::new();
        loop {
            let page = store.list(Shelf::Counters, Range::new(listed.last(), limit)).await.unwrap();
            assert!(page.entries.len() <= limit);
            listed.extend(page.entries.into_iter().map(|(name, _)| name));
            if !page.more {
                break;
            }
        }
        assert_eq!(listed, names, "in pages of {limit}");
    }
}

#[test]
fn addresses_that_cannot_be_used_say_why() {
    for (text, says) in [
        ("s3://", "the bucket is missing"),
        ("s3://a,b/x", "stands one bucket"),
        ("s3://a:9000/x", "?endpoint=http://host:port"),
        ("s3://id@a/x", "a user without a password"),
        ("s3://a/x?endpont=http://h", "`endpont` is not known"),
        ("gs://a/x?region=eu", "`region` is not known"),
        ("s3://a/x?endpoint=127.0.0.1:9000", "does not begin with `http://`"),
        ("s3://a/x?endpoint=http://", "has no host"),
        ("s3://a/x?endpoint=http://u:p@h", "has a user"),
        ("s3://a/x?region=a/b", "not a region's name"),
        ("s3://a/x//y", "the prefix cannot be used"),
    ] {
        let error = text.parse::<StoreUrl>().unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{text}");
        assert!(error.to_string().contains(says) && !error.to_string().contains(":p@"), "{text} gave {error}");
    }
}

#[test]
fn secrets_are_never_shown() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let secret = Nonce::random().to_string();
    let url: StoreUrl = format!("s3://id:{secret}@bucket?endpoint=http://127.0.0.1:1").parse().unwrap();
    let store: Arc<dyn Store> = runtime.block_on(open(&url)).unwrap();
    let error = runtime.block_on(store.read(&probe("x"))).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    for shown in [format!("{url} {url:?}"), format!("{store:?}"), format!("{error} {error:?}")] {
        assert!(!shown.contains(&secret), "{shown}");
    }
}

fn openssl(folder: &Path, line: &str) {
    let output = Command::new("openssl").args(line.split(' ')).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn tls_is_checked_against_the_given_authority() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let new_key = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(here, &format!("{new_key} -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem"));
    openssl(here, &format!("{new_key} -subj /CN=server -keyout server.key -out server.csr"));
    std::fs::write(
        here.join("names"),
        "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n",
    )
    .unwrap();
    let sign =
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem";
    openssl(here, sign);
    let server = moto_tls(&here.join("server.pem"), &here.join("server.key"));
    let plain = format!("s3://id:secret@{BUCKET}?endpoint=https://127.0.0.1:{}", server.port());
    let trusting: StoreUrl = format!("{plain}&ca={}", here.join("ca.pem").display()).parse().unwrap();
    let error = open(&trusting).await.unwrap().read(&probe("x")).await.unwrap_err();
    assert!(error.to_string().contains("404 NoSuchBucket"), "it is reached, and has no bucket: {error}");
    let error = open(&plain.parse().unwrap()).await.unwrap().read(&probe("x")).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.to_string().contains("certificate"), "{error}");
    let missing: StoreUrl = format!("{plain}&ca=/no/such/file").parse().unwrap();
    assert_eq!(open(&missing).await.unwrap_err().kind(), Kind::Invalid);
}
