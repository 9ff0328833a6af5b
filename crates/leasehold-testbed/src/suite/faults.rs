//! Connections cut before a request, after it, and before its answer.

use super::{Opener, acquire_in_the_end, ask, fresh_lease, granted, is_outage, ttl, warm_up};
use crate::{Fault, Proxy};
use leasehold_core::{Acquired, Coordinator, Epoch, Error, Grant, LeaseName, Outcome};

/// Whichever exchange of a tenure is cut, and wherever: nobody else is let in, no epoch is given twice, a lost answer is
/// found again by its nonce, and the client works on without being opened again.
///
/// # Panics
/// If harm was done.
pub async fn cut_connections_do_no_harm(port: u16, opener: &Opener) {
    let proxy = Proxy::start(port);
    let cut = opener.leases(proxy.port()).await;
    let witness = opener.leases(port).await;
    warm_up(&cut).await;
    let mut struck = 0;
    for fault in [Fault::CutRequest, Fault::CutAfterRequest, Fault::CutReply] {
        // A read and a swap to acquire, a swap to renew, a swap to release.
        for spared in 0..4 {
            let lease = fresh_lease("cut");
            proxy.arm(fault, spared);
            let tried = tenure(&cut, &witness, &lease).await;
            struck += u32::from(!proxy.disarm());
            let what = format!("{fault:?} after {spared} exchanges");
            check(&cut, &witness, &lease, tried, &what).await;
        }
    }
    assert!(struck >= 10, "only {struck} of 12 faults struck: the test does not test");
}

/// The epoch of a lease's first grant.
fn first() -> Epoch {
    Epoch::new(1).unwrap()
}

/// What became of a tenure whose connection was cut somewhere.
struct Tried {
    grant: Option<Grant>,
    errors: Vec<Error>,
}

async fn tenure(cut: &Coordinator, witness: &Coordinator, lease: &LeaseName) -> Tried {
    let mut tried = Tried { grant: None, errors: Vec::new() };
    match cut.acquire(lease, &ask(ttl(30))).await {
        Ok(acquired) => tried.grant = granted(acquired),
        Err(error) => tried.errors.push(error),
    }
    let Some(grant) = &mut tried.grant else { return tried };
    if let Err(error) = cut.renew(grant, None).await {
        tried.errors.push(error);
    }
    let other = witness.acquire(lease, &ask(ttl(30))).await.unwrap();
    assert!(matches!(other, Acquired::Refused { .. }), "a second holder was let in");
    if let Err(error) = cut.release(grant, Outcome::Succeeded).await {
        tried.errors.push(error);
    }
    tried
}

async fn check(cut: &Coordinator, witness: &Coordinator, lease: &LeaseName, tried: Tried, what: &str) {
    for error in &tried.errors {
        assert!(is_outage(error.kind()), "{what} looked like {}: {error}", error.kind().as_str());
        assert!(!error.to_string().contains('\n'), "{what}: {error}");
    }
    let record = witness.inspect(lease).await.unwrap().record;
    match &tried.grant {
        Some(grant) => {
            assert_eq!(grant.token().epoch, first(), "{what}: one grant is one epoch");
            assert_eq!(record.epoch, grant.token().epoch, "{what}: the record knows the grant");
        }
        // Not told, so it may or may not have been granted: but once at most.
        None => assert!(record.epoch <= first(), "{what}: the record has epoch {}", record.epoch),
    }
    if record.tenure.is_some() {
        // The release did not get through: an operator need not wait for the end of the TTL either.
        let why = "the holder was cut off".parse().unwrap();
        witness
            .operate(lease, "suite".parse().unwrap(), why, leasehold_core::lease::protocol::Order::Revoke)
            .await
            .unwrap();
    }
    let before = witness.inspect(lease).await.unwrap().record.epoch;
    let again = acquire_in_the_end(cut, lease).await;
    assert!(again.token().epoch > before, "{what}: epoch {} after {before}", again.token().epoch);
}
