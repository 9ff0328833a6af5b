//! Leases by the front door, on every store that needs no server, with a real file behind a guard.

#![allow(clippy::unwrap_used)]

mod support;

use leasehold::{Error, Kind, Loss, Outcome, Run};
use std::future::pending;
use support::{Dropped, look, revoke, stores};

#[tokio::test]
async fn a_second_holder_is_skipped_and_told_who_is_at_it() {
    let (_folder, stores) = stores().await;
    for (store, leases) in stores {
        let ran = leases
            .lease("nightly")
            .label("first")
            .run(async |held| {
                let second = leases.lease("nightly").run(async |_| Ok::<_, leasehold::Error>(())).await?;
                let Run::Skipped(busy) = second else { panic!("{store}: {second:?}") };
                assert_eq!((busy.lease(), busy.epoch()), ("nightly", Some(held.epoch())), "{store}");
                assert_eq!(busy.holder().unwrap().label().as_str(), "first", "{store}");
                assert!(busy.expires_in().unwrap().as_secs() <= 90 && !busy.is_paused(), "{store}");
                assert!(busy.to_string().starts_with("`nightly` is held by first ("), "{store}: {busy}");
                let error = leases.lease("nightly").acquire().await.unwrap_err();
                assert_eq!((error.kind(), error.holder()), (Kind::Contended, busy.holder()), "{store}");
                Ok::<_, leasehold::Error>(held.epoch().get())
            })
            .await
            .unwrap();
        assert_eq!(ran.ran(), Some(1), "{store}");
        assert_eq!(look(&leases, "nightly").await.record.transfers[0].outcome, Some(Outcome::Succeeded), "{store}");
    }
}

#[tokio::test]
async fn a_loss_stops_the_work() {
    let (_folder, stores) = stores().await;
    for (store, leases) in stores {
        let dropped = Dropped::default();
        let run = leases.lease("nightly").ttl("3s").run(async |_| {
            let _tells = dropped.with_me();
            revoke(&leases, "nightly").await;
            pending::<leasehold::Result<()>>().await
        });
        let Run::Lost(loss) = run.await.unwrap() else { panic!("{store}: it was not lost") };
        assert!(matches!(loss, Loss::Moved(_)), "{store}: {loss:?}");
        assert!(loss.to_string().contains("revoked by an operator (a test)"), "{store}: {loss}");
        assert!(dropped.is_it(), "{store}");
    }
}

#[tokio::test]
async fn work_that_ends_after_the_lease_was_taken_away_is_lost() {
    let leases = leasehold::Leases::on(leasehold::store::memory());
    let run = leases.lease("nightly").run(async |_| {
        revoke(&leases, "nightly").await;
        Ok::<_, leasehold::Error>(())
    });
    assert!(matches!(run.await.unwrap(), Run::Lost(Loss::Moved(_))));
}

#[tokio::test]
async fn a_stale_write_is_refused_and_changes_nothing() {
    let (folder, stores) = stores().await;
    for (store, leases) in stores {
        let path = folder.path().join(format!("{store}.json"));
        let out = leasehold::guard::file(&path).unwrap();
        let stale = leases.lease("nightly").guard(&out).acquire().await.unwrap();
        out.write(&stale, "by the first").await.unwrap();
        revoke(&leases, "nightly").await;
        let next = leases.lease("nightly").guard(&out).acquire().await.unwrap();
        let error = out.write(&stale, "too late").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Fenced, "{store}: {error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "by the first", "{store}");
        out.write(&next, "by the second").await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "by the second", "{store}");
        assert_eq!(error.epochs(), Some((stale.epoch(), next.epoch())), "{store}");
        let (held, seen) = (stale.epoch(), next.epoch());
        let lost = stale.release(Outcome::Failed).await.unwrap_err();
        assert_eq!((lost.kind(), lost.epochs()), (Kind::Lost, Some((held, seen))), "{store}: {lost}");
        assert!(lost.holder().is_some() && lost.reason().is_some(), "{store}: {lost:?}");
        next.release(Outcome::Succeeded).await.unwrap();
    }
}

#[tokio::test]
async fn a_guard_that_refuses_leaves_the_lease_free_and_the_work_unbegun() {
    let (folder, stores) = stores().await;
    for (store, leases) in stores {
        let out = leasehold::guard::file(folder.path().join(format!("{store}.json"))).unwrap();
        leases.lease("a").guard(&out).run(async |held| out.write(&held, "x").await).await.unwrap().ran().unwrap();
        let run = leases.lease("b").guard(&out).run(async |_| -> leasehold::Result<()> { panic!("begun") });
        let error = run.await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{store}: {error}");
        let record = look(&leases, "b").await.record;
        assert_eq!(record.transfers[0].outcome, Some(Outcome::NotStarted), "{store}");
        assert!(record.tenure.is_none(), "{store}");
    }
}

#[tokio::test]
async fn an_error_of_the_work_is_given_as_it_is_and_recorded() {
    #[derive(Debug)]
    enum Own {
        Lease(Error),
        Work(u32),
    }
    impl From<Error> for Own {
        fn from(error: Error) -> Self {
            Own::Lease(error)
        }
    }
    let leases = leasehold::Leases::on(leasehold::store::memory());
    let run = leases.lease("nightly").run(async |_| -> Result<(), Own> { Err(Own::Work(7)) });
    assert!(matches!(run.await, Err(Own::Work(7))));
    assert_eq!(look(&leases, "nightly").await.record.transfers[0].outcome, Some(Outcome::Failed));
    let run = leases.lease("no such name\n").run(async |_| -> Result<(), Own> { Ok(()) });
    assert!(matches!(run.await, Err(Own::Lease(error)) if error.kind() == Kind::Invalid));
}

#[tokio::test]
async fn what_is_wrong_is_said_when_the_lease_is_asked_for_and_names_the_field() {
    let leases = leasehold::Leases::on(leasehold::store::memory());
    let wrong = [
        (leases.lease(""), "invalid lease name ``"),
        (leases.lease("x").ttl("90"), "invalid duration `90`"),
        (leases.lease("x").ttl("25h"), "invalid ttl `1d1h`"),
        (leases.lease("x").wait("soon"), "invalid duration `soon`"),
        (leases.lease("x").wait("1x").ttl("worse"), "invalid duration `1x`"),
        (leases.lease("x").label("\n"), "invalid label `\\n`"),
        (leases.lease("x").progress_timeout("-1s"), "invalid duration `-1s`"),
    ];
    for (lease, says) in wrong {
        let error = lease.acquire().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().starts_with(says), "`{error}` does not begin with `{says}`");
    }
    for (lease, field) in [(leases.lease("x").wait("soon"), "wait"), (leases.lease("x").ttl("90"), "ttl")] {
        let error = lease.acquire().await.unwrap_err();
        assert!(error.to_string().ends_with(&format!("(in `{field}`)")), "{error}");
    }
    assert!(look(&leases, "x").await.record.transfers.is_empty(), "nothing was asked for");
    assert_eq!(leasehold::connect("ftp://x").await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn a_waiter_gets_the_lease_when_it_is_released() {
    let (_folder, stores) = stores().await;
    for (store, leases) in stores {
        let held = leases.lease("nightly").acquire().await.unwrap();
        let waiter = tokio::spawn({
            let leases = leases.clone();
            async move { leases.lease("nightly").wait("1m").acquire().await }
        });
        held.release(Outcome::Succeeded).await.unwrap();
        assert_eq!(waiter.await.unwrap().unwrap().epoch().get(), 2, "{store}");
    }
}

#[tokio::test]
async fn a_dropped_lease_is_not_released_and_runs_out_after_its_ttl() {
    let (_folder, stores) = stores().await;
    for (store, leases) in stores {
        drop(leases.lease("nightly").ttl("2s").acquire().await.unwrap());
        let error = leases.lease("nightly").acquire().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Contended, "{store}: {error}");
        let next = leases.lease("nightly").wait("1m").acquire().await.unwrap();
        assert_eq!(next.epoch().get(), 2, "{store}");
        assert_eq!(look(&leases, "nightly").await.record.transfers[0].outcome, Some(Outcome::Expired), "{store}");
    }
}

#[tokio::test]
async fn a_lease_that_is_kept_outlives_its_ttl() {
    let (_folder, stores) = stores().await;
    for (store, leases) in stores {
        let held = leases.lease("nightly").ttl("1s").acquire().await.unwrap();
        let waited = leases.lease("nightly").wait("2s").acquire().await;
        assert_eq!(waited.unwrap_err().kind(), Kind::Contended, "{store}");
        held.release(Outcome::Succeeded).await.unwrap();
    }
}

#[tokio::test]
async fn what_one_holder_leaves_the_next_one_finds() {
    let (_folder, stores) = stores().await;
    for (store, leases) in stores {
        let first = leases.lease("nightly").acquire().await.unwrap();
        assert_eq!(first.previous_checkpoint(), None, "{store}");
        first.progress("3 of 10").await.unwrap();
        first.checkpoint("offset=300").await.unwrap();
        assert_eq!(first.progress("two\nlines").await.unwrap_err().kind(), Kind::Invalid, "{store}");
        first.release(Outcome::Failed).await.unwrap();
        let second = leases.lease("nightly").acquire().await.unwrap();
        assert_eq!(second.previous_checkpoint(), Some("offset=300"), "{store}");
    }
}

#[tokio::test]
async fn work_without_progress_loses_the_lease_and_leaves_it_free() {
    let leases = leasehold::Leases::on(leasehold::store::memory());
    let dropped = Dropped::default();
    let run = leases.lease("nightly").progress_timeout("300ms").run(async |held| {
        let _tells = dropped.with_me();
        held.progress("begun").await?;
        pending::<leasehold::Result<()>>().await
    });
    let Run::Lost(loss) = run.await.unwrap() else { panic!("it was not lost") };
    assert!(matches!(loss, Loss::Stalled { .. }) && dropped.is_it(), "{loss:?}");
    leases.lease("nightly").acquire().await.unwrap().release(Outcome::Succeeded).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_can_be_a_task_of_its_own() {
    let (folder, stores) = stores().await;
    for (store, leases) in stores {
        let out = leasehold::guard::file(folder.path().join(format!("{store}.json"))).unwrap();
        let task = tokio::spawn(async move {
            let run = leases.lease("nightly").guard(&out).run(async |held| {
                held.progress("begun").await?;
                out.write(&held, "by a task").await
            });
            run.await
        });
        assert!(task.await.unwrap().unwrap().ran().is_some(), "{store}");
    }
}
