//! How often the server is asked, and whether it wakes those who wait.

use super::{Opener, ask, fresh_lease, granted, ttl, warm_up};
use crate::Proxy;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{Coordinator, Outcome, Ttl};
use std::time::Duration;

/// Acquiring takes at most two exchanges, and a name's first time two more, which ask before and after whether its namespace is
/// being moved; renewing and releasing take one each, once the connection stands.
///
/// # Panics
/// If it takes more.
pub async fn round_trips_are_few(port: u16, opener: &Opener) {
    let proxy = Proxy::start(port);
    let leases = opener.leases(proxy.port()).await;
    warm_up(&leases).await;
    for known in [false, true] {
        // A lease that was held before takes the other branch of the swap.
        let lease = fresh_lease("trips");
        if known {
            let grant = granted(leases.acquire(&lease, &ask(Ttl::MAX)).await.unwrap()).unwrap();
            leases.release(&grant, Outcome::Succeeded).await.unwrap();
        }
        let start = proxy.exchanges();
        let mut grant = granted(leases.acquire(&lease, &ask(Ttl::MAX)).await.unwrap()).unwrap();
        let acquired = proxy.exchanges();
        leases.renew(&mut grant, None).await.unwrap();
        let renewed = proxy.exchanges();
        leases.release(&grant, Outcome::Succeeded).await.unwrap();
        let released = proxy.exchanges();
        assert!(acquired > start, "the client went around the proxy");
        assert!(acquired - start <= if known { 2 } else { 4 }, "acquiring took {} exchanges", acquired - start);
        assert!(renewed - acquired == 1, "renewing took {} exchanges", renewed - acquired);
        assert!(released - renewed == 1, "releasing took {} exchanges", released - renewed);
    }
}

/// A waiter has the lease well before it would have looked by itself.
///
/// # Panics
/// If it was not woken.
pub async fn a_release_wakes_the_waiter(port: u16, opener: &Opener) {
    let (holder, waiter) = (opener.leases(port).await, opener.leases(port).await);
    warm_up(&holder).await;
    warm_up(&waiter).await;
    let mut waits = Vec::new();
    for _ in 0..5 {
        waits.push(wait_for_release(&holder, &waiter).await);
    }
    waits.sort();
    // Waiters look once a second by themselves; being woken takes a few milliseconds.
    assert!(waits[2] < Duration::from_millis(200), "half of the waiters waited longer than {:?}", waits[2]);
}

async fn wait_for_release(holder: &Coordinator, waiter: &Coordinator) -> Duration {
    let lease = fresh_lease("waking");
    let grant = granted(holder.acquire(&lease, &ask(ttl(60))).await.unwrap()).unwrap();
    let waiting = tokio::spawn({
        let (waiter, lease) = (waiter.clone(), lease.clone());
        async move {
            let grant = granted(waiter.acquire_within(&[lease], &ask(ttl(60)), Duration::from_secs(20)).await.unwrap());
            (grant.expect("the lease was released"), SystemClock.now())
        }
    });
    // The waiter must have looked and settled down; nothing tells from outside, and being early only makes it faster.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let released = SystemClock.now();
    holder.release(&grant, Outcome::Succeeded).await.unwrap();
    let (grant, acquired) = waiting.await.unwrap();
    waiter.release(&grant, Outcome::Succeeded).await.unwrap();
    acquired.saturating_since(released)
}
