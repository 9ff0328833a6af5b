//! Databases and buckets: every stage x {stopped, killed, cut, lost reply} x {transfer before, after}, and races of real
//! processes that are stopped anywhere and resumed too late.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod control;
#[path = "../databases/mod.rs"]
mod databases;
#[path = "../rig/dice.rs"]
#[allow(dead_code)]
mod dice;
mod worker;

use common::token;
use databases::{Database, Engine, all, block_on, guard_at, servers};
use dice::{Dice, flag, play, seed};
use leasehold_core::Kind;
use leasehold_core::guard::{Guard, Policy};
use leasehold_guards::WriteStep;
use leasehold_guards::sql::Script;
use leasehold_system::clock;
use leasehold_testbed::{BUCKET, Fault, Flaw, Proxy, Server, StandIn, azurite, moto, seaweed};
use std::time::Duration;
use worker::{Order, Worker, object_apart, object_at};

/// Rounds of zombie and successor on each engine; twenty times as many with LEASEHOLD_LONG=1.
const ROUNDS: u64 = 1000;
/// So many pairs of them are at it side by side, each on a resource of its own: most of a round is waiting.
const LANES: u64 = 8;
/// Rounds of the controls, which are caught in far fewer.
const CONTROL_ROUNDS: u64 = 100;
/// The longest head start of a zombie: longer than a whole write takes.
const HEAD_START: Duration = Duration::from_millis(15);
/// A successor that takes longer was held up by a stopped one.
const PROMPT: Duration = Duration::from_secs(10);

fn main() {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return worker::main();
    }
    let seed = seed();
    play("every_stage_of_a_transaction_survives_a_stop_and_a_kill", "data", seed, sql_stages);
    play("every_exchange_of_a_transaction_survives_a_cut", "data", seed, sql_cuts);
    play("a_stale_transaction_never_lands", "data", seed, || sql_races(seed));
    play("a_stopped_sqlite_writer_is_named", "data", seed, stopped_sqlite);
    play("a_server_that_ignores_conditions_is_refused", "data", seed, flawed_servers);
    play("a_server_whose_disk_is_full_changes_nothing", "data", seed, full_server);
    for (name, start, url) in buckets() {
        // Slow under contention: it takes as long as all the rest.
        if name == "seaweed" && !is_long() {
            continue;
        }
        let server = start();
        let url = url(server.port());
        play(&format!("every_stage_of_a_put_survives_a_stop_and_a_kill_{name}"), "data", seed, || object_stages(&url));
        play(&format!("every_exchange_of_a_put_survives_a_cut_{name}"), "data", seed, || object_cuts(&server, name));
        play(&format!("a_stale_put_never_lands_{name}"), "data", seed, || object_races(&url, name, seed));
    }
}

type Bucket = (&'static str, fn() -> Server, fn(u16) -> String);

fn buckets() -> [Bucket; 3] {
    [("moto", moto, s3), ("seaweed", seaweed, s3), ("azurite", azurite, azure)]
}

fn s3(port: u16) -> String {
    format!("s3://id:secret@{BUCKET}?endpoint=http://127.0.0.1:{port}")
}

fn azure(port: u16) -> String {
    format!("az://{BUCKET}?account=devstoreaccount1&endpoint=http://127.0.0.1:{port}")
}

fn is_long() -> bool {
    std::env::var("LEASEHOLD_LONG").is_ok_and(|value| value == "1")
}

/// A database with the tables that writers write to.
fn prepared() -> Vec<Database> {
    block_on(async {
        let all = all().await;
        for db in &all {
            db.execute("CREATE TABLE applied (id VARCHAR(60) PRIMARY KEY, epoch BIGINT, rival BIGINT)").await;
            db.execute("CREATE TABLE naive (id VARCHAR(60) PRIMARY KEY, epoch BIGINT)").await;
        }
        all
    })
}

fn row(db: &Database, resource: &str) {
    block_on(async {
        db.execute(&format!("INSERT INTO applied VALUES ('{resource}', 0, 0)")).await;
        db.execute(&format!("INSERT INTO naive VALUES ('{resource}', 0)")).await;
    });
}

fn applied(db: &Database, resource: &str) -> u64 {
    block_on(db.ask(&format!("SELECT epoch FROM applied WHERE id = '{resource}'"))).parse().unwrap()
}

/// A victim at epoch 5 is stopped or killed before each stage; 6 comes before it goes on, or after.
fn sql_stages() {
    let mut cells = 0;
    for db in prepared() {
        let (mut victim, mut newer) = (Worker::start(), Worker::start());
        for (at, stage) in WriteStep::SQL.into_iter().enumerate() {
            for fault in ["stop", "kill", "eio"] {
                for transfer_first in [true, false] {
                    let resource = format!("s{at}-{fault}-{transfer_first}");
                    let name = format!("{:?} {stage:?} {fault}, transfer first {transfer_first}", db.engine);
                    row(&db, &resource);
                    let order = |how, epoch| Order::new(how, &db.url, &resource, epoch);
                    assert_eq!(newer.run(&order("guard", 1)), "written", "{name}");
                    assert_eq!(victim.run(&order("guard", 5).with(fault, at as u64)), "at", "{name}");
                    settle(&mut victim, fault);
                    // Whoever is stopped inside a SQLite transaction has the file: see `stopped_sqlite`.
                    let holds = control::is_local(db.engine) && fault != "kill" && at > 1;
                    if transfer_first && !holds {
                        let begun = clock::now();
                        assert_eq!(newer.run(&order("seal", 6)), "written", "{name}");
                        assert_eq!(newer.run(&order("guard", 6)), "written", "{name}");
                        assert!(
                            clock::now().saturating_since(begun) < PROMPT,
                            "{name}: a stopped holder blocked the next"
                        );
                    }
                    let reply = continue_writing(&mut victim, fault);
                    if transfer_first && !holds {
                        let refused = ["killed", "fenced", "unavailable"].iter().any(|kind| reply.starts_with(kind));
                        assert!(refused, "{name}: {reply}");
                        assert_eq!(applied(&db, &resource), 6, "{name}: stale");
                    } else {
                        let word = reply.split(' ').next().unwrap();
                        assert_eq!((word, applied(&db, &resource)), expected(fault, 1), "{name}: {reply}");
                        assert_eq!(newer.run(&order("guard", 6)), "written", "{name}");
                        assert!(victim.run(&order("guard", 5)).starts_with("fenced"), "{name}");
                        assert_eq!(applied(&db, &resource), 6, "{name}");
                    }
                    cells += 1;
                }
            }
        }
    }
    println!("{cells} cells, 0 stale, 0 blocked");
    assert_eq!(cells, 72);
}

/// Waits until the fault has struck.
fn settle(victim: &mut Worker, fault: &str) {
    match fault {
        "stop" => victim.wait_stopped(),
        "kill" => victim.wait_killed(),
        // It waits to be told that the stage has failed.
        _ => {}
    }
}

/// Lets a victim go on, and says how it ended.
fn continue_writing(victim: &mut Worker, fault: &str) -> String {
    match fault {
        "stop" => victim.resume(),
        "kill" => {
            *victim = Worker::start();
            return "killed".into();
        }
        _ => victim.go(),
    }
    victim.reply()
}

/// How a victim at epoch 5 that nobody overtook ends, and whose write is there then.
fn expected(fault: &str, before: u64) -> (&'static str, u64) {
    match fault {
        "stop" => ("written", 5),
        "kill" => ("killed", before),
        _ => ("unavailable", before),
    }
}

/// Every exchange between guard and server is cut before, within and after it.
fn sql_cuts() {
    let (mut cells, mut outcomes) = (0, std::collections::BTreeMap::<String, u32>::new());
    for db in prepared() {
        let port = match db.engine {
            Engine::Postgres => servers().postgres.port(),
            Engine::Mysql => servers().mariadb.port(),
            Engine::Sqlite => continue,
        };
        let proxy = Proxy::start(port);
        let through = db.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        for fault in [Fault::CutRequest, Fault::CutAfterRequest, Fault::CutReply] {
            for transfer_first in [true, false] {
                for spared in 0.. {
                    let resource = format!("c{fault:?}-{transfer_first}-{spared}");
                    let name = format!("{:?} exchange {spared} {fault:?}, transfer first {transfer_first}", db.engine);
                    row(&db, &resource);
                    let sql = |epoch: u64| format!("UPDATE applied SET epoch = {epoch} WHERE id = '{resource}'");
                    let script = |epoch| Script::parse(db.dialect(), &sql(epoch)).unwrap();
                    let (direct, cut) = (
                        db.guard(&resource, Policy::Reentrant),
                        guard_at(&through, &resource, Policy::Reentrant, None),
                    );
                    let (answer, struck, after) = block_on(async {
                        direct.run(&token(1, 0), &script(1)).await.unwrap();
                        if transfer_first {
                            direct.run(&token(6, 0), &script(6)).await.unwrap();
                        }
                        proxy.arm(fault, spared);
                        let answer = cut.run(&token(5, 0), &script(5)).await;
                        let struck = !proxy.disarm();
                        // Reading locks nothing; writing shows that nobody is left behind.
                        let seen = db.ask(&format!("SELECT epoch FROM applied WHERE id = '{resource}'")).await;
                        let begun = clock::now();
                        direct.run(&token(7, 0), &script(7)).await.unwrap();
                        assert!(clock::now().saturating_since(begun) < PROMPT, "{name}: the next was blocked");
                        (answer, struck, seen)
                    });
                    let kind = answer.as_ref().map_or_else(|e| e.kind().as_str().to_owned(), |_| "written".to_owned());
                    match (&answer, transfer_first) {
                        (Ok(_), false) => assert_eq!(after, "5", "{name}"),
                        (Err(e), false) if e.kind() == Kind::Indeterminate => {
                            assert!(after == "1" || after == "5", "{name}")
                        }
                        (Err(e), false) => {
                            assert_eq!((e.kind(), after.as_str()), (Kind::Unavailable, "1"), "{name}: {e}");
                        }
                        (answer, true) => {
                            let error = answer.as_ref().unwrap_err();
                            assert!(matches!(error.kind(), Kind::Fenced | Kind::Unavailable), "{name}: {error}");
                            assert_eq!(after, "6", "{name}: stale");
                        }
                    }
                    assert_eq!(applied(&db, &resource), 7, "{name}");
                    if !struck {
                        break;
                    }
                    *outcomes.entry(format!("{fault:?} {kind}")).or_default() += 1;
                    cells += 1;
                }
            }
        }
    }
    println!("{cells} cut exchanges: {outcomes:?}");
    // A lost reply to a commit was found out, not guessed.
    assert!(outcomes.contains_key("CutReply written"), "{outcomes:?}");
    assert!(cells >= 24);
}

/// How many rounds one lane makes.
fn share() -> u64 {
    let all = flag("--rounds").unwrap_or(if is_long() { 20 * ROUNDS } else { ROUNDS });
    all.div_ceil(LANES)
}

/// Lets every lane run at once, each with dice of its own, and adds up.
fn in_lanes(seed: u64, lane: impl Fn(u64, &mut Dice) -> Rounds + Sync) -> Rounds {
    let results: Vec<Rounds> = std::thread::scope(|scope| {
        let lane = &lane;
        let run = |at| scope.spawn(move || lane(at, &mut Dice::new(seed.wrapping_add(at << 32))));
        let lanes: Vec<_> = (0..LANES).map(run).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
    });
    results.into_iter().reduce(Rounds::and).unwrap()
}

#[derive(Debug, Default)]
struct Rounds {
    rounds: u64,
    stopped: u64,
    landed: u64,
    fenced: u64,
    blocked: u64,
    stale: u64,
    worst_ms: u128,
}

impl Rounds {
    fn and(self, other: Rounds) -> Rounds {
        Rounds {
            rounds: self.rounds + other.rounds,
            stopped: self.stopped + other.stopped,
            landed: self.landed + other.landed,
            fenced: self.fenced + other.fenced,
            blocked: self.blocked + other.blocked,
            stale: self.stale + other.stale,
            worst_ms: self.worst_ms.max(other.worst_ms),
        }
    }
}

/// Zombie and successor, half of the zombies stopped somewhere and resumed when the successor is through.
fn rounds(
    order: impl Fn(u64) -> Order,
    wrote: impl Fn() -> u64,
    dice: &mut Dice,
    count: u64,
    is_local: bool,
) -> Rounds {
    let (mut zombie, mut successor) = (Worker::start(), Worker::start());
    let mut result = Rounds::default();
    for round in 0..count {
        let (epoch, stop) = (2 * round + 1, round % 2 == 0);
        zombie.send(&order(epoch).with("dawdle", dice.below(1 << 40)));
        dice.rest(HEAD_START);
        if stop {
            zombie.stop();
        }
        let sent = clock::now();
        let mut reply = successor.run(&order(epoch + 1));
        result.worst_ms = result.worst_ms.max(clock::now().saturating_since(sent).as_millis());
        let mut resumed = !stop;
        if is_local
            && (reply.starts_with("contended")
                || ["database is locked", "locking protocol"].iter().any(|says| reply.contains(says)))
        {
            assert!(stop, "round {round}: blocked by a writer that runs: {reply}");
            result.blocked += 1;
            zombie.resume();
            resumed = true;
            reply = successor.run(&order(epoch + 1));
        }
        assert_eq!(reply, "written", "round {round}: the successor was refused");
        result.stopped += u64::from(stop);
        if !resumed {
            zombie.resume();
        }
        match zombie.reply().as_str() {
            "written" => result.landed += 1,
            refused => {
                // One that was ended by its successor may look before that one has committed: nothing was applied.
                // Of a commit without an answer only a guard finds out what became of it.
                let is_open =
                    order(epoch).how == "begin" && refused.starts_with("indeterminate no answer to the commit");
                let known = ["fenced", "contended", "unavailable"].iter().any(|kind| refused.starts_with(kind));
                assert!(known || is_open, "round {round}: {refused}");
                result.fenced += 1;
            }
        }
        result.rounds += 1;
        result.stale += u64::from(wrote() != epoch + 1);
        // A control is caught by then.
        if result.stale > 2 {
            break;
        }
    }
    result
}

fn sql_races(seed: u64) {
    let lanes: Vec<Vec<Database>> = (0..LANES).map(|_| prepared()).collect();
    for (at, db) in lanes[0].iter().enumerate() {
        let is_local = control::is_local(db.engine);
        let begun = clock::now();
        let result = in_lanes(seed, |lane, dice| {
            let db = &lanes[usize::try_from(lane).unwrap()][at];
            row(db, "race");
            let reader = Reader::new(db, "race");
            // Half of the rounds are transactions of the user's own, where the library begins those.
            let order = |epoch: u64| {
                let how = if is_local || ((epoch - 1) / 4).is_multiple_of(2) { "guard" } else { "begin" };
                Order::new(how, &db.url, "race", epoch)
            };
            rounds(order, || reader.epoch(), dice, share(), is_local)
        });
        println!("{:?}: {result:?} in {:?}", db.engine, clock::now().saturating_since(begun));
        assert_eq!(result.stale, 0, "{:?}: {result:?}", db.engine);
        assert!(result.fenced > 0, "no zombie was ever overtaken: {result:?}");
        assert!(is_local || result.worst_ms < PROMPT.as_millis(), "{result:?}");
        row(db, "control");
        let reader = Reader::new(db, "control");
        let order = |epoch| Order::new("naive", &db.url, "control", epoch);
        let result = rounds(order, || reader.epoch(), &mut Dice::new(seed), CONTROL_ROUNDS, is_local);
        println!("{:?} control: {result:?}", db.engine);
        assert!(result.stale > 0, "{:?}: the control passed, so a stale write would not be seen", db.engine);
        second_grant(db);
    }
}

/// The store was rolled back and grants epoch 7 again: a number alone lets both write, ours refuses.
fn second_grant(db: &Database) {
    let mut worker = Worker::start();
    for how in ["guard", "naive"] {
        let resource = format!("twice-{how}");
        row(db, &resource);
        let first = Order::new(how, &db.url, &resource, 7);
        assert_eq!(worker.run(&first), "written");
        let second = worker.run(&Order { rival: 1, ..first });
        assert_eq!(second.starts_with("regressed"), how == "guard", "{second}");
        let rival = block_on(db.ask(&format!("SELECT rival FROM applied WHERE id = '{resource}'")));
        assert_eq!(rival, if how == "guard" { "0" } else { "1" }, "the control must be caught, ours must refuse");
    }
}

/// Reads over one connection: thousands of rounds ask.
struct Reader {
    runtime: tokio::runtime::Runtime,
    kind: ReaderKind,
    sql: String,
}

enum ReaderKind {
    Postgres(tokio_postgres::Client),
    Mysql(std::cell::RefCell<mysql_async::Conn>),
    Sqlite(rusqlite::Connection),
}

impl Reader {
    fn new(db: &Database, resource: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let kind = match db.engine {
            Engine::Postgres => ReaderKind::Postgres(runtime.block_on(db.postgres())),
            Engine::Mysql => ReaderKind::Mysql(runtime.block_on(db.mysql()).into()),
            Engine::Sqlite => ReaderKind::Sqlite(db.sqlite()),
        };
        Reader { runtime, kind, sql: format!("SELECT epoch FROM applied WHERE id = '{resource}'") }
    }

    fn epoch(&self) -> u64 {
        let found: i64 = match &self.kind {
            ReaderKind::Postgres(client) => self.runtime.block_on(client.query_one(&self.sql, &[])).unwrap().get(0),
            ReaderKind::Mysql(conn) => {
                use mysql_async::prelude::Queryable;
                let mut conn = conn.borrow_mut();
                self.runtime.block_on(conn.query_first::<i64, _>(&self.sql)).unwrap().unwrap()
            }
            ReaderKind::Sqlite(db) => db.query_row(&self.sql, [], |row| row.get(0)).unwrap(),
        };
        found.unsigned_abs()
    }
}

/// What cannot be promised of SQLite is at least said; a killed writer, and one that goes on, leave the file free.
fn stopped_sqlite() {
    let db = prepared().into_iter().find(|db| db.engine == Engine::Sqlite).unwrap();
    row(&db, "held");
    let order = |how, epoch| Order::new(how, &db.url, "held", epoch);
    let (mut victim, mut newer) = (Worker::start(), Worker::start());
    assert_eq!(victim.run(&order("guard", 5).with("stop", 3)), "at");
    victim.wait_stopped();
    let told = newer.run(&order("seal", 6));
    assert!(told.starts_with("contended") && told.contains("or was stopped there; continue or end it"), "{told}");
    drop(victim);
    assert_eq!(newer.run(&order("seal", 6)), "written");
    assert_eq!(applied(&db, "held"), 0, "what a killed writer did is gone");
}

fn fenced(url: &str, name: &str) -> u64 {
    block_on(control::fenced_object(url, name))
}

fn object_stages(url: &str) {
    let (mut victim, mut newer) = (Worker::start(), Worker::start());
    let mut cells = 0;
    for (at, stage) in WriteStep::OBJECT.into_iter().enumerate() {
        for fault in ["stop", "kill", "eio"] {
            for (transfer_first, old) in [(true, true), (true, false), (false, true), (false, false)] {
                let name = format!("o{at}-{fault}-{transfer_first}-{old}");
                let order = |how, epoch| Order::new(how, url, &name, epoch);
                if old {
                    assert_eq!(newer.run(&order("guard", 1)), "written", "{name}");
                }
                let strikes = (WriteStep::SQL.len() + at) as u64;
                assert_eq!(victim.run(&order("guard", 5).with(fault, strikes)), "at", "{stage:?} {name}");
                settle(&mut victim, fault);
                if transfer_first {
                    assert_eq!(newer.run(&order("seal", 6)), "written", "{name}");
                }
                let reply = continue_writing(&mut victim, fault);
                let seen = fenced(url, &name);
                if transfer_first {
                    let refused = ["killed", "fenced", "unavailable"].iter().any(|kind| reply.starts_with(kind));
                    assert!(refused, "{name}: {reply}");
                    assert_eq!(seen, 6, "{name}: stale");
                } else {
                    let word = reply.split(' ').next().unwrap();
                    assert_eq!((word, seen), expected(fault, u64::from(old)), "{name}: {reply}");
                }
                assert_eq!(newer.run(&order("guard", 6)), "written", "{name}");
                assert!(victim.run(&order("guard", 5)).starts_with("fenced"), "{name}");
                assert_eq!(fenced(url, &name), 6, "{name}");
                cells += 1;
            }
        }
    }
    println!("{cells} cells, 0 stale");
    assert_eq!(cells, 24);
}

fn object_cuts(server: &Server, kind: &str) {
    let proxy = Proxy::start(server.port());
    let of = |port| if kind == "azurite" { azure(port) } else { s3(port) };
    let (direct, through) = (of(server.port()), of(proxy.port()));
    let mut written = 0;
    for fault in [Fault::CutRequest, Fault::CutAfterRequest, Fault::CutReply] {
        for transfer_first in [true, false] {
            for method in [&b"HEAD "[..], b"PUT "] {
                let name = format!("cut-{fault:?}-{transfer_first}-{}", method.len());
                let (before, cut) = (object_apart(&direct, &name).unwrap(), object_apart(&through, &name).unwrap());
                let (answer, seen) = block_on(async {
                    before.put(&token(1, 0), "{}".into(), "application/json").await.unwrap();
                    if transfer_first {
                        before.seal(&token(6, 0)).await.unwrap();
                    }
                    proxy.arm_on(fault, 0, method);
                    let answer = cut.put(&token(5, 0), "{}".into(), "application/json").await;
                    assert!(!proxy.disarm() || transfer_first, "{name}: the fault did not strike");
                    let seen = control::fenced_object(&direct, &name).await;
                    before.put(&token(7, 0), "{}".into(), "application/json").await.unwrap();
                    (answer, seen)
                });
                if transfer_first {
                    let error = answer.unwrap_err();
                    assert_eq!(error.kind(), Kind::Fenced, "{name}: {error}");
                    assert_eq!(seen, 6, "{name}");
                } else {
                    answer.unwrap_or_else(|e| panic!("{name}: {e}"));
                    assert_eq!(seen, 5, "{name}");
                    written += 1;
                }
            }
        }
    }
    assert_eq!(written, 6, "every put without an answer was resolved by reading back");
}

fn object_races(url: &str, kind: &str, seed: u64) {
    let begun = clock::now();
    let result = in_lanes(seed, |lane, dice| {
        let name = format!("race-{lane}");
        rounds(|epoch| Order::new("guard", url, &name, epoch), || fenced(url, &name), dice, share(), false)
    });
    println!("{kind}: {result:?} in {:?}", clock::now().saturating_since(begun));
    assert_eq!(result.stale, 0, "{kind}: {result:?}");
    assert!(result.fenced > 0, "no zombie was ever overtaken: {result:?}");
    let order = |epoch| Order::new("naive", url, "control", epoch);
    let wrote = || block_on(control::naive_object(url, "control"));
    let result = rounds(order, wrote, &mut Dice::new(seed), CONTROL_ROUNDS, false);
    println!("{kind} control: {result:?}");
    assert!(result.stale > 0, "{kind}: the control passed, so a stale put would not be seen");
    let rival = |rival| token(7, rival);
    block_on(async {
        let guard = object_at(url, "twice", None).unwrap();
        guard.put(&rival(0), "{}".into(), "application/json").await.unwrap();
        let error = guard.put(&rival(1), "{}".into(), "application/json").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Regressed, "{error}");
    });
}

/// A server without room: what was there stays, under the fence that it had, and the next put finds it so.
fn full_server() {
    let server = StandIn::s3(Flaw::None);
    let url = s3(server.port());
    let put = |epoch: u64, text: &'static str| {
        let guard = object_apart(&url, "full").unwrap();
        block_on(async move { guard.put(&token(epoch, 0), text.into(), "text/plain").await })
    };
    put(1, "old").unwrap();
    server.fill(true);
    for _ in 0..2 {
        let error = put(2, "new").unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.to_string().contains("the server has no room"), "{error}");
        assert_eq!(fenced(&url, "full"), 1, "the fence moved without the rest");
    }
    server.fill(false);
    put(2, "new").unwrap();
    assert_eq!(fenced(&url, "full"), 2);
    assert_eq!(put(1, "late").unwrap_err().kind(), Kind::Fenced);
}

fn flawed_servers() {
    for (flaw, says) in [
        (Flaw::IgnoresConditions, "created an object that exists"),
        (Flaw::IgnoresAbsence, "created an object that exists"),
        (Flaw::IgnoresChanges, "replaced an object that has changed"),
        (Flaw::LosesRaces, "simultaneous creations"),
    ] {
        let server = StandIn::s3(flaw);
        let guard = object_apart(&s3(server.port()), "flawed").unwrap();
        let error = block_on(guard.put(&token(1, 0), "{}".into(), "application/json")).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{flaw:?}: {error}");
        assert!(error.to_string().contains(says), "{flaw:?}: {error}");
    }
}
