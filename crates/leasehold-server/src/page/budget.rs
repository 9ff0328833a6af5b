//! How much of the store each page reads at most. A test counts the reads.
//!
//! A read is a call that the store answers once: one record, or one page of a listing. Every number is a bound for any content:
//! a namespace of a million leases costs a page no more than one of a hundred.

use crate::api::walk::Steps;
use std::time::Duration;

/// How many leases a page shows.
pub const LEASES: usize = 100;
/// How many records one step of a search looks at.
pub const SEARCH_STEP: usize = 250;
/// How many steps a search takes before it asks whether to look further.
pub const SEARCH_STEPS: usize = 4;
/// How many steps it takes among the names that begin with what was typed.
pub const BEGIN_STEPS: usize = 2;
/// How a page goes through a listing of which it shows so many at first.
pub const fn search(first: usize, most: usize) -> Steps {
    Steps { first, further: SEARCH_STEP, most }
}
/// Reads of the leases' page: the steps of a search, and those among the names that begin with what was typed.
pub const LEASES_READS: u64 = (SEARCH_STEPS + BEGIN_STEPS) as u64;
/// How many epochs of a lease's history are shown.
pub const EPOCHS: u64 = 48;
/// How many fences are looked at for those of a lease.
pub const FENCES: usize = 250;
/// Reads of a lease's page: its record, its counters, where its archive begins, the archive of these epochs, and fences.
pub const LEASE_READS: u64 = 7;
/// How many queues a page shows.
pub const QUEUES: usize = 20;
/// Up to here entries of a queue's line are counted one by one.
pub const COUNTED: usize = 1_000;
/// Beyond that it is only found out which of these there are more of.
pub const MORE_THAN: [usize; 3] = [10_000, 100_000, 500_000];
/// Up to here they are counted when the time for counting is over.
pub const COUNTED_LATE: usize = 100;
/// How long a page looks for these bounds, of all queues on it together.
pub const COUNTING: Duration = Duration::from_millis(80);
/// Reads of one count.
pub const COUNT_READS: u64 = 1 + MORE_THAN.len() as u64;
/// Parts of a queue's line that are counted apart: claimed, due later, and waiting.
pub const PARTS: u64 = 3;
/// How many items are looked at in one place for those that ended lately, for a row of the queues' page.
pub const RECENT_STEP: usize = 50;
/// How many of its first items: one more than the dead letters that are counted.
pub const FIRST_STEP: usize = 101;
/// Reads of a queue's throughput beside those of its items: the places where items are likely that ended lately.
pub const RECENT_READS: u64 = super::throughput::LOOKS;
/// Reads of the queues' page: their names, and of each what is in its line, its first items, and those that ended lately.
pub const QUEUES_READS: u64 = SEARCH_STEPS as u64 + QUEUES as u64 * (PARTS * COUNT_READS + 1 + RECENT_READS);
/// How many items a page of a queue looks at, at once and in all.
pub const ITEMS_STEP: usize = 250;
/// How often it looks at so many.
pub const ITEMS_STEPS: usize = 4;
/// Reads of one queue's page.
pub const QUEUE_READS: u64 = PARTS * COUNT_READS + 1 + ITEMS_STEPS as u64 + RECENT_READS;
/// How many dead letters one order is about.
pub const BULK: usize = 500;
/// Reads of the page that counts them and asks for a reason: it looks at as many items as the queue's page.
pub const BULK_READS: u64 = ITEMS_STEPS as u64;
/// Reads of an item's page: its record, and if it is asked for, what its queue has kept of outputs.
pub const ITEM_READS: u64 = 2;
/// How many jobs a page shows.
pub const JOBS: usize = 25;
/// Reads of the jobs' page: the definitions, and of each job its lease and its journal.
pub const JOBS_READS: u64 = SEARCH_STEPS as u64 + 2 * JOBS as u64;
/// Reads of the page of a job's runs: its lease, its journal, its definition, the requests for runs, and one output.
pub const RUNS_READS: u64 = 5;
/// How many round trips are timed.
pub const ROUND_TRIPS: usize = 5;
/// How many leases are looked at to see which machines hold any.
pub const MACHINES: usize = 500;
/// How many processes are looked at, of this namespace and of servers.
pub const PROCESSES: usize = 250;
/// Reads of the page on health: round trips, leases, definitions, processes of this namespace, and servers.
pub const HEALTH_READS: u64 = ROUND_TRIPS as u64 + 4;
/// How many records of each kind are compared to see whether anything changed.
pub const WATCHED: usize = 200;
/// Reads of one look for changes: leases, journals, the lines of queues.
pub const CHANGES_READS: u64 = 3;
/// Reads of one look at what a page is about: a job has a lease and a journal.
pub const ABOUT_READS: u64 = 2;
