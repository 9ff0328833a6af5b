//! What is left of an order: who gave it and why, and what was typed if nothing was done.

use crate::scene::{MINUTE, acquire, dead_letters, holder, name, queue};
use crate::stage::{Client, Stage, field};
use leasehold_core::lease::protocol::Order;
use leasehold_core::{Who, Why};
use leasehold_work::queue::ItemId;
use std::time::Duration;

const ALL: &str = "read,hold,work,operate";
const LEASE: &str = "/ns/default/lease/a";

async fn operator(stage: &Stage) -> Client {
    Client::signed_in(stage, &stage.key("ada", ALL, &["*"], None).await).await
}

/// The hidden fields of the form for an order.
fn form(page: &str, order: &str) -> String {
    page.split(&format!("id=\"order-{order}\"")).nth(1).unwrap().split("</form>").next().unwrap().to_owned()
}

async fn until_gone(stage: &Stage, name: &str, ids: &[ItemId]) {
    let queue = queue(stage, name);
    for id in ids {
        while queue.inspect(id).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn until_nobody_is_connected(stage: &Stage) {
    while stage.site.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_purge_goes_on_without_its_browser_and_the_log_has_its_beginning_and_its_end() {
    let stage = Stage::start().await;
    let dead = dead_letters(&stage, "mail", "smtp", 5).await;
    stage.clock.advance(MINUTE * 2);
    let mut client = operator(&stage).await;
    let path = "/ns/default/queue/mail/dead-letters";
    let page = client.get(&format!("{path}?order=purge&reason=smtp")).await.body;
    let (token, items) = (field(&page, "token"), field(&page, "items"));
    stage.gate.shut(true);
    let fields = [("token", token.as_str()), ("order", "purge"), ("items", &items), ("why", "not ours")];
    let stream = client.post_and_leave(path, &fields).await;
    stage.gate.until_waiting().await;
    let begun = stage.log.line("purging ").expect("the beginning is logged");
    for part in ["queue=\"mail\"", "counted=5", "why=\"not ours\"", "key="] {
        assert!(begun.contains(part), "{part}: {begun}");
    }
    drop(stream);
    until_nobody_is_connected(&stage).await;
    assert!(stage.log.line("purged ").is_none());
    stage.gate.shut(false);
    until_gone(&stage, "mail", &dead).await;
    while stage.log.line("purged ").is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(stage.log.line("purged ").unwrap().contains("items=5 left=0"));
}

#[tokio::test]
async fn a_purge_over_the_api_goes_on_without_its_client_too() {
    let stage = Stage::start().await;
    let dead = dead_letters(&stage, "mail", "smtp", 5).await;
    stage.clock.advance(MINUTE * 5);
    let bearer = format!("Bearer {}", stage.key("ada", ALL, &["*"], None).await);
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let path = "/v1/ns/default/queues/mail/bulk";
    let count = r#"{"act": "purge", "older_than": "1m", "with_dead": true}"#;
    let counted = Client::new(&stage).send("POST", &format!("{path}/count"), &headers, count).await.body;
    let confirm = counted.split("\"confirm\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    stage.gate.shut(true);
    let body = format!("{{\"confirm\": \"{confirm}\", \"why\": \"not ours\"}}");
    let mut client = Client::new(&stage);
    let purge = format!("{path}/purge");
    {
        let asking = client.send("POST", &purge, &headers, &body);
        tokio::select! {
            answer = asking => panic!("{answer:?}"),
            () = stage.gate.until_waiting() => {}
        }
    }
    let begun = stage.log.line("purging items").expect("the beginning is logged");
    assert!(begun.contains("queue=\"mail\"") && begun.contains("why=\"not ours\""), "{begun}");
    until_nobody_is_connected(&stage).await;
    stage.gate.shut(false);
    until_gone(&stage, "mail", &dead).await;
    while stage.log.line("purged items").is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn who_ended_a_pause_and_why_is_shown_with_the_lease_and_the_job() {
    let stage = Stage::start().await;
    acquire(&stage.leases(), "a", holder("box-1", "first", 1), "10h").await;
    let mut client = operator(&stage).await;
    for (order, why) in [("pause", "freeze until Monday"), ("resume", "it is <Monday>")] {
        let page = client.get(LEASE).await.body;
        let form = form(&page, order);
        let mut fields = vec![("token", field(&form, "token")), ("epoch", field(&form, "epoch"))];
        fields.extend([("order", order.to_owned()), ("why", why.to_owned())]);
        if order == "resume" {
            fields.push(("pause", field(&form, "pause")));
        }
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(client.post(LEASE, &fields).await.status, 303);
    }
    let page = client.get(LEASE).await.body;
    let told = page.split("Last resumed").nth(1).unwrap_or_else(|| panic!("{page}"));
    assert!(told.contains("by ada (key ") && told.contains(": it is &#60;Monday&#62;"), "{page}");
    // A request to finish whose time is over is still told.
    let (who, why) = (Who::new("grace").unwrap(), Why::new("upgrade").unwrap());
    let order = Order::Drain { within: "10m".parse().unwrap() };
    stage.leases().operate(&name("a"), who, why, order).await.unwrap();
    stage.clock.advance(MINUTE * 11);
    let page = client.get(LEASE).await.body;
    assert!(page.contains("Last asked to finish") && page.contains("by grace: upgrade"), "{page}");
}

#[tokio::test]
async fn a_refused_order_keeps_what_was_typed() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    acquire(&leases, "a", holder("box-1", "first", 1), "10h").await;
    let mut client = operator(&stage).await;
    let token = field(&client.get(LEASE).await.body, "token");
    // Too long, as the store counts: two bytes for each letter.
    let long = "\u{436}".repeat(300);
    let fields = [("token", token.as_str()), ("epoch", "1"), ("order", "drain"), ("within", "25m"), ("why", &long)];
    let answer = client.post(LEASE, &fields).await;
    assert!(answer.status == 400 && answer.body.contains("it has 600 bytes"), "{}", answer.body);
    let form_of = |page: &str| form(page, "drain");
    let form = form_of(&answer.body);
    assert!(form.contains(&format!("name=\"why\" value=\"{long}\"")) && form.contains("value=\"25m\""), "{form}");
    assert!(form.contains(" open>"), "{form}");
    assert!(!form.contains("maxlength"), "a browser would cut what is pasted, and count otherwise");
    // The lease has moved on.
    let fields = [("token", token.as_str()), ("epoch", "7"), ("order", "drain"), ("within", "25m"), ("why", "upgrade")];
    let answer = client.post(LEASE, &fields).await;
    assert_eq!(answer.status, 409);
    let form = form_of(&answer.body);
    assert!(form.contains("value=\"upgrade\"") && form.contains("Ask to finish at epoch 1"), "{form}");
    // The order is no longer there to be given.
    let (who, why) = (Who::new("t").unwrap(), Why::new("t").unwrap());
    leases.operate(&name("a"), who, why, Order::Pause).await.unwrap();
    let fields = [("token", token.as_str()), ("epoch", "1"), ("order", "pause"), ("why", "a long <story>")];
    let answer = client.post(LEASE, &fields).await;
    assert!(answer.status == 409 && answer.body.contains("You wrote: a long &#60;story&#62;"), "{}", answer.body);
}

#[tokio::test]
async fn a_refused_order_about_many_keeps_what_was_typed() {
    let stage = Stage::start().await;
    dead_letters(&stage, "mail", "smtp", 3).await;
    let mut client = operator(&stage).await;
    let path = "/ns/default/queue/mail/dead-letters";
    let page = client.get(&format!("{path}?order=retry&reason=smtp")).await.body;
    let (token, items) = (field(&page, "token"), field(&page, "items"));
    let long = "\u{436}".repeat(300);
    let reason = field(&page, "reason");
    let fields =
        [("token", token.as_str()), ("order", "retry"), ("items", &items), ("reason", &reason), ("why", &long)];
    let answer = client.post(path, &fields).await;
    assert!(answer.status == 400 && answer.body.contains("it has 600 bytes"), "{}", answer.body);
    assert!(answer.body.contains(&format!("value=\"{long}\"")) && answer.body.contains("Retry 3 dead letters?"));
    assert_eq!(field(&answer.body, "items"), items);
}

#[tokio::test]
async fn a_hand_off_says_for_how_long_and_lets_that_be_set() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    acquire(&leases, "a", holder("box-1", "first", 1), "10h").await;
    let mut client = operator(&stage).await;
    let form = form(&client.get(LEASE).await.body, "hand-off");
    assert!(form.contains("name=\"ttl\" value=\"5m\""), "{form}");
    let token = field(&form, "token");
    let fields =
        [("token", token.as_str()), ("epoch", "1"), ("order", "hand-off"), ("to", "eve"), ("ttl", "2h"), ("why", "x")];
    let answer = client.post(LEASE, &fields).await;
    assert!(answer.status == 200 && answer.body.contains("Handed off for 2h"), "{}", answer.body);
    let tenure = leases.inspect(&name("a")).await.unwrap().record.tenure.unwrap();
    assert_eq!(tenure.ttl.get(), MINUTE * 120);
}

#[tokio::test]
async fn a_lease_that_was_revoked_on_purpose_is_not_called_lost() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    acquire(&leases, "a", holder("box-1", "first", 1), "10h").await;
    let (who, why) = (Who::new("grace").unwrap(), Why::new("upgrade").unwrap());
    leases.operate(&name("a"), who, why, Order::Revoke).await.unwrap();
    let mut client = operator(&stage).await;
    for page in ["leases", "leases?state=lost"] {
        let body = client.get(&format!("/ns/default/{page}")).await.body;
        assert!(body.contains("state revoked\">revoked<") && !body.contains("state lost"), "{body}");
        assert!(body.contains("revoked by grace: upgrade"), "{body}");
    }
}
