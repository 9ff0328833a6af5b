//! The page in a real browser: Debian's chromium, driven by playwright.
//!
//! What others do meanwhile is here; what the person does is in the script.

use crate::driver::Browser;
use crate::scene::{MINUTE, acquire, dead_letters, fences, holder, morning, name, order_item, processes, queue};
use crate::stage::Stage;
use leasehold_core::lease::protocol::{Order, Report};
use leasehold_core::{Epoch, FencedWrite, Marker, Outcome, Who, Why};
use leasehold_work::presence::Role;
use leasehold_work::queue::{Claimer, NewItem, Payload, Queue, Reason, protocol};
use std::time::Duration;

const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

/// One browser at a time: each is several processes.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const ALL: &str = "read,hold,work,operate";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_watches_and_acts() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let dead = morning(&stage).await;
    let (key, reader) = (stage.key("ada", ALL, &["*"], None).await, stage.key("eve", "read", &["*"], None).await);
    let short = stage.key("short", "read", &["*"], Some(MINUTE)).await;
    stage.clock.advance(MINUTE * 2);
    let leases = stage.leases();
    let first = acquire(&leases, "watched", holder("box-1", "first", 1), "1h").await;
    let keys = [("KEY", key.as_str()), ("READER", &reader), ("EXPIRED", &short), ("DEAD", dead.as_str())];
    let mut browser = Browser::start(&stage.url(), "operator", &keys);
    assert_eq!(browser.asks().await.as_deref(), Some("change hands"));
    leases.release(&first, Outcome::Succeeded).await.unwrap();
    acquire(&leases, "watched", holder("box-2", "second", 2), "1h").await;
    browser.answer();
    assert_eq!(browser.asks().await.as_deref(), Some("revoked"));
    let record = leases.inspect(&name("watched")).await.unwrap().record;
    let last = record.transfers.last().unwrap();
    assert_eq!((record.epoch.get(), last.why.as_ref().unwrap().as_str()), (3, "disk of box-2 is full"));
    assert!(last.by.as_ref().unwrap().as_str().starts_with("ada (key "));
    browser.answer();
    assert_eq!(browser.asks().await.as_deref(), Some("move on behind the form"));
    acquire(&leases, "watched", holder("box-3", "third", 3), "1h").await;
    browser.answer();
    browser.ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_retries_all_dead_letters_of_a_reason() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let retry = protocol::Order::Retry { past: None };
    let dead = dead_letters(&stage, "mail", "550 mailbox unavailable", 37).await;
    dead_letters(&stage, "mail", "timeout", 2).await;
    let (key, reader) = (stage.key("ada", ALL, &["*"], None).await, stage.key("eve", "read", &["*"], None).await);
    let mut browser = Browser::start(&stage.url(), "bulk", &[("KEY", key.as_str()), ("READER", &reader)]);
    assert_eq!(browser.asks().await.as_deref(), Some("change some behind the form"));
    order_item(&queue(&stage, "mail"), &dead[5], retry).await;
    dead_letters(&stage, "mail", "550 mailbox unavailable", 3).await;
    stage.clock.advance(MINUTE * 2);
    browser.answer();
    browser.ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_users_write_stays_text() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let leases = stage.leases();
    let hostile_label = holder("box-1", "<b onmouseover=alert(1)>&\"'", 1);
    let mut grant = acquire(&leases, "a", hostile_label, "1h").await;
    let marker = Some(Marker::new(HOSTILE).unwrap());
    let checkpoint = Some(leasehold_core::Checkpoint::new(format!("{HOSTILE}\n</pre>{HOSTILE}")).unwrap());
    leases.checkpoint(&mut grant, Report { marker, checkpoint }).await.unwrap();
    let (who, why) = (Who::new("<i>\"ada\"</i>").unwrap(), Why::new(format!("{HOSTILE}\"'>")).unwrap());
    leases.operate(&name("a"), who.clone(), why.clone(), Order::Pause).await.unwrap();
    leases.operate(&name("a"), who.clone(), why, Order::Drain { within: "1h".parse().unwrap() }).await.unwrap();
    let queue = Queue::with_clock(leases.store().clone(), "q".parse().unwrap(), stage.clock.clone());
    let payload = Payload::new(format!("</pre>{HOSTILE}")).unwrap();
    queue.add(NewItem { payload, ..NewItem::default() }).await.unwrap();
    let mut claimer = Claimer::new(queue.clone(), None, "5m".parse().unwrap()).unwrap();
    let claimed = claimer.next().await.unwrap();
    let checkpoint = Some(leasehold_core::Checkpoint::new(HOSTILE).unwrap());
    let report = Report { marker: Some(Marker::new(HOSTILE).unwrap()), checkpoint };
    queue.progress(claimed.token(), report).await.unwrap();
    queue.fail(&claimed, Reason::new(HOSTILE).unwrap(), None, true).await.unwrap();
    let done = queue.add(NewItem::default()).await.unwrap().name().id.clone();
    let claim = queue.claim_item(&done, holder("box-1", "<b>", 7), "1h".parse().unwrap()).await.unwrap().unwrap();
    queue.complete(&claim, Some(Payload::result(HOSTILE).unwrap()), Vec::new()).await.unwrap();
    let (held, seen) = (grant.token().epoch, Epoch::new(9).unwrap());
    let write = FencedWrite::new(HOSTILE, held, seen, Some(Who::new(HOSTILE).unwrap()));
    leases.count_fenced(&name("a"), &write).await.unwrap();
    crate::scene::hostile_job(&stage, HOSTILE).await;
    crate::scene::process(&stage, Role::Worker, HOSTILE, Some("q")).await;
    let key = stage.key("<u>key</u>", ALL, &["*"], None).await;
    let id = claimed.name().id.to_string();
    let more = [("KEY", key.as_str()), ("DEAD", &id), ("DONE", done.as_str()), ("REASON", HOSTILE)];
    Browser::start(&stage.url(), "hostile", &more).ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seven_tabs_share_one_stream() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let leases = stage.leases();
    let first = acquire(&leases, "watched", holder("box-1", "first", 1), "1h").await;
    let key = stage.key("ada", "read", &["*"], None).await;
    let mut browser = Browser::start(&stage.url(), "tabs", &[("KEY", &key)]);
    assert_eq!(browser.asks().await.as_deref(), Some("change hands"));
    leases.release(&first, Outcome::Succeeded).await.unwrap();
    acquire(&leases, "watched", holder("box-2", "second", 2), "1h").await;
    browser.answer();
    browser.ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_lost_its_connection_says_since_when_and_takes_no_orders() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let leases = stage.leases();
    let first = acquire(&leases, "watched", holder("box-1", "first", 1), "1h").await;
    let key = stage.key("ada", ALL, &["*"], None).await;
    let mut browser = Browser::start(&stage.url(), "cut", &[("KEY", &key)]);
    assert_eq!(browser.asks().await.as_deref(), Some("change hands"));
    leases.release(&first, Outcome::Succeeded).await.unwrap();
    acquire(&leases, "watched", holder("box-2", "second", 2), "1h").await;
    browser.answer();
    browser.ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tab_that_nobody_looks_at_has_no_stream_and_asks_for_nothing() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let leases = stage.leases();
    let first = acquire(&leases, "watched", holder("box-1", "first", 1), "1h").await;
    let key = stage.key("ada", "read", &["*"], None).await;
    let mut browser = Browser::start(&stage.url(), "hidden", &[("KEY", &key)]);
    assert_eq!(browser.asks().await.as_deref(), Some("nobody follows"));
    while stage.site.waiters() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    leases.release(&first, Outcome::Succeeded).await.unwrap();
    acquire(&leases, "watched", holder("box-2", "second", 2), "1h").await;
    browser.answer();
    browser.ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_read_no_more_often_than_the_server_says() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let leases = stage.leases();
    let mut grant = acquire(&leases, "watched", holder("box-1", "first", 1), "1h").await;
    let key = stage.key("ada", "read", &["*"], None).await;
    let mut browser = Browser::start(&stage.url(), "floor", &[("KEY", &key)]);
    assert_eq!(browser.asks().await.as_deref(), Some("change again and again"));
    let changing = tokio::spawn(async move {
        loop {
            leases.renew(&mut grant, None).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    browser.answer();
    browser.ends_well().await;
    changing.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_while_the_page_is_read_is_shown_soon() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let leases = stage.leases();
    let first = acquire(&leases, "watched", holder("box-1", "first", 1), "1h").await;
    let key = stage.key("ada", "read", &["*"], None).await;
    let mut browser = Browser::start(&stage.url(), "meanwhile", &[("KEY", &key)]);
    assert_eq!(browser.asks().await.as_deref(), Some("change hands"));
    leases.release(&first, Outcome::Succeeded).await.unwrap();
    acquire(&leases, "watched", holder("box-2", "second", 2), "1h").await;
    browser.answer();
    browser.ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_script_every_page_is_complete_and_every_order_can_be_given() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let dead = morning(&stage).await;
    let key = stage.key("ada", ALL, &["*"], None).await;
    acquire(&stage.leases(), "watched", holder("box-1", "first", 1), "1h").await;
    Browser::start(&stage.url(), "plain", &[("KEY", &key), ("DEAD", dead.as_str())]).ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_of_another_site_leads_to_its_page() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    acquire(&stage.leases(), "watched", holder("box-1", "first", 1), "1h").await;
    let key = stage.key("ada", "read", &["*"], None).await;
    Browser::start(&stage.url(), "link", &[("KEY", &key)]).ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_item_has_only_once_it_is_done_appears() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let mail = queue(&stage, "mail");
    let id = mail.add(NewItem::default()).await.unwrap().name().id.clone();
    let claim = mail.claim_item(&id, holder("box-1", "mailer", 7), "1h".parse().unwrap()).await.unwrap().unwrap();
    let key = stage.key("ada", ALL, &["*"], None).await;
    let mut browser = Browser::start(&stage.url(), "done", &[("KEY", &key), ("DEAD", id.as_str())]);
    assert_eq!(browser.asks().await.as_deref(), Some("complete it"));
    let result = Some(Payload::result("250 queued").unwrap());
    mail.complete(&claim, result, vec![crate::scene::follow_up("archive", "sent-1")]).await.unwrap();
    browser.answer();
    browser.ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_are_in_the_viewers_zone_and_an_output_opens_at_its_end() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    morning(&stage).await;
    let key = stage.key("ada", "read", &["*"], None).await;
    Browser::start(&stage.url(), "slots", &[("KEY", &key)]).ends_well().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_has_a_serious_fault_for_those_who_cannot_see_it() {
    let _alone = ALONE.lock().await;
    let stage = Stage::start().await;
    let dead = morning(&stage).await;
    processes(&stage).await;
    fences(&stage).await;
    let key = stage.key("ada", ALL, &["*"], None).await;
    let shots = std::env::var("LEASEHOLD_SCREENSHOTS").unwrap_or_default();
    let roaming = stage.key_for_all_namespaces("bob", "read").await;
    let more = [("KEY", key.as_str()), ("ROAMING", &roaming), ("DEAD", dead.as_str()), ("SHOTS", &shots)];
    Browser::start(&stage.url(), "axe", &more).ends_well().await;
}
