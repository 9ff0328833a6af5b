//! What somebody meets who tries a server and its clients for the first time, with the mistakes that are easy to make.

use crate::common::{Done, Home, On, eventually};
use crate::rig::{Served, get_as, id, key, raw, serve, start};

/// The real command, with this store and this key.
fn client(home: &Home, store: &str, key: &str, args: &[&str]) -> Done {
    Done::from(home.leasehold(args).env("LEASEHOLD_STORE", store).env("LEASEHOLD_KEY", key).output().unwrap())
}

fn url(server: &Served) -> String {
    format!("leasehold+http://{}/ci", server.address)
}

#[test]
fn no_message_shows_a_key_or_a_password_however_wrong_the_address_is() {
    let home = Home::new(On::Sqlite);
    let mine = key(&home, &["--allow", "read"]);
    for store in [
        format!("leasehold+http://{mine}@127.0.0.1:7117/ci"),
        format!("leasehold://{mine}@leases.example.org/ci"),
        format!("leasehold+http://{mine}:@127.0.0.1:7117/ci"),
        format!("leasehold+http://me:{mine}@127.0.0.1:7117/ci"),
        format!("leasehold+http:{mine}@127.0.0.1/ci"),
        format!("leasehold+http:///{mine}@127.0.0.1/ci"),
        format!("leasehold+http://{mine}/ci"),
        format!("leasehold+http://{mine}127.0.0.1:7117/ci"),
        format!("leasehold+http://127.0.0.1:7117/{mine}"),
        format!("leasehold+http://127.0.0.1:7117/ci?key={mine}"),
        format!("leasehold+http://127.0.0.1:7117/ci?{mine}"),
        format!("leasehold+http://:{mine}@127.0.0.1:x/ci"),
        format!("leasehold+http://:{mine}@127.0.0.1:1/ci"),
        format!("https://{mine}@leases.example.org/ci"),
        format!("postgres://{mine}:x@127.0.0.1:1/db"),
        format!("redis://{mine}@127.0.0.1:1"),
        mine.clone(),
    ] {
        for verb in [&["ls"][..], &["config"], &["key", "ls"], &["run", "x", "--", "true"]] {
            let done = Done::from(home.leasehold(&[verb, &["--store", &store]].concat()).output().unwrap());
            let told = format!("{}{}", done.stdout, done.stderr);
            assert!(!told.contains(&mine[13..]), "{verb:?} with {} told {told}", store.replace(&mine, "KEY"));
        }
    }
    for verb in [&["show", &mine][..], &["key", "exchange", "--token-file", &mine], &[&mine]] {
        let done = Done::from(home.leasehold(verb).output().unwrap());
        assert!(!done.stderr.contains(&mine[13..]) || verb.len() == 1, "{done:?}");
    }
}

#[test]
fn looking_at_a_schedule_needs_no_key_for_other_names() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let mine = key(&home, &["--namespace", "ci", "--name", "deploy/*", "--allow", "read,hold"]);
    let job = "[[job]]\nname = \"deploy/web\"\ncron = \"0 3 * * *\"\ncommand = \"true\"\n";
    std::fs::write(home.path("jobs.toml"), job).unwrap();
    for verb in [&["schedule", "--file", "jobs.toml", "check"][..], &["schedule", "--file", "jobs.toml", "next"]] {
        let done = client(&home, &url(&server), &mine, verb).expect(0);
        assert!(done.stdout.contains("deploy/web"), "{done:?}");
    }
    client(&home, &url(&server), &mine, &["stats"]).expect(0);
    client(&home, &url(&server), &mine, &["stats", "deploy/web"]).expect(0);
}

#[test]
fn what_is_not_there_is_wrong_input_through_a_server_too() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let admin = key(&home, &["--namespace", "ci", "--allow", "read,admin"]);
    let store = url(&server);
    for verb in [&["key", "revoke", "aaaaaaaa", "--why", "x"][..], &["key", "rotate", "aaaaaaaa"]] {
        let told = client(&home, &store, &admin, verb).expect(64).stderr;
        assert!(told.contains("there is no such key"), "{told}");
    }
    let told = client(&home, &store, &admin, &["key", "exchange", "--token-file", "nosuch"]).expect(64).stderr;
    assert!(told.contains("nosuch"), "{told}");
    // Another's reason stays.
    let other = key(&home, &["--namespace", "ci", "--allow", "read"]);
    let revoke =
        |why: &str| client(&home, &store, &admin, &["key", "revoke", id(&other), "--why", why]).expect(0).stdout;
    assert!(revoke("the laptop was stolen").contains("servers refuse it"));
    let again = revoke("another reason");
    assert!(again.contains("was revoked before, by test (key ") && again.contains("the laptop was stolen"), "{again}");
    let direct = home.done(&["key", "revoke", id(&other), "--why", "mine"]).expect(0).stdout;
    assert!(direct.contains("was revoked before") && direct.contains("the laptop was stolen"), "{direct}");
}

#[test]
fn a_refusal_names_the_verb_that_the_command_needs() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let worker = key(&home, &["--namespace", "ci", "--allow", "work"]);
    let told = client(&home, &url(&server), &worker, &["run", "x", "--", "true"]).expect(78).stderr;
    assert!(told.contains("does not allow `hold` (to look, `read` or `operate` is enough)"), "{told}");
    let holder = key(&home, &["--namespace", "ci", "--allow", "hold"]);
    let told = client(&home, &url(&server), &holder, &["queue", "ls", "mail"]);
    assert!(told.code == 0 || told.stderr.contains("does not allow `work`"), "{told:?}");
}

#[test]
fn a_wrong_address_is_answered_with_the_form_of_a_right_one() {
    let home = Home::new(On::Sqlite);
    let server = start(&home, &["--listen", "127.0.0.1:0", "--path-prefix", "/leases"], "a");
    let mine = key(&home, &["--namespace", "ci", "--allow", "read"]);
    let place = format!("leasehold+http://{}", server.address);
    client(&home, &format!("{place}/leases/ci"), &mine, &["ls"]).expect(0);
    for path in ["/ci", "/other/ci", "/leases/ns/ci"] {
        let told = client(&home, &format!("{place}{path}"), &mine, &["ls"]).expect(78).stderr;
        assert!(told.contains("leasehold://HOST/PREFIX/NAMESPACE") && told.contains("--path-prefix"), "{told}");
    }
    // The page is at the prefix itself.
    let log = home.read(&server.log);
    assert!(log.contains("/leases in a browser"), "{log}");
    drop(server);
    let told = client(&home, &format!("{place}/ci"), &mine, &["ls"]).expect(69).stderr;
    assert!(told.contains("connection refused; is `leasehold serve` running there?"), "{told}");
    assert_eq!(told.matches("refused").count(), 1, "{told}");
}

#[test]
fn what_needs_the_store_itself_says_so() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let mine = key(&home, &["--namespace", "ci", "--allow", "read,hold,work,operate,admin"]);
    let store = url(&server);
    let told = client(&home, &store, &mine, &["serve", "--listen", "127.0.0.1:0"]).expect(78).stderr;
    assert!(told.contains("is another server; `serve` needs the URL of the store itself"), "{told}");
    let migrate = ["migrate", &home.store, &store];
    let told = client(&home, &store, &mine, &migrate);
    assert!(told.code == 64 && told.stderr.contains("`migrate` needs the URL of the store itself"), "{told:?}");
}

#[test]
fn a_server_says_what_it_did_not_do_when_it_started() {
    let home = Home::new(On::Sqlite);
    key(&home, &["--allow", "read"]);
    let settings = home.read("leasehold.toml");
    let rule = "[[oidc]]\nissuer = \"https://cluster.local\"\njwks_file = \"cluster.jwks\"\naudience = \"https://leases.example.org\"\n\
                claims = { sub = \"*\" }\nnamespace = \"ci\"\nallow = [\"hold\"]\n";
    std::fs::write(home.path("leasehold.toml"), format!("{settings}\n{rule}")).unwrap();
    let shown = home.done(&["config"]).expect(0).stdout;
    assert!(shown.contains("cluster.jwks") && shown.contains("https://leases.example.org"), "{shown}");
    let server = serve(&home, &["--bootstrap-key-file", "first.key", "--max-body", "2MiB"]);
    let log = home.read(&server.log);
    assert!(log.contains("the store has keys already, so none was written to first.key"), "{log}");
    assert!(log.contains("cannot read the keys in") && log.contains("no token of `https://cluster.local`"), "{log}");
    assert!(!home.path("first.key").exists());
    // Whoever has no key learns nothing of where that file would be.
    let refused = raw(
        server.address,
        b"POST /v1/exchange HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
    );
    assert_eq!(refused.unwrap().json()["detail"], "field `token`: it is missing at line 1 column 2");
}

#[test]
fn rules_with_a_wrong_number_say_what_to_write() {
    let home = Home::new(On::Sqlite);
    let settings = home.read("leasehold.toml");
    let rule = "[[oidc]]\nissuer = \"https://a.example\"\naudience = \"b\"\nclaims = { sub = \"*\" }\nnamespace = \"ci\"\nallow = [\"hold\"]\n";
    for (more, says) in [("lasts = 15", "lasts = \"15m\""), ("names = []", "field `names`")] {
        std::fs::write(home.path("leasehold.toml"), format!("{settings}\n{rule}{more}\n")).unwrap();
        let told = home.done(&["config"]).expect(64).stderr;
        assert!(told.contains(says), "{told}");
    }
}

#[test]
fn the_log_says_once_that_the_store_is_away_and_once_that_it_is_back() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let mine = key(&home, &["--namespace", "ci", "--allow", "read"]);
    let ask = || get_as(server.address, "/v1/ns/ci/leases", &mine).status;
    assert_eq!(ask(), 200);
    let unknown = get_as(server.address, "/v1/ns/ci/leases", "lh_w_nonsense");
    assert_eq!(unknown.status, 401);
    let file = home.store.strip_prefix("sqlite:").unwrap().to_owned();
    let away = format!("{file}.away");
    std::fs::rename(&file, &away).unwrap();
    eventually("the store is missed", || ask() == 503);
    for _ in 0..20 {
        assert_eq!(ask(), 503);
    }
    std::fs::rename(&away, &file).unwrap();
    eventually("it is back", || ask() == 200);
    eventually("it is told", || home.read(&server.log).contains("the store answers again"));
    let log = home.read(&server.log);
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("warn")).collect();
    // The keys' store, the namespace's, and the first request that failed.
    assert!((1..=3).contains(&warnings.len()), "{log}");
    assert!(warnings.iter().any(|line| line.contains("bring it back, and it is used again")), "{log}");
    assert!(log.contains("401 in ") && log.contains("(key_malformed)"), "{log}");
}
