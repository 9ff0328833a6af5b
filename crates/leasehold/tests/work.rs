//! Queues and schedules by the front door.

#![allow(clippy::unwrap_used)]

mod support;

use leasehold::queue::NewItem;
use leasehold::{Kind, Loss, Run};
use leasehold_core::SlotState;
use std::cell::RefCell;
use std::future::pending;
use support::{Dropped, look, stores};

#[tokio::test]
async fn an_item_is_completed_once_and_its_follow_up_comes_after_it() {
    let (_folder, stores) = stores().await;
    for (store, leases) in stores {
        let emails = leases.queue("emails").unwrap();
        let added = emails.add(NewItem::new("to: ada").key("ada")).await.unwrap();
        assert!(added.is_new(), "{store}");
        let again = emails.add(NewItem::new("to: ada").key("ada")).await.unwrap();
        assert!(!again.is_new() && again.id() == added.id(), "{store}");

        let item = emails.claim().await.unwrap().unwrap();
        assert_eq!((item.payload(), item.number(), item.id().as_str()), (&b"to: ada"[..], 1, added.id()), "{store}");
        assert!(emails.claim().await.unwrap().is_none(), "{store}");
        item.complete_with(Some("sent"), vec!["to: bob".into()]).await.unwrap();

        let mut worker = emails.worker().unwrap();
        let ran = worker.run(async |item| Ok::<_, leasehold::Error>(item.payload().to_vec())).await.unwrap();
        assert_eq!(ran.ran().as_deref(), Some(&b"to: bob"[..]), "{store}");
        assert!(worker.claim_within("0s").await.unwrap().is_none(), "{store}");
    }
}

#[tokio::test]
async fn a_failed_attempt_is_tried_again_and_finds_what_was_left_for_it() {
    let (_folder, stores) = stores().await;
    for (store, leases) in stores {
        let jobs = leases.queue("jobs").unwrap().with_ttl("30s").unwrap().with_label("a worker").unwrap();
        jobs.add(NewItem::new("x").attempts(2).priority(9)).await.unwrap();
        let item = jobs.claim().await.unwrap().unwrap();
        item.checkpoint("half").await.unwrap();
        let key = item.idempotency_key();
        item.give_back().await.unwrap();
        let item = jobs.claim().await.unwrap().unwrap();
        assert_eq!((item.previous_checkpoint(), item.idempotency_key()), (Some("half"), key), "{store}");
        item.bury("it cannot be done").await.unwrap();
        assert!(jobs.claim().await.unwrap().is_none(), "{store}");
    }
}

#[tokio::test]
async fn an_error_of_the_work_fails_the_attempt() {
    let leases = leasehold::Leases::on(leasehold::store::memory());
    let jobs = leases.queue("jobs").unwrap();
    jobs.add(NewItem::new("x").attempts(1)).await.unwrap();
    let mut worker = jobs.worker().unwrap();
    let error = worker.run(async |_| Err::<(), leasehold::Error>(no_time())).await.unwrap_err();
    assert_eq!(error.to_string(), no_time().to_string());
    assert!(worker.claim_within("0s").await.unwrap().is_none(), "it was tried as often as it may be");
}

fn no_time() -> leasehold::Error {
    leasehold::Error::new(Kind::Unavailable, "no time")
}

#[tokio::test]
async fn a_lost_item_stops_the_work() {
    let (_folder, stores) = stores().await;
    for (store, leases) in stores {
        let jobs = leases.queue("jobs").unwrap().with_ttl("3s").unwrap();
        jobs.add("x").await.unwrap();
        let dropped = Dropped::default();
        let mut worker = jobs.worker().unwrap();
        let run = worker.run(async |item| {
            let _tells = dropped.with_me();
            cancel(&leases, &item.id()).await;
            pending::<leasehold::Result<()>>().await
        });
        let ran = run.await.unwrap();
        assert!(matches!(ran, Run::Lost(Loss::Moved(_))) && dropped.is_it(), "{store}: {ran:?}");
    }
}

/// What an operator does at the command.
async fn cancel(leases: &leasehold::Leases, id: &str) {
    use leasehold_core::item::protocol::Order;
    let queue = leasehold_work::queue::Queue::new(leases.store().clone(), "jobs".parse().unwrap());
    let (who, why) = ("an operator".parse().unwrap(), "a test".parse().unwrap());
    queue.operate(&id.parse().unwrap(), who, why, None, Order::Cancel).await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_an_item_is_said_when_it_is_added() {
    let leases = leasehold::Leases::on(leasehold::store::memory());
    assert_eq!(leases.queue("a/b").unwrap_err().kind(), Kind::Invalid);
    let jobs = leases.queue("jobs").unwrap();
    assert_eq!(jobs.clone().with_ttl("0s").unwrap_err().kind(), Kind::Invalid);
    let wrong = [
        NewItem::new(vec![0; 50_000]),
        NewItem::new("x").delay("soon"),
        NewItem::new("x").priority(10),
        NewItem::new("x").key(""),
    ];
    for item in wrong {
        assert_eq!(jobs.add(item).await.unwrap_err().kind(), Kind::Invalid);
    }
    assert!(jobs.claim().await.unwrap().is_none());
}

#[tokio::test]
async fn each_slot_is_run_by_one_of_two() {
    let (folder, stores) = stores().await;
    for (store, leases) in stores {
        let slots = RefCell::new(Vec::new());
        let out = leasehold::guard::file(folder.path().join(format!("{store}.txt"))).unwrap();
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let machine = || {
            let mut stopped = stopped.clone();
            let until = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
            leases.schedule("tick", "@every 1s").guard(&out).each_until(until, async |held| {
                out.write(&held, held.idempotency_key()).await?;
                slots.borrow_mut().push(held.slot().unwrap());
                if slots.borrow().len() == 3 {
                    stop.send_replace(true);
                }
                Ok::<_, leasehold::Error>(())
            })
        };
        let (one, two) = tokio::join!(machine(), machine());
        one.and(two).unwrap();
        let slots = slots.into_inner();
        assert!(slots.len() >= 3 && slots.is_sorted_by(|a, b| a < b), "{store}: {slots:?}");
        let mark = look(&leases, "tick").await.record.slot.unwrap();
        assert_eq!(mark.state, SlotState::Done, "{store}");
    }
}

#[tokio::test]
async fn a_dropped_schedule_drops_its_work_and_begins_nothing_new() {
    let leases = leasehold::Leases::on(leasehold::store::memory());
    let dropped = Dropped::default();
    let (began, mut begun) = tokio::sync::mpsc::unbounded_channel();
    {
        let schedule = leases.schedule("tick", "@every 1s").each(async |_| {
            let _tells = dropped.with_me();
            began.send(()).unwrap();
            pending::<leasehold::Result<()>>().await
        });
        tokio::select! {
            ended = schedule => panic!("{ended:?}"),
            _ = begun.recv() => {}
        }
    }
    assert!(dropped.is_it());
    let seen = look(&leases, "tick").await;
    assert_eq!(seen.record.slot.unwrap().state, SlotState::Running, "it is found to have died, and run again");
}

#[tokio::test]
async fn what_is_wrong_with_a_schedule_is_said_when_it_is_run() {
    let leases = leasehold::Leases::on(leasehold::store::memory());
    let schedule = |line| leases.schedule("tick", line);
    let wrong = [
        schedule("61 * * * *"),
        schedule("@every 1500ms"),
        schedule("* * * * *").zone("Europe/Atlantis"),
        schedule("* * * * *").ttl("x"),
        schedule("* * * * *").catch_up(0, "1d"),
        leases.schedule("", "* * * * *"),
    ];
    for schedule in wrong {
        let error = schedule.each(async |_| Ok::<_, leasehold::Error>(())).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
}

#[tokio::test]
async fn a_guard_that_will_never_admit_ends_the_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let leases = leasehold::Leases::on(leasehold::store::memory());
    let out = leasehold::guard::file(folder.path().join("out")).unwrap();
    leases.lease("other").guard(&out).run(async |held| out.write(&held, "x").await).await.unwrap().ran().unwrap();
    let schedule = leases.schedule("tick", "@every 1s").guard(&out);
    let error = schedule.each(async |_| -> leasehold::Result<()> { panic!("begun") }).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_and_schedules_can_be_tasks_of_their_own() {
    let leases = leasehold::Leases::on(leasehold::store::memory());
    let jobs = leases.queue("jobs").unwrap();
    jobs.add("x").await.unwrap();
    let worker = tokio::spawn(async move {
        let mut worker = jobs.worker().unwrap();
        let ran = worker.run(async |item| item.progress("begun").await).await;
        ran.unwrap().ran().unwrap();
    });
    worker.await.unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let schedule = tokio::spawn(async move {
        let mut stopped = stopped;
        let until = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
        let ran = leases.schedule("tick", "@every 1s").each_until(until, async |held| {
            stop.send_replace(true);
            held.progress("begun").await
        });
        ran.await.unwrap();
    });
    schedule.await.unwrap();
}
