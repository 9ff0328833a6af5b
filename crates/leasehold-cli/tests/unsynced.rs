//! `acquire` on a disk whose syncs fail, one at a time: what is granted is durable.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On};
use leasehold_testbed::{Disk, Entry, SyncTrace};
use std::collections::BTreeMap;

/// More syncs than an acquisition makes.
const MAX_SYNCS: usize = 60;

#[test]
fn whatever_sync_fails_what_is_granted_is_durable() {
    let mut codes = BTreeMap::<i32, usize>::new();
    for failing in 1..MAX_SYNCS {
        let home = Home::new(On::Dir);
        let base = home.folder.path().canonicalize().unwrap();
        let args = [env!("CARGO_BIN_EXE_leasehold"), "acquire", "job", "--ttl", "60s"];
        let trace = SyncTrace::of(&args.map(AsRef::as_ref), &[("LEASEHOLD_STORE", &home.store)], failing);
        let code = common::code(trace.status);
        let mut disk = Disk::default();
        trace.replay(&mut disk, "\0", |_, _| {});
        let way = disk.way_to_last(&base, &base.join("leases/lease/job"));
        match code {
            0 => {
                let way = way.unwrap();
                let durable = way.iter().all(|(_, entry)| *entry == Entry::Durable);
                assert!(durable, "granted, and not durable: {way:#?}\n{}", trace.calls);
            }
            69 => assert_eq!(way, None, "surely not applied, and it is there\n{}", trace.calls),
            _ => assert_eq!(code, 70, "{}", trace.calls),
        }
        if !trace.has_failed_sync() {
            println!("{} syncs; codes when one of them failed: {codes:?}", failing - 1);
            assert_eq!(code, 0);
            return;
        }
        *codes.entry(code).or_default() += 1;
    }
    panic!("more than {MAX_SYNCS} syncs");
}
