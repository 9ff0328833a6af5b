//! The database guards on real servers: the predicate, protection, transactions of the user's own, and what scripts may do.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "databases/mod.rs"]
mod databases;

use common::{token, token_of};
use databases::{Database, Engine, all};
use leasehold_core::guard::{HighWater, Policy, admit, seal};
use leasehold_core::{Kind, Nonce, Remedy, Token};
use leasehold_guards::sql::{Dialect, Script, Setup, fencing_column};

fn script(db: &Database, text: &str) -> Script {
    Script::parse(db.dialect(), text).unwrap()
}

/// Runs a check on every engine.
fn on_each(check: impl AsyncFn(&Database)) {
    databases::block_on(async {
        for db in all().await {
            check(&db).await;
        }
    });
}

/// Every standing of a token against a fence, under every policy: the database decides as the one predicate does, and
/// remembers what it says.
#[test]
fn every_engine_decides_as_the_predicate_does() {
    on_each(async |db| {
        let policies = [None, Some(Policy::Reentrant), Some(Policy::Ordered), Some(Policy::OncePerEpoch)];
        let mut compared = 0;
        for (at, before) in histories().into_iter().enumerate() {
            for policy in policies {
                for tried in tokens() {
                    let resource = format!("r{at}-{policy:?}-{compared}");
                    let mut high: Option<HighWater> = None;
                    for (token, policy) in &before {
                        high = Some(judge(high.as_ref(), token, *policy).unwrap());
                        db.guard(&resource, policy.unwrap_or(Policy::Reentrant)).apply(token, *policy).await.unwrap();
                    }
                    let expected = judge(high.as_ref(), &tried, policy);
                    let guard = db.guard(&resource, policy.unwrap_or(Policy::Reentrant));
                    let found = guard.apply(&tried, policy).await;
                    let name = format!("{:?}: {before:?} then {tried:?} as {policy:?}", db.engine);
                    match (&expected, found) {
                        (Ok(expected), Ok(found)) => assert_eq!(*expected, found, "{name}"),
                        (Err(expected), Err(found)) => {
                            let shown = guard.resource();
                            assert_eq!(expected.clone().into_error(&shown).to_string(), found.to_string(), "{name}");
                        }
                        (expected, found) => panic!("{name}: expected {expected:?}, found {found:?}"),
                    }
                    let expected = expected.ok().or(high);
                    assert_eq!(guard.high_water().await.unwrap(), expected, "{name}");
                    compared += 1;
                }
            }
        }
        println!("{:?}: {compared} decisions compared", db.engine);
        assert!(compared > 100);
    });
}

fn judge(
    high: Option<&HighWater>,
    token: &Token,
    policy: Option<Policy>,
) -> Result<HighWater, leasehold_core::guard::Rejection> {
    policy.map_or_else(|| seal(high, token), |policy| admit(high, token, policy))
}

fn histories() -> Vec<Vec<(Token, Option<Policy>)>> {
    let ordered = Token { seq: 4, ..token(5, 0) };
    vec![
        vec![],
        vec![(token(5, 0), None)],
        vec![(token(5, 0), Some(Policy::Reentrant))],
        vec![(token(5, 0), Some(Policy::Reentrant)), (token(5, 0), Some(Policy::Reentrant))],
        vec![(ordered, Some(Policy::Ordered))],
        vec![(token(4, 0), Some(Policy::OncePerEpoch)), (token(5, 0), None)],
    ]
}

fn tokens() -> Vec<Token> {
    let mut tokens = vec![token(4, 0), token(5, 0), token(5, 1), token(6, 0), token_of("other", 9, 0)];
    tokens.extend([1, 3, 4, 5].map(|seq| Token { seq, ..token(5, 0) }));
    tokens
}

#[test]
fn a_script_and_the_fence_commit_together_or_not_at_all() {
    on_each(async |db| {
        let guard = db.guard("whole", Policy::Reentrant);
        db.execute("CREATE TABLE totals (id INTEGER PRIMARY KEY, n INTEGER)").await;
        let text = "INSERT INTO totals VALUES (1, 0); UPDATE totals SET n = 7 WHERE id = 1; SELECT id, n FROM totals";
        let outcome = guard.run(&token(1, 0), &script(db, text)).await.unwrap();
        assert_eq!(outcome.counts, [1, 1, 1], "{:?}", db.engine);
        assert_eq!(outcome.rows.columns, ["id", "n"]);
        assert_eq!(outcome.rows.values, [[Some("1".to_owned()), Some("7".to_owned())]]);
        let broken = script(db, "UPDATE totals SET n = 8; INSERT INTO nowhere VALUES (1)");
        let failed = guard.run(&token(2, 0), &broken).await.unwrap_err();
        assert_eq!(failed.kind(), Kind::Invalid, "{failed}");
        assert!(failed.to_string().contains("statement in line 1 failed, all were rolled back"), "{failed}");
        assert_eq!(db.ask("SELECT n FROM totals").await, "7");
        assert_eq!(guard.high_water().await.unwrap().unwrap().epoch.get(), 1, "the fence went back with the rest");
        guard.seal(&token(3, 0)).await.unwrap();
        let stale = guard.run(&token(1, 0), &script(db, "UPDATE totals SET n = 9")).await.unwrap_err();
        assert_eq!(stale.kind(), Kind::Fenced, "{stale}");
        let rolled_back = guard.run(&token(3, 1), &script(db, "UPDATE totals SET n = 9")).await.unwrap_err();
        assert_eq!(rolled_back.kind(), Kind::Regressed, "{rolled_back}");
        let past_3 = |remedy: &Remedy| matches!(remedy, Remedy::Advance { past, .. } if past.get() == 3);
        assert!(rolled_back.remedy().is_some_and(past_3), "{rolled_back}");
        assert_eq!(db.ask("SELECT n FROM totals").await, "7");
    });
}

#[test]
fn a_database_without_a_fence_says_how_to_get_one() {
    databases::block_on(async {
        for db in databases::bare().await {
            let guard = db.guard("r", Policy::Reentrant);
            for error in [
                guard.seal(&token(1, 0)).await.unwrap_err(),
                guard.run(&token(1, 0), &script(&db, "SELECT 1")).await.unwrap_err(),
            ] {
                assert_eq!(error.kind(), Kind::Unsupported, "{error}");
                assert_eq!(error.remedy(), Some(&Remedy::SetUpSql), "{error}");
            }
        }
    });
}

#[test]
fn setting_up_is_repeatable_and_safe_beside_others() {
    databases::block_on(async {
        for db in databases::bare().await {
            let guards: Vec<_> = (0..8).map(|_| db.guard("r", Policy::Reentrant)).collect();
            let mut all = tokio::task::JoinSet::new();
            for guard in guards {
                all.spawn(async move { guard.init(&Setup::default()).await });
            }
            while let Some(done) = all.join_next().await {
                done.unwrap().unwrap();
            }
            db.guard("r", Policy::Reentrant).run(&token(1, 0), &script(&db, "SELECT 1")).await.unwrap();
        }
    });
}

#[test]
fn a_protected_table_refuses_whoever_did_not_admit() {
    on_each(async |db| {
        let table = if db.engine == Engine::Sqlite { "odd \"quotes\"" } else { "odd \"quotes\" `here`" };
        let quoted = table.parse::<leasehold_guards::sql::Name>().unwrap().quoted(db.dialect());
        db.execute(&format!("CREATE TABLE {quoted} (id INTEGER PRIMARY KEY)")).await;
        let guard = db.guard("it's \"mine\"", Policy::Reentrant);
        let other = db.guard("theirs", Policy::Reentrant);
        let setup = Setup { protect: vec![table.parse().unwrap()], unprotect: vec![] };
        guard.init(&setup).await.unwrap();
        guard.init(&setup).await.unwrap();
        let insert = |id: u32| format!("INSERT INTO {quoted} VALUES ({id})");
        let refused = db.try_execute(&insert(1)).await.unwrap_err();
        assert!(refused.contains("was not admitted"), "{:?}: {refused}", db.engine);
        guard.run(&token(1, 0), &script(db, &insert(1))).await.unwrap();
        for sql in [insert(2), format!("UPDATE {quoted} SET id = 9"), format!("DELETE FROM {quoted}")] {
            let refused = db.try_execute(&sql).await.unwrap_err();
            assert!(refused.contains("was not admitted"), "{:?}: {sql}: {refused}", db.engine);
        }
        if db.engine == Engine::Postgres {
            let refused = db.try_execute(&format!("TRUNCATE {quoted}")).await.unwrap_err();
            assert!(refused.contains("was not admitted"), "{refused}");
            let forged =
                format!("BEGIN; SELECT set_config('leasehold.admitted', txid_current()::text, true); {}", insert(3));
            assert!(db.try_execute(&forged).await.unwrap_err().contains("was not admitted"));
            let by_hand = format!(
                "BEGIN; SELECT leasehold_require('it''s \"mine\"', '{}'); {}; COMMIT",
                token(1, 0).wire(),
                insert(4)
            );
            db.execute(&by_hand).await;
            let stale = by_hand.replace("job:1:", "job:0:");
            assert!(db.try_execute(&stale).await.unwrap_err().contains("invalid token"));
            db.execute(&format!(
                "BEGIN; SELECT leasehold_require('it''s \"mine\"', '{}'); DELETE FROM {quoted} WHERE id = 4; COMMIT",
                token(1, 0).wire()
            ))
            .await;
        }
        // Admitted elsewhere is not admitted here, and a seal is no admission.
        let refused = other.run(&token(1, 0), &script(db, &insert(5))).await.unwrap_err();
        assert!(refused.to_string().contains("was not admitted"), "{refused}");
        guard.seal(&token(2, 0)).await.unwrap();
        assert!(db.try_execute(&insert(6)).await.unwrap_err().contains("was not admitted"));
        assert_eq!(db.ask(&format!("SELECT count(*) FROM {quoted}")).await, "1");
        guard.init(&Setup { protect: vec![], unprotect: setup.protect.clone() }).await.unwrap();
        db.execute(&insert(7)).await;
    });
}

#[test]
fn a_script_that_gets_out_of_its_transaction_is_reported() {
    on_each(async |db| {
        db.execute("CREATE TABLE out_of_it (id INTEGER PRIMARY KEY)").await;
        let guard = db.guard("escape", Policy::Reentrant);
        // What no look at the text can tell: a procedure that commits.
        if db.engine != Engine::Mysql {
            return;
        }
        for (name, body) in [("once", "COMMIT"), ("and_again", "BEGIN COMMIT; START TRANSACTION; END")] {
            db.execute(&format!("CREATE PROCEDURE {name}() {body}")).await;
            let text = format!("INSERT INTO out_of_it VALUES (1); CALL {name}(); DELETE FROM out_of_it");
            let error = guard.run(&token(1, 0), &script(db, &text)).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{error}");
            assert!(error.to_string().contains("the script left its transaction"), "{error}");
            db.execute("DELETE FROM out_of_it").await;
        }
    });
}

#[test]
fn a_fencing_column_refuses_lower_epochs() {
    on_each(async |db| {
        db.execute("CREATE TABLE fenced (id INTEGER PRIMARY KEY, n INTEGER, fence BIGINT)").await;
        db.execute("INSERT INTO fenced VALUES (1, 0, NULL)").await;
        let update = |epoch, n: u32| {
            let (set, condition) = fencing_column(db.dialect(), &"fence".parse().unwrap(), &token(epoch, 0));
            format!("UPDATE fenced SET n = {n}, {set} WHERE id = 1 AND {condition}")
        };
        db.execute(&update(5, 1)).await;
        db.execute(&update(4, 2)).await;
        assert_eq!(db.ask("SELECT n FROM fenced").await, "1", "{:?}", db.engine);
        db.execute(&update(5, 3)).await;
        db.execute(&update(6, 4)).await;
        assert_eq!(db.ask("SELECT n FROM fenced").await, "4");
    });
}

/// The user's own transactions, at every isolation level: two that overlap never both count.
#[test]
fn an_admit_in_the_users_own_transaction_is_safe_at_any_isolation_level() {
    on_each(async |db| {
        db.own_transactions().await;
    });
}

/// A program whose runtime stands still after a refusal closes no connection; the fence is free all the same.
#[test]
fn a_refused_or_failed_transaction_gives_the_fence_back_at_once() {
    let all = databases::block_on(databases::all());
    for db in all.iter().filter(|db| db.engine != Engine::Sqlite) {
        let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let guard = db.guard("idle", Policy::Reentrant);
        databases::block_on(guard.seal(&token(6, 0))).unwrap();
        for way in 0..4 {
            let (guard, stale) = (&guard, token(5, 0));
            idle.block_on(async {
                let (refused, kind) = match way {
                    0 => (guard.seal(&stale).await.unwrap_err(), Kind::Fenced),
                    1 => (guard.run(&stale, &script(db, "SELECT 1")).await.unwrap_err(), Kind::Fenced),
                    2 => (guard.run(&token(6, 0), &script(db, "SELECT nothing")).await.unwrap_err(), Kind::Invalid),
                    _ => (db.refused_begin("idle", &stale).await, Kind::Fenced),
                };
                assert_eq!(refused.kind(), kind, "{:?} way {way}: {refused}", db.engine);
            });
            let begun = leasehold_system::clock::now();
            databases::block_on(db.begin_and_commit("idle", &token(6, 0)));
            let took = leasehold_system::clock::now().saturating_since(begun);
            assert!(took < std::time::Duration::from_secs(3), "{:?} way {way}: held up for {took:?}", db.engine);
        }
    }
}

#[test]
fn hostile_scripts_are_refused_before_anything_is_sent() {
    let postgres: &[&str] = &[
        "COMMIT",
        "commit;",
        "/* x */ CoMmIt",
        "-- x\nCOMMIT",
        "-- x\rCOMMIT",
        "/* /* nested */ */ COMMIT",
        "SELECT 1; END",
        "SELECT 1;;;ABORT",
        "SELECT '--'; ROLLBACK",
        "SELECT '''; --'; ROLLBACK",
        "SELECT E'\\''; COMMIT; --'",
        "SELECT $$;$$; COMMIT",
        "SELECT $a$ $b$ $a$; COMMIT --$b$",
        "SELECT a$b$c; COMMIT; SELECT a$b$c",
        "SELECT \"a;\"\"\"; BEGIN",
        "START TRANSACTION",
        "BEGIN WORK",
        "ROLLBACK AND CHAIN",
        "COMMIT PREPARED 'x'",
        "PREPARE TRANSACTION 'x'",
        "SET standard_conforming_strings = off",
        "SELECT set_config('standard_conforming_strings', 'off', false)",
        "COPY t FROM STDIN",
        "COPY (SELECT 1) TO STDOUT",
        "\\i other.sql",
        "SELECT 1 \\gexec",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END",
        "SELECT 'open",
        "SELECT $x$ open",
        "SELECT \"open",
        "/* open",
        "/* /* open */",
        "SELECT 1;\0COMMIT",
        "",
        ";;",
        "-- nothing",
        "\u{feff}COMMIT",
    ];
    let mysql: &[&str] = &[
        "COMMIT",
        "/*! COMMIT */",
        "/*!50000 COMMIT */",
        "/*M! COMMIT */",
        "SELECT 1 /*! ; COMMIT */",
        "SELECT 'a\\'; COMMIT; --'; COMMIT",
        "SELECT \"a\\\"; x\"; COMMIT",
        "# x\nCOMMIT",
        "--\nCOMMIT",
        "SELECT 1 --x\n; COMMIT",
        "/* /* not nested */ COMMIT",
        "CREATE TABLE t (id INT)",
        "DROP TABLE t",
        "ALTER TABLE t ADD x INT",
        "TRUNCATE t",
        "RENAME TABLE a TO b",
        "LOCK TABLES t WRITE",
        "UNLOCK TABLES",
        "GRANT ALL ON *.* TO x",
        "SET autocommit = 1",
        "SET @@session.`autocommit` = 1",
        "SET sql_mode = 'ANSI_QUOTES'",
        "SET STATEMENT max_statement_time = 1 FOR COMMIT",
        "SET PASSWORD = 'x'",
        "PREPARE x FROM 'COMMIT'",
        "EXECUTE IMMEDIATE 'COMMIT'",
        "XA BEGIN 'x'",
        "BEGIN NOT ATOMIC COMMIT; END",
        "START TRANSACTION",
        "ANALYZE TABLE t",
        "FLUSH TABLES",
        "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t",
        "DELIMITER //",
        "USE other",
        "CREATE INDEX i ON t (x)",
        "INSTALL SONAME 'x'",
        "SHUTDOWN",
        "SELECT `open",
    ];
    let sqlite: &[&str] = &[
        "COMMIT",
        "END TRANSACTION",
        "SELECT [a;b]; COMMIT",
        "SELECT `a;b`; ROLLBACK",
        "SELECT 'a\\'; COMMIT",
        "ATTACH 'x' AS y",
        "PRAGMA journal_mode = off",
        "VACUUM",
        "CREATE TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; END; COMMIT",
        "BEGIN EXCLUSIVE",
        "SELECT [open",
    ];
    let mut refused = 0;
    for (dialect, texts) in [(Dialect::Postgres, postgres), (Dialect::Mysql, mysql), (Dialect::Sqlite, sqlite)] {
        for text in texts {
            let error = Script::parse(dialect, text).err().unwrap_or_else(|| panic!("{dialect:?} took {text:?}"));
            assert_eq!(error.kind(), Kind::Invalid, "{text:?}");
            assert!(!error.to_string().contains('\n'), "{error}");
            refused += 1;
        }
    }
    println!("{refused} hostile scripts refused");
    assert!(refused >= 80);
    for (dialect, text, count) in [
        (Dialect::Postgres, "SELECT 'COMMIT; ROLLBACK'; SELECT $$ COMMIT; $$ -- ; COMMIT", 2),
        (Dialect::Postgres, "SAVEPOINT a; ROLLBACK TO a; ROLLBACK WORK TO a; RELEASE a", 4),
        (Dialect::Postgres, "DO $x$ BEGIN PERFORM 1; END $x$; SELECT $1, a[1]", 2),
        (Dialect::Mysql, "UPDATE t SET a = 'it''s; \\'COMMIT'; -- COMMIT\nCREATE TEMPORARY TABLE x (id INT)", 2),
        (Dialect::Mysql, "SELECT 1--1; SET @x = 1", 2),
        (Dialect::Sqlite, "CREATE TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; SELECT 2; END; SELECT 3", 2),
        (Dialect::Sqlite, "SELECT \"a;b\", [c;d], `e;f`; SELECT 2;", 2),
    ] {
        let script = Script::parse(dialect, text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(script.statements().len(), count, "{text}: {script:?}");
    }
}

#[test]
fn hostile_names_are_refused_or_are_only_names() {
    for bad in ["", " ", " a", "a ", "a\nb", "\0", &"x".repeat(201)] {
        assert_eq!(bad.parse::<leasehold_guards::sql::Resource>().unwrap_err().kind(), Kind::Invalid, "{bad:?}");
    }
    for bad in ["", ".", "a.", ".b", "a.b.c", "a\nb", "\u{1b}[2J", &"x".repeat(64)] {
        assert_eq!(bad.parse::<leasehold_guards::sql::Name>().unwrap_err().kind(), Kind::Invalid, "{bad:?}");
    }
    on_each(async |db| {
        for name in ["'; DROP TABLE leasehold_fence; --", "\\", "\\'", "%s", "a\"b`c", "ü", "$1", "x'00'", "*/"] {
            let guard = db.guard(name, Policy::Reentrant);
            guard.run(&token(1, 0), &script(db, "SELECT 1")).await.unwrap();
            let high = guard.high_water().await.unwrap().unwrap();
            assert_eq!((high.epoch.get(), high.nonce), (1, Nonce::from_u128(1 << 64)), "{name}");
        }
    });
}

#[test]
fn a_full_disk_of_the_server_changes_nothing() {
    databases::block_on(databases::a_full_disk_changes_nothing());
}

/// Bytes are shown as psql shows them, on every engine, and never as a text that they are not.
#[test]
fn bytes_come_as_bytes() {
    on_each(async |db| {
        let sql = match db.engine {
            Engine::Postgres => r"SELECT '\x00ff41'::bytea AS b, 'A' AS t, 7 AS n",
            Engine::Mysql => "SELECT x'00ff41' AS b, 'A' AS t, 7 AS n",
            Engine::Sqlite => "SELECT x'00ff41' AS b, 'A' AS t, 7 AS n",
        };
        let outcome = db.guard("bytes", Policy::Reentrant).run(&token(1, 0), &script(db, sql)).await.unwrap();
        let fields = [r"\x00ff41", "A", "7"].map(|field| Some(field.to_owned()));
        assert_eq!(outcome.rows.values, [fields], "{:?}", db.engine);
    });
    databases::block_on(async {
        let db = all().await.into_iter().find(|db| db.engine == Engine::Sqlite).unwrap();
        let broken = script(&db, "SELECT CAST(x'ff41' AS TEXT)");
        let outcome = db.guard("x", Policy::Reentrant).run(&token(1, 0), &broken).await.unwrap();
        assert_eq!(outcome.rows.values, [[Some(r"\xff41".to_owned())]], "a text that is none");
    });
}
