//! A namespace as an operator finds it on some morning.

use crate::stage::{Client, Stage};
use leasehold_core::guard::HighWater;
use leasehold_core::lease::protocol::{Order, Report};
use leasehold_core::{
    Acquired, Ask, Checkpoint, Coordinator, Epoch, Event, FencedWrite, Grant, HolderId, Label, LeaseName, Marker,
    Outcome, Slot, Timestamp, Who, Why,
};
use leasehold_guards::stored::{Adoption, FenceDocument, FenceRecord};
use leasehold_work::output::{self, Ring, RunOutput, Usage};
use leasehold_work::presence::{self, Announced, Presence, Role};
use leasehold_work::queue::{Attempts, Claimer, FollowUp, ItemId, ItemName, NewItem, Payload, Priority, Queue, Reason};
use leasehold_work::schedule::requests::{NewRequest, RunRequests};
use leasehold_work::schedule::{Definitions, Fate, FileRevision, Job, JobVerbs, Note, Publisher, RunEnd};
use std::sync::Arc;
use std::time::Duration;

pub const MINUTE: Duration = Duration::from_secs(60);

pub fn name(text: &str) -> LeaseName {
    LeaseName::new(text).unwrap()
}

pub fn holder(host: &str, label: &str, pid: u32) -> HolderId {
    HolderId::of(host, pid, leasehold_core::Nonce::random(), Label::new(label).unwrap())
}

pub async fn acquire(leases: &Coordinator, lease: &str, who: HolderId, ttl: &str) -> Grant {
    match leases.acquire(&name(lease), &Ask::new(who, ttl.parse().unwrap())).await.unwrap() {
        Acquired::Granted(grant) => *grant,
        Acquired::Refused { refusal, .. } => panic!("{lease}: {refusal}"),
    }
}

async fn tenure(stage: &Stage, lease: &str, who: HolderId, lasts: Duration, outcome: Outcome) {
    let leases = stage.leases();
    let grant = acquire(&leases, lease, who, "24h").await;
    stage.clock.advance(lasts);
    leases.release(&grant, outcome).await.unwrap();
}

async fn order(leases: &Coordinator, lease: &str, by: &str, why: &str, order: Order) {
    leases.operate(&name(lease), Who::new(by).unwrap(), Why::new(why).unwrap(), order).await.unwrap();
}

async fn report(leases: &Coordinator, grant: &mut Grant, marker: &str) {
    let marker = Some(Marker::new(marker).unwrap());
    leases.checkpoint(grant, Report { marker, checkpoint: None }).await.unwrap();
}

/// Fills the namespace `default`; gives the id of a dead letter.
pub async fn morning(stage: &Stage) -> ItemId {
    jobs(stage).await;
    ownership(stage).await;
    let dead = queues(stage).await;
    leases_of_many_kinds(stage).await;
    publishing(stage).await;
    dead
}

/// One lease with a past.
async fn ownership(stage: &Stage) {
    let leases = stage.leases();
    let who = |n: u32| holder(&format!("worker-{}", n % 3 + 1), "publish", 4000 + n);
    for n in 0..9 {
        let outcome = if n == 4 { Outcome::Failed } else { Outcome::Succeeded };
        tenure(stage, "team-a/daily-publish", who(n), MINUTE * (9 + n * 7 % 23), outcome).await;
        stage.clock.advance(MINUTE * (3 + n * 5 % 17));
    }
    // One runs out of time.
    acquire(&leases, "team-a/daily-publish", who(9), "12m").await;
    stage.clock.advance(MINUTE * 31);
    // One is revoked, after it has come across the one before, which went on writing.
    let newer = acquire(&leases, "team-a/daily-publish", who(10), "24h").await.token().epoch;
    stage.clock.advance(MINUTE * 6);
    let stale = Epoch::new(newer.get() - 1).unwrap();
    let write = FencedWrite::new("file:site/index.html", stale, newer, Some(Who::new("publish@worker-1").unwrap()));
    for _ in 0..3 {
        leases.count_fenced(&name("team-a/daily-publish"), &write).await.unwrap();
    }
    stage.clock.advance(MINUTE * 11);
    order(&leases, "team-a/daily-publish", "ada (key k3xq7w2m)", "disk of worker-2 is full", Order::Revoke).await;
    stage.clock.advance(MINUTE * 4);
    tenure(stage, "team-a/daily-publish", who(11), MINUTE * 22, Outcome::Succeeded).await;
    for (event, times) in [(Event::Granted, 13), (Event::Succeeded, 9), (Event::Failed, 1), (Event::Lost, 2)] {
        leases.count_many(&name("team-a/daily-publish"), event, times).await.unwrap();
    }
}

/// The same lease, held now.
async fn publishing(stage: &Stage) {
    let leases = stage.leases();
    let mut grant = acquire(&leases, "team-a/daily-publish", holder("worker-1", "publish", 4012), "2h").await;
    stage.clock.advance(Duration::from_secs(200));
    let checkpoint = Some(Checkpoint::new("{\"page\": 1841, \"cursor\": \"b3f0\"}").unwrap());
    let marker = Some(Marker::new("1,841 of 2,600 pages").unwrap());
    leases.checkpoint(&mut grant, Report { marker, checkpoint }).await.unwrap();
    leases.renew(&mut grant, None).await.unwrap();
    stage.clock.advance(Duration::from_secs(21));
}

async fn leases_of_many_kinds(stage: &Stage) {
    let leases = stage.leases();
    tenure(stage, "team-b/reports/weekly", holder("batch-1", "weekly", 77), MINUTE * 12, Outcome::Succeeded).await;
    let mut stalled = acquire(&leases, "team-b/etl/orders", holder("batch-2", "etl", 912), "4h").await;
    report(&leases, &mut stalled, "4 of 31 tables").await;
    stage.clock.advance(MINUTE * 17);
    acquire(&leases, "team-b/etl/stock", holder("batch-2", "etl", 913), "1m").await;
    stage.clock.advance(MINUTE * 9);
    tenure(stage, "deploy/eu-west", holder("ci-runner-7", "deploy", 31), MINUTE * 3, Outcome::Succeeded).await;
    order(&leases, "deploy/eu-west", "grace (key p7mmb4qa)", "freeze until Monday", Order::Pause).await;
    let mut running = acquire(&leases, "deploy/us-east", holder("ci-runner-3", "deploy", 118), "30m").await;
    report(&leases, &mut running, "canary at 25%").await;
    let mut grant = acquire(&leases, "db/vacuum", holder("db-1", "vacuum", 5120), "45m").await;
    report(&leases, &mut grant, "table 12 of 40").await;
    let drain = Order::Drain { within: "20m".parse().unwrap() };
    order(&leases, "db/vacuum", "ada (key k3xq7w2m)", "upgrade of db-1", drain).await;
    acquire(&leases, "agents/triage", holder("sandbox-19", "triage-agent", 2), "10m").await;
    stage.clock.advance(Duration::from_secs(95));
    acquire(&leases, "agents/docs", holder("sandbox-21", "docs-agent", 2), "10m").await;
    stage.clock.advance(Duration::from_secs(8));
}

async fn queues(stage: &Stage) -> ItemId {
    let mail = queue(stage, "mail");
    let once = Attempts { most: 1, backoff_ms: 1_000 };
    let add = |text: String| NewItem { payload: Payload::new(text).unwrap(), attempts: once, ..NewItem::default() };
    mail.add_all((0..9).map(|n| add(format!("{{\"to\": \"user{n}@example.org\"}}"))).collect()).await.unwrap();
    let mut claimer = Claimer::new(mail.clone(), Some(Label::new("mailer").unwrap()), "3h".parse().unwrap()).unwrap();
    let reasons = ["550 mailbox unavailable", "550 mailbox unavailable", "timeout talking to smtp.example.org"];
    let mut dead = None;
    for why in reasons {
        let grant = claimer.next().await.unwrap();
        stage.clock.advance(MINUTE);
        mail.fail(&grant, Reason::new(why).unwrap(), None, true).await.unwrap();
        dead.get_or_insert(grant.name().id.clone());
    }
    let grant = claimer.next().await.unwrap();
    let follow_ups = vec![follow_up("archive", "sent-3")];
    mail.complete(&grant, Some(Payload::result("250 queued").unwrap()), follow_ups).await.unwrap();
    claimer.next().await.unwrap();
    let later = NewItem { delay: MINUTE * 300, ..add("later".to_owned()) };
    mail.add(later).await.unwrap();
    let thumbnails = queue(stage, "thumbnails");
    thumbnails.add_all((0..1_240).map(|n| add(format!("image {n}"))).collect()).await.unwrap();
    dead.unwrap()
}

/// An item that a completion adds.
pub fn follow_up(queue: &str, key: &str) -> FollowUp {
    FollowUp {
        name: ItemName { queue: queue.parse().unwrap(), id: ItemId::keyed(&key.parse().unwrap()) },
        payload: Payload::new("sent").unwrap(),
        priority: Priority::default(),
        delay_ms: 0,
        attempts: Attempts::default(),
    }
}

/// A process of the namespace `default` that says it is there, and goes on to for as long as the test runs.
pub async fn process(stage: &Stage, role: Role, host: &str, queue: Option<&str>) {
    let store = stage.leases().store().clone();
    let mut own = Presence::own(role, queue.map(str::to_owned));
    own.host = host.to_owned();
    std::mem::forget(Announced::start(store.clone(), own));
    let is_there =
        async || presence::processes(store.as_ref(), 100).await.unwrap().processes.iter().any(|it| it.host == host);
    while !is_there().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Puts the server itself on record.
pub async fn server(stage: &Stage) -> Announced {
    let mut client = Client::signed_in(stage, &stage.key("scene", "read", &["*"], None).await).await;
    let mut servers = async || client.get("/ns/default/health").await.body.matches("id=\"p-server-").count();
    let (before, announced) = (servers().await, stage.site.announce());
    while servers().await == before {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    announced
}

/// Some processes, of which one has not reported for minutes.
pub async fn processes(stage: &Stage) {
    process(stage, Role::Worker, "worker-2", Some("mail")).await;
    stage.clock.advance(MINUTE * 7);
    process(stage, Role::Worker, "worker-1", Some("mail")).await;
    process(stage, Role::Worker, "gpu-box-1", Some("thumbnails")).await;
    process(stage, Role::Scheduler, "scheduler-1", None).await;
    std::mem::forget(server(stage).await);
}

/// Puts the high water of a resource into the store.
pub async fn seal(stage: &Stage, fence: &str, high: HighWater, adopted: Vec<Adoption>) {
    let document = FenceDocument::new(&stage.leases(), &name(fence));
    let seen = document.look().await.unwrap();
    let record = FenceRecord { high: Some(high), adopted, ..FenceRecord::default() };
    document.put(&seen, record).await.unwrap().unwrap();
}

/// Fences of the lease with a past.
pub async fn fences(stage: &Stage) {
    let record = stage.leases().inspect(&name("team-a/daily-publish")).await.unwrap().record;
    let (epoch, holder) = (record.epoch, record.tenure.unwrap().holder);
    let high = |epoch, seq| HighWater {
        lease: name("team-a/daily-publish"),
        lineage: record.lineage.unwrap(),
        epoch,
        nonce: holder.nonce(),
        seq,
    };
    seal(stage, "http/catalogue", high(epoch, 41), Vec::new()).await;
    seal(stage, "mcp/cms", high(Epoch::new(epoch.get() - 2).unwrap(), 3), Vec::new()).await;
}

/// A queue of the namespace `default`.
pub fn queue(stage: &Stage, name: &str) -> Queue {
    Queue::with_clock(stage.leases().store().clone(), name.parse().unwrap(), stage.clock.clone())
}

/// So many new items of a queue, given up for this reason.
pub async fn dead_letters(stage: &Stage, name: &str, why: &str, count: usize) -> Vec<ItemId> {
    let queue = queue(stage, name);
    let mut dead = Vec::new();
    for _ in 0..count {
        let id = queue.add(NewItem::default()).await.unwrap().name().id.clone();
        let claimed = queue.claim_item(&id, holder("box-1", "mailer", 7), "1h".parse().unwrap()).await;
        queue.fail(&claimed.unwrap().unwrap(), Reason::new(why).unwrap(), None, true).await.unwrap();
        dead.push(id);
    }
    dead
}

/// Somebody else's order about an item, as it is now.
pub async fn order_item(queue: &Queue, id: &ItemId, order: leasehold_work::queue::protocol::Order) {
    queue.operate(id, Who::new("somebody").unwrap(), Why::new("faster").unwrap(), None, order).await.unwrap();
}

pub fn job(name: &str, cron: &str, zone: &str) -> Arc<Job> {
    let table = serde_json::json!({ "name": name, "cron": cron, "tz": zone, "command": "true" });
    Arc::new(Job::read(serde_json::from_value(table).unwrap(), 0).unwrap())
}

async fn jobs(stage: &Stage) {
    let leases = stage.leases();
    let jobs = [
        job("nightly-backup", "0 3 * * *", "Europe/Berlin"),
        job("hourly-rollup", "5 * * * *", "UTC"),
        job("invoice-run", "0 6 1 * *", "America/New_York"),
        job("search/reindex", "*/20 * * * *", "UTC"),
    ];
    let publisher = Publisher {
        owner: "/etc/leasehold/jobs.toml".to_owned(),
        revision: FileRevision::new(Some(7), Duration::from_secs(1_700_000_000), "jobs"),
        host: "scheduler-1".to_owned(),
    };
    Definitions::new(leases.clone()).publish(&jobs, &publisher).await.unwrap();
    let (_, now) = leases.journal(&name("hourly-rollup")).await.unwrap();
    for (job, every, runs) in [("hourly-rollup", 60, 34), ("search/reindex", 20, 40), ("nightly-backup", 1440, 12)] {
        for n in 0..runs {
            slot(stage, now, job, every, n, runs).await;
        }
    }
}

fn printed(fate: Fate) -> String {
    let done = "reading orders\rreading orders 50%\rreading orders 100%\n\u{1b}[32mrolled up\u{1b}[0m 18,220 rows\n<done & dusted>\n";
    if fate != Fate::Failed {
        return done.to_owned();
    }
    let read: String = (1..60).map(|n| format!("03:00:{n:02} read orders, part {n} of 60\n")).collect();
    format!("{read}03:01:00 error: the connection to db-1 was closed (part 60 of 60)\nrolled back; exit 2\n")
}

async fn slot(stage: &Stage, now: Timestamp, job: &str, every: u64, n: u64, runs: u64) {
    let leases = stage.leases();
    let step = every * 60_000;
    let at = now.as_millis() / step * step - (runs - n) * step;
    let (slot, host) = (Slot(Timestamp::from_millis(at)), format!("worker-{}", n % 3 + 1));
    if n % 13 == 7 {
        leases
            .write(&name(job), &Note::Skipped { slot, before: None, fate: Fate::SkippedOverlap }, &host)
            .await
            .unwrap();
        return;
    }
    let token = leasehold_core::Token {
        lease: name(job),
        lineage: leasehold_core::Lineage::random(),
        epoch: leasehold_core::Epoch::new(n + 1).unwrap(),
        nonce: leasehold_core::Nonce::random(),
        seq: 0,
    };
    leases.write(&name(job), &Note::Began(slot, token.epoch), &host).await.unwrap();
    let fate = if n % 11 == 5 { Fate::Failed } else { Fate::Succeeded };
    let usage = Usage { cpu_ms: 1_200 + n * 31, peak_memory_bytes: 48 << 20 };
    let output = RunOutput {
        lease: name(job),
        epoch: token.epoch,
        slot: Some(slot),
        host: host.clone(),
        at: now,
        exit: Some(0),
        why: None,
        usage: Some(usage),
        bytes: 48_211,
        file: None,
        is_cut: true,
        tail: printed(fate),
    };
    let record =
        output::write(&leases, &Ring::of_lease(&token.lease, token.lineage, 50), &token, &output).await.unwrap();
    let exit = if fate == Fate::Failed { 2 } else { 0 };
    let end = RunEnd { usage: Some(usage), output: Some(record), ..RunEnd::new(fate, Some(exit), 41_000 + n * 977) };
    leases.write(&name(job), &Note::Ended(slot, token.epoch, end), &host).await.unwrap();
}

/// A job whose texts are this one, wherever users fill them.
pub async fn hostile_job(stage: &Stage, text: &str) {
    let leases = stage.leases();
    let publisher = Publisher {
        owner: text.to_owned(),
        revision: FileRevision::new(Some(1), Duration::from_secs(1_700_000_000), "jobs"),
        host: text.to_owned(),
    };
    Definitions::new(leases.clone()).publish(&[job("j", "0 3 * * *", "UTC")], &publisher).await.unwrap();
    let (_, now) = leases.journal(&name("j")).await.unwrap();
    let (slot, epoch) = (Slot(now), leasehold_core::Epoch::new(1).unwrap());
    let token = leasehold_core::Token {
        lease: name("j"),
        lineage: leasehold_core::Lineage::random(),
        epoch,
        nonce: leasehold_core::Nonce::random(),
        seq: 0,
    };
    let output = RunOutput {
        lease: name("j"),
        epoch,
        slot: Some(slot),
        host: text.to_owned(),
        at: now,
        exit: Some(0),
        why: None,
        usage: None,
        bytes: 1,
        file: Some(text.to_owned()),
        is_cut: false,
        tail: format!("</pre>{text}\n\u{1b}]0;{text}\u{7}"),
    };
    let record =
        output::write(&leases, &Ring::of_lease(&token.lease, token.lineage, 5), &token, &output).await.unwrap();
    leases.write(&name("j"), &Note::Began(slot, epoch), text).await.unwrap();
    let end = RunEnd { output: Some(record), ..RunEnd::new(Fate::Failed, Some(1), 5) };
    leases.write(&name("j"), &Note::Ended(slot, epoch, end), text).await.unwrap();
    let (by, why) = (Who::new(text).unwrap(), Why::new(text).unwrap());
    let new = NewRequest { id: leasehold_core::Nonce::random(), job: name("j"), epoch: Epoch::ZERO, by, why };
    RunRequests::new(leases.clone()).make(&new).await.unwrap().unwrap();
    order(&leases, "j", text, text, Order::Pause).await;
}
