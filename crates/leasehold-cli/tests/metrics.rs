//! Numbers and health: what `--metrics` answers, what `stats` prints, and what is shipped to read them.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, PATIENCE, Running, descendants, eventually, signal};
use leasehold_testbed::{program, redis};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How many clients are answered at once.
const CONNECTIONS: usize = 128;

/// A process that listens.
struct Watched {
    running: Running,
    address: SocketAddr,
}

/// Starts it with its standard error in a file, and finds out where it listens.
fn watched(home: &Home, mut command: Command, log: &str) -> Watched {
    let errors = File::create(home.path(log)).unwrap();
    let running = Running::from(command.stdout(Stdio::null()).stderr(errors).spawn().unwrap());
    let said = || {
        let text = home.read(log);
        let url = text.split("metrics and health on http://").nth(1)?.split("/metrics").next()?.to_owned();
        Some(url)
    };
    eventually("it says where it listens", || said().is_some());
    Watched { running, address: said().unwrap().parse().unwrap() }
}

fn start(home: &Home, args: &[&str], log: &str) -> Watched {
    watched(home, home.leasehold(args), log)
}

/// What is answered: the status, and the text. None if there is no answer.
fn ask(address: SocketAddr, request: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
}

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    ask(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).unwrap_or_default()
}

/// The value of one series.
fn value(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// What became of runs, job by job; not what passes by itself while nothing runs.
fn ended(page: &str) -> BTreeSet<&str> {
    let is_meant = |line: &&str| ["granted", "succeeded", "failed"].iter().any(|outcome| line.contains(outcome));
    page.lines().filter(|line| line.starts_with("leasehold_runs_total{job=")).filter(is_meant).collect()
}

/// The families that are begun.
fn families(page: &str) -> BTreeSet<String> {
    page.lines().filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned())).collect()
}

fn promtool(args: &[&str], folder: &Path, input: &str) -> Done {
    let mut command = Command::new(program("promtool"));
    command.args(args).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Done::from(child.wait_with_output().unwrap())
}

fn ops() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops")
}

const JOBS: &str = "[[job]]\nname = 'good'\nevery = '1s'\ncommand = 'true'\n\
                    [[job]]\nname = 'team/bad'\nevery = '1s'\ncommand = 'exit 3'\n";

#[test]
fn two_schedulers_and_stats_show_the_same_totals() {
    let home = Home::new(On::Sqlite);
    std::fs::write(home.path("leasehold.toml"), JOBS).unwrap();
    home.done(&["queue", "add", "letters"]).expect(0);
    home.done(&["run", "by-hand", "--", "true"]).expect(0);
    let one = start(&home, &["schedule", "--metrics", "127.0.0.1:0"], "one");
    let two = start(&home, &["schedule", "run", "--metrics", "127.0.0.1:0"], "two");
    let failed = "leasehold_runs_total{job=\"team/bad\",outcome=\"failed\"}";
    eventually("two runs have failed", || value(&get(one.address, "/metrics").1, failed).is_some_and(|n| n >= 2.0));
    for job in ["good", "team/bad"] {
        home.done(&["pause", job, "--why", "enough"]).expect(0);
    }
    let pages = || {
        let printed = home.done(&["stats", "--prometheus"]).expect(0).stdout;
        [get(one.address, "/metrics").1, get(two.address, "/metrics").1, printed]
    };
    eventually("all three show the same", || {
        let pages = pages();
        let [one, two, printed] = [0, 1, 2].map(|at: usize| ended(&pages[at]));
        !one.is_empty() && one == two && two == printed
    });
    for page in pages() {
        let linted = promtool(&["check", "metrics"], home.folder.path(), &page).expect(0);
        assert_eq!(linted.stdout + &linted.stderr, "", "{page}");
        let of = |series: &str| value(&page, series).unwrap_or_else(|| panic!("{series}\n{page}"));
        assert!(of("leasehold_runs_total{job=\"good\",outcome=\"succeeded\"}") >= 1.0);
        assert!(of("leasehold_run_duration_seconds_count{job=\"team/bad\"}") >= 2.0);
        assert!(of("leasehold_job_last_success_timestamp_seconds{job=\"good\"}") > 1e9);
        assert!(of("leasehold_job_last_run_timestamp_seconds{job=\"team/bad\"}") > 1e9);
        assert!(!page.contains("leasehold_job_last_success_timestamp_seconds{job=\"team/bad\"}"), "{page}");
        assert!(of("leasehold_job_next_slot_timestamp_seconds{job=\"good\"}") > 1e9);
        assert_eq!(of("leasehold_queue_items{queue=\"letters\",state=\"ready\"}"), 1.0);
        assert_eq!((of("leasehold_fenced_total"), of("leasehold_store_up")), (0.0, 1.0));
        // What is no job has no label of its own.
        assert!(of("leasehold_runs_total{outcome=\"succeeded\"}") >= 1.0 && !page.contains("by-hand"), "{page}");
        assert!(of("leasehold_store_request_duration_seconds_count{store=\"sqlite\",operation=\"list\"}") >= 1.0);
    }
}

#[test]
fn what_is_shipped_reads_what_there_is() {
    let home = Home::new(On::Sqlite);
    let there = families(&home.done(&["stats", "--prometheus"]).expect(0).stdout);
    for name in ["grafana-dashboard.json", "prometheus-rules.yml", "prometheus-rules-test.yml"] {
        let text = std::fs::read_to_string(ops().join(name)).unwrap();
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_')).filter(|w| w.starts_with("leasehold_"));
        let named: BTreeSet<&str> = words
            .map(|word| ["_bucket", "_sum", "_count"].iter().fold(word, |w, end| w.trim_end_matches(end)))
            .collect();
        assert!(named.len() >= 8, "{name}: {named:?}");
        let unknown: Vec<_> = named.into_iter().filter(|family| !there.contains(*family)).collect();
        assert!(unknown.is_empty(), "{name} names what is not there: {unknown:?}");
    }
    let dashboard: Value =
        serde_json::from_str(&std::fs::read_to_string(ops().join("grafana-dashboard.json")).unwrap()).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
    promtool(&["check", "rules", "prometheus-rules.yml"], &ops(), "").expect(0);
    promtool(&["test", "rules", "prometheus-rules-test.yml"], &ops(), "").expect(0);
    // Each alert is in the tests, and described.
    let [rules, tests] = ["prometheus-rules.yml", "prometheus-rules-test.yml"]
        .map(|name| std::fs::read_to_string(ops().join(name)).unwrap());
    let page = std::fs::read_to_string(ops().join("../docs/metrics.md")).unwrap();
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n        exp_alerts:")), "no test has {alert} fire");
        assert!(page.contains(&format!("| `{alert}` |")), "docs/metrics.md has no {alert}");
    }
}

#[test]
fn a_scheduler_is_ready_only_while_it_would_run_jobs() {
    let mut server = redis();
    let home = Home::at(format!("redis://127.0.0.1:{}", server.port()));
    let job = "[[job]]\nname = 'long'\nevery = '1s'\ncommand = 'touch began; while [ ! -e end ]; do sleep 0.1; done'\nttl = '5m'\n";
    std::fs::write(home.path("leasehold.toml"), job).unwrap();
    // As the first process of a PID namespace, as in a container.
    let plain = home.leasehold(&["schedule", "--metrics", "127.0.0.1:0"]);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--"]).arg(plain.get_program());
    command.args(plain.get_args()).current_dir(home.folder.path()).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    let scheduler = watched(&home, command, "log");
    let ready = || get(scheduler.address, "/readyz");
    eventually("it is ready", || ready() == (200, "ready\n".into()));
    server.kill();
    eventually("it is not, without its store", || ready().0 == 503);
    assert!(ready().1.starts_with("not ready: the store "), "{:?}", ready());
    assert_eq!(get(scheduler.address, "/livez"), (200, "alive\n".into()));
    let page = get(scheduler.address, "/metrics");
    assert_eq!((page.0, value(&page.1, "leasehold_store_up")), (200, Some(0.0)), "{page:?}");
    server.restart();
    eventually("it is ready again", || ready().0 == 200);
    eventually("the job runs", || home.path("began").exists());
    signal(descendants(scheduler.running.pid())[0], "TERM");
    eventually("it drains", || ready().1.contains("draining"));
    assert_eq!((ready().0, get(scheduler.address, "/livez").0), (503, 200));
    home.touch("end");
    assert_eq!(scheduler.running.end().code, 0);
    assert!(!home.read("log").contains("readyz"), "requests are not logged: {}", home.read("log"));
}

#[test]
fn a_draining_server_is_not_ready_and_continues_to_answer() {
    let home = Home::new(On::Sqlite);
    let job = "[[job]]\nname = 'long'\nevery = '1s'\ncommand = 'touch began; while [ ! -e end ]; do sleep 0.1; done'\n";
    std::fs::write(home.path("leasehold.toml"), job).unwrap();
    home.done(&["queue", "add", "letters"]).expect(0);
    let wait = "touch claimed; while [ ! -e end ]; do sleep 0.1; done";
    let work = ["work", "letters", "--metrics", "127.0.0.1:0", "--", "sh", "-c", wait];
    let (scheduler, worker) =
        (start(&home, &["schedule", "--metrics", "127.0.0.1:0"], "one"), start(&home, &work, "two"));
    for watched in [&scheduler, &worker] {
        eventually("it is ready", || get(watched.address, "/readyz").0 == 200);
    }
    eventually("both are at work", || home.path("began").exists() && home.path("claimed").exists());
    let claimed = "leasehold_queue_items{queue=\"letters\",state=\"claimed\"}";
    eventually("the item is seen as claimed", || value(&get(worker.address, "/metrics").1, claimed) == Some(1.0));
    eventually("the time left is seen", || {
        value(&get(scheduler.address, "/metrics").1, "leasehold_renewal_margin_seconds")
            .is_some_and(|left| (1.0..=90.0).contains(&left))
    });
    let part = value(&get(scheduler.address, "/metrics").1, "leasehold_renewal_margin_ratio");
    assert!(part.is_some_and(|part| part > 0.01 && part <= 1.0), "{part:?}");
    for watched in [&scheduler, &worker] {
        signal(watched.running.pid(), "TERM");
        eventually("it drains", || get(watched.address, "/readyz").1.contains("draining"));
        assert_eq!((get(watched.address, "/readyz").0, get(watched.address, "/livez").0), (503, 200));
    }
    home.touch("end");
    assert_eq!((scheduler.running.end().code, worker.running.end().code), (0, 0));
}

#[test]
fn a_job_has_numbers_before_its_first_run_and_shows_that_it_is_paused() {
    let home = Home::new(On::Sqlite);
    std::fs::write(home.path("leasehold.toml"), "[[job]]\nname = 'new'\nevery = '366d'\ncommand = 'true'\n").unwrap();
    home.done(&["run", "by-hand", "--", "true"]).expect(0);
    let scheduler = start(&home, &["schedule", "--metrics", "127.0.0.1:0"], "log");
    let page = || get(scheduler.address, "/metrics").1;
    eventually("the store is read", || value(&page(), "leasehold_store_up") == Some(1.0));
    let [first, printed] = [page(), home.done(&["stats", "--prometheus"]).expect(0).stdout];
    for page in [&first, &printed] {
        for outcome in ["failed", "lost", "died", "succeeded"] {
            let series = format!("leasehold_runs_total{{job=\"new\",outcome=\"{outcome}\"}}");
            assert_eq!(value(page, &series), Some(0.0), "{series}\n{page}");
        }
        assert!(!page.contains("by-hand") && !page.contains("last_run_timestamp_seconds{job=\"new\"}"), "{page}");
        assert_eq!(value(page, "leasehold_job_paused{job=\"new\"}"), Some(0.0), "{page}");
    }
    for (verb, expected) in [("pause", 1.0), ("resume", 0.0)] {
        home.done(&[verb, "new", "--why", "test"]).expect(0);
        eventually(verb, || value(&page(), "leasehold_job_paused{job=\"new\"}") == Some(expected));
    }
    signal(scheduler.running.pid(), "TERM");
    assert_eq!(scheduler.running.end().code, 0);
}

#[test]
fn lanes_leave_the_address_to_their_manager() {
    let home = Home::new(On::Sqlite);
    home.done(&["queue", "add", "letters"]).expect(0);
    let mut command =
        home.leasehold(&["work", "letters", "-j", "2", "--", "sh", "-c", "echo \"[$LEASEHOLD_METRICS]\" > seen"]);
    command.env("LEASEHOLD_METRICS", "127.0.0.1:0");
    let worker = watched(&home, command, "log");
    assert_eq!(home.words("seen"), ["[]"]);
    eventually("it is ready", || get(worker.address, "/readyz").0 == 200);
    signal(worker.running.pid(), "TERM");
    assert_eq!(worker.running.end().code, 0);
    assert_eq!(home.read("log").matches("metrics and health on").count(), 1);
}

#[test]
fn a_spool_has_numbers_too() {
    let home = Home::new(On::Sqlite);
    let spool = format!("spool:{}", home.path("mail").display());
    home.done(&["queue", "add", &spool]).expect(0);
    let wait = "while [ ! -e end ]; do sleep 0.1; done";
    let worker = start(&home, &["work", &spool, "--metrics", "127.0.0.1:0", "--", "sh", "-c", wait], "log");
    eventually("it is ready", || get(worker.address, "/readyz").0 == 200);
    let claimed = format!("leasehold_queue_items{{queue=\"{spool}\",state=\"claimed\"}}");
    eventually("the item is claimed", || value(&get(worker.address, "/metrics").1, &claimed) == Some(1.0));
    let page = get(worker.address, "/metrics").1;
    assert_eq!((value(&page, "leasehold_store_up"), value(&page, "leasehold_fenced_total")), (None, None), "{page}");
    home.touch("end");
    signal(worker.running.pid(), "TERM");
    assert_eq!(worker.running.end().code, 0);
}

#[test]
fn a_taken_address_is_an_error_before_anything_runs() {
    let home = Home::new(On::Sqlite);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let settings = format!("metrics = '{address}'\n[[job]]\nname = 'tick'\nevery = '1s'\ncommand = 'touch ran'\n");
    std::fs::write(home.path("leasehold.toml"), settings).unwrap();
    home.done(&["queue", "add", "letters"]).expect(0);
    for args in [
        &["schedule"][..],
        &["work", "letters", "--", "touch", "ran"],
        &["work", "letters", "-j", "2", "--", "touch", "ran"],
    ] {
        let refused = home.done(args).expect(69);
        assert!(refused.stderr.contains(&format!("cannot listen on {address}; another process")), "{refused:?}");
    }
    assert!(!home.path("ran").exists());
}

#[test]
fn odd_clients_are_answered_and_slow_ones_are_bounded() {
    let home = Home::new(On::Sqlite);
    std::fs::write(home.path("leasehold.toml"), "[[job]]\nname = 'x'\nevery = '1h'\ncommand = 'true'\n").unwrap();
    let scheduler = start(&home, &["schedule", "--metrics", "127.0.0.1:0"], "log");
    let at = scheduler.address;
    let (status, text) = get(at, "/");
    assert_eq!((status, text.as_str()), (404, "there is nothing here; ask for /metrics, /livez, /readyz\n"));
    assert_eq!(ask(at, "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").unwrap().0, 405);
    assert_eq!(ask(at, "HEAD /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap(), (200, String::new()));
    assert_eq!(ask(at, "rubbish\r\n\r\n").unwrap().0, 400);
    assert_eq!(get(at, &format!("/{}", "a".repeat(100_000))).0 / 100, 4);
    // They say nothing, for as long as they may.
    let mut silent: Vec<TcpStream> = Vec::new();
    eventually("one more is told so", || {
        silent = (0..CONNECTIONS).map(|_| TcpStream::connect(at).unwrap()).collect();
        get(at, "/livez") == (503, "too many connections; try again soon".into())
    });
    eventually("the silent ones are let go", || get(at, "/livez").0 == 200);
    drop(silent);
    signal(scheduler.running.pid(), "TERM");
    assert_eq!(scheduler.running.end().code, 0);
}

#[test]
fn a_lease_has_a_label_if_a_pattern_asks_for_it() {
    let home = Home::new(On::Dir);
    for lease in ["team/a", "team/b", "other"] {
        home.done(&["run", lease, "--", "true"]).expect(0);
    }
    let page = home.done(&["stats", "--prometheus"]).expect(0).stdout;
    assert_eq!(value(&page, "leasehold_runs_total{outcome=\"succeeded\"}"), Some(3.0), "{page}");
    assert_eq!(page.matches("job=").count(), 0, "{page}");
    let page = home.done(&["stats", "--prometheus", "--metrics-leases", "team/*"]).expect(0).stdout;
    assert_eq!(value(&page, "leasehold_runs_total{outcome=\"succeeded\"}"), Some(1.0), "{page}");
    assert_eq!(value(&page, "leasehold_runs_total{job=\"team/a\",outcome=\"succeeded\"}"), Some(1.0), "{page}");
    assert!(!page.contains("job=\"other\""), "{page}");
    std::fs::write(home.path("leasehold.toml"), "metrics_leases = ['o*', 'team/b']\n").unwrap();
    let page = home.done(&["stats", "--prometheus"]).expect(0).stdout;
    assert!(page.contains("job=\"other\"") && page.contains("job=\"team/b\"") && !page.contains("job=\"team/a\""));
    assert_eq!(promtool(&["check", "metrics"], home.folder.path(), &page).expect(0).stdout, "");
}

#[test]
fn a_holder_that_fell_silent_is_counted_when_the_next_finds_out() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job", "--ttl", "3s"]).expect(0);
    home.done(&["run", "job", "--wait", "1m", "--", "true"]).expect(0);
    home.done(&["run", "job", "--", "true"]).expect(0);
    assert_eq!(["granted", "succeeded", "died"].map(|event| home.count("job", event)), [3, 2, 1]);
}

#[test]
fn stats_shows_queues() {
    let home = Home::new(On::Sqlite);
    for args in
        [&["queue", "add", "letters"][..], &["queue", "add", "letters"], &["queue", "add", "later", "--delay", "1h"]]
    {
        home.done(args).expect(0);
    }
    let shown: Value = serde_json::from_str(&home.done(&["stats", "--json"]).expect(0).stdout).unwrap();
    let queue = |name: &str| shown.as_array().unwrap().iter().find(|row| row["queue"] == name).unwrap().clone();
    assert_eq!((&queue("letters")["items"]["ready"], &queue("later")["items"]["delayed"]), (&2.into(), &1.into()));
    assert!(queue("letters")["oldest_ready_ms"].is_u64() && queue("later")["oldest_ready_ms"].is_null());
    let text = home.done(&["stats"]).expect(0).stdout;
    assert!(text.starts_with("QUEUE "), "there is no lease to count: {text}");
    let row = text.lines().find(|line| line.starts_with("letters")).unwrap_or_default();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>()[..5], ["letters", "2", "0", "0", "0"], "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
}

#[test]
fn advise_knows_that_run_renews() {
    let home = Home::new(On::Sqlite);
    home.done(&["run", "short", "--", "true"]).expect(0);
    let text = home.done(&["advise", "short"]).expect(0).stdout;
    assert!(text.contains("with `run`, which renews: keep the default of 90s"), "{text}");
    home.done(&["run", "long", "--ttl", "6s", "--", "sleep", "5"]).expect(0);
    let advice: Value = serde_json::from_str(&home.done(&["advise", "long", "--json"]).expect(0).stdout).unwrap();
    assert!(advice["renewals"].as_u64().unwrap() >= 1 && advice["run_ttl_ms"].as_u64().unwrap() >= 15_000, "{advice}");
    assert!(advice["ttl_ms"].as_u64().unwrap() >= 7_500, "{advice}");
    let text = home.done(&["advise", "long"]).expect(0).stdout;
    assert!(text.contains("for `long` with `run`, which renews"), "{text}");
    assert!(text.contains("for scripts that take `long` with `acquire` and do not renew"), "{text}");
}
