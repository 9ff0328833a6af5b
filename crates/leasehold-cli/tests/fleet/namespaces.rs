//! Several teams in one store, moving house, and looking.

use crate::common::{Home, On};
use crate::{Engine, at};
use leasehold_testbed::redis_cli;

#[test]
fn two_teams_hold_a_lease_of_the_same_name() {
    let engine = Engine::redis();
    let teams = ["blue", "green"].map(|team| at(format!("{}?namespace={team}", engine.url())));
    let tokens = teams.each_ref().map(|team| team.done(&["acquire", "job", "--ttl", "5m"]).expect(0).stdout);
    for (team, token) in teams.iter().zip(&tokens) {
        team.done(&["acquire", "job"]).expect(11);
        team.done(&["renew", "--token", token.trim()]).expect(0);
    }
    teams[0].done(&["renew", "--token", tokens[1].trim()]).expect(64);
    teams[0].done(&["release", "--token", tokens[0].trim()]).expect(0);
    assert_eq!(teams.each_ref().map(|team| team.show("job")["state"].clone()), ["free", "held"]);
    engine.home().done(&["show", "job"]).expect(64);
    // A command of a run finds its own team's namespace.
    let inner = "leasehold ls --json && echo $LEASEHOLD_STORE";
    let seen = teams[1].done(&["run", "other", "--", "sh", "-c", inner]).expect(0).stdout;
    assert!(seen.contains("\"job\"") && seen.contains("namespace=green"), "{seen}");
}

#[test]
fn epochs_go_up_through_two_moves() {
    let (first, second, third) = (Home::new(On::Sqlite), Engine::redis(), Engine::postgres());
    let epoch = |home: &Home| -> u64 {
        let printed = home.done(&["run", "job", "--", "sh", "-c", "echo $LEASEHOLD_EPOCH"]).expect(0).stdout;
        printed.trim().parse().unwrap()
    };
    let mut seen: Vec<u64> = (0..3).map(|_| epoch(&first)).collect();
    first.done(&["acquire", "held", "--ttl", "10m"]).expect(0);
    let homes = [&first, &second.home(), &third.home()];
    for pair in homes.windows(2) {
        let (from, to) = (&pair[0].store, &pair[1].store);
        let refused = first.done(&["migrate", from, to]);
        if *from == first.store {
            assert!(refused.expect(11).stderr.contains("nothing changed"));
            first.done(&["migrate", from, to, "--revoke-held"]).expect(0);
        } else {
            refused.expect(0);
        }
        let gone = pair[0].done(&["acquire", "job"]).expect(78);
        assert!(gone.stderr.contains("moved to"), "{gone:?}");
        seen.extend([epoch(pair[1]), epoch(pair[1])]);
        assert_eq!(pair[1].show("held")["state"], "free");
    }
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    assert_eq!(homes[2].count("job", "granted"), 7, "counts go along");
}

#[test]
fn looking_makes_nothing_on_a_fresh_server() {
    for engine in [Engine::redis(), Engine::postgres(), Engine::nats(), Engine::etcd(), Engine::mysql()] {
        let (home, before) = (engine.home(), engine.contents());
        for (look, code) in [
            (&["ls"][..], 0),
            (&["ls", "--json"], 0),
            (&["ls", "--held"], 0),
            (&["show", "job"], 64),
            (&["history", "job"], 64),
            (&["stats"], 0),
            (&["stats", "job"], 0),
            (&["advise", "job"], 64),
            (&["config"], 0),
        ] {
            let done = home.done(look).expect(code);
            assert!(!done.stderr.contains("panicked"), "{done:?}");
            assert_eq!(engine.contents(), before, "{look:?} on {}", home.store);
        }
        if let Engine::Redis(server) = &engine {
            assert_eq!(redis_cli(server.port(), &["dbsize"]).trim(), "0");
        }
        // Nor do they change what is there.
        home.done(&["run", "job", "--", "true"]).expect(0);
        let lived = engine.contents();
        assert_ne!(lived, before);
        for look in [["ls"].as_slice(), &["show", "job"], &["history", "job"], &["stats"], &["advise", "job"]] {
            home.done(look).expect(0);
            assert_eq!(engine.contents(), lived, "{look:?} on {}", home.store);
        }
    }
}
