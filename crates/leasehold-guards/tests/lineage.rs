//! Leases of one name and different lineages at databases, objects and remotes: refused, and let in by an operator alone.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "databases/mod.rs"]
mod databases;

use common::token;
use databases::{Engine, all, block_on, guard_at, servers};
use leasehold_core::guard::{Adopt, Guard, HighWater, Policy};
use leasehold_core::{Kind, Lineage, Remedy, Result, Token};
use leasehold_guards::git::{HookState, Hooks, PushOptions};
use leasehold_guards::object::{Salt, Tags, key};
use leasehold_guards::sql::{Resource, Script};
use leasehold_guards::sql::{mysql, postgres};
use leasehold_guards::{GitGuard, ObjectGuard};
use leasehold_stores::StoreUrl;
use leasehold_testbed::{BUCKET, Fault, Flaw, Proxy, StandIn};
use mysql_async::TxOpts;
use object_store::{Attribute, ObjectStoreExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tokio_postgres::error::SqlState;

/// A token of a lease of the same name in another store.
fn foreign(epoch: u64) -> Token {
    Token { lineage: Lineage::from_u128(2), ..token(epoch, 0) }
}

/// Refused as not this lease, with both lineages.
#[track_caller]
fn not_this_lease<T: std::fmt::Debug>(answer: Result<T>) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    let text = error.to_string();
    assert!(text.starts_with("not this lease: "), "{text}");
    for lineage in [token(1, 0).lineage, foreign(1).lineage] {
        assert!(text.contains(&lineage.to_string()), "{text}");
    }
}

/// Refused, with the reason that the fence is not what was seen; and it stays what it is.
async fn not_adopted(guard: &(impl Adopt + ?Sized), seen: &HighWater) {
    let before = guard.high_water().await.unwrap();
    let (by, why) = ("ops".parse().unwrap(), "test".parse().unwrap());
    let moved = guard.adopt(seen, &foreign(2), &by, &why).await.unwrap_err();
    assert_eq!(moved.kind(), Kind::Contended, "{moved}");
    assert_eq!(guard.high_water().await.unwrap(), before);
    // Its own lease has nothing to adopt, whatever the epoch.
    let now = before.unwrap();
    let own = guard.adopt(&now, &Token { seq: 0, ..token(1, 0) }, &by, &why).await.unwrap_err();
    assert_eq!(own.kind(), Kind::Invalid, "{own}");
    assert_eq!(guard.high_water().await.unwrap(), Some(now));
}

async fn adopt(guard: &(impl Adopt + ?Sized), to: &Token) -> HighWater {
    let from = guard.high_water().await.unwrap().unwrap();
    let (by, why) = ("Ömer".parse().unwrap(), "100% moved: the old store's gone".parse().unwrap());
    let given = guard.adopt(&from, to, &by, &why).await.unwrap();
    assert_eq!(given, HighWater::of(to, 0));
    assert_eq!(guard.high_water().await.unwrap(), Some(given.clone()));
    given
}

/// After [`adopt`] took the resource from epoch 5 of ours: it comes back only with a higher one.
async fn comes_back(guard: &(impl Adopt + ?Sized)) {
    let from = guard.high_water().await.unwrap().unwrap();
    let (by, why) = ("ops".parse().unwrap(), "test".parse().unwrap());
    for (epoch, kind) in [(4, Kind::Regressed), (5, Kind::Fenced)] {
        let refused = guard.adopt(&from, &token(epoch, 0), &by, &why).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
        let past_5 = |remedy: &Remedy| matches!(remedy, Remedy::Advance { past, .. } if past.get() == 5);
        assert!(refused.remedy().is_some_and(past_5), "{refused}");
        assert_eq!(guard.high_water().await.unwrap().as_ref(), Some(&from));
    }
    adopt(guard, &token(6, 0)).await;
    // The other one is remembered too.
    let from = guard.high_water().await.unwrap().unwrap();
    let refused = guard.adopt(&from, &foreign(2), &by, &why).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Fenced, "{refused}");
}

#[test]
fn a_database_refuses_a_lease_of_the_same_name_from_another_store() {
    block_on(async {
        for db in all().await {
            db.execute("CREATE TABLE totals (n INTEGER)").await;
            let guard = db.guard("r", Policy::Reentrant);
            let insert = Script::parse(db.dialect(), "INSERT INTO totals VALUES (1)").unwrap();
            let high = guard.run(&token(5, 0), &insert).await.unwrap().high;
            for epoch in [1, 5, 9] {
                let (stranger, resource): (Token, Resource) = (foreign(epoch), "r".parse().unwrap());
                not_this_lease(guard.seal(&stranger).await);
                not_this_lease(guard.run(&stranger, &insert).await);
                match db.engine {
                    Engine::Postgres => {
                        let mut client = db.postgres().await;
                        not_this_lease(postgres::begin(&mut client, &resource, &stranger, Policy::Reentrant).await);
                        let by_hand = format!("SELECT leasehold_require('r', '{}')", stranger.wire());
                        let refused = db.try_execute(&by_hand).await.unwrap_err();
                        let lineages = [token(1, 0).lineage, stranger.lineage].map(|lineage| lineage.to_string());
                        assert!(refused.starts_with("not this lease: "), "{refused}");
                        assert!(lineages.iter().all(|lineage| refused.contains(lineage)), "{refused}");
                    }
                    Engine::Mysql => {
                        let conn = db.mysql().await;
                        not_this_lease(mysql::begin(conn, &resource, &stranger, Policy::Reentrant).await);
                    }
                    Engine::Sqlite => {}
                }
            }
            assert_eq!(guard.high_water().await.unwrap(), Some(high), "{:?}", db.engine);
            assert_eq!(db.ask("SELECT count(*) FROM totals").await, "1", "{:?}", db.engine);
        }
    });
}

/// One who was refused and stopped there, with the row in its hands, whatever its number.
#[test]
fn a_stranger_that_stopped_inside_blocks_nobody() {
    block_on(async {
        for db in all().await {
            let (guard, resource): (_, Resource) = (db.guard("r", Policy::Reentrant), "r".parse().unwrap());
            guard.seal(&token(5, 0)).await.unwrap();
            match db.engine {
                Engine::Postgres => {
                    let mut client = db.postgres().await;
                    let inside = client.transaction().await.unwrap();
                    not_this_lease(postgres::admit(&inside, &resource, &foreign(99), Policy::Reentrant).await);
                    guard.seal(&token(6, 0)).await.unwrap();
                    let ended = inside.commit().await.unwrap_err();
                    // The server's last words may be lost with the connection.
                    assert!(ended.is_closed() || ended.code() == Some(&SqlState::ADMIN_SHUTDOWN), "{ended:?}");
                }
                Engine::Mysql => {
                    let mut conn = db.mysql().await;
                    let mut inside = conn.start_transaction(TxOpts::new()).await.unwrap();
                    not_this_lease(mysql::admit(&mut inside, &resource, &foreign(99), Policy::Reentrant).await);
                    guard.seal(&token(6, 0)).await.unwrap();
                    let ended = inside.commit().await.unwrap_err();
                    assert!(databases::is_ended(&ended), "{ended:?}");
                }
                Engine::Sqlite => {}
            }
        }
    });
}

/// Also while somebody of the former lease, with a higher number, is in the middle of a transaction.
#[test]
fn a_database_is_adopted_and_its_former_lease_is_shut_out() {
    block_on(async {
        for db in all().await {
            db.execute("CREATE TABLE totals (n INTEGER)").await;
            let guard = db.guard("r", Policy::Reentrant);
            let insert = Script::parse(db.dialect(), "INSERT INTO totals VALUES (1)").unwrap();
            let seen = guard.run(&token(5, 0), &insert).await.unwrap().high;
            guard.run(&token(5, 0), &insert).await.unwrap();
            not_adopted(&**guard, &seen).await;
            let resource: Resource = "r".parse().unwrap();
            match db.engine {
                Engine::Postgres => {
                    let mut client = db.postgres().await;
                    let old = postgres::begin(&mut client, &resource, &token(5, 0), Policy::Reentrant).await.unwrap();
                    old.batch_execute("INSERT INTO totals VALUES (2)").await.unwrap();
                    adopt(&**guard, &foreign(2)).await;
                    let ended = old.commit().await.unwrap_err();
                    assert!(matches!(ended.kind(), Kind::Indeterminate | Kind::Unavailable), "{ended}");
                }
                Engine::Mysql => {
                    let conn = db.mysql().await;
                    let old = mysql::begin(conn, &resource, &token(5, 0), Policy::Reentrant).await.unwrap();
                    adopt(&**guard, &foreign(2)).await;
                    let lost = old.commit().await.unwrap_err();
                    assert!(matches!(lost.kind(), Kind::Indeterminate | Kind::Unavailable), "{lost}");
                }
                Engine::Sqlite => drop(adopt(&**guard, &foreign(2)).await),
            }
            not_this_lease(guard.run(&token(5, 0), &insert).await);
            not_this_lease(guard.seal(&token(9, 0)).await);
            assert_eq!(guard.run(&foreign(2), &insert).await.unwrap().high.seq, 1);
            assert_eq!(db.ask("SELECT count(*) FROM totals").await, "3", "{:?}", db.engine);
            let note = db.ask("SELECT adopted FROM leasehold_fence WHERE resource = 'r'").await;
            let words = "by Ömer: 100% moved: the old store's gone";
            assert!(note.contains(words) && note.contains("from job:5:"), "{:?}: {note}", db.engine);
            comes_back(&**guard).await;
        }
    });
}

#[test]
fn an_adoption_without_an_answer_is_made_sure() {
    block_on(async {
        for db in all().await.into_iter().filter(|db| db.engine != Engine::Sqlite) {
            let port = if db.engine == Engine::Postgres { servers().postgres.port() } else { servers().mariadb.port() };
            let proxy = Proxy::start(port);
            let through = db.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
            let guard = guard_at(&through, "r", Policy::Reentrant, None);
            guard.seal(&token(5, 0)).await.unwrap();
            proxy.arm_on(Fault::CutReply, 0, b"; COMMIT");
            adopt(&**guard, &foreign(2)).await;
            assert!(!proxy.disarm(), "{:?}: the answer was not lost", db.engine);
        }
    });
}

fn object(port: u16, salt: Salt) -> ObjectGuard {
    let url: StoreUrl = format!("s3://id:secret@{BUCKET}/o?endpoint=http://127.0.0.1:{port}").parse().unwrap();
    let address = url.address().unwrap();
    let client = leasehold_stores::object::client(address).unwrap();
    let key = key(&address.path).unwrap();
    let guard = ObjectGuard::new(client, key, address.to_string(), Tags::OfTheContent, Policy::Reentrant);
    guard.unwrap().salted(salt)
}

#[test]
fn an_object_belongs_to_one_lineage_until_it_is_adopted() {
    let server = StandIn::s3(Flaw::None);
    let proxy = Proxy::start(server.port());
    let put = async |guard: &ObjectGuard, token: &Token| guard.put(token, "x".into(), "text/plain").await;
    block_on(async {
        let (first, guard) = (object(server.port(), Salt::Blank), object(proxy.port(), Salt::Blank));
        put(&first, &token(5, 0)).await.unwrap();
        let high = put(&first, &token(5, 0)).await.unwrap();
        for epoch in [1, 5, 9] {
            not_this_lease(guard.seal(&foreign(epoch)).await);
            not_this_lease(put(&guard, &foreign(epoch)).await);
        }
        assert_eq!(guard.high_water().await.unwrap(), Some(high.clone()));
        not_adopted(&guard, &HighWater { seq: 1, ..high.clone() }).await;
        // Where the tag is that of the content, nothing would shut a sleeping writer out.
        let (by, why) = ("ops".parse().unwrap(), "test".parse().unwrap());
        let refused = object(server.port(), Salt::None).adopt(&high, &foreign(2), &by, &why).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Unsupported, "{refused}");
        proxy.arm_on(Fault::CutReply, 0, b"PUT ");
        adopt(&guard, &foreign(2)).await;
        // The first knows the object as it left it, and puts without a look.
        not_this_lease(put(&first, &token(5, 0)).await);
        not_this_lease(put(&first, &token(9, 0)).await);
        let url: StoreUrl =
            format!("s3://id:secret@{BUCKET}/o?endpoint=http://127.0.0.1:{}", server.port()).parse().unwrap();
        let store = leasehold_stores::object::client(url.address().unwrap()).unwrap();
        let got = store.get(&key("o").unwrap()).await.unwrap();
        let note = got.attributes.get(&Attribute::Metadata("leaseholdadopted".into())).unwrap().to_string();
        assert!(note.contains("by %C3%96mer: 100%25 moved: the old store's gone"), "{note}");
        assert_eq!(put(&guard, &foreign(2)).await.unwrap().seq, 1);
        // Puts between the two do not forget it either, and the second goes without a look.
        put(&guard, &foreign(2)).await.unwrap();
        comes_back(&guard).await;
    });
}

/// A remote and two clones of it.
struct Remote {
    folder: TempDir,
}

impl Remote {
    fn new() -> Self {
        let remote = Remote { folder: tempfile::tempdir().unwrap() };
        remote.git(".", &["init", "-q", "--bare", "-b", "main", "bare"]);
        for clone in ["old", "new"] {
            remote.git(".", &["init", "-q", "-b", "main", clone]);
            remote.git(clone, &["remote", "add", "origin", "../bare"]);
        }
        remote
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn git(&self, folder: &str, words: &[&str]) -> String {
        let who = ["-c", "user.name=a", "-c", "user.email=a@localhost"];
        let output = Command::new("git").args(who).args(words).current_dir(self.path(folder)).output().unwrap();
        assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    async fn push(&self, clone: &str, token: &Token) -> Result<HighWater> {
        self.git(clone, &["commit", "-q", "--allow-empty", "-m", &token.wire()]);
        let refspecs = ["+main".parse().unwrap()];
        let pushed = self.guard(clone).push(token, &refspecs, PushOptions::default(), async || Ok(())).await;
        pushed.map(|pushed| pushed.high)
    }

    fn guard(&self, clone: &str) -> GitGuard {
        let guard = GitGuard::new("origin", Policy::Reentrant).unwrap();
        guard.in_repository(self.path(clone)).of_lease("job".parse().unwrap())
    }

    fn tip(&self, name: &str) -> String {
        self.git("bare", &["rev-parse", name])
    }
}

#[test]
fn a_remote_refuses_another_lineage_until_its_fence_is_adopted() {
    let remote = Remote::new();
    block_on(async {
        remote.push("old", &token(5, 0)).await.unwrap();
        let high = remote.push("old", &token(5, 0)).await.unwrap();
        let (fence, main) = (remote.tip("refs/fence/job"), remote.tip("main"));
        let guard = remote.guard("new");
        for epoch in [1, 5, 9] {
            not_this_lease(guard.seal(&foreign(epoch)).await);
            not_this_lease(remote.push("new", &foreign(epoch)).await);
        }
        not_adopted(&guard, &HighWater { seq: 1, ..high.clone() }).await;
        assert_eq!((remote.tip("refs/fence/job"), remote.tip("main")), (fence.clone(), main.clone()));
        // Another name has a fence of its own: there is nothing to take.
        let other = Token { lease: "other".parse().unwrap(), ..foreign(2) };
        let (by, why) = ("ops".parse().unwrap(), "test".parse().unwrap());
        let refused = guard.adopt(&high, &other, &by, &why).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Unsupported, "{refused}");
        assert!(refused.to_string().contains("leasehold.protect"), "{refused}");
        adopt(&guard, &foreign(2)).await;
        // The old clone has the fence noted as it was, and pushes without a look.
        not_this_lease(remote.push("old", &token(5, 0)).await);
        assert_eq!(remote.tip("main"), main);
        hooks_let_an_adoption_through_and_nothing_else(&remote, &fence).await;
        assert_eq!(remote.push("new", &foreign(2)).await.unwrap().seq, 1);
        let note = remote.git("bare", &["log", "-1", "--format=%B", "refs/fence/job"]);
        assert!(note.contains("adopted: -"), "said once: {note}");
        remote.push("new", &foreign(2)).await.unwrap();
        comes_back(&guard).await;
    });
}

/// The server's own judgement: of the fence that was given away on purpose, of the same without these words, and of another
/// fence than the one that was seen.
async fn hooks_let_an_adoption_through_and_nothing_else(remote: &Remote, before: &str) {
    let bare: &Path = &remote.path("bare");
    remote.git("bare", &["config", "leasehold.fenceNamespace", "refs/fence"]);
    let hooks = Hooks::of(Some(bare.to_owned()));
    let given = remote.tip("refs/fence/job");
    let message = remote.git("bare", &["log", "-1", "--format=%B", &given]);
    assert!(message.contains(" by Ömer: 100% moved: the old store's gone"), "{message}");
    let tree = remote.git("bare", &["rev-parse", &format!("{given}^{{tree}}")]);
    let unsaid: Vec<&str> =
        message.lines().map(|line| if line.starts_with("adopted: ") { "adopted: -" } else { line }).collect();
    let unsaid = remote.git("bare", &["commit-tree", &tree, "-m", &unsaid.join("\n")]);
    let later = message.replace(":2 by ", ":1 by ").replace("adopted: job:5:", "adopted: job:4:");
    let later = remote.git("bare", &["commit-tree", &tree, "-m", &later]);
    for (new, passes) in [(&given, true), (&unsaid, false), (&later, false)] {
        let input = format!("{before} {new} refs/fence/job\n");
        let judged = hooks.run(HookState::PreReceive, &input).await;
        let refusal = judged.as_ref().err().map(leasehold_core::Error::kind);
        assert_eq!(refusal, (!passes).then_some(Kind::Invalid), "{new}: {judged:?}");
        if !passes {
            not_this_lease(judged);
        }
    }
}
