//! Orders about all dead letters of a reason: what was counted is acted on, and nothing else.

use crate::scene::{MINUTE, dead_letters, order_item, queue};
use crate::stage::{Client, Stage, field};
use leasehold_core::item::State;
use leasehold_server::page::budget;
use leasehold_work::queue::protocol::Order;

const ALL: &str = "read,hold,work,operate";
const BOUNCED: &str = "550 <mailbox> & \"unavailable\"";

/// Where the button of the group with this reason leads.
fn button(page: &str, says: &str) -> String {
    let before = page.split(&format!(">{says}…</a>")).next().filter(|before| before.len() < page.len());
    let before = before.unwrap_or_else(|| panic!("no button `{says}` in {page}"));
    before.rsplit("href=\"").next().unwrap().split('"').next().unwrap().replace("&#38;", "&")
}

async fn order(client: &mut Client, page: &str, why: &str) -> crate::stage::Answer {
    let (token, order, items) = (field(page, "token"), field(page, "order"), field(page, "items"));
    let fields = [("token", token.as_str()), ("order", &order), ("items", &items), ("why", why)];
    client.post("/ns/default/queue/mail/dead-letters", &fields).await
}

#[tokio::test]
async fn a_bulk_retry_acts_on_what_was_counted_and_tells_what_had_changed() {
    let stage = Stage::start().await;
    let mail = queue(&stage, "mail");
    let bounced = dead_letters(&stage, "mail", BOUNCED, 37).await;
    let others = dead_letters(&stage, "mail", "timeout", 2).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", ALL, &["*"], None).await).await;
    let page = client.get("/ns/default/queue/mail").await.body;
    let address = button(&page, "Retry these 37");
    let page = client.get(&address).await.body;
    assert!(page.contains("Retry 37 dead letters?") && page.contains("550 &#60;mailbox&#62;"), "{page}");
    assert!(!page.contains("data-live"), "it would be counted again behind the reader's back");
    // Somebody else is faster with one, and another one is given up for the same reason.
    order_item(&mail, &bounced[3], Order::Retry { past: None }).await;
    let newcomer = dead_letters(&stage, "mail", BOUNCED, 1).await.remove(0);
    assert_eq!(order(&mut client, &page, "").await.status, 400);
    let answer = order(&mut client, &page, "mailbox is back").await;
    let to = answer.header("location").unwrap_or_else(|| panic!("{}", answer.body)).to_owned();
    assert_eq!((answer.status, to.as_str()), (303, "/ns/default/queue/mail"));
    let page_after = client.get(&to).await.body;
    assert!(page_after.contains("36 dead letters are back in line. 1 had changed meanwhile"), "{page_after}");
    for id in &bounced {
        let item = mail.inspect(id).await.unwrap().item;
        assert_eq!(item.state, State::Ready, "{id}");
        let last = item.history.last().unwrap();
        let (by, why) = (last.by.as_ref().unwrap().as_str(), last.why.as_ref().unwrap().as_str());
        assert_eq!(by.starts_with("ada (key "), *id != bounced[3], "{by}");
        assert_eq!(why == "mailbox is back", *id != bounced[3], "{why}");
    }
    for id in others.iter().chain([&newcomer]) {
        assert!(matches!(mail.inspect(id).await.unwrap().item.state, State::Dead { .. }), "{id}");
    }
    // The same form again does nothing.
    let answer = order(&mut client, &page, "mailbox is back").await;
    assert_eq!(answer.header("location"), Some("/ns/default/queue/mail"));
    let page = client.get("/ns/default/queue/mail").await.body;
    assert!(page.contains("0 dead letters are back in line. 37 had changed meanwhile"), "{page}");
}

#[tokio::test]
async fn a_bulk_purge_removes_what_was_counted_and_is_old_enough() {
    let stage = Stage::start().await;
    let mail = queue(&stage, "mail");
    let bounced = dead_letters(&stage, "mail", BOUNCED, 5).await;
    let others = dead_letters(&stage, "mail", "timeout", 1).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", ALL, &["*"], None).await).await;
    let page = client.get("/ns/default/queue/mail").await.body;
    let page = client.get(&button(&page, "Purge these 5")).await.body;
    assert!(page.contains("Purge 5 dead letters?"), "{page}");
    let answer = order(&mut client, &page, "not ours").await;
    assert_eq!(answer.header("location"), Some("/ns/default/queue/mail"), "{}", answer.body);
    assert!(client.get("/ns/default/queue/mail").await.body.contains("0 dead letters are removed. 5 had changed"));
    stage.clock.advance(MINUTE * 2);
    order_item(&mail, &bounced[0], Order::Retry { past: None }).await;
    let answer = order(&mut client, &page, "not ours").await;
    let to = answer.header("location").unwrap().to_owned();
    assert_eq!(to, "/ns/default/queue/mail");
    assert!(client.get(&to).await.body.contains("4 dead letters are removed. 1 had changed meanwhile"));
    assert_eq!(mail.inspect(&bounced[0]).await.unwrap().item.state, State::Ready);
    assert!(matches!(mail.inspect(&others[0]).await.unwrap().item.state, State::Dead { .. }));
    for id in &bounced[1..] {
        let missing = mail.inspect(id).await.expect_err("it is still there");
        assert!(missing.to_string().contains(&format!("there is no item `mail/{id}`")), "{missing}");
    }
}

#[tokio::test]
async fn one_order_takes_a_bounded_number_and_says_how_many_there_are() {
    let stage = Stage::start().await;
    dead_letters(&stage, "mail", "smtp", budget::BULK + 12).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", ALL, &["*"], None).await).await;
    let page = client.get("/ns/default/queue/mail").await.body;
    let address = button(&page, "Retry 500 of these 512");
    let reads = || ["read", "list", "list, skipping"].iter().map(|call| stage.counts.of(call)).sum::<u64>();
    let before = reads();
    let page = client.get(&address).await.body;
    assert!(reads() - before <= budget::BULK_READS, "{}", reads() - before);
    assert!(page.contains("Retry 500 dead letters?") && page.contains("of 512 with this reason"), "{page}");
    assert_eq!(order(&mut client, &page, "smtp is back").await.status, 303);
    let page = client.get("/ns/default/queue/mail").await.body;
    let page = client.get(&button(&page, "Retry these 12")).await.body;
    assert_eq!(order(&mut client, &page, "smtp is back").await.status, 303);
    let page = client.get(&address).await.body;
    assert!(page.contains("No such dead letters any more") && !page.contains("name=\"why\""), "{page}");
}

#[tokio::test]
async fn a_bulk_order_needs_a_key_that_operates_on_the_queue_and_the_sessions_token() {
    let stage = Stage::start().await;
    let mail = queue(&stage, "mail");
    let dead = dead_letters(&stage, "mail", "smtp", 3).await;
    let mut ada = Client::signed_in(&stage, &stage.key("ada", ALL, &["*"], None).await).await;
    let page = ada.get("/ns/default/queue/mail").await.body;
    let address = button(&page, "Retry these 3");
    let form = ada.get(&address).await.body;
    let items = field(&form, "items");
    let reader = stage.key("eve", "read", &["*"], None).await;
    let elsewhere = stage.key("mallory", ALL, &["team-b"], None).await;
    for (key, says) in [(reader, "does not allow `operate`"), (elsewhere, "")] {
        let mut client = Client::signed_in(&stage, &key).await;
        let page = client.get("/ns/default/queue/mail").await.body;
        assert!(!page.contains("Retry these") && !page.contains("Purge these"), "{page}");
        let answer = client.get(&address).await;
        assert!(answer.status == 403 && answer.body.contains(says), "{}", answer.body);
        let token = field(&client.get("/ns/default/leases").await.body, "token");
        for order in ["retry", "purge"] {
            let fields = [("token", token.as_str()), ("order", order), ("items", &items), ("why", "x")];
            let answer = client.post("/ns/default/queue/mail/dead-letters", &fields).await;
            assert!(answer.status == 403 && answer.body.contains(says), "{order}: {}", answer.body);
        }
    }
    let token = field(&form, "token");
    for (token, order, items) in [
        ("", "retry", items.as_str()),
        (&token[1..], "retry", &items),
        (&token, "cancel", &items),
        (&token, "retry", ""),
        (&token, "retry", "nonsense"),
    ] {
        let fields = [("token", token), ("order", order), ("items", items), ("why", "x")];
        assert_eq!(ada.post("/ns/default/queue/mail/dead-letters", &fields).await.status, 400, "{order} {items}");
    }
    for id in &dead {
        assert!(matches!(mail.inspect(id).await.unwrap().item.state, State::Dead { .. }), "{id}");
    }
}

#[tokio::test]
async fn where_each_dead_letter_has_a_reason_of_its_own_a_bounded_number_is_shown() {
    let stage = Stage::start().await;
    for n in 0..60 {
        dead_letters(&stage, "mail", &format!("order {n:03} timed out"), 1).await;
    }
    dead_letters(&stage, "mail", "550 mailbox unavailable", 2).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/queue/mail").await.body;
    assert_eq!(page.matches("<details class=\"group\"").count(), 50);
    assert!(page.contains("550 mailbox unavailable") && page.contains("order 048 timed out"), "{page}");
    assert!(!page.contains("order 049 timed out"), "the most frequent come first, then by name: {page}");
    assert!(page.contains("11 more have 11 other reasons: <code>leasehold queue ls mail --dead</code>"), "{page}");
}
