//! Who is let in, and what each key allows, over a store and a server whose clocks are set by hand.

use super::*;
use leasehold_core::clock::ManualClock;
use leasehold_core::store::{Change, Store};
use leasehold_core::{Key, Label, MemoryStore, Shelf, Who, Why};
use leasehold_stores::Namespace;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// A store and a server, each with a clock of its own.
struct Bench {
    store: MemoryStore,
    store_clock: ManualClock,
    clock: ManualClock,
    keys: Keys,
    ring: KeyRing,
}

impl Bench {
    fn new() -> Self {
        let (store_clock, clock) = (ManualClock::default(), ManualClock::default());
        let store = MemoryStore::with_clock(Arc::new(store_clock.clone()));
        let keys = Keys::new(Arc::new(store.clone())).with_clock(Arc::new(clock.clone()));
        let ring = KeyRing::new(keys.clone());
        Bench { store, store_clock, clock, keys, ring }
    }

    /// Lets time pass, for everybody.
    fn pass(&self, time: Duration) {
        self.store_clock.advance(time);
        self.clock.advance(time);
    }

    async fn create(&self, namespace: &str, names: &[&str], verbs: VerbSet, lasts: Option<Duration>) -> Secret {
        let names = names.iter().map(|name| name.parse().unwrap()).collect();
        let scope = Scope::new(namespace.parse().unwrap(), names, verbs).unwrap();
        let wanted = NewKey { label: label(), scope, lasts, not_after: None, by: who() };
        self.keys.create(wanted).await.unwrap().0
    }

    async fn caller(&self, secret: &Secret) -> Result<Caller, Denied> {
        match self.ring.caller(Some(secret.reveal())).await {
            Ok(caller) => Ok(caller),
            Err(Refused::Denied(denied)) => Err(denied),
            Err(refused) => panic!("{refused:?}"),
        }
    }
}

fn label() -> Label {
    Label::new("tests").unwrap()
}

fn who() -> Who {
    Who::new("ann").unwrap()
}

fn why() -> Why {
    Why::new("a test").unwrap()
}

fn namespace(text: &str) -> Namespace {
    Namespace::new(text).unwrap()
}

/// Every verb, under every set of verbs, in the right and in a wrong place: allowed is exactly what the key says.
#[tokio::test]
async fn a_key_allows_its_verbs_on_its_names_in_its_namespace_and_nothing_else() {
    let bench = Bench::new();
    let mut allowed = 0;
    for bits in 1..1_u8 << Verb::ALL.len() {
        let verbs = VerbSet::of(Verb::ALL.into_iter().filter(|verb| bits & 1 << *verb as u8 != 0));
        for (own, patterns) in [("ci", &["deploy/*", "one"][..]), ("*", &["deploy/*"]), ("ci", &["*"])] {
            let caller = bench.caller(&bench.create(own, patterns, verbs, None).await).await.unwrap();
            for verb in Verb::ALL {
                for within in ["ci", "default", "leasehold-server"] {
                    for name in [Some("deploy/web"), Some("other"), Some("deploy"), Some(""), None] {
                        let is_within = within == own || own == "*" && within != "leasehold-server";
                        let is_name = match name {
                            Some(name) => patterns.contains(&"*") || name.starts_with("deploy/"),
                            None => patterns.contains(&"*"),
                        };
                        let expected = is_within && verbs.has(verb) && is_name;
                        let found = caller.may(verb, &namespace(within), name);
                        assert_eq!(found.is_ok(), expected, "{verbs} {own} {patterns:?}: {verb} {within} {name:?}");
                        assert!(found.err().is_none_or(|denied| denied.kind() == "not_allowed"));
                        allowed += u32::from(expected);
                        if let (Some(name), Verb::Read) = (name, verb) {
                            assert_eq!(caller.sees(&namespace(within), name), expected);
                        }
                    }
                }
            }
        }
    }
    assert!(allowed > 500, "{allowed}");
}

/// What is wrong with a key is told apart, whatever it would allow.
#[tokio::test]
async fn a_key_that_does_not_count_is_refused_for_what_is_wrong_with_it() {
    for verbs in Verb::ALL.into_iter().map(|verb| VerbSet::of([verb])).chain([VerbSet::ALL]) {
        let bench = Bench::new();
        let [good, expired, revoked] = [None, Some(HOUR), None].map(|lasts| bench.create("*", &["*"], verbs, lasts));
        let [good, expired, revoked] = [good.await, expired.await, revoked.await];
        bench.keys.revoke(&revoked.id(), &who(), &why()).await.unwrap();
        bench.pass(HOUR);
        let unknown = Secret::random(verbs);
        // A stranger who knows an id learns nothing about the key.
        let forged = [&good, &expired, &revoked].map(|secret| Secret::with_id(verbs, &secret.id()));
        let kind = async |text: Option<&str>| match bench.ring.caller(text).await {
            Ok(_) => "fine",
            Err(Refused::Denied(denied)) => denied.kind(),
            Err(refused) => panic!("{refused:?}"),
        };
        assert_eq!(kind(None).await, "key_missing");
        assert_eq!(kind(Some(&good.reveal()[1..])).await, "key_malformed");
        assert_eq!(kind(Some(unknown.reveal())).await, "key_unknown");
        assert_eq!(kind(Some(good.reveal())).await, "fine");
        assert_eq!(kind(Some(expired.reveal())).await, "key_expired");
        assert_eq!(kind(Some(revoked.reveal())).await, "key_revoked");
        for forged in forged {
            assert_eq!(kind(Some(forged.reveal())).await, "key_unknown");
        }
    }
}

#[tokio::test]
async fn a_revocation_counts_on_every_server_once_its_key_is_read_again() {
    let bench = Bench::new();
    let secret = bench.create("ci", &["*"], VerbSet::ALL, None).await;
    let other_server = KeyRing::new(bench.keys.clone());
    let caller = bench.caller(&secret).await.unwrap();
    assert!(other_server.caller(Some(secret.reveal())).await.is_ok());
    bench.keys.revoke(&secret.id(), &who(), &why()).await.unwrap();
    assert!(bench.caller(&secret).await.is_ok(), "it is remembered for a moment");
    bench.pass(ring::FRESH);
    assert!(matches!(bench.caller(&secret).await, Err(Denied::Revoked { .. })));
    assert!(matches!(other_server.caller(Some(secret.reveal())).await, Err(Refused::Denied(Denied::Revoked { .. }))));
    assert!(matches!(bench.ring.until_denied(&caller).await, Denied::Revoked { .. }));
}

#[tokio::test]
async fn where_the_store_tells_of_changes_a_revocation_counts_at_once() {
    let bench = Bench::new();
    let secret = bench.create("ci", &["*"], VerbSet::ALL, None).await;
    let ring = bench.ring.clone();
    let following = tokio::spawn(async move { ring.follow().await });
    assert!(bench.caller(&secret).await.is_ok());
    bench.keys.revoke(&secret.id(), &who(), &why()).await.unwrap();
    // The clocks stand still, so nothing but a hint makes the ring read again.
    let refused = async {
        while bench.caller(&secret).await.is_ok() {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(Duration::from_secs(30), refused).await.expect("the hint comes");
    following.abort();
}

#[tokio::test]
async fn a_key_expires_by_the_stores_clock() {
    let bench = Bench::new();
    let secret = bench.create("ci", &["*"], VerbSet::ALL, Some(HOUR)).await;
    // The server's clock is wrong by a day: that ends nothing.
    bench.clock.advance(HOUR * 24);
    let caller = bench.caller(&secret).await.unwrap();
    bench.store_clock.advance(HOUR);
    bench.clock.advance(ring::FRESH);
    assert!(matches!(bench.caller(&secret).await, Err(Denied::Expired { .. })));
    assert!(matches!(bench.ring.until_denied(&caller).await, Denied::Expired { .. }));
    // Between two reads, too: what passes meanwhile is added.
    let short = bench.create("ci", &["*"], VerbSet::ALL, Some(Duration::from_secs(1))).await;
    assert!(bench.caller(&short).await.is_ok());
    bench.clock.advance(Duration::from_secs(1));
    assert!(matches!(bench.caller(&short).await, Err(Denied::Expired { .. })));
}

#[tokio::test]
async fn of_servers_that_start_at_once_one_makes_the_first_key() {
    let bench = Bench::new();
    let starting: Vec<_> = (0..8)
        .map(|_| {
            let keys = bench.keys.clone();
            tokio::spawn(async move { keys.bootstrap(who()).await.unwrap() })
        })
        .collect();
    let mut made = Vec::new();
    for start in starting {
        made.extend(start.await.unwrap());
    }
    assert_eq!(made.len(), 1);
    let caller = bench.caller(&made[0].0).await.unwrap();
    assert!(caller.may(Verb::Admin, &namespace("anything"), None).is_ok());
    assert!(bench.keys.bootstrap(who()).await.unwrap().is_none());
    bench.keys.revoke(&made[0].1.id, &who(), &why()).await.unwrap();
    assert!(bench.keys.bootstrap(who()).await.unwrap().is_none(), "it is made once, also when it is over");
}

#[tokio::test]
async fn where_there_is_a_key_none_is_made_at_the_start() {
    let bench = Bench::new();
    bench.create("ci", &["*"], VerbSet::of([Verb::Read]), None).await;
    assert!(bench.keys.bootstrap(who()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_rotated_key_counts_until_the_overlap_is_over() {
    let bench = Bench::new();
    let verbs = VerbSet::of([Verb::Read, Verb::Work]);
    let old = bench.create("ci", &["a", "b/*"], verbs, Some(HOUR * 48)).await;
    let rotation = Rotation { overlap: HOUR, lasts: None, not_after: None, by: who() };
    let (new, record) = bench.keys.rotate(&old.id(), &rotation).await.unwrap();
    assert_eq!((record.rotated_from, record.scope.verbs), (Some(old.id()), verbs));
    assert!(record.expires.unwrap().saturating_since(record.created.at) == HOUR * 48, "for as long as the old one");
    assert_eq!(bench.keys.one(&old.id()).await.unwrap().rotated_to, Some(new.id()));
    bench.pass(HOUR - ring::FRESH);
    assert!(bench.caller(&old).await.is_ok() && bench.caller(&new).await.is_ok());
    let again = bench.keys.rotate(&old.id(), &rotation).await.unwrap_err().to_string();
    assert!(again.contains(&format!("rotated to {}", new.id())), "{again}");
    bench.pass(ring::FRESH);
    assert!(matches!(bench.caller(&old).await, Err(Denied::Expired { .. })) && bench.caller(&new).await.is_ok());
    // An overlap never lengthens a key's life.
    let long = Rotation { overlap: HOUR * 100, lasts: Some(HOUR), not_after: None, by: who() };
    let expires = bench.keys.one(&new.id()).await.unwrap().expires;
    bench.keys.rotate(&new.id(), &long).await.unwrap();
    assert_eq!(bench.keys.one(&new.id()).await.unwrap().expires, expires);
}

#[tokio::test]
async fn the_first_reason_of_a_revocation_stays() {
    let bench = Bench::new();
    let secret = bench.create("ci", &["*"], VerbSet::ALL, None).await;
    bench.keys.revoke(&secret.id(), &who(), &why()).await.unwrap();
    let again = bench.keys.revoke(&secret.id(), &who(), &Why::new("another").unwrap()).await.unwrap();
    assert_eq!(again.revoked.unwrap().why, why());
    let missing = bench.keys.revoke(&Secret::random(VerbSet::ALL).id(), &who(), &why()).await.unwrap_err();
    assert!(missing.to_string().contains("there is no such key"), "{missing}");
}

#[tokio::test]
async fn a_use_is_recorded_once_a_minute() {
    let bench = Bench::new();
    let secret = bench.create("ci", &["*"], VerbSet::ALL, None).await;
    let used = async || bench.keys.list().await.unwrap().0.remove(0).unwrap().used;
    assert_eq!(used().await, None);
    bench.keys.record_use(&secret.id()).await.unwrap();
    let first = used().await.unwrap();
    bench.pass(Duration::from_secs(59));
    bench.keys.record_use(&secret.id()).await.unwrap();
    assert_eq!(used().await, Some(first));
    bench.pass(Duration::from_secs(1));
    assert!(bench.caller(&secret).await.is_ok());
    let recorded = async {
        while used().await == Some(first) {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(Duration::from_secs(30), recorded).await.expect("whoever is let in leaves a mark");
}

#[tokio::test]
async fn keys_are_listed_without_their_text_and_a_damaged_record_hides_no_other() {
    let bench = Bench::new();
    let secrets =
        [bench.create("ci", &["*"], VerbSet::ALL, None).await, bench.create("*", &["a"], VerbSet::ALL, None).await];
    let damaged = Key::new(Shelf::Access, &"key/damaged2".parse().unwrap());
    let store: Arc<dyn Store> = Arc::new(bench.store.clone());
    store.write(&Change::put(&damaged, None, b"nonsense")).await.unwrap();
    let (found, _) = bench.keys.list().await.unwrap();
    assert_eq!(found.iter().filter(|key| key.is_err()).count(), 1);
    let ids: BTreeSet<_> = found.iter().flatten().map(|key| key.record.id.clone()).collect();
    assert_eq!(ids, secrets.iter().map(Secret::id).collect());
    // Neither what is stored nor what is printed for debugging has a key in it.
    for secret in &secrets {
        let key = Key::new(Shelf::Access, &secret.id().record("key").unwrap());
        let stored = store.read(&key).await.unwrap().value.unwrap().bytes;
        let body = &secret.reveal()[13..];
        assert!(!String::from_utf8(stored).unwrap().contains(body) && !format!("{found:?}").contains(body));
    }
}

#[test]
fn no_key_is_for_the_servers_own_namespace() {
    assert!("leasehold-server".parse::<Namespaces>().is_err());
    assert!(!Namespaces::All.has(&Namespace::server()));
    let one = |names: Vec<_>, verbs| Scope::new(Namespaces::All, names, verbs);
    assert!(one(vec![], VerbSet::ALL).is_err() && one(vec!["*".parse().unwrap()], VerbSet::of([])).is_err());
    assert!(one(vec!["*".parse().unwrap(); 33], VerbSet::ALL).is_err());
}
