//! An operator gives the resource to another lease, behind the back of a proxy that answers for it.

use crate::rig::{Proxied, Store, author, eventually};
use crate::upstream::Upstream;
use leasehold_core::Kind;
use leasehold_core::guard::{Adopt, Guard, HighWater};
use leasehold_guards::{Behind, StoreFence};
use std::sync::Arc;

pub fn a_running_proxy_follows() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = Store::open_in(folder.path());
    let upstream = Upstream::start();
    let proxy = Proxied::start(&store, &upstream.url(), "api");
    proxy.wait_active();
    let (old, new) = (store.transfer(&"job".parse().unwrap()), store.transfer(&"other".parse().unwrap()));
    assert_eq!(proxy.write(&old, "/write").unwrap().status, 200);
    assert_eq!(proxy.write(&new, "/write").unwrap().status, 403);
    let state = folder.path().join("state");
    let operator = Store::open_itself_in(folder.path());
    let fence = StoreFence::new(
        operator.leases.clone(),
        Arc::new(operator.leases.clone()),
        Behind::Proxies,
        &"api".parse().unwrap(),
        Some(&state),
    )
    .unwrap();
    let (by, why) = ("test".parse().unwrap(), "the job has a new name".parse().unwrap());
    let from = operator.run(fence.high_water()).unwrap().unwrap();
    let wrong = HighWater { epoch: new.epoch, nonce: new.nonce, ..from.clone() };
    assert_eq!(operator.run(fence.adopt(&wrong, &new, &by, &why)).unwrap_err().kind(), Kind::Contended);
    assert_eq!(proxy.write(&old, "/write").unwrap().status, 200);
    let adopted = operator.run(fence.adopt(&from, &new, &by, &why)).unwrap();
    assert_eq!(adopted, HighWater::of(&new, 0));
    // The proxy still has the former fence in memory, and sends nothing that the fence in the store does not cover.
    let late = proxy.write(&old, "/write").unwrap();
    assert!(matches!(late.status, 403 | 503), "{late:?}");
    assert_eq!(proxy.write_until(&new).0.status, 200);
    eventually("the former lease is refused as another's", || proxy.write(&old, "/write").unwrap().status == 403);
    let log: Vec<String> = upstream.applied().iter().map(crate::upstream::Applied::author).collect();
    assert_eq!(log, [author(&old), author(&old), author(&new)]);
    // So is it by a proxy that starts afterwards.
    let next = Proxied::start(&store, &upstream.url(), "api");
    drop(proxy);
    next.wait_active();
    assert_eq!(next.write(&old, "/write").unwrap().status, 403);
    assert_eq!(next.write_until(&new).0.status, 200);
}
