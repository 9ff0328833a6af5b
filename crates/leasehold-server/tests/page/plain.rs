//! What a browser without script gets: signing in, looking, ordering, and every refusal.

use crate::scene::{MINUTE, acquire, dead_letters, holder, job, morning, name, queue};
use crate::stage::{Client, Stage, field};
use leasehold_core::{Label, Outcome, Who, Why};
use leasehold_server::access::KeyId;
use leasehold_work::queue::NewItem;
use leasehold_work::schedule::{Definitions, FileRevision, Publisher};

const ALL: &str = "read,hold,work,operate";

#[tokio::test]
async fn a_key_opens_a_session_and_its_cookie_is_not_the_key() {
    let stage = Stage::start().await;
    let key = stage.key("ada", ALL, &["*"], None).await;
    let mut client = Client::new(&stage);
    let answer = client.sign_in(&key).await;
    assert_eq!(answer.status, 303);
    assert_eq!(answer.header("location"), Some("/"));
    let cookie = answer.all("set-cookie").find(|cookie| cookie.starts_with("leasehold_session=")).unwrap();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict; Max-Age=43200") && !cookie.contains("Secure"), "{cookie}");
    assert!(!cookie.contains("lh_"), "{cookie}");
    assert_eq!(client.get("/").await.header("location"), Some("/ns/default/leases"));
    let page = client.get("/ns/default/leases").await;
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert!(!page.body.contains(" style=") && !page.body.contains("<script>") && !page.body.contains("onclick"));
}

#[tokio::test]
async fn a_browser_that_speaks_tls_gets_a_secure_cookie() {
    let stage = Stage::start().await;
    let key = stage.key("ada", "read", &["*"], None).await;
    let mut client = Client::new(&stage);
    let token = field(&client.get("/").await.body, "token");
    let origin = format!("https://{}", stage.address);
    let answer = client.post_from(&origin, "/sign-in", &[("token", &token), ("key", &key)]).await;
    let cookie = answer.all("set-cookie").find(|cookie| cookie.starts_with("leasehold_session=")).unwrap();
    assert!(cookie.ends_with("; Secure"), "{cookie}");
}

#[tokio::test]
async fn a_wrong_expired_or_revoked_key_is_distinguished() {
    let stage = Stage::start().await;
    let key = stage.key("ada", "read", &["*"], None).await;
    let short = stage.key("short", "read", &["*"], Some(MINUTE)).await;
    let gone = stage.key("gone", "read", &["*"], None).await;
    let id: KeyId = gone[5..13].parse().unwrap();
    stage.keys.revoke(&id, &Who::new("t").unwrap(), &Why::new("t").unwrap()).await.unwrap();
    stage.clock.advance(MINUTE * 2);
    let mistyped = format!("{}{}", &key[..20], "aaaa").to_owned() + &key[24..];
    let other = Stage::start().await.key("other", "read", &["*"], None).await;
    for (key, says) in [
        ("", "enter a key"),
        ("hello", "not a valid key"),
        (mistyped.as_str(), "not a valid key"),
        (other.as_str(), "unknown key"),
        (short.as_str(), "has expired"),
        (gone.as_str(), "was revoked"),
    ] {
        let answer = Client::new(&stage).sign_in(key).await;
        assert_eq!(answer.status, 401, "{says}");
        assert!(answer.body.contains(says), "{says}: {}", answer.body);
        assert!(!answer.all("set-cookie").any(|cookie| cookie.starts_with("leasehold_session")));
        assert!(key.is_empty() || !answer.body.contains(key), "the key is shown");
    }
}

#[tokio::test]
async fn a_session_ends_with_its_key() {
    let stage = Stage::start().await;
    let key = stage.key("ada", "read", &["*"], Some(MINUTE * 10)).await;
    let mut client = Client::signed_in(&stage, &key).await;
    assert_eq!(client.get("/ns/default/leases").await.status, 200);
    stage.clock.advance(MINUTE * 11);
    let answer = client.get("/ns/default/leases").await;
    assert_eq!(answer.status, 401);
    assert!(answer.body.contains("has expired") && answer.body.contains("Sign in"), "{}", answer.body);
    let answer = client.get("/").await;
    assert!(answer.body.contains("has expired") && answer.body.contains("name=\"key\""));
}

#[tokio::test]
async fn without_a_session_every_page_leads_to_the_way_in_and_back() {
    let stage = Stage::start().await;
    let mut client = Client::new(&stage);
    for path in ["leases", "lease/a/b", "queues", "queue/q", "item/q/i", "jobs", "job/j", "health", "changes"] {
        let answer = client.get(&format!("/ns/default/{path}")).await;
        assert_eq!(answer.status, 303, "{path}");
        assert_eq!(answer.header("location"), Some(format!("/?next=/ns/default/{path}").as_str()));
    }
    client.set_cookie("leasehold_session", "c2Vzc2lvbg");
    assert_eq!(client.get("/ns/default/leases").await.status, 303);
    // A bearer's key is for programs: the page is not asked by it.
    let key = stage.key("ada", "read", &["*"], None).await;
    let bearer = format!("Bearer {key}");
    let answer = client.send("GET", "/ns/default/leases", &[("Authorization", &bearer)], "").await;
    assert_eq!(answer.status, 303);
    let token = field(&client.get("/?next=/ns/default/lease/x").await.body, "token");
    let next = "/ns/default/lease/x";
    let answer = client.post("/sign-in", &[("token", &token), ("key", &key), ("next", next)]).await;
    assert_eq!(answer.header("location"), Some(next));
}

#[tokio::test]
async fn an_address_where_nothing_is_gives_a_browser_a_page_and_a_program_json() {
    let stage = Stage::start().await;
    let mut client = Client::new(&stage);
    let browser = [("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
    for path in ["/ns/default/nothing", "/nothing"] {
        let answer = client.send("GET", path, &browser, "").await;
        assert_eq!((answer.status, answer.header("content-type")), (404, Some("text/html; charset=utf-8")), "{path}");
        assert!(answer.body.contains("there is no page at this address"), "{}", answer.body);
        let answer = client.get(path).await;
        assert_eq!((answer.status, answer.header("content-type")), (404, Some("application/problem+json")), "{path}");
    }
}

#[tokio::test]
async fn a_namespace_without_anything_says_that_its_name_may_be_wrong() {
    let stage = Stage::start().await;
    let mut client = Client::signed_in(&stage, &stage.key("a", "read", &["*"], None).await).await;
    for page in ["leases", "queues", "jobs"] {
        let page = client.get(&format!("/ns/default/{page}")).await.body;
        assert!(page.contains("If you expected some, check the name of the namespace."), "{page}");
    }
    morning(&stage).await;
    let page = client.get("/ns/default/leases").await.body;
    assert!(!page.contains("check the name of the namespace"), "{page}");
}

#[tokio::test]
async fn an_order_needs_a_why_the_epoch_that_was_seen_and_the_sessions_token() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    let grant = acquire(&leases, "publish", holder("box-1", "first", 1), "1h").await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", ALL, &["*"], None).await).await;
    let path = "/ns/default/lease/publish";
    let page = client.get(path).await.body;
    let (token, epoch) = (field(&page, "token"), field(&page, "epoch"));
    assert_eq!(epoch, "1");
    let send = |token: &str, epoch: &str, why: &str| {
        [("token", token), ("epoch", epoch), ("order", "revoke"), ("why", why)]
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
    };
    for (form, status, says) in [
        (send(&token, &epoch, ""), 400, "why"),
        (send(&token, "", "x"), 400, "epoch"),
        (send("", &epoch, "x"), 400, "not of this session"),
        (send(&token[1..], &epoch, "x"), 400, "not of this session"),
        (send(&token, "9", "x"), 409, "Nothing was done"),
    ] {
        let fields: Vec<(&str, &str)> = form.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let answer = client.post(path, &fields).await;
        assert_eq!(answer.status, status, "{says}: {}", answer.body);
        assert!(answer.body.contains(says), "{says}: {}", answer.body);
    }
    let form = send(&token, &epoch, "disk is full");
    let fields: Vec<(&str, &str)> = form.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    for origin in ["http://evil.example", "null", ""] {
        assert_eq!(client.post_from(origin, path, &fields).await.status, 400, "{origin}");
    }
    assert_eq!(leases.inspect(&name("publish")).await.unwrap().record.epoch.get(), 1);
    let answer = client.post(path, &fields).await;
    assert_eq!((answer.status, answer.header("location")), (303, Some("/ns/default/lease/publish")));
    let record = leases.inspect(&name("publish")).await.unwrap().record;
    let last = record.transfers.last().unwrap();
    assert_eq!(record.epoch.get(), 2);
    assert_eq!(last.why.as_ref().unwrap().as_str(), "disk is full");
    let by = last.by.as_ref().unwrap().as_str();
    assert!(by.starts_with("ada (key ") && by.len() == "ada (key 12345678)".len(), "{by}");
    assert!(leases.release(&grant, Outcome::Succeeded).await.is_ok());
    let page = client.get("/ns/default/lease/publish").await.body;
    assert!(page.contains("Revoked.") && page.contains("disk is full"), "{page}");
    // It is told once, and nobody is told it by an address.
    for path in ["/ns/default/lease/publish", "/ns/default/lease/publish?done=revoke"] {
        assert!(!client.get(path).await.body.contains("Revoked."), "{path}");
    }
    // The same form again is decided on an epoch that is over.
    let answer = client.post(path, &fields).await;
    assert_eq!(answer.status, 409);
    assert!(answer.body.contains("Nothing was done"), "{}", answer.body);
}

#[tokio::test]
async fn every_order_about_a_lease_is_carried_out() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    acquire(&leases, "a/b", holder("box-1", "first", 1), "1h").await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", ALL, &["*"], None).await).await;
    let path = "/ns/default/lease/a/b";
    let mut give = async |order: &str, more: &[(&str, &str)]| {
        let page = client.get(path).await.body;
        let part = page.split(&format!("id=\"order-{order}\"")).nth(1).unwrap_or_else(|| panic!("no {order}: {page}"));
        let (token, epoch) = (field(part, "token"), field(part, "epoch"));
        let pause = if order == "resume" { field(part, "pause") } else { String::new() };
        let fields =
            [("token", token.as_str()), ("epoch", &epoch), ("order", order), ("why", "test"), ("pause", &pause)];
        client.post(path, &[&fields[..], more].concat()).await
    };
    assert_eq!(give("drain", &[("within", "20m")]).await.status, 303);
    let record = leases.inspect(&name("a/b")).await.unwrap().record;
    assert_eq!(record.drain.as_ref().unwrap().asked().why.as_str(), "test");
    let answer = give("hand-off", &[("to", "second")]).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let inspected = leases.inspect(&name("a/b")).await.unwrap();
    let tenure = inspected.record.tenure.clone().unwrap();
    assert_eq!((tenure.holder.label().clone(), inspected.record.epoch.get()), (Label::new("second").unwrap(), 2));
    // Not the server's own process: somebody would end that.
    assert!(tenure.holder.host().starts_with("key-") && tenure.holder.pid() == 0, "{:?}", tenure.holder);
    let token: leasehold_core::Token =
        answer.body.split("readonly value=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
    assert_eq!((token.epoch.get(), token.nonce), (2, tenure.holder.nonce()));
    assert_eq!(give("pause", &[]).await.status, 303);
    assert!(leases.inspect(&name("a/b")).await.unwrap().record.paused.is_some());
    assert_eq!(give("resume", &[]).await.status, 303);
    assert!(leases.inspect(&name("a/b")).await.unwrap().record.paused.is_none());
    assert_eq!(give("revoke", &[]).await.status, 303);
    let page = client.get(path).await.body;
    assert!(!page.contains("order-revoke") && page.contains("order-pause"), "{page}");
}

#[tokio::test]
async fn a_key_that_only_reads_sees_no_button_and_is_refused() {
    let stage = Stage::start().await;
    let dead = morning(&stage).await;
    let mut client = Client::signed_in(&stage, &stage.key("eve", "read", &["*"], None).await).await;
    let item = format!("/ns/default/item/mail/{dead}");
    for path in ["/ns/default/lease/team-a/daily-publish", &item, "/ns/default/job/hourly-rollup"] {
        let page = client.get(path).await;
        assert_eq!(page.status, 200, "{path}");
        assert!(!page.body.contains("class=\"order\"") && !page.body.contains("name=\"why\""), "{path}");
        let token = field(&page.body, "token");
        for order in ["revoke", "pause", "retry", "cancel", "hand-off", "drain"] {
            let fields = [("token", token.as_str()), ("epoch", "1"), ("order", order), ("why", "x"), ("to", "x")];
            let answer = client.post(path, &fields).await;
            assert_eq!(answer.status, 403, "{path} {order}");
            assert!(answer.body.contains("does not allow `operate`"), "{}", answer.body);
        }
    }
}

#[tokio::test]
async fn a_key_sees_the_names_that_it_is_for_and_no_others() {
    let stage = Stage::start().await;
    morning(&stage).await;
    let mut client = Client::signed_in(&stage, &stage.key("b", "read,operate", &["team-b/*"], None).await).await;
    let page = client.get("/ns/default/leases").await.body;
    assert!(page.contains("team-b/etl/orders") && !page.contains("team-a/daily-publish"), "{page}");
    for (path, status) in [
        ("/ns/default/lease/team-b/etl/orders", 200),
        ("/ns/default/lease/team-a/daily-publish", 403),
        ("/ns/default/queue/mail", 403),
        ("/ns/default/job/hourly-rollup", 403),
        ("/ns/other/leases", 403),
        ("/ns/default/lease/team-b/none", 404),
        ("/ns/default/lease/queue/mail/x", 400),
    ] {
        assert_eq!(client.get(path).await.status, status, "{path}");
    }
    assert!(!client.get("/ns/default/queues").await.body.contains("mail"));
    assert!(!client.get("/ns/default/jobs").await.body.contains("hourly"));
    assert!(!client.get("/ns/default/health").await.body.contains("sandbox-19"));
}

#[tokio::test]
async fn a_dead_letter_is_retried_and_its_payload_is_hidden_until_asked_for() {
    let stage = Stage::start().await;
    let dead = morning(&stage).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", ALL, &["*"], None).await).await;
    let page = client.get("/ns/default/queue/mail").await.body;
    assert!(page.contains("550 mailbox unavailable") && page.contains("timeout talking"), "{page}");
    let path = format!("/ns/default/item/mail/{dead}");
    let page = client.get(&path).await.body;
    assert!(page.contains("bytes, hidden") && !page.contains("example.org&#34;"), "{page}");
    assert!(client.get(&format!("{path}?payload=shown")).await.body.contains("user0@example.org"));
    let (token, epoch) = (field(&page, "token"), field(&page, "epoch"));
    let fields = [("token", token.as_str()), ("epoch", &epoch), ("order", "retry"), ("why", "mailbox is back")];
    assert_eq!(client.post(&path, &fields).await.status, 303);
    let page = client.get(&path).await.body;
    assert!(page.contains("retried") && page.contains("mailbox is back") && page.contains("ada (key "), "{page}");
    let answer = client.post(&path, &fields).await;
    assert_eq!(answer.status, 409);
    assert!(answer.body.contains("nothing was changed"), "{}", answer.body);
}

#[tokio::test]
async fn a_key_that_may_not_read_is_told_so_instead_of_that_nothing_is_there() {
    let stage = Stage::start().await;
    morning(&stage).await;
    let key = stage.key("h", "hold,work,operate", &["*"], None).await;
    let answer = Client::new(&stage).sign_in(&key).await;
    assert_eq!(answer.status, 403);
    assert!(answer.body.contains("this key does not allow `read`; the page needs it"), "{}", answer.body);
    assert!(!answer.all("set-cookie").any(|cookie| cookie.starts_with("leasehold_session")));
}

#[tokio::test]
async fn every_page_that_says_what_is_wrong_has_the_header_and_the_way_out() {
    let stage = Stage::start().await;
    morning(&stage).await;
    let mut client = Client::signed_in(&stage, &stage.key("b", "read", &["team-b/*"], None).await).await;
    for (path, status) in [
        ("/ns/default/lease/team-a/daily-publish", 403),
        ("/ns/default/lease/team-b/none", 404),
        ("/ns/default/lease/queue/mail/x", 400),
        ("/ns/other/leases", 403),
        ("/ns/Prod/leases", 400),
        ("/ns/default/nope", 404),
        ("/ns", 404),
        ("/nope", 404),
        ("/sign-out", 405),
    ] {
        let answer = client.send("GET", path, &[("Accept", "text/html,*/*;q=0.8")], "").await;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (status, Some("text/html; charset=utf-8")),
            "{path}"
        );
        for part in ["Sign out", "title=\"Namespace\">default<", "href=\"/ns/default/queues\""] {
            assert!(answer.body.contains(part), "{path} {part}: {}", answer.body);
        }
    }
    // Programs get what they can read.
    let answer = client.send("GET", "/ns/default/nope", &[("Accept", "*/*")], "").await;
    assert_eq!((answer.status, answer.header("content-type")), (404, Some("application/problem+json")));
    let answer = client.send("GET", "/sign-out", &[("Accept", "*/*")], "").await;
    assert_eq!((answer.status, answer.header("content-type")), (405, Some("application/problem+json")));
    assert_eq!(answer.header("allow"), Some("POST"));
    // And without a session there is nothing to sign out of.
    let answer = Client::new(&stage).send("GET", "/ns", &[("Accept", "text/html")], "").await;
    assert!(answer.status == 404 && !answer.body.contains("Sign out"), "{}", answer.body);
    assert_eq!(Client::new(&stage).get("/sign-in").await.header("location"), Some("/"));
}

#[tokio::test]
async fn a_namespace_that_is_none_is_told_and_the_logo_stays_in_the_one_that_is_shown() {
    let stage = Stage::start().await;
    let mut client = Client::signed_in(&stage, &stage.key_for_all_namespaces("all", "read").await).await;
    let answer = client.get("/?namespace=Prod").await;
    assert!(answer.status == 400 && answer.body.contains("namespace `Prod`"), "{}", answer.body);
    assert_eq!(client.get("/?namespace=prod").await.header("location"), Some("/ns/prod/leases"));
    let page = client.get("/ns/prod/queues").await.body;
    assert!(page.contains("class=\"brand\" href=\"/ns/prod/leases\""), "{page}");
}

#[tokio::test]
async fn a_key_for_some_names_is_told_that_nothing_of_them_is_there() {
    let stage = Stage::start().await;
    morning(&stage).await;
    let mut client = Client::signed_in(&stage, &stage.key("a", "read", &["none/*"], None).await).await;
    for page in ["leases", "queues", "jobs"] {
        let page = client.get(&format!("/ns/default/{page}")).await.body;
        assert!(page.contains("None in what your key sees (<code>none/*</code>)"), "{page}");
    }
}

#[tokio::test]
async fn queues_with_dead_letters_are_marked_and_lead_to_the_reasons() {
    let stage = Stage::start().await;
    dead_letters(&stage, "mail", "550 mailbox unavailable", 3).await;
    dead_letters(&stage, "lost", "timeout", 130).await;
    queue(&stage, "well").add(NewItem::default()).await.unwrap();
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/queues").await.body;
    let row = |name: &str| page.split(&format!("id=\"q-{name}\"")).nth(1).unwrap().split("</tr>").next().unwrap();
    assert!(row("mail").contains("href=\"/ns/default/queue/mail#dead\"") && row("mail").contains(">3<"), "{page}");
    assert!(row("lost").contains("state dead") && row("lost").contains(">100+<"), "{page}");
    assert!(!row("well").contains("state dead") && !row("well").contains("ailing"), "{page}");
}

#[tokio::test]
async fn a_session_ends_after_half_a_day_of_the_stores_clock() {
    let stage = Stage::start().await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    // The store's clock is moved on, and this machine's own is not.
    for (on, status) in [(MINUTE * (12 * 60 - 5), 200), (MINUTE * 10, 303)] {
        stage.clock.advance(on);
        assert_eq!(client.get("/ns/default/leases").await.status, status, "{on:?}");
    }
}

#[tokio::test]
async fn a_job_that_nobody_runs_any_more_does_not_look_healthy() {
    let stage = Stage::start().await;
    let publisher = Publisher {
        owner: "jobs.toml".to_owned(),
        revision: FileRevision::new(None, MINUTE, "text"),
        host: "scheduler-1".to_owned(),
    };
    Definitions::new(stage.leases()).publish(&[job("hourly", "0 * * * *", "UTC")], &publisher).await.unwrap();
    let key = stage.key("ada", "read", &["*"], None).await;
    for (path, is_overdue) in [("jobs", false), ("job/hourly", false), ("jobs", true), ("job/hourly", true)] {
        if is_overdue {
            stage.clock.advance(MINUTE * 60 * 30);
        }
        let mut client = Client::signed_in(&stage, &key).await;
        let page = client.get(&format!("/ns/default/{path}")).await;
        assert_eq!(page.status, 200, "{path}");
        assert_eq!(page.body.contains("late, missed "), is_overdue, "{path}: {}", page.body);
    }
}

#[tokio::test]
async fn a_lease_that_is_held_and_paused_is_found_as_both() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    acquire(&leases, "both", holder("a", "a", 1), "2h").await;
    let (by, why) = (Who::new("t").unwrap(), Why::new("t").unwrap());
    leases.operate(&name("both"), by, why, leasehold_core::lease::protocol::Order::Pause).await.unwrap();
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    for state in ["held", "paused"] {
        assert!(client.get(&format!("/ns/default/leases?state={state}")).await.body.contains("both"), "{state}");
    }
}

#[tokio::test]
async fn filters_narrow_the_listing() {
    let stage = Stage::start().await;
    morning(&stage).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    for (query, shown, hidden) in [
        ("", "agents/docs", "no-such"),
        ("?state=paused", "deploy/eu-west", "deploy/us-east"),
        ("?state=stalled", "team-b/etl/orders", "team-a/daily-publish"),
        ("?state=lost", "team-b/etl/stock", "team-b/etl/orders"),
        ("?state=held", "db/vacuum", "deploy/eu-west"),
        ("?q=etl", "team-b/etl/stock", "agents/docs"),
        ("?q=team-a", "team-a/daily-publish", "team-b/etl/orders"),
        ("?q=*/docs", "agents/docs", "agents/triage"),
        ("?q=%3Cscript%3E", "&#60;script&#62;", "<script>"),
    ] {
        let page = client.get(&format!("/ns/default/leases{query}")).await.body;
        assert!(page.contains(shown), "{query}: {shown}");
        assert!(!page.contains(hidden), "{query}: {hidden}");
    }
}

#[tokio::test]
async fn a_job_shows_every_slot_and_the_end_of_its_output() {
    let stage = Stage::start().await;
    morning(&stage).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", ALL, &["*"], None).await).await;
    let page = client.get("/ns/default/jobs").await.body;
    assert!(page.contains("at 03:00 every day, Europe/Berlin"), "{page}");
    let page = client.get("/ns/default/job/hourly-rollup").await.body;
    assert!(page.contains("skipped: an earlier run was still running"), "{page}");
    let link = page.split("href=\"").find(|part| part.contains("?slot=")).unwrap().split('"').next().unwrap();
    let page = client.get(link.trim_end_matches("#output")).await.body;
    assert!(page.contains("reading orders 100%\nrolled up 18,220 rows\n&#60;done &#38; dusted&#62;"), "{page}");
    let (token, epoch) = (field(&page, "token"), field(&page, "epoch"));
    let fields = [("token", token.as_str()), ("epoch", &epoch), ("order", "pause"), ("why", "holidays")];
    assert_eq!(client.post("/ns/default/job/hourly-rollup", &fields).await.status, 303);
    let page = client.get("/ns/default/job/hourly-rollup").await.body;
    assert!(page.contains("holidays") && page.contains("order-resume"), "{page}");
}

#[tokio::test]
async fn behind_a_prefix_every_link_and_cookie_has_it() {
    let stage = Stage::with_prefix(Some("/leases")).await;
    acquire(&stage.leases(), "a", holder("box-1", "first", 1), "1h").await;
    let key = stage.key("ada", ALL, &["*"], None).await;
    let mut client = Client::new(&stage);
    let page = client.get("/leases").await;
    let token = field(&page.body, "token");
    let answer =
        client.post("/leases/sign-in", &[("token", &token), ("key", &key), ("next", "/ns/default/leases")]).await;
    assert_eq!(answer.header("location"), Some("/leases/ns/default/leases"), "{}", answer.body);
    assert!(answer.header("set-cookie").unwrap().contains("; Path=/leases;"));
    let page = client.get("/leases/ns/default/leases").await.body;
    for part in page.split("=\"/").skip(1) {
        assert!(part.starts_with("leases/") || part.starts_with("leases\""), "{part}");
    }
    let style = page.split("rel=\"stylesheet\" href=\"").nth(1).unwrap().split('"').next().unwrap();
    let answer = client.get(style).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/css; charset=utf-8")));
    assert!(answer.header("cache-control").unwrap().contains("immutable"));
}

#[tokio::test]
async fn signing_out_makes_the_browser_forget() {
    let stage = Stage::start().await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let token = field(&client.get("/ns/default/leases").await.body, "token");
    client.post("/sign-out", &[("token", "wrong")]).await;
    assert_eq!(client.get("/ns/default/leases").await.status, 200);
    let answer = client.post("/sign-out", &[("token", &token)]).await;
    assert!(answer.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(client.cookie("leasehold_session"), Some(""));
    assert_eq!(client.get("/ns/default/leases").await.status, 303);
}

#[tokio::test]
async fn a_session_is_known_to_every_server_of_the_store() {
    let stage = Stage::start().await;
    let key = stage.key("ada", "read", &["*"], None).await;
    let mut client = Client::signed_in(&stage, &key).await;
    let second = stage.another().await;
    let mut there = Client::new(&second);
    there.set_cookie("leasehold_session", client.cookie("leasehold_session").unwrap());
    assert_eq!(there.get("/ns/default/leases").await.status, 200);
    assert_eq!(client.get("/ns/default/leases").await.status, 200);
}

#[tokio::test]
async fn a_job_is_asked_for_by_those_who_may_operate_and_the_page_tells_what_became_of_it() {
    let stage = Stage::start().await;
    morning(&stage).await;
    let leases = stage.leases();
    let path = "/ns/default/job/invoice-run";
    let mut reader = Client::signed_in(&stage, &stage.key("bob", "read", &["*"], None).await).await;
    assert!(!reader.get(path).await.body.contains("Run now"), "a key that only reads sees no button");
    let mut client = Client::signed_in(&stage, &stage.key("ada", ALL, &["*"], None).await).await;
    let page = client.get(path).await.body;
    assert!(page.contains("Run now"), "{page}");
    let (token, epoch) = (field(&page, "token"), field(&page, "epoch"));
    for (epoch, why, status, says) in [(&*epoch, "", 400, "why"), ("99", "x", 409, "Nothing was done")] {
        let answer =
            client.post(path, &[("token", &token), ("order", "trigger"), ("epoch", epoch), ("why", why)]).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(says), "{}", answer.body);
    }
    let fields =
        [("token", token.as_str()), ("order", "trigger"), ("epoch", epoch.as_str()), ("why", "the <b>report</b>")];
    let answer = client.post(path, &fields).await;
    assert_eq!((answer.status, answer.header("location")), (303, Some(path)), "{}", answer.body);
    let page = client.get(path).await.body;
    assert!(page.contains("A scheduler that has the job runs it") && page.contains("no scheduler has taken it up yet"));
    assert!(page.contains("the &#60;b&#62;report&#60;/b&#62;"), "{page}");
    assert!(!page.contains("Run now"), "it is asked for once");
    assert_eq!(client.post(path, &fields).await.status, 409);
    stage.clock.advance(MINUTE * 6);
    let page = client.get(path).await.body;
    assert!(page.contains("took it up in time") && page.contains("Run now"), "{page}");
    assert_eq!(leases.inspect(&name("invoice-run")).await.unwrap().record.epoch.to_string(), epoch);
}
