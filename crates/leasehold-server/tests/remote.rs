//! `leasehold://`, both halves: a real server on a loopback port, the real client, real stores behind it.
//!
//! The promises about leases are the very functions that every store is put to. What follows is what only a server can get
//! wrong: who may do what, what is shown to whom, and what a client cannot ask for at all.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use leasehold_conformance::faulty::{Fault, FaultyStore};
use leasehold_conformance::{Bench, Effort, VERBS, exercise_each};
use leasehold_core::guard::HighWater;
use leasehold_core::item::protocol::{Order as ItemOrder, Request as ItemRequest};
use leasehold_core::lease::protocol::{AfterFailure, Order, SlotClaim};
use leasehold_core::store::{Change, Range, Revision, Store, Swap, Verb, Versioned};
use leasehold_core::{
    Acquired, Ask, Claim, Coordinator, Epoch, HolderId, Key, Kind, LeaseName, MemoryStore, Nonce, Operated, Outcome,
    Released, Shelf, Slot, Timestamp, Token, TokenKind, codec,
};
use leasehold_guards::stored::{FenceDocument, FenceRecord};
use leasehold_server::serve::TlsFiles;
use leasehold_stores::sqlite::SqliteStore;
use leasehold_work::presence::{Presence, Role, processes};
use leasehold_work::queue::{Claimer, FollowUp, NewItem, Payload, Queue, State};
use leasehold_work::schedule::{CatchUp, Definitions, Journals, RunDefinition, Timing};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use support::Site;

#[tokio::test(flavor = "multi_thread")]
async fn remote_keeps_every_promise_about_leases() {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(&folder.path().join("x.db"), &"team".parse().unwrap()).await.unwrap();
    for store in [Arc::new(MemoryStore::default()) as Arc<dyn Store>, Arc::new(sqlite)] {
        let site = Arc::new(Site::start(store.clone()).await);
        let key = site.key("*", "read,hold,operate").await;
        let bench = Bench::new(Effort::LIGHT, move || {
            let (site, key) = (site.clone(), key.clone());
            async move { Ok(site.store(&key).await) }
        })
        .in_front_of(store);
        exercise_each(VERBS, &bench).await.assert_kept();
    }
}

/// What is visible and not durable is told as unknown, and counts only when a new write has confirmed it, also through a server.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_behind_a_server_that_is_only_visible_is_confirmed_before_it_counts() {
    for call in 1..=8 {
        let durable = Arc::new(MemoryStore::default());
        let faulty = Arc::new(FaultyStore::new(durable.clone(), Fault::Unsynced, call));
        let site = Site::start(faulty.clone()).await;
        let leases = Coordinator::new(site.store(&site.key("*", "read,hold").await).await);
        let lease: LeaseName = "x".parse().unwrap();
        let answer = leases.acquire(&lease, &ask()).await;
        faulty.crash().await;
        match answer {
            Ok(Acquired::Granted(grant)) => {
                let record = Coordinator::new(durable).inspect(&lease).await.unwrap().record;
                assert!(record.is_held_by(grant.token().claim()), "call {call}: granted, and gone after a crash");
            }
            Ok(other) => panic!("call {call}: {other:?}"),
            Err(error) => assert!(error.is_retryable() || error.kind() == Kind::Indeterminate, "call {call}: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_write_a_record_or_choose_an_epoch() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let store = site.store(&site.key("*", "read,hold,work,operate,admin").await).await;
    for shelf in Shelf::ALL {
        let key = Key::new(shelf, &"x".parse().unwrap());
        for verb in [Verb::Direct, Verb::Document, Verb::Confirm, Verb::TakeBack, Verb::Purge] {
            let change = Change { verb, ..Change::put(&key, None, b"anything") };
            let error = store.write(&change).await.unwrap_err();
            let is_refused = matches!(error.kind(), Kind::Unsupported | Kind::Invalid | Kind::Corrupt);
            assert!(is_refused, "{shelf:?} {verb:?} gave {error:?}");
        }
        assert!(site.behind.read(&key).await.unwrap().value.is_none(), "{shelf:?}");
    }
    // Even with the client's own library changed: what is sent has no place for an epoch or a record.
    for body in [
        r#"{"record":{"shelf":"lease","name":"x"},"expected":null,"verb":{"document":{"text":"leasehold ownership v1"}}}"#,
        r#"{"record":{"shelf":"lease","name":"x"},"expected":null,"verb":{"lease":{"renew":{"claim":{"epoch":7,"nonce":"0123456789abcdef0123456789abcdef"},"ttl":9000,"progress":null,"epoch":7}}}}"#,
        r#"{"record":{"shelf":"lease","name":"x"},"expected":null,"verb":{"lease":{"operate":{"nonce":"0123456789abcdef0123456789abcdef","lineage":"0123456789abcdef0123456789abcdef","by":"me","why":"y","expected":null,"order":{"arrive":{}}}}}}"#,
        r#"{"record":{"shelf":"access","name":"key/x"},"expected":null,"verb":{"document":{"text":"x"}}}"#,
        r#"{"record":{"shelf":"presence","name":"worker/box/00"},"expected":null,"verb":{"document":{"text":"x"}}}"#,
        r#"{"record":{"shelf":"lease","name":"../x"},"expected":null,"verb":"confirm"}"#,
        r#"{"record":{"shelf":"lease","name":"x"},"expected":null,"verb":"confirm","more":1}"#,
    ] {
        let key = site.key("*", "read,hold,work,operate,admin").await;
        let status = site.post(&key, "records/change", body).await;
        assert!((400..=501).contains(&status) && status != 500, "{status} for {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_nobody_can_act_on_is_refused() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let store = site.store(&site.key("mine/*", "read,hold").await).await;
    let name: LeaseName = "mine/x".parse().unwrap();
    let timing = Timing::of_line("@hourly", None, None, None);
    let run = RunDefinition { name: name.clone(), timing, catch_up: CatchUp::default(), host: "a".into() };
    let definitions = Definitions::new(Coordinator::new(store.clone()));
    assert!(definitions.publish_run(&run, Slot(Timestamp::from_millis(0))).await.unwrap());
    let key = Key::new(Shelf::Job, &name);
    let published = store.read(&key).await.unwrap().value.unwrap();
    let good: serde_json::Value = codec::decode("job", &published.bytes, "mine/x").unwrap();
    for (field, value) in [
        ("catch_up", json!(u32::MAX)),
        ("catch_up", json!(0)),
        ("catch_up_max_age_ms", json!(0)),
        ("timing", json!({ "cron": "x" })),
        ("timing", json!({ "cron": "@hourly", "tz": "Nowhere/Nothing" })),
        ("timing", json!({})),
        ("name", json!("other/x")),
    ] {
        let mut wrong = good.clone();
        wrong["definition"][field] = value.clone();
        let bytes = codec::encode("job", &wrong).unwrap();
        let error = store.document(&key, Some(&published.revision), &bytes).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{field}: {value}: {error}");
    }
    let after = site.behind.read(&key).await.unwrap().value.unwrap();
    assert_eq!(after.bytes, published.bytes);
    store.document(&key, Some(&published.revision), &codec::encode("job", &good).unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_allows_its_verbs_on_its_names_and_nothing_else() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let all = Coordinator::new(site.store(&site.key("*", "read,hold,work,operate").await).await);
    let (ours, theirs): (LeaseName, LeaseName) = ("team/x".parse().unwrap(), "other/x".parse().unwrap());
    for lease in [&ours, &theirs] {
        let Acquired::Granted(grant) = all.acquire(lease, &ask()).await.unwrap() else { panic!("{lease} is free") };
        all.release(&grant, Outcome::Succeeded).await.unwrap();
    }
    for (verbs, may_hold, may_operate) in
        [("read", false, false), ("hold", true, false), ("work", false, false), ("operate", false, true)]
    {
        let leases = Coordinator::new(site.store(&site.key("team/*", verbs).await).await);
        // Who works on items is shown no lease.
        let may_look = verbs != "work";
        match leases.inspect(&ours).await {
            Ok(_) => assert!(may_look, "{verbs}"),
            Err(error) => {
                assert!(!may_look && error.to_string().contains("does not allow `hold` (to look"), "{verbs}: {error}")
            }
        }
        if !may_look {
            assert!(leases.list(None, 10).await.unwrap().entries.is_empty(), "{verbs}");
            continue;
        }
        let refused = leases.inspect(&theirs).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Unsupported, "{verbs}: {refused}");
        assert!(refused.to_string().contains("is not for the name `other/x`"), "{refused}");
        let listed: Vec<_> = leases.list(None, 10).await.unwrap().entries.into_iter().map(|(name, _)| name).collect();
        assert!(listed == [ours.clone()], "{verbs}: {listed:?}");
        assert_eq!(leases.acquire(&theirs, &ask()).await.unwrap_err().kind(), Kind::Unsupported, "{verbs}");
        match leases.acquire(&ours, &ask()).await {
            Ok(Acquired::Granted(grant)) => {
                assert!(may_hold, "{verbs}");
                assert_eq!(leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now);
            }
            other => {
                let refused = other.unwrap_err().to_string();
                assert!(!may_hold && refused.contains("does not allow `hold`"), "{verbs}: {refused}");
            }
        }
        let (by, why) = ("ada".parse().unwrap(), "drain".parse().unwrap());
        match leases.operate(&ours, by, why, Order::Revoke).await {
            Ok(Operated::Done(done)) => {
                assert!(may_operate, "{verbs}");
                let by = done.record.transfers.last().and_then(|transfer| transfer.by.clone());
                let stored = all.inspect(&ours).await.unwrap().record.transfers.last().unwrap().by.clone().unwrap();
                assert!(stored.as_str().contains("(key ") && stored.as_str().ends_with(", ada)"), "{by:?} {stored}");
            }
            other => {
                let refused = other.unwrap_err().to_string();
                assert!(!may_operate && refused.contains("does not allow `operate`"), "{verbs}: {refused}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_look_is_never_shown_the_nonce_of_a_grant() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let holder = Coordinator::new(site.store(&site.key("*", "hold,work").await).await);
    let looker = site.store(&site.key("*", "read").await).await;
    let lease: LeaseName = "x".parse().unwrap();
    let Acquired::Granted(grant) = holder.acquire(&lease, &ask()).await.unwrap() else { panic!("it is free") };
    let queue = Queue::new(holder.store().clone(), "mail".parse().unwrap());
    queue.add(NewItem::default()).await.unwrap();
    let item = Claimer::new(queue, None, "90s".parse().unwrap()).unwrap().next().await.unwrap();
    for (nonce, key) in
        [(grant.token().nonce, Key::new(Shelf::Lease, &lease)), (item.token().nonce, item.name().key().unwrap())]
    {
        let nonce = nonce.to_string();
        let behind = site.behind.read(&key).await.unwrap().value.unwrap();
        assert!(String::from_utf8(behind.bytes).unwrap().contains(&nonce), "the record has it");
        let shown = looker.read(&key).await.unwrap().value.unwrap();
        assert!(!String::from_utf8(shown.bytes).unwrap().contains(&nonce), "{key} is read with it");
        let page = looker.list(key.shelf, Range::new(None, 10)).await.unwrap();
        assert_eq!(page.entries.len(), 1);
        assert!(
            !String::from_utf8(page.entries[0].1.bytes.clone()).unwrap().contains(&nonce),
            "{key} is listed with it"
        );
    }
    // What is shown can still be read as a record.
    let seen = Coordinator::new(looker.clone()).inspect(&lease).await.unwrap();
    assert_eq!(seen.record.epoch, grant.token().epoch);

    // Nor that of one that is over, which a guard that has not seen a newer one still takes for the holder's.
    let queue = Queue::new(holder.store().clone(), "mail".parse().unwrap());
    queue.complete(&item, None, Vec::new()).await.unwrap();
    holder.release(&grant, Outcome::Succeeded).await.unwrap();
    let tells = |record: Versioned, nonce: Nonce| String::from_utf8(record.bytes).unwrap().contains(&nonce.to_string());
    for (nonce, key) in
        [(grant.token().nonce, Key::new(Shelf::Lease, &lease)), (item.token().nonce, item.name().key().unwrap())]
    {
        assert!(tells(site.behind.read(&key).await.unwrap().value.unwrap(), nonce), "the record has it");
        assert!(!tells(looker.read(&key).await.unwrap().value.unwrap(), nonce), "{key} is read with it");
    }
    lived(&holder, &lease).await;
    let archived = site.behind.list(Shelf::History, Range::new(None, 1)).await.unwrap().entries.remove(0);
    assert!(tells(archived.1, grant.token().nonce), "a part of the history is archived");
    let shown = looker.read(&Key::new(Shelf::History, &archived.0)).await.unwrap().value.unwrap();
    assert!(!tells(shown, grant.token().nonce));
    let all = Coordinator::new(site.behind.clone());
    let whole = all.history(&lease, &all.inspect(&lease).await.unwrap().record).await.unwrap();
    let looks = Coordinator::new(looker);
    let seen = looks.history(&lease, &looks.inspect(&lease).await.unwrap().record).await.unwrap();
    assert_eq!((seen.transfers.len(), seen.damaged.len()), (whole.transfers.len(), 0), "it fits together all the same");
}

/// What a page says is the same as if there were nothing that the key may not see, wherever it is said to begin.
#[tokio::test(flavor = "multi_thread")]
async fn no_hidden_name_can_be_found_by_where_a_listing_begins_or_how_far_it_skips() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let all = Coordinator::new(site.behind.clone());
    let hidden = (0..600).map(|number| format!("secret/{number:03}"));
    for name in
        ["aaa/first", "mine/one", "mine/two", "secret/job-7x", "zzz/last"].map(str::to_owned).into_iter().chain(hidden)
    {
        let lease: LeaseName = name.parse().unwrap();
        let Acquired::Granted(_) = all.acquire(&lease, &ask()).await.unwrap() else { panic!("{name} is free") };
    }
    let begins =
        ["", "a", "aaa/first", "mine/one", "mine/owl", "mine/two", "secret/j", "secret/job-7w", "secret/job-7x"];
    for names in ["mine/*", "*/one,*/two", "mine/one,mine/two"] {
        let key = site.key(names, "read").await;
        for (after, skip, limit) in begins
            .iter()
            .chain(&["secret/k", "zzz/last"])
            .flat_map(|after| [(0, 1), (0, 2), (1, 1), (2, 1), (3, 9)].map(|(skip, limit)| (*after, skip, limit)))
        {
            let start = if after.is_empty() { "null".to_owned() } else { format!("\"{after}\"") };
            let body = format!(r#"{{"shelf":"lease","after":{start},"skip":{skip},"limit":{limit}}}"#);
            let (status, told) = site.answer(&key, "records/list", &body).await;
            assert_eq!(status, 200, "{told}");
            let told: serde_json::Value = serde_json::from_str(&told).unwrap();
            let entries: Vec<&str> =
                told["entries"].as_array().unwrap().iter().map(|it| it[0].as_str().unwrap()).collect();
            let visible: Vec<&str> =
                ["mine/one", "mine/two"].into_iter().filter(|name| *name > after).skip(skip).collect();
            let expected: Vec<&str> = visible.iter().take(limit).copied().collect();
            assert_eq!(entries, expected, "{names} {body}");
            assert_eq!(told["more"], visible.len() > limit, "{names} {body}");
            assert!(told.get("continued_from").is_none(), "{names} {body}");
        }
    }
    let key = site.key("mine/*", "read").await;
    assert_eq!(site.post(&key, "records/list", r#"{"shelf":"lease","after":null,"skip":0,"limit":0}"#).await, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_a_key_is_for_tells_no_name_that_it_is_not_for() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let (all, mine) = (site.key("*", "read,hold,work,operate").await, site.key("mine/*", "read,hold").await);
    let (secret, own): (LeaseName, LeaseName) = ("secret/job-7x".parse().unwrap(), "mine/one".parse().unwrap());
    let theirs = Coordinator::new(site.store(&all).await);
    let Acquired::Granted(grant) = theirs.acquire(&secret, &ask()).await.unwrap() else { panic!("it is free") };
    let sealed = site.post(&all, "fences/mine~res/seal", &format!(r#"{{"token":"{}"}}"#, grant.token().wire())).await;
    assert_eq!(sealed, 200);
    let ours = Coordinator::new(site.store(&mine).await);
    let Acquired::Granted(held) = ours.acquire(&own, &ask()).await.unwrap() else { panic!("it is free") };
    let admit = format!(r#"{{"token":"{}"}}"#, held.token().wire());
    let lineage = grant.token().lineage.to_string();
    for (what, (status, told), expected) in [
        ("view", site.get(&mine, "fences/mine~res").await, 200),
        ("admit", site.answer(&mine, "fences/mine~res/admit", &admit).await, 400),
        ("seal", site.answer(&mine, "fences/mine~res/seal", &admit).await, 400),
        ("read", site.answer(&mine, "records/read", r#"{"shelf":"fence","name":"api/mine/res"}"#).await, 200),
    ] {
        assert_eq!(status, expected, "{what}: {told}");
        assert!(!told.contains("secret") && !told.contains(&lineage), "{what}: {told}");
    }
    assert!(site.get(&all, "fences/mine~res").await.1.contains("secret/job-7x"));
    // What is hidden of a fence is still a fence: the client refuses as the server does.
    let fence = FenceDocument::new(&ours, &"api/mine/res".parse().unwrap()).look().await.unwrap().record.high.unwrap();
    assert_eq!((fence.epoch, fence.lease == secret), (grant.token().epoch, false));

    let queue = Queue::new(theirs.store().clone(), "mail".parse().unwrap());
    queue.add(NewItem { key: Some("order-9".parse().unwrap()), ..NewItem::default() }).await.unwrap();
    let grant = Claimer::new(queue.clone(), None, "90s".parse().unwrap()).unwrap().next().await.unwrap();
    let follow_up = FollowUp {
        name: leasehold_work::queue::ItemName { queue: "audit".parse().unwrap(), id: "k.entry".parse().unwrap() },
        priority: Default::default(),
        delay_ms: 0,
        attempts: Default::default(),
        payload: Payload::new("x").unwrap(),
    };
    queue.complete(&grant, None, vec![follow_up]).await.unwrap();
    let (audits, mails) = (site.key("audit", "read,work").await, site.key("mail", "read").await);
    let list = |shelf: &str| format!(r#"{{"shelf":"{shelf}","after":"audit/-","skip":0,"limit":9}}"#);
    for (key, path, body) in [
        (&audits, "queues/audit/items", None),
        (&audits, "queues/audit/items/k.entry", None),
        (&audits, "records/read", Some(r#"{"shelf":"item","name":"audit/k.entry"}"#.to_owned())),
        (&audits, "records/list", Some(list("item"))),
        (&audits, "records/list", Some(list("line"))),
        (&mails, "queues/mail/items/k.order-9", None),
        (&mails, "records/read", Some(r#"{"shelf":"item","name":"mail/k.order-9"}"#.to_owned())),
    ] {
        let told = async |key: &str| match &body {
            Some(body) => site.answer(key, path, body).await,
            None => site.get(key, path).await,
        };
        let (own, other) = if key == &audits { ("k.entry", "order-9") } else { ("order-9", "k.entry") };
        let (status, shown) = told(key).await;
        assert!(status == 200 && (path == "records/read" || shown.contains(own)), "{path}: {shown}");
        assert!(!shown.contains(other), "{path}: {shown}");
        assert!(told(&all).await.1.contains(other), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_woken_by_the_server_and_items_are_worked_on_through_it() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let key = site.key("*", "read,hold,work,operate").await;
    let (one, two) = (Coordinator::new(site.store(&key).await), Coordinator::new(site.store(&key).await));
    let lease: LeaseName = "x".parse().unwrap();
    let Acquired::Granted(grant) = one.acquire(&lease, &ask()).await.unwrap() else { panic!("it is free") };
    let waiting = tokio::spawn(async move { two.acquire_within(&[lease], &ask(), Duration::from_secs(60)).await });
    one.release(&grant, Outcome::Succeeded).await.unwrap();
    let Acquired::Granted(next) = waiting.await.unwrap().unwrap() else { panic!("it was released") };
    assert_eq!(next.token().epoch.get(), 2);

    let queue = Queue::new(one.store().clone(), "mail".parse().unwrap());
    let mut claimer = Claimer::new(queue.clone(), None, "90s".parse().unwrap()).unwrap();
    let claiming = tokio::spawn(async move {
        let grant = claimer.next_within(Duration::from_secs(60)).await;
        (claimer, grant)
    });
    let payload = Payload::new("to: ada").unwrap();
    let added = queue.add(NewItem { payload, ..NewItem::default() }).await.unwrap();
    let (mut claimer, grant) = claiming.await.unwrap();
    let mut grant = grant.unwrap().expect("an item was added");
    assert_eq!((grant.name(), grant.item().payload.bytes()), (added.name(), &b"to: ada"[..]));
    assert!(TokenKind::of(&grant.token().lease) == TokenKind::Item);
    queue.renew(&mut grant).await.unwrap();
    let follow_up = FollowUp {
        name: queue.item("k.next".parse().unwrap()),
        priority: Default::default(),
        delay_ms: 0,
        attempts: Default::default(),
        payload: Payload::new("receipt").unwrap(),
    };
    queue.complete(&grant, Some(Payload::result("sent").unwrap()), vec![follow_up]).await.unwrap();
    let stale = queue.complete(&grant, None, Vec::new()).await;
    assert!(stale.is_ok() || stale.is_err_and(|e| e.kind() == Kind::Fenced), "completed once");
    let next = claimer.next_within(Duration::from_secs(60)).await.unwrap().expect("a completion added it");
    assert_eq!(next.item().payload.bytes(), b"receipt");
    let (by, why) = ("ada".parse().unwrap(), "not needed".parse().unwrap());
    let (cancelled, _) = queue.operate(&next.name().id, by, why, None, ItemOrder::Cancel).await.unwrap();
    assert!(matches!(cancelled.state, State::Cancelled { .. }), "{:?}", cancelled.state);
    assert_eq!(queue.complete(&next, None, Vec::new()).await.unwrap_err().kind(), Kind::Fenced);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_leases_is_shown_no_item_and_no_payload() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let own = Queue::new(site.store(&site.key("*", "work").await).await, "mail".parse().unwrap());
    own.add(NewItem { payload: Payload::new("secret").unwrap(), ..NewItem::default() }).await.unwrap();
    let (name, _) = site.behind.list(Shelf::Item, Range::new(None, 1)).await.unwrap().entries.remove(0);
    let record = Key::new(Shelf::Item, &name);
    for (verbs, may_look) in [("hold", false), ("work", true), ("read", true), ("operate", true)] {
        let store = site.store(&site.key("*", verbs).await).await;
        let read = store.read(&record).await;
        assert_eq!(read.is_ok_and(|reading| reading.value.is_some()), may_look, "{verbs}");
        for shelf in [Shelf::Item, Shelf::Line, Shelf::Queue] {
            let listed = store.list(shelf, Range::new(None, 10)).await;
            assert!(may_look || listed.is_ok_and(|page| page.entries.is_empty()), "{verbs} {shelf:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_works_on_items_writes_no_journal_and_learns_no_holders_nonce() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let all = Coordinator::new(site.store(&site.key("*", "read,hold,work,operate").await).await);
    let lease: LeaseName = "nightly".parse().unwrap();
    let Acquired::Granted(grant) = all.acquire(&lease, &ask()).await.unwrap() else { panic!("it is free") };
    Journals::new(all.clone()).register(&lease).await.unwrap();
    // Also with `read`, which may look at both.
    for verbs in ["work", "read,work"] {
        let worker = Coordinator::new(site.store(&site.key("*", verbs).await).await);
        let nonce = grant.token().nonce.to_string();
        let seen = worker.store().read(&Key::new(Shelf::Lease, &lease)).await;
        let shown = seen.ok().and_then(|reading| reading.value).map(|value| String::from_utf8(value.bytes).unwrap());
        assert!(shown.is_none_or(|shown| !shown.contains(&nonce)), "{verbs}");
        let slot = leasehold_core::Slot(leasehold_core::Timestamp::from_millis(1));
        let written = Journals::new(worker.clone()).begin(&lease, slot, grant.token().epoch).await;
        assert_eq!(written.unwrap_err().kind(), Kind::Unsupported, "{verbs}");
    }
    assert!(Journals::new(all).read(&lease).await.unwrap().0.entries.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_adds_to_no_queue_that_its_key_is_not_for() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let queue = Queue::new(site.store(&site.key("mail", "work").await).await, "mail".parse().unwrap());
    queue.add(NewItem::default()).await.unwrap();
    let grant = Claimer::new(queue.clone(), None, "90s".parse().unwrap()).unwrap().next().await.unwrap();
    let follow_up = |queue: &str| FollowUp {
        name: leasehold_work::queue::ItemName { queue: queue.parse().unwrap(), id: "k.next".parse().unwrap() },
        priority: Default::default(),
        delay_ms: 0,
        attempts: Default::default(),
        payload: Payload::new("x").unwrap(),
    };
    let error = queue.complete(&grant, None, vec![follow_up("mail"), follow_up("payments")]).await.unwrap_err();
    assert!(error.to_string().contains("is not for the name `payments`"), "{error}");
    assert!(site.behind.list(Shelf::Item, Range::new(None, 10)).await.unwrap().entries.len() == 1, "nothing was added");
    queue.complete(&grant, None, vec![follow_up("mail")]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn any_server_of_several_will_do() {
    let store = Arc::new(MemoryStore::default());
    let (one, two) = (Site::start(store.clone()).await, Site::start(store).await);
    let key = one.key("*", "read,hold").await;
    let url = format!("leasehold+http://:{key}@{},{}/team", one.address, two.address);
    let leases = Coordinator::new(leasehold_stores::open(&url.parse().unwrap()).await.unwrap());
    let lease: LeaseName = "x".parse().unwrap();
    let Acquired::Granted(mut grant) = leases.acquire(&lease, &ask()).await.unwrap() else { panic!("it is free") };
    one.stop().await;
    leases.renew(&mut grant, None).await.unwrap();
    assert_eq!(leases.release(&grant, Outcome::Succeeded).await.unwrap(), Released::Now);
    two.stop().await;
    assert_eq!(leases.acquire(&lease, &ask()).await.unwrap_err().kind(), Kind::Unavailable);
}

fn ask() -> Ask {
    Ask::new(HolderId::new(None), "90s".parse().unwrap())
}

/// A gate's fence follows its lease, and nobody can turn it back, jump ahead, or learn from it what lets it write.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_moves_only_forward_and_by_tokens_that_the_store_granted() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let key = site.key("*", "hold").await;
    let leases = Coordinator::new(site.store(&key).await);
    let (lease, name): (LeaseName, LeaseName) = ("agent".parse().unwrap(), "mcp/tools".parse().unwrap());
    let fence = FenceDocument::new(&leases, &name);
    let sealed = |token: &Token| FenceRecord { high: Some(HighWater::of(token, 0)), ..FenceRecord::default() };
    let Acquired::Granted(first) = leases.acquire(&lease, &ask()).await.unwrap() else { panic!("it is free") };
    let seen = fence.look().await.unwrap();
    let one = fence.put(&seen, sealed(first.token())).await.unwrap().unwrap();
    leases.release(&first, Outcome::Succeeded).await.unwrap();
    let Acquired::Granted(second) = leases.acquire(&lease, &ask()).await.unwrap() else { panic!("it is free") };
    let two = fence.put(&one, sealed(second.token())).await.unwrap().unwrap();
    assert!(fence.put(&one, sealed(second.token())).await.unwrap().is_none(), "somebody was faster");

    let made_up = Token { epoch: Epoch::new(99).unwrap(), ..second.token().clone() };
    let by = |record: FenceRecord| FenceRecord { by: Some((made_up.epoch, made_up.nonce)), ..record };
    let gone = FenceRecord::default();
    for (what, next, kind) in [
        ("turned back", sealed(first.token()), Kind::Unsupported),
        ("jumped ahead", sealed(&made_up), Kind::Regressed),
        ("taken away", gone, Kind::Unsupported),
        ("signed", by(sealed(second.token())), Kind::Unsupported),
    ] {
        let error = fence.put(&two, next).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{what}: {error:?}");
    }
    // A proxy's needs the proxy's lease.
    let proxy = FenceDocument::new(&leases, &"http/tools".parse().unwrap());
    let seen = proxy.look().await.unwrap();
    let error = proxy.put(&seen, by(sealed(second.token()))).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Lost, "{error:?}");
    // Others see the number, and not the nonce; and a key for another lease does not move it.
    let looker = site.store(&site.key("*", "read").await).await;
    let shown = looker.read(fence.key()).await.unwrap().value.unwrap();
    let shown = String::from_utf8(shown.bytes).unwrap();
    assert!(shown.contains("agent:2:") && !shown.contains(&second.token().nonce.to_string()), "{shown}");
    let other = Coordinator::new(site.store(&site.key("tools", "hold").await).await);
    let theirs = FenceDocument::new(&other, &"mcp/tools".parse().unwrap());
    leases.release(&second, Outcome::Succeeded).await.unwrap();
    let Acquired::Granted(third) = leases.acquire(&lease, &ask()).await.unwrap() else { panic!("it is free") };
    let seen = theirs.look().await.unwrap();
    assert_eq!(theirs.put(&seen, sealed(third.token())).await.unwrap_err().kind(), Kind::Unsupported);
    assert_eq!(fence.look().await.unwrap().record.high, Some(HighWater::of(second.token(), 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_still_far_ahead_is_refused_through_a_server_too() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let leases = Coordinator::new(site.store(&site.key("*", "hold,read").await).await);
    let lease: LeaseName = "job".parse().unwrap();
    let now = leases.inspect(&lease).await.unwrap().now;
    let at = |slot| {
        let mut ask = ask();
        ask.slot = Some(SlotClaim::new(Slot(slot), AfterFailure::Leave));
        ask
    };
    let error = leases.acquire(&lease, &at(now.plus(Duration::from_secs(86_400)))).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    assert!(error.to_string().contains("is in the future; it is "), "{error}");
    assert!(leases.inspect(&lease).await.unwrap().record.is_unknown());
    let acquired = leases.acquire(&lease, &at(now.plus(Duration::from_secs(60)))).await.unwrap();
    assert!(matches!(acquired, Acquired::Granted(_)), "{acquired:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_expects_tls_or_none_in_error_is_told_how_the_url_begins() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let made = std::process::Command::new(leasehold_testbed::program("openssl"))
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args([std::ffi::OsStr::new("-keyout"), at("key").as_os_str(), "-out".as_ref(), at("cert").as_os_str()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let tls = TlsFiles { certificate: at("cert"), key: at("key") };
    drop(rustls::crypto::ring::default_provider().install_default());
    let plain = Site::start(Arc::new(MemoryStore::default())).await;
    let sealed = Site::start_with(Arc::new(MemoryStore::default()), Some(tls)).await;
    let key = plain.key("*", "read").await;
    let refused = async |scheme: &str, site: &Site, more: &str| {
        let url = format!("{scheme}://:{key}@{}/team{more}", site.address);
        let error = leasehold_stores::open(&url.parse().unwrap()).await.err().unwrap();
        assert_eq!(error.kind(), Kind::Unsupported, "{url}: {error}");
        error.to_string()
    };
    let told = refused("leasehold", &plain, "").await;
    assert!(told.contains("answered without TLS; on this machine use `leasehold+http://`"), "{told}");
    let told = refused("leasehold+http", &sealed, "").await;
    assert!(told.contains("answers with TLS: use `leasehold://`"), "{told}");
    let told = refused("leasehold", &sealed, "").await;
    assert!(told.contains("name it: `?ca=FILE`"), "{told}");
    let url = format!("leasehold://:{key}@{}/team?ca={}", sealed.address, at("cert").display());
    leasehold_stores::open(&url.parse().unwrap()).await.unwrap();
}

/// Acquires and releases a lease so often that a part of its history is archived.
async fn lived(leases: &Coordinator, lease: &LeaseName) {
    for _ in 0..40 {
        let Acquired::Granted(grant) = leases.acquire(lease, &ask()).await.unwrap() else { panic!("{lease} is free") };
        leases.release(&grant, Outcome::Succeeded).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_some_names_learns_and_changes_nothing_of_others() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let all = Coordinator::new(site.behind.clone());
    let (secret, own): (LeaseName, LeaseName) = ("b-secret".parse().unwrap(), "zz-own".parse().unwrap());
    lived(&all, &secret).await;
    let record = all.inspect(&secret).await.unwrap().record;
    let history = all.history(&secret, &record).await.unwrap();
    let lineage = record.lineage.unwrap();
    let (reads, holds) = (site.key("zz*", "read").await, site.key("zz*", "hold,operate").await);

    // Neither its name nor its lineage is told, nor what was archived of it.
    for (shelf, after) in [("lease", "null"), ("history", "\"0/0\""), ("queue", "null"), ("counters", "null")] {
        let body = format!(r#"{{"shelf":"{shelf}","after":{after},"skip":0,"limit":1}}"#);
        let (_, told) = site.answer(&reads, "records/list", &body).await;
        assert!(!told.contains("b-secret") && !told.contains(&lineage.to_string()), "{told}");
    }
    let segment = Key::new(Shelf::History, &format!("{lineage}/{:016}", 0).parse().unwrap());
    assert!(site.behind.read(&segment).await.unwrap().value.is_some(), "a part is archived");
    assert!(site.store(&reads).await.read(&segment).await.unwrap().value.is_none());
    let token = format!("b-secret:1:{lineage}:{lineage}:0");
    let (status, told) = site.answer(&holds, "fences/zz1/seal", &format!(r#"{{"token":"{token}"}}"#)).await;
    assert_eq!(status, 403, "{told}");

    // No lease of its own is under that lineage: the server draws one, and an operator who gives one has a key for all names.
    let body = format!(
        r#"{{"record":{{"shelf":"lease","name":"{own}"}},"expected":null,"verb":{{"lease":{{"acquire":{{"lineage":"{lineage}","holder":"{lineage}:1:h:evil","ttl":1000,"slot":null}}}}}}}}"#
    );
    assert_eq!(site.post(&holds, "records/change", &body).await, 200);
    let born = all.inspect(&own).await.unwrap().record;
    assert!(born.is_held_by(Claim { epoch: born.epoch, nonce: lineage.to_string().parse().unwrap() }));
    assert_ne!(born.lineage, Some(lineage));
    let (paused, why) = ("zz-paused".parse().unwrap(), || ("eve".parse().unwrap(), "x".parse().unwrap()));
    let body = format!(
        r#"{{"record":{{"shelf":"lease","name":"{paused}"}},"expected":null,"verb":{{"lease":{{"operate":{{"nonce":"{lineage}","lineage":"{lineage}","by":"x","why":"y","expected":null,"order":"pause"}}}}}}}}"#
    );
    assert_eq!(site.post(&holds, "records/change", &body).await, 200);
    assert_ne!(all.inspect(&paused).await.unwrap().record.lineage, Some(lineage));
    let theirs = Coordinator::new(site.store(&holds).await);
    let heal = Order::Advance { past: Epoch::new(9).unwrap(), lineage: Some(lineage) };
    let error = theirs.operate(&own, why().0, why().1, heal.clone()).await.unwrap_err();
    assert!(error.to_string().contains("is not for all names"), "{error}");
    let advance = format!(r#"{{"why":"x","epoch":1,"past":9,"lineage":"{lineage}"}}"#);
    assert_eq!(site.post(&holds, &format!("leases/{own}/advance"), &advance).await, 403);

    // One that has it all the same, by such a key's doing, does not reach the other's history.
    let operator = Coordinator::new(site.store(&site.key("*", "hold,operate").await).await);
    let (by, because) = why();
    assert!(matches!(operator.operate(&own, by, because, heal).await.unwrap(), Operated::Done(_)));
    assert_eq!(all.inspect(&own).await.unwrap().record.lineage, Some(lineage));
    for _ in 0..40 {
        theirs.operate(&own, why().0, why().1, Order::Revoke).await.unwrap();
    }
    let forget = format!(
        r#"{{"record":{{"shelf":"lease","name":"{own}"}},"expected":null,"verb":{{"lease":{{"operate":{{"nonce":"{lineage}","lineage":"{lineage}","by":"x","why":"y","expected":null,"order":{{"forget":{{"idle":0}}}}}}}}}}}}"#
    );
    assert_eq!(site.post(&holds, "records/change", &forget).await, 400);
    all.erase_leftovers(&own, &all.inspect(&own).await.unwrap().record).await.unwrap();
    let now = all.history(&secret, &record).await.unwrap();
    assert_eq!((now.transfers.len(), now.damaged.len()), (history.transfers.len(), 0));

    // Output is written by who took part, where it belongs.
    let output = |lease: &str| {
        let text = format!(r#"{{"lease":"{lease}","epoch":1,"host":"h","at":1,"bytes":7,"tail":"FORGED\n"}}"#);
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        leasehold_core::codec::encode("output", &record).unwrap()
    };
    let nothing = leasehold_core::codec::encode("output", &serde_json::Value::Null).unwrap();
    let ring = Key::new(Shelf::Output, &format!("{lineage}/00001").parse().unwrap());
    for (key, bytes) in
        [(&reads, &nothing), (&reads, &output("zz-own")), (&holds, &nothing), (&holds, &output("b-secret"))]
    {
        let change = Change { verb: Verb::Document, ..Change::put(&ring, None, bytes) };
        let error = site.store(key).await.write(&change).await.unwrap_err();
        assert!(matches!(error.kind(), Kind::Unsupported | Kind::Invalid), "{error:?}");
    }
    assert!(site.behind.read(&ring).await.unwrap().value.is_none());
    // What is kept of the other's runs is neither shown nor replaced, although the place has this lease's lineage too.
    site.behind.document(&ring, None, &output("b-secret")).await.unwrap();
    let revision = site.behind.read(&ring).await.unwrap().value.unwrap().revision;
    let forged = output("zz-own");
    let change = Change { verb: Verb::Document, ..Change::put(&ring, Some(&revision), &forged) };
    assert_eq!(site.store(&holds).await.write(&change).await.unwrap_err().kind(), Kind::Invalid);
    let (status, told) = site.get(&reads, "jobs/zz-own/logs").await;
    assert!(status == 200 && !told.contains("FORGED"), "{told}");
}

/// What a client is granted of a name that nobody ever held has the lineage that the server drew, and guards go by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_learns_the_lineage_that_the_server_drew() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let leases = Coordinator::new(site.store(&site.key("*", "read,hold,operate").await).await);
    let lease: LeaseName = "x".parse().unwrap();
    let Acquired::Granted(mut grant) = leases.acquire(&lease, &ask()).await.unwrap() else { panic!("it is free") };
    let stored = Coordinator::new(site.behind.clone()).inspect(&lease).await.unwrap().record;
    assert_eq!(Some(grant.token().lineage), stored.lineage);
    assert!(stored.is_held_by(grant.token().claim()));
    leases.renew(&mut grant, None).await.unwrap();
    let (key, seal) = (site.key("*", "hold").await, format!(r#"{{"token":"{}"}}"#, grant.token().wire()));
    assert_eq!(site.post(&key, "fences/out/seal", &seal).await, 200);
    let (paused, by, why) = ("y".parse().unwrap(), "ada".parse().unwrap(), "not yet".parse().unwrap());
    let Operated::Done(done) = leases.operate(&paused, by, why, Order::Pause).await.unwrap() else {
        panic!("it can be")
    };
    let stored = Coordinator::new(site.behind.clone()).inspect(&paused).await.unwrap().record;
    assert_eq!((done.record.lineage, stored.paused.is_some()), (stored.lineage, true));
}

/// The record of a process of this role on this host, in its first place there.
fn process(role: Role, host: &str, queue: Option<&str>) -> (Key, Presence) {
    let mut own = Presence::own(role, queue.map(str::to_owned));
    host.clone_into(&mut own.host);
    (Key::new(Shelf::Presence, &format!("{}/{host}/00", role.as_str()).parse().unwrap()), own)
}

async fn report(
    store: &Arc<dyn Store>,
    expected: Option<&Revision>,
    process: &(Key, Presence),
) -> leasehold_core::Result<Swap> {
    store.document(&process.0, expected, &process.1.encode().unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_puts_itself_on_record_and_nobody_else() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let mine = site.store(&site.key("mine", "work").await).await;
    let other = site.store(&site.key("mine", "work").await).await;
    let mut own = process(Role::Worker, "box", Some("mine"));
    (own.1.reported, own.1.since) = (Timestamp::from_millis(1 << 50), Timestamp::from_millis(1 << 50));
    assert!(matches!(report(&mine, None, &own).await.unwrap(), Swap::Done { .. }));
    let stored = processes(site.behind.as_ref(), 10).await.unwrap();
    let found = &stored.processes[0];
    assert!(found.since <= stored.now && found.reported <= stored.now && found.via.is_some(), "{found:?}");
    // Its own alone is seen, and written.
    let seen = mine.read(&own.0).await.unwrap().value.unwrap();
    assert_eq!(
        (
            processes(mine.as_ref(), 10).await.unwrap().processes.len(),
            processes(other.as_ref(), 10).await.unwrap().processes.len()
        ),
        (1, 0)
    );
    assert!(other.read(&own.0).await.unwrap().value.is_none());
    for expected in [None, Some(&seen.revision)] {
        assert!(matches!(report(&other, expected, &own).await.unwrap(), Swap::Mismatch));
    }
    let erase = Change { verb: Verb::Purge, ..Change::erase(&own.0, &seen.revision) };
    assert!(matches!(other.write(&erase).await.unwrap(), Swap::Mismatch));
    // What its key does not allow, and what no client is.
    let reader = site.store(&site.key("*", "read,operate").await).await;
    let (elsewhere, mut long) = (process(Role::Worker, "box-2", Some("mine")).1, own.1.clone());
    long.version = "x".repeat(300);
    for (store, expected, process) in [
        (&mine, None, process(Role::Worker, "box-2", Some("theirs"))),
        (&mine, None, process(Role::Worker, "box-2", None)),
        (&mine, None, process(Role::Scheduler, "box-2", None)),
        (&mine, None, process(Role::Server, "box-2", None)),
        (&mine, Some(&seen.revision), (own.0.clone(), elsewhere)),
        (&mine, Some(&seen.revision), (own.0.clone(), long)),
        (&reader, None, process(Role::Worker, "box-2", Some("mine"))),
    ] {
        let error =
            report(store, expected, &process).await.map(|swap| panic!("{process:?} gave {swap:?}")).unwrap_err();
        assert!(!error.is_retryable(), "{process:?}: {error}");
    }
    assert!(matches!(mine.write(&erase).await.unwrap(), Swap::Done { .. }));
    assert!(processes(site.behind.as_ref(), 10).await.unwrap().processes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_puts_a_bounded_number_of_processes_on_record() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let store = site.store(&site.key("mine", "work").await).await;
    for n in 0..64 {
        report(&store, None, &process(Role::Worker, &format!("box-{n}"), Some("mine"))).await.unwrap();
    }
    let error = report(&store, None, &process(Role::Worker, "box-64", Some("mine"))).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("64 at most"), "{error}");
    let first = process(Role::Worker, "box-0", Some("mine"));
    let seen = store.read(&first.0).await.unwrap().value.unwrap();
    assert!(matches!(report(&store, Some(&seen.revision), &first).await.unwrap(), Swap::Done { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_keeps_what_it_has_through_a_server_that_has_no_place_for_others() {
    let behind: Arc<dyn Store> = Arc::new(MemoryStore::default());
    // As in a flood: nobody but holders finds a place.
    let limits = leasehold_server::serve::Limits { requests: 0, ..Default::default() };
    let site = Site::start_limited(behind.clone(), None, limits).await;
    let direct = Coordinator::new(behind.clone());
    let Acquired::Granted(grant) = direct.acquire(&"x".parse().unwrap(), &ask()).await.unwrap() else { panic!("free") };
    let queue = Queue::new(behind, "mail".parse().unwrap());
    queue.add(NewItem::default()).await.unwrap();
    let item = Claimer::new(queue, None, "90s".parse().unwrap()).unwrap().next().await.unwrap();
    // As `leasehold renew` and `leasehold progress` do, and a keeper that looks for orders.
    let store = site.store(&site.key("*", "hold,work").await).await;
    let tokens = leasehold_work::Tokens::new(Coordinator::new(store.clone()));
    let report = leasehold_core::lease::protocol::Report { marker: Some("half".parse().unwrap()), checkpoint: None };
    for token in [grant.token(), item.token()] {
        tokens.renew(token).await.unwrap();
        tokens.progress(token, report.clone()).await.unwrap();
    }
    let remote = Coordinator::new(store.clone());
    let mut kept = remote.adopt(grant.token()).await.unwrap();
    // The record has changed since it was seen: the renewal finds out how.
    direct.checkpoint_by_token(grant.token(), report).await.unwrap();
    remote.renew(&mut kept, None).await.unwrap();
    assert_eq!(remote.release(&kept, Outcome::Succeeded).await.unwrap(), Released::Now);
    // Whoever holds nothing finds no place by saying that it does.
    let refused = remote.adopt(grant.token()).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unavailable, "{refused}");
    let refused = remote.inspect(&"x".parse().unwrap()).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unavailable, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_fills_the_records_of_a_host() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let (many, own) =
        (site.store(&site.key("mine/*", "hold").await).await, site.store(&site.key("*", "hold").await).await);
    let of_host = |number: usize| {
        let (_, presence) = process(Role::Scheduler, "prod", None);
        (Key::new(Shelf::Presence, &format!("scheduler/prod/{number:02}").parse().unwrap()), presence)
    };
    let mut taken = 0;
    while taken < 64 && report(&many, None, &of_host(taken)).await.is_ok() {
        taken += 1;
    }
    assert_eq!(taken, 32);
    assert!(matches!(report(&own, None, &of_host(taken)).await.unwrap(), Swap::Done { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_holds_in_the_name_of_another_key() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let [victim, thief] = [site.key("*", "hold,work").await, site.key("*", "hold,work,operate").await];
    let id = |key: &str| key[5..13].to_owned();
    let store = site.store(&thief).await;
    let on = |host: &str| {
        let new = HolderId::new(None);
        HolderId::of(host, new.pid(), new.nonce(), new.label().clone())
    };
    let holder = |key: &str| on(&format!("key-{}", id(key)));
    let ttl = "90s".parse().unwrap();
    let leases = Coordinator::new(store.clone());
    let error = leases.acquire(&"x".parse().unwrap(), &Ask::new(holder(&victim), ttl)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    let queue = Queue::new(store, "mail".parse().unwrap());
    queue.add(NewItem::default()).await.unwrap();
    let claiming = |who| Claimer::new(queue.clone(), None, ttl).unwrap().for_holder(who);
    let mut own = claiming(holder(&victim));
    let claimed = own.next_within(Duration::ZERO).await;
    assert!(!matches!(claimed, Ok(Some(_))), "{claimed:?}");
    let (by, why) = ("me".parse().unwrap(), "why".parse().unwrap());
    let order = leasehold_core::lease::protocol::Order::HandOff { to: holder(&victim), ttl };
    let error = leases.operate(&"x".parse().unwrap(), by, why, order).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    // Its own name, and that of a machine.
    for (name, who) in [("a", holder(&thief)), ("b", on("key-store"))] {
        let granted = leases.acquire(&name.parse().unwrap(), &Ask::new(who, ttl)).await.unwrap();
        assert!(matches!(granted, Acquired::Granted(_)), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_item_waits_longer_or_is_tried_less_often_than_may_be_asked_for() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let queue = Queue::new(site.store(&site.key("*", "work").await).await, "mail".parse().unwrap());
    queue.add(NewItem::default()).await.unwrap();
    let grant = Claimer::new(queue.clone(), None, "90s".parse().unwrap()).unwrap().next().await.unwrap();
    let (long, year) = (Duration::from_millis(u64::MAX), leasehold_core::wire::MAX_DELAY);
    let error = queue.fail(&grant, "why".parse().unwrap(), Some(long), false).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    let follow_up = FollowUp {
        name: leasehold_work::queue::ItemName { queue: "mail".parse().unwrap(), id: "k.next".parse().unwrap() },
        priority: Default::default(),
        delay_ms: 0,
        attempts: Default::default(),
        payload: Payload::new("x").unwrap(),
    };
    let mut never = follow_up.clone();
    never.attempts.most = 0;
    for wrong in [never, FollowUp { delay_ms: u64::MAX, ..follow_up }] {
        let error = queue.complete(&grant, None, vec![wrong]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    let returned = |wait| ItemRequest::Return { claim: grant.token().claim(), wait: Some(wait) };
    let check = |request| leasehold_core::wire::Verb::Item(Box::new(request)).check();
    assert!(check(returned(long)).is_err() && check(returned(year)).is_ok());
    queue.fail(&grant, "why".parse().unwrap(), Some(year), false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_cannot_settle_what_was_not_added() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let queue = Queue::new(site.behind.clone(), "mail".parse().unwrap());
    queue.add(NewItem::default()).await.unwrap();
    let grant = Claimer::new(queue.clone(), None, "90s".parse().unwrap()).unwrap().next().await.unwrap();
    queue.complete(&grant, None, Vec::new()).await.unwrap();
    // As a server leaves it that was killed when it had completed the item, and added nothing yet.
    let key = Key::new(Shelf::Item, &grant.token().lease.as_str().trim_start_matches("queue/").parse().unwrap());
    let stored = site.behind.read(&key).await.unwrap().value.unwrap();
    let mut item = leasehold_work::queue::Item::decode(&stored.bytes, "item").unwrap();
    item.outbox = vec![FollowUp {
        name: leasehold_work::queue::ItemName { queue: "payments".parse().unwrap(), id: "k.next".parse().unwrap() },
        priority: Default::default(),
        delay_ms: 0,
        attempts: Default::default(),
        payload: Payload::new("x").unwrap(),
    }];
    let bytes = item.encode().unwrap();
    let Swap::Done { revision, .. } = site.behind.swap(&key, Some(&stored.revision), &bytes).await.unwrap() else {
        panic!("nobody else writes it")
    };
    let worker = site.store(&site.key("mail", "work").await).await;
    let settle = Change { verb: Verb::Item(&ItemRequest::Settle), ..Change::put(&key, Some(&revision), &bytes) };
    worker.write(&settle).await.unwrap();
    let payments = Queue::new(site.behind.clone(), "payments".parse().unwrap());
    assert_eq!(payments.inspect(&"k.next".parse().unwrap()).await.unwrap().item.state, State::Ready);
}
