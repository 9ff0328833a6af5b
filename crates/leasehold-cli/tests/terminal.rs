//! A real terminal: `run` in it (reading, Ctrl-C, Ctrl-Z, `fg`, and scripts that go on reading afterwards), and what people see
//! there: tables, colours, progress.

#![allow(clippy::unwrap_used)]

mod common;

use common::slots::{jobs, rare_slot, runs};
use common::{Home, On, descendants, eventually, signal};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A program in a pseudo-terminal.
struct Session {
    child: Child,
    keys: Option<ChildStdin>,
    screen: Arc<Mutex<String>>,
}

impl Session {
    fn start(home: &Home, program: &str) -> Self {
        let mut command = Command::new("script");
        command.args(["-qefc", program, "/dev/null"]).current_dir(home.folder.path()).env_clear();
        for (key, value) in home.leasehold(&[]).get_envs().filter_map(|(k, v)| Some((k, v?))) {
            command.env(key, value);
        }
        let mut child = command.env("PS1", "$ ").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let screen: Arc<Mutex<String>> = Arc::default();
        let shown = screen.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
        });
        Session { child, keys: Some(keys), screen }
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        eventually(&format!("the terminal shows {text:?}"), || self.screen.lock().unwrap().contains(text));
    }

    fn types(&mut self, text: &str) {
        self.keys.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Presses Ctrl-C and waits for the shell's prompt. What runs must not be about to start something: a shell that is
    /// interrupted between forking and executing loses the signal, with us or without.
    #[track_caller]
    fn interrupts(&mut self) {
        self.types("\x03");
        self.prompts_after("^C");
    }

    /// Waits for the shell's prompt: what is typed while a shell takes the terminal back may be lost.
    #[track_caller]
    fn prompts_after(&self, text: &str) {
        eventually(&format!("the prompt is back after {text:?}"), || {
            let screen = self.screen.lock().unwrap();
            screen.split_once(text).is_some_and(|(_, after)| after.contains("$ "))
        });
    }

    fn end(mut self) -> String {
        drop(self.keys.take());
        self.child.wait().unwrap();
        self.screen.lock().unwrap().clone()
    }
}

impl Drop for Session {
    /// A failure shows what a person would have seen.
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(screen) = self.screen.lock()
        {
            println!("the terminal: {screen:?}");
        }
        // After a failure it still runs, and what runs in it too.
        if matches!(self.child.try_wait(), Ok(None)) {
            descendants(self.child.id() as i32).into_iter().for_each(|pid| signal(pid, "KILL"));
            let _ = self.child.kill().and_then(|()| self.child.wait());
        }
    }
}

#[test]
fn the_terminal_belongs_to_the_command_and_comes_back() {
    // Many times: the command may reach for the terminal before it is its own.
    for _ in 0..20 {
        let home = Home::new(On::Sqlite);
        let script = "leasehold run job -- sh -c 'read a; echo \"command got $a.\"'; read b; echo \"script got $b.\"";
        std::fs::write(home.path("script.sh"), script).unwrap();
        let mut session = Session::start(&home, "sh script.sh");
        session.types("one\ntwo\n");
        session.shows("command got one.");
        session.shows("script got two.");
        session.end();
    }
}

#[test]
fn a_job_that_was_suspended_continues_with_fg() {
    let home = Home::new(On::Sqlite);
    let mut session = Session::start(&home, "bash --norc --noprofile -i");
    session.types("leasehold run job --ttl 5m -- sh -c 'echo rea''dy; read a; echo \"got $a.\"'\n");
    session.shows("ready\r\n");
    session.types("\x1a");
    session.prompts_after("Stopped");
    session.types("echo shell is ba''ck\n");
    session.prompts_after("shell is back\r\n");
    session.types("fg\n");
    session.types("hello\n");
    session.prompts_after("got hello.");
    session.types("echo code $?.\n");
    session.shows("code 0.");
    session.types("exit\n");
    session.end();
    assert_eq!(home.history("job")[0]["outcome"], "succeeded");
}

#[test]
fn a_job_that_was_started_in_the_background_can_be_brought_to_the_front() {
    let home = Home::new(On::Sqlite);
    let mut session = Session::start(&home, "bash --norc --noprofile -i");
    session.types("mkfifo go\n");
    session.types("leasehold run job --ttl 5m -- sh -c 'touch running; read go < go; read a; echo \"got $a.\"' &\n");
    eventually("it runs", || home.path("running").exists());
    session.types("fg\n");
    session.shows("fg\r\nleasehold run job");
    std::fs::write(home.path("go"), "\n").unwrap();
    session.types("hello\n");
    session.shows("got hello.");
    session.types("exit\n");
    session.end();
}

#[test]
fn a_job_that_asks_from_the_background_waits_to_be_brought_to_the_front() {
    let home = Home::new(On::Sqlite);
    let mut session = Session::start(&home, "bash --norc --noprofile -i");
    session.types("set -b; leasehold run job --ttl 5m -- sh -c 'read a; echo \"got $a.\"' &\n");
    session.shows("Stopped");
    session.types("fg\n");
    session.types("hello\n");
    session.shows("got hello.");
    session.types("exit\n");
    session.end();
}

#[test]
fn a_job_that_is_not_stopped_for_reaching_takes_the_terminal_from_nobody() {
    let home = Home::new(On::Sqlite);
    let mut session = Session::start(&home, "bash --norc --noprofile -i");
    session.types("set -b; (trap '' TTOU; exec leasehold run job --ttl 5m -- sh -c 'read a; echo \"got $a.\"') &\n");
    session.shows("Stopped");
    session.types("echo shell ans''wers\n");
    session.shows("shell answers");
    session.types("fg\n");
    session.types("hello\n");
    session.shows("got hello.");
    session.types("exit\n");
    session.end();
}

#[test]
fn a_job_that_reaches_for_a_terminal_that_nobody_can_give_it_ends() {
    let home = Home::new(On::Sqlite);
    let mut session = Session::start(&home, "bash --norc --noprofile -i");
    session.types("( { leasehold run job --ttl 5m -- sh -c 'read a </dev/tty'; echo $? > code; } & )\n");
    // By the hangup that the system sends to such a job.
    eventually("it has ended", || std::fs::read_to_string(home.path("code")).is_ok_and(|code| code == "129\n"));
    assert_eq!(home.show("job")["state"], "free");
    session.types("exit\n");
    session.end();
}

#[test]
fn the_interrupt_key_ends_the_command_and_frees_the_lease() {
    let home = Home::new(On::Sqlite);
    let mut session = Session::start(&home, "bash --norc --noprofile -i");
    session.types("leasehold run job --ttl 5m -- sh -c 'echo rea''dy; exec sleep 1000'\n");
    session.shows("ready\r\n");
    session.interrupts();
    session.types("echo code $?.\n");
    session.shows("code 130.");
    session.types("exit\n");
    session.end();
    assert_eq!(home.show("job")["state"], "free");
}

#[test]
fn the_interrupt_key_ends_a_shells_loop_too() {
    let home = Home::new(On::Sqlite);
    let mut session = Session::start(&home, "bash --norc --noprofile -i");
    session
        .types("for i in 1 2 3; do leasehold run job -- sh -c 'echo rou''nd; exec sleep 1000'; done; echo af''ter\n");
    session.shows("round\r\n");
    session.interrupts();
    session.types("echo still he''re\n");
    session.shows("still here");
    session.types("exit\n");
    assert_eq!(session.end().matches("round\r\n").count(), 1);
}

#[test]
fn a_pager_beside_it_keeps_the_terminal() {
    let home = Home::new(On::Sqlite);
    let mut session = Session::start(&home, "bash --norc --noprofile -i");
    session.types("leasehold run job -- sh -c 'echo from the comm''and' | sh -c 'cat; read a </dev/tty; echo \"pager got $a.\"'\n");
    session.shows("from the command");
    session.types("key\n");
    session.shows("pager got key.");
    session.types("exit\n");
    session.end();
}

#[test]
fn a_command_that_asks_at_the_terminal_is_heard_though_its_input_is_a_pipe() {
    let home = Home::new(On::Sqlite);
    let mut session = Session::start(&home, "bash --norc --noprofile -i");
    session.types("echo x | leasehold run job -- sh -c 'read a </dev/tty; echo \"got $a.\"'\n");
    session.types("secret\n");
    session.shows("got secret.");
    session.types("exit\n");
    session.end();
}

#[test]
fn a_job_sent_to_the_background_leaves_the_shell_its_terminal() {
    let home = Home::new(On::Sqlite);
    let mut session = Session::start(&home, "bash --norc --noprofile -i");
    session.types("mkfifo go\n");
    // Nothing that forks: a shell that is stopped while its child has yet to execute waits for it for ever.
    session.types("leasehold run job --ttl 5m -- sh -c 'echo rea''dy; read go < go; echo do''ne'\n");
    session.shows("ready\r\n");
    session.types("\x1a");
    session.shows("Stopped");
    session.types("bg\n");
    session.types("echo shell ans''wers\n");
    session.shows("shell answers");
    session.types("echo > go\n");
    session.shows("done\r\n");
    session.types("echo shell ans''wers again\n");
    session.shows("shell answers again");
    session.types("exit\n");
    session.end();
}

/// What a terminal of 80 columns shows, with these variables set.
fn screen(home: &Home, variables: &str, words: &str) -> String {
    let script = format!("stty cols 80 rows 24; export TERM=xterm {variables}; leasehold {words}; echo; echo THE END");
    let session = Session::start(home, &script);
    session.shows("THE END\r\n");
    session.end().replace("\r\n", "\n").replace("\nTHE END\n", "")
}

/// The same, which fits, and in which nothing is cut.
#[track_caller]
fn table(home: &Home, words: &str) -> String {
    let text = screen(home, "NO_COLOR=1", words);
    assert!(!text.contains('\u{2026}') && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    text
}

/// Whether these words are all there, in this order, though other columns may be between them.
#[track_caller]
fn tells(text: &str, sentence: &str) {
    let mut rest = text;
    for word in sentence.split_whitespace() {
        let Some((_, after)) = rest.split_once(word) else { panic!("`{word}` of `{sentence}` is missing in\n{text}") };
        rest = after;
    }
}

const LONG: &str = "the address that was given is not one that any server of this domain knows";

#[test]
fn tables_of_80_columns_keep_what_the_reader_came_for() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "[[job]]\nname = 'reports/monthly'\ncron = '7 3 1 1-6,9 *'\ntz = 'Europe/Berlin'\ncommand = 'true'\n");
    let line = rare_slot();
    let run = ["run", "nightly", "--slot", &line, "--slot-max-age", "100d", "--keep-output", "--", "echo", "kept"];
    home.done(&run).expect(0);
    let slot = runs(&home, "nightly")[0]["slot"].as_str().unwrap().to_owned();
    for words in ["runs nightly", "runs"] {
        assert!(table(&home, words).contains(&slot), "{words}");
    }
    tells(&table(&home, "runs nightly"), "SLOT OUTCOME EXIT CPU MEMORY");
    // What was read there is what `logs` takes.
    tells(&table(&home, &format!("logs nightly {slot}")), "kept");

    let add = ["queue", "add", "mail", "--attempts", "1", "--text", "to: ada@example.org, in May"];
    let id = home.done(&add).expect(0).stdout.trim().to_owned();
    tells(&table(&home, "queue ls mail"), &id);
    let token = home.done(&["queue", "claim", "mail"]).expect(0).stdout.trim().to_owned();
    home.done(&["queue", "fail", "mail", "--token", &token, "--why", LONG]).expect(0);
    let listed = table(&home, "queue ls mail");
    tells(&listed, &id);
    tells(&table(&home, "queue ls mail --dead"), LONG);
    let shown = screen(&home, "NO_COLOR=1", &format!("queue show mail {id}"));
    assert!(shown.contains(&format!("  {LONG}\n")), "a page is not wrapped: {shown}");

    let checked: serde_json::Value =
        serde_json::from_str(&home.done(&["schedule", "check", "--json"]).expect(0).stdout).unwrap();
    let text = screen(&home, "NO_COLOR=1", "schedule check");
    let text = text.split("leasehold: ").next().unwrap();
    for field in ["name", "schedule", "next", "words"] {
        tells(text, checked[0][field].as_str().unwrap());
    }
    tells(&screen(&home, "NO_COLOR=1", "schedule plan"), "reports/monthly new");

    home.done(&["revoke", "nightly", "--by", "ann", "--why", LONG]).expect(0);
    tells(&table(&home, "history nightly"), &format!("{LONG} (ann)"));

    // Each of these makes a column that is there only then.
    let (name, own) = ("export-of-the-monthly-figures", "--why x && while :; do sleep 0.1; done");
    home.done(&["run", name, "--", "sh", "-c", &format!("leasehold revoke {name} {own}")]).expect(75);
    let stopped = format!("trap 'exit 3' TERM; leasehold revoke {name} --drain --within 1m {own} & wait");
    home.done(&["run", name, "--", "bash", "-c", &stopped]).expect(3);
    tells(&table(&home, "stats"), &format!("NAME SUCCEEDED FAILED LOST DIED DROPPED FENCED {name}"));
    let wide = home.done(&["stats"]).expect(0).stdout;
    tells(&wide, "NAME GRANTED SUCCEEDED FAILED LOST DIED DRAINED EVICTED SKIPPED DROPPED FENCED");
}

#[test]
fn states_are_coloured_unless_no_color_is_set() {
    let home = Home::new(On::Sqlite);
    let line = rare_slot();
    let run = ["run", "job", "--slot", &line, "--slot-max-age", "100d", "--", "false"];
    home.done(&run).expect(1);
    for set in ["UNRELATED=1", "NO_COLOR="] {
        assert!(screen(&home, set, "runs job").contains("\x1b[31mfailed\x1b[0m"), "{set}");
    }
    assert!(!screen(&home, "NO_COLOR=1", "runs job").contains('\x1b'));
    assert!(!home.done(&["runs", "job"]).expect(0).stdout.contains('\x1b'));
}

#[test]
fn what_may_take_long_says_how_far_it_is() {
    let home = Home::new(On::Sqlite);
    home.done(&["queue", "add", "mail", "--attempts", "1", "--text", "x"]).expect(0);
    home.done(&["work", "mail", "--until-done", "--", "false"]).expect(0);
    for (words, says) in [
        ("queue janitor mail", "cleaning up `mail`"),
        ("queue retry mail --all --yes --why x", "counting the dead letters of `mail`"),
        ("queue purge mail", "removing old items of `mail`"),
    ] {
        let shown = screen(&home, "NO_COLOR=1", words);
        assert!(shown.contains(says), "{words}: {shown:?}");
        let elsewhere = home.done(&words.split(' ').collect::<Vec<_>>());
        assert!(!elsewhere.stderr.contains(says), "{words}: {elsewhere:?}");
    }
    jobs(&home, "[[job]]\nname = 'job'\ncron = '0 3 * * *'\ntz = 'UTC'\ncommand = 'true'\n");
    let words = "schedule backfill job --from 2024-01-01 --to 2024-01-03 --yes";
    let shown = screen(&home, "NO_COLOR=1", words);
    assert!(shown.contains("looking for slots of `job` that are left to run"), "{shown:?}");
}
