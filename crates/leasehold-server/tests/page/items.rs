//! An item's page: what its runs printed.

use crate::scene::{holder, name, queue};
use crate::stage::{Client, Stage};
use leasehold_work::output::{self, Ring, RunOutput};
use leasehold_work::queue::{ItemGrant, ItemId, NewItem, Queue, Reason};

async fn claim(queue: &Queue, id: &ItemId) -> ItemGrant {
    queue.claim_item(id, holder("box-1", "mailer", 7), "1h".parse().unwrap()).await.unwrap().unwrap()
}

async fn print(stage: &Stage, claim: &ItemGrant, text: &str) {
    let (leases, token) = (stage.leases(), claim.token());
    let output = RunOutput {
        lease: token.lease.clone(),
        epoch: token.epoch,
        slot: None,
        host: "box-1".to_owned(),
        at: leases.inspect(&name("any")).await.unwrap().now,
        exit: Some(1),
        why: None,
        usage: None,
        bytes: text.len() as u64,
        file: None,
        is_cut: false,
        tail: text.to_owned(),
    };
    output::write(&leases, &Ring::of_queue(&claim.name().queue, 50), token, &output).await.unwrap();
}

#[tokio::test]
async fn what_the_last_run_of_an_item_printed_is_hidden_until_it_is_asked_for() {
    let stage = Stage::start().await;
    let mail = queue(&stage, "mail");
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(mail.add(NewItem::default()).await.unwrap().name().id.clone());
    }
    // Another queue's records and a lease's come before and behind.
    let other = queue(&stage, "mail2");
    let near = other.add(NewItem::default()).await.unwrap().name().id.clone();
    print(&stage, &claim(&other, &near).await, "of another queue").await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read,operate", &["*"], None).await).await;
    let page = format!("/ns/default/item/mail/{}", ids[0]);
    assert!(!client.get(&page).await.body.contains("id=\"output\""), "nobody has run it");
    for text in ["first\n", "connecting\rconnecting 100%\n<b>550</b> mailbox unavailable\n"] {
        let claim = claim(&mail, &ids[0]).await;
        print(&stage, &claim, text).await;
        mail.fail(&claim, Reason::new("exit 1").unwrap(), Some(std::time::Duration::ZERO), false).await.unwrap();
    }
    let body = client.get(&page).await.body;
    assert!(
        !body.contains("mailbox unavailable") && body.contains(&format!("href=\"{page}?output=shown#output\"")),
        "{body}"
    );
    let body = client.get(&format!("{page}?output=shown")).await.body;
    for says in ["connecting 100%\n&#60;b&#62;550&#60;/b&#62; mailbox unavailable", "Of the run under epoch 2"] {
        assert!(body.contains(says) && !body.contains("first\n"), "{says}: {body}");
    }
    // Each can be shown beside the other.
    assert!(body.contains(&format!("href=\"{page}?payload=shown&#38;output=shown#payload\"")), "{body}");
    mail.fail(&claim(&mail, &ids[1]).await, Reason::new("exit 1").unwrap(), None, false).await.unwrap();
    let body = client.get(&format!("/ns/default/item/mail/{}?output=shown", ids[1])).await.body;
    assert!(
        body.contains("None is kept") && !body.contains("mailbox unavailable") && !body.contains("another queue"),
        "{body}"
    );
}
