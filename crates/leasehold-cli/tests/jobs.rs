//! Setting schedules up: import, check, files of variables, services, and the first file; with the real binary.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, eventually, signal};
use serde_json::Value;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A file with one job, called `job`.
fn jobs(home: &Home, fields: &str) {
    std::fs::write(home.path("leasehold.toml"), format!("[[job]]\nname = 'job'\n{fields}")).unwrap();
}

fn import(home: &Home, input: &str, words: &[&str]) -> Done {
    std::fs::write(home.path("input"), input).unwrap();
    let mut command = home.leasehold(&[&["schedule", "import", "--tz", "Europe/Berlin"], words].concat());
    command.stdin(std::fs::File::open(home.path("input")).unwrap());
    Done::from(command.output().unwrap())
}

/// What was printed, as `schedule check` reads it.
#[track_caller]
fn checked(home: &Home, printed: &Done) -> Vec<Value> {
    std::fs::write(home.path("leasehold.toml"), &printed.stdout).unwrap();
    let done = home.done(&["schedule", "check", "--json"]);
    assert_eq!(done.code, 0, "{done:?}\n{}", printed.stdout);
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn a_crontab_becomes_jobs_and_what_is_lost_is_said() {
    let home = Home::new(On::Sqlite);
    let crontab = "\
# a comment
MAILTO=ops@example.com
PATH = \"/usr/local/bin:/usr/bin:/bin\"
30 2 * * *\t/usr/local/bin/backup --full \\
*/15 9-17 * * 1-5 cd /srv/app && ./poll.sh \"a b\" >> log 2>&1
@reboot /usr/bin/start-me
@daily date +\\%F > day
0 8 * * 1 mail -s hi ops%dear team%bye
0 25 * * * never
0 3 * *
SHELL=/bin/bash
CRON_TZ=UTC
@hourly shopt -s extglob
@fortnightly x
";
    let done = import(&home, &crontab.replace(" \\\n", "\n"), &[]).expect(0);
    let found = checked(&home, &done);
    let names: Vec<&str> = found.iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["backup", "poll", "date", "mail", "shopt"], "{}", done.stdout);
    let schedules: Vec<&str> = found.iter().map(|job| job["schedule"].as_str().unwrap()).collect();
    assert_eq!(schedules[..2], ["30 2 * * * Europe/Berlin", "*/15 9-17 * * 1-5 Europe/Berlin"]);
    assert_eq!(schedules[4], "@hourly UTC");
    for (line, said) in
        [(2, "MAILTO"), (6, "@reboot"), (8, "`%`"), (9, "hour `25`"), (10, "five fields"), (14, "nickname")]
    {
        let location = format!("standard input, line {line}: ");
        let told =
            done.stderr.lines().find(|told| told.contains(&location)).unwrap_or_else(|| panic!("{line}: {done:?}"));
        assert!(told.contains(said), "{told}");
        assert!(done.stdout.lines().any(|text| text.starts_with('#') && text.contains(&location)), "{}", done.stdout);
    }
    assert!(done.stderr.contains("5 jobs; check the 6 notes above"), "{}", done.stderr);
    assert!(done.stdout.contains("\"PATH\" = \"/usr/local/bin:/usr/bin:/bin\""), "{}", done.stdout);
    assert!(done.stdout.contains("argv = [\"/bin/bash\", \"-c\", \"shopt -s extglob\"]"), "{}", done.stdout);
    // What was the command's input is that still.
    let line = done.stdout.lines().find(|line| line.contains("printf")).unwrap();
    let table: toml::Table = line.parse().unwrap();
    let script = table["command"].as_str().unwrap().replace("mail -s hi ops", "cat");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "dear team\nbye\n");
}

#[test]
fn a_lease_takes_the_place_of_flock_where_a_line_has_its_own() {
    let home = Home::new(On::Sqlite);
    let crontab = "\
*/5 * * * * flock -n /tmp/sync.lock /usr/local/bin/sync-it --all >> log 2>&1
5/15 * * * * /usr/bin/flock -w 30 /tmp/poll.lock -c 'cd /srv && ./poll.sh'
0 3 * * * flock /tmp/long.lock nice long-one
0 4 * * * flock -n /tmp/both.lock /bin/one
0 5 * * * flock -n /tmp/both.lock /bin/other
0 6 * * * flock -n /tmp/part.lock /bin/first; /bin/second
0 7 * * * flock -n /tmp/pipe.lock /bin/third | /bin/fourth
0 8 * * * flock -n /tmp/shared.lock /bin/fifth
0 9 * * * flock -n /tmp/shared.lock /bin/sixth && /bin/seventh
";
    let done = import(&home, crontab, &[]).expect(0);
    let found = checked(&home, &done);
    let told: Vec<(&str, &str)> =
        found.iter().map(|job| (job["name"].as_str().unwrap(), job["schedule"].as_str().unwrap())).collect();
    let names: Vec<&str> = told.iter().map(|(name, _)| *name).collect();
    let expected = ["sync-it", "poll", "long-one", "one", "other", "second", "third", "fifth", "sixth"];
    assert_eq!(names, expected, "{}", done.stdout);
    assert_eq!(told[1].1, "5-59/15 * * * * Europe/Berlin");
    for field in [
        "command = \"/usr/local/bin/sync-it --all >> log 2>&1\"",
        "command = \"sh -c 'cd /srv && ./poll.sh'\"",
        "busy = \"wait 30s\"",
        "busy = \"wait 1h\"",
        "command = \"flock -n /tmp/both.lock /bin/one\"",
        "command = \"flock -n /tmp/part.lock /bin/first; /bin/second\"",
        "command = \"flock -n /tmp/pipe.lock /bin/third | /bin/fourth\"",
        "command = \"flock -n /tmp/shared.lock /bin/fifth\"",
    ] {
        assert!(done.stdout.contains(field), "{field}: {}", done.stdout);
    }
    for said in [
        "line 1: `flock` on `/tmp/sync.lock` is left out: the job's lease keeps its runs apart",
        "line 2: `5/15`, which not every cron reads, is carried over as `5-59/15`",
        "line 3: `flock` on `/tmp/long.lock` is left out",
        "line 5: other lines lock `/tmp/both.lock` too, so `flock` stays",
        "line 6: `flock` stays, and the line as it is: only its first command is under the lock",
        "line 7: `flock` stays, and the line as it is",
        "line 8: other lines lock `/tmp/shared.lock` too, so `flock` stays",
        "line 9: `flock` stays, and the line as it is",
    ] {
        assert!(done.stderr.contains(said), "{said}: {}", done.stderr);
    }
}

#[test]
fn a_crontab_without_a_path_of_its_own_is_noted_once() {
    let home = Home::new(On::Sqlite);
    let said = "standard input: PATH is not set above every job";
    for (crontab, is_noted) in [
        ("0 1 * * * a\n0 2 * * * b\n", true),
        ("0 1 * * * a\nPATH=/bin\n0 2 * * * b\n", true),
        ("PATH=/bin\n0 1 * * * a\n", false),
        ("@reboot a\nPATH=/bin\n0 2 * * * b\n", false),
    ] {
        let done = import(&home, crontab, &[]).expect(0);
        checked(&home, &done);
        for told in [&done.stderr, &done.stdout] {
            assert_eq!(told.matches(said).count(), usize::from(is_noted), "{crontab}: {done:?}");
        }
    }
}

#[test]
fn system_crontabs_have_a_user_and_folders_are_read_as_cron_reads_them() {
    let home = Home::new(On::Sqlite);
    let folder = home.path("cron.d");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("backup"), "0 1 * * * nobody /bin/backup\n0 2 * * * nobody\n").unwrap();
    std::fs::write(
        folder.join("sync"),
        "RANDOM_DELAY=5\n*/10 * * * * nobody /bin/sync-it\n* * * * * nobody /bin/often\n",
    )
    .unwrap();
    std::fs::write(folder.join("old.dpkg-old"), "0 1 * * * root /bin/old\n").unwrap();
    let done = import(&home, "", &["cron.d"]).expect(0);
    let found = checked(&home, &done);
    let names: Vec<&str> = found.iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["backup", "sync-it", "often"], "{}", done.stdout);
    assert!(done.stderr.contains("cron.d/backup, line 1: it ran as `nobody`"), "{}", done.stderr);
    assert!(done.stderr.contains("cron.d/backup, line 2: not carried over"), "{}", done.stderr);
    assert_eq!(done.stdout.matches("jitter = \"5m\"").count(), 1, "{}", done.stdout);
    assert!(done.stderr.contains("cron.d/sync, line 3: the random delay is not carried over"), "{}", done.stderr);
    // The same by a flag, and nothing in it.
    import(&home, "0 1 * * * nobody /bin/backup\n", &["--kind", "system"]).expect(0);
    assert!(import(&home, "# nothing\n", &[]).expect(64).stderr.contains("no job was found"));
    import(&home, "", &["missing"]).expect(64);
}

#[test]
fn what_cannot_be_read_stops_no_other_file_and_nothing_is_left_out_in_silence() {
    let home = Home::new(On::Sqlite);
    let write = |name: &str, text: &[u8]| {
        let path = home.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("cron.d/binary", b"0 1 * * * root \xff\n");
    write("cron.d/good", b"0 1 * * * root /bin/good\n");
    write("units/alone.timer", b"[Timer]\nOnCalendar=daily\n");
    write("units/two.timer", b"[Timer]\nOnCalendar=daily\n");
    write("units/two.service", b"[Service]\nType=forking\nGroup=staff\nExecStart=/bin/one\nExecStart=/bin/two\n");
    write("plain/backup", b"0 1 * * * /bin/backup\n");
    let done = import(&home, "", &["missing", "cron.d", "units", "plain"]).expect(64);
    let found = checked(&home, &done);
    let names: Vec<&str> = found.iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["good", "two"], "{}", done.stdout);
    for said in [
        "not carried over: cannot read `missing`",
        "cron.d/binary` is not text",
        "which is not beside it",
        "plain: the folder has no timers; if it has crontabs, give `--kind crontab`",
        "several ExecStart= become one line",
        "Type=forking is not carried over",
        "Group= is not carried over",
        "3 files could not be read; the jobs of the others are printed",
    ] {
        assert!(done.stderr.contains(said), "{said}: {}", done.stderr);
    }
    // A system crontab under another name is known by its users.
    let system = import(&home, "17 * * * * root /bin/good\n", &[]).expect(0);
    assert!(system.stderr.contains("standard input: the sixth word of every line is a user"), "{}", system.stderr);
    assert!(system.stdout.contains("command = \"/bin/good\""), "{}", system.stdout);
    let told = import(&home, "17 * * * * root /bin/good\n", &["--kind", "crontab"]).expect(0);
    assert!(told.stdout.contains("command = \"root /bin/good\""), "{}", told.stdout);
}

#[test]
fn a_timer_becomes_a_job_with_what_its_service_says() {
    let home = Home::new(On::Sqlite);
    let write = |name: &str, text: &str| std::fs::write(home.path("units").join(name), text).unwrap();
    std::fs::create_dir_all(home.path("units/report.timer.d")).unwrap();
    write(
        "report.timer",
        "[Unit]\nDescription=x\n[Timer]\nOnCalendar=Mon..Fri 09:00 America/New_York\nRandomizedDelaySec=5min\nPersistent=true\n\
         OnBootSec=10min\nAccuracySec=1h\n[Install]\nWantedBy=timers.target\n",
    );
    write("report.timer.d/more.conf", "[Timer]\nOnCalendar=*-*-1 04:00\n");
    write(
        "report.service",
        "[Service]\nType=oneshot\nUser=nobody\nExecStart=/bin/report --title \"two words\" $ARGS\n\
         Environment=LANG=C \"NOTE=a b\"\nEnvironmentFile=-/etc/default/report\nWorkingDirectory=/srv\nNice=10\nTimeoutStartSec=1h\n",
    );
    write("odd.timer", "[Timer]\nOnCalendar=2026-01-01 00:00\nOnUnitActiveSec=15min\nUnit=other.service\n");
    write("other.service", "[Service]\nExecStart=/bin/other %% x\n");
    let done = import(&home, "", &["units"]).expect(0);
    // A file of variables that is missing here would be an error.
    let there = done.stdout.replace("/etc/default/report", &home.path("input").display().to_string());
    let found = checked(&home, &Done { stdout: there, ..import(&home, "A=1\n", &["units"]) });
    let told: Vec<(&str, &str)> =
        found.iter().map(|job| (job["name"].as_str().unwrap(), job["schedule"].as_str().unwrap())).collect();
    let expected = [
        ("odd", "@every 15m"),
        ("report", "0 9 * * Mon-Fri America/New_York"),
        ("report-2", "0 4 1 * * Europe/Berlin"),
    ];
    assert_eq!(told, expected, "{}", done.stdout);
    for said in [
        "odd.timer, line 2: OnCalendar=2026-01-01 00:00 is not carried over: it names a year",
        "odd.timer, line 3: OnUnitActiveSec= becomes `every`",
        "report.timer, line 7: OnBootSec= is not carried over",
        "report.timer, line 8: AccuracySec= is not carried over: a job starts at its time",
        "report.service, line 3: it ran as `nobody`",
        "report.service, line 6: EnvironmentFile= may be missing",
        "report.service, line 8: Nice= is not carried over",
        "several times, which become several jobs",
    ] {
        assert!(done.stderr.contains(said), "{said}: {}", done.stderr);
    }
    for field in [
        "command = \"\\\"/bin/report\\\" \\\"--title\\\" \\\"two words\\\" $ARGS\"",
        "\"NOTE\" = \"a b\"",
        "cwd = \"/srv\"",
        "jitter = \"5m\"",
        "timeout = \"1h\"",
        "argv = [\"/bin/other\", \"%\", \"x\"]",
        "catch_up_max_age = \"1m\"",
    ] {
        assert!(done.stdout.contains(field), "{field}: {}", done.stdout);
    }
    import(&home, "", &["units/missing.timer"]).expect(64);
}

#[test]
fn a_limit_or_a_specifier_of_systemd_keeps_its_meaning_or_is_noted() {
    let home = Home::new(On::Sqlite);
    std::fs::create_dir_all(home.path("user")).unwrap();
    let service = |text: &str| {
        std::fs::write(home.path("user/a.timer"), "[Timer]\nOnCalendar=*-*-1 04:00\nPersistent=true\n").unwrap();
        std::fs::write(home.path("user/a.service"), format!("[Service]\n{text}\n")).unwrap();
        import(&home, "", &["user/a.timer"])
    };
    for (text, expected, is_noted) in [
        ("ExecStart=/bin/a\nTimeoutStartSec=30", None, true),
        ("ExecStart=/bin/a\nRuntimeMaxSec=1h", Some("1h"), false),
        ("Type=exec\nExecStart=/bin/a\nRuntimeMaxSec=1h\nTimeoutSec=5", Some("1h"), true),
        ("Type=oneshot\nExecStart=/bin/a\nRuntimeMaxSec=1h\nTimeoutStartSec=30", Some("30s"), true),
        ("Type=oneshot\nExecStart=/bin/a\nTimeoutStartSec=30\nTimeoutSec=0", None, false),
        ("ExecStart=/bin/a\nRuntimeMaxSec=0", None, false),
        ("ExecStart=/bin/a\nRuntimeMaxSec=infinity", None, false),
    ] {
        let done = service(text).expect(0);
        let found = done.stdout.lines().find_map(|line| line.strip_prefix("timeout = "));
        assert_eq!(found, expected.map(|limit| format!("\"{limit}\"")).as_deref(), "{text}: {}", done.stdout);
        assert_eq!(done.stderr.contains("does not limit how long"), is_noted, "{text}: {}", done.stderr);
    }
    let wrong = service("ExecStart=/bin/a\nRuntimeMaxSec=5 parsecs").expect(0);
    assert!(wrong.stderr.contains("line 3: RuntimeMaxSec= is not carried over"), "{}", wrong.stderr);
    let escaped = service("ExecStart=/bin/a\nEnvironment=A=\\x41 B=2").expect(0);
    assert!(escaped.stderr.contains("line 3: Environment= is not carried over"), "{}", escaped.stderr);
    let named = service("ExecStart=@/usr/bin/backup name --full").expect(0);
    assert!(named.stdout.contains("argv = [\"/usr/bin/backup\", \"--full\"]"), "{}", named.stdout);
    assert!(named.stderr.contains("it is called name"), "{}", named.stderr);
    let text = "ExecStart=/bin/a\nEnvironment=\"A=%h/x\" B=100%%\nEnvironmentFile=%h/none\nWorkingDirectory=%h/y";
    let own = service(text).stdout;
    for line in ["\"A\" = \"/", "/x\"", "\"B\" = \"100%\"", "/y\""] {
        assert!(own.contains(line) && !own.contains("%h"), "{line}: {own}");
    }
    // Elsewhere it might do something else.
    let lost = service("ExecStart=/bin/a\nWorkingDirectory=%t/y").expect(64);
    assert!(lost.stderr.contains("not carried over: WorkingDirectory="), "{}", lost.stderr);
    let unknown = service("ExecStart=/bin/a\nEnvironment=A=%t\nEnvironmentFile=%t/z").expect(0);
    assert!(unknown.stderr.contains("a part of Environment= is not carried over"), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("EnvironmentFile= is not carried over"), "{}", unknown.stderr);
}

#[test]
fn commands_variables_and_outputs_of_systemd_keep_their_meaning_or_are_noted() {
    let home = Home::new(On::Sqlite);
    std::fs::create_dir_all(home.path("user")).unwrap();
    let service = |text: &str| {
        std::fs::write(home.path("user/a.timer"), "[Timer]\nOnCalendar=*-*-1 04:00\n").unwrap();
        std::fs::write(home.path("user/a.service"), format!("[Service]\nType=oneshot\n{text}\n")).unwrap();
        import(&home, "", &["user/a.timer"]).expect(0)
    };
    // The first that fails is the last.
    for (text, expected) in [
        ("ExecStart=/bin/false ; /bin/true", r#"command = "\"/bin/false\" && \"/bin/true\"""#),
        (
            "ExecStart=/bin/a ; /bin/b x\nExecStart=/bin/c",
            r#"command = "\"/bin/a\" && \"/bin/b\" \"x\" && \"/bin/c\"""#,
        ),
        ("ExecStart=/bin/a ';' b", r#"argv = ["/bin/a", ";", "b"]"#),
    ] {
        let done = service(text);
        assert!(done.stdout.lines().any(|line| line == expected), "{text}: {}", done.stdout);
        assert_eq!(done.stderr.contains("for a shell, which ends at the first"), expected.contains("&&"), "{text}");
    }
    // The file's variable is the one that counts, and it may change in the file.
    std::fs::write(home.path("vars"), "A=fromfile\n").unwrap();
    let file = home.path("vars").display().to_string();
    let both = service(&format!("ExecStart=/bin/a\nEnvironment=A=fromunit B=kept\nEnvironmentFile={file}"));
    assert!(both.stdout.contains("env = { \"B\" = \"kept\" }"), "{}", both.stdout);
    assert!(both.stderr.contains("line 5: A of Environment= is left out"), "{}", both.stderr);
    let unread = service("ExecStart=/bin/a\nEnvironment=A=1 B=2\nEnvironmentFile=/missing/file");
    assert!(unread.stderr.contains("take out of `env` what it sets of A, B"), "{}", unread.stderr);
    for (text, is_noted) in [
        ("StandardOutput=append:/var/log/x", true),
        ("StandardError=file:/var/log/x", true),
        ("StandardOutput=journal\nStandardError=inherit", false),
        ("StandardOutput=null", false),
        ("KillMode=process", true),
        ("KillMode=mixed", false),
    ] {
        let done = service(&format!("ExecStart=/bin/a\n{text}"));
        let key = text.split('=').next().unwrap();
        assert_eq!(done.stderr.contains(&format!("{key}= is not carried over")), is_noted, "{text}: {}", done.stderr);
    }
}

#[test]
fn check_says_each_schedule_in_words() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "cron = '*/15 9-17 * * MON-FRI'\ntz = 'Europe/Berlin'\ncommand = 'true'\n");
    let words = "every 15 minutes from 09:00 to 17:45, Monday to Friday, Europe/Berlin";
    assert!(home.done(&["schedule", "check"]).expect(0).stdout.contains(words));
    let checked: Value = serde_json::from_str(&home.done(&["schedule", "check", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(checked[0]["words"], words);
}

#[test]
fn a_file_of_variables_reaches_the_command_and_no_message() {
    let home = Home::new(On::Sqlite);
    std::fs::write(home.path("secret.env"), "# mine\nexport TOKEN='s3cr3t $HOME'\nBOTH=file\n").unwrap();
    let job = "every = '2s'\nenv_file = 'secret.env'\nenv = { BOTH = 'table' }\n\
               command = 'echo \"$TOKEN $BOTH\" > seen'\n";
    jobs(&home, job);
    let said = home.done(&["schedule", "check"]).expect(0);
    assert!(!format!("{said:?}").contains("s3cr3t"), "{said:?}");
    home.done(&["schedule", "trigger", "job"]).expect(0);
    assert_eq!(home.read("seen"), "s3cr3t $HOME table\n");

    std::fs::write(home.path("secret.env"), "TOKEN=ok\ns3cr3t\n").unwrap();
    let wrong = home.done(&["schedule", "check"]).expect(78);
    assert!(wrong.stderr.contains("job `job`: env_file `") && wrong.stderr.contains("line 2"), "{wrong:?}");
    assert!(!wrong.stderr.contains("s3cr3t"), "{wrong:?}");

    std::fs::remove_file(home.path("secret.env")).unwrap();
    let missing = home.done(&["schedule", "trigger", "job"]).expect(78);
    let path = home.path("secret.env").display().to_string();
    assert!(missing.stderr.contains("job `job`") && missing.stderr.contains(&path), "{missing:?}");
    // A scheduler goes on without it, and its slot has failed.
    let scheduler = home.start(&["schedule", "run"]);
    eventually("the slot has failed", || home.done(&["runs", "job"]).stdout.contains("failed"));
    signal(scheduler.pid(), "TERM");
    let ended = scheduler.end().expect(0);
    assert!(ended.stderr.contains(&path) && ended.stderr.contains("job `job`"), "{ended:?}");
}

#[test]
fn a_pipe_in_place_of_a_file_of_variables_holds_up_no_other_job() {
    let home = Home::new(On::Sqlite);
    assert!(Command::new("mkfifo").arg(home.path("pipe")).status().unwrap().success());
    let piped = "[[job]]\nname = 'piped'\nevery = '1s'\nenv_file = 'pipe'\ncommand = 'touch began'\n";
    let other = "[[job]]\nname = 'other'\nevery = '1s'\ncommand = 'echo x >> ran'\n";
    std::fs::write(home.path("leasehold.toml"), format!("{piped}{other}")).unwrap();
    let scheduler = home.start(&["schedule", "run"]);
    eventually("the one has failed", || home.done(&["runs", "piped"]).stdout.contains("failed"));
    let before = home.read("ran").len();
    eventually("the other runs on", || home.read("ran").len() > before);
    signal(scheduler.pid(), "TERM");
    let ended = scheduler.end().expect(0);
    assert!(
        ended.stderr.contains("job `piped`: env_file `") && ended.stderr.contains("is not a plain file"),
        "{ended:?}"
    );
    assert!(!home.path("began").exists());
}

#[test]
fn the_scheduler_tells_the_service_manager_how_it_is() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "every = '366d'\ncommand = 'env > seen'\n");
    let socket = UnixDatagram::bind(home.path("notify")).unwrap();
    socket.set_read_timeout(Some(common::PATIENCE)).unwrap();
    let mut command = home.leasehold(&["schedule", "run"]);
    command.env("NOTIFY_SOCKET", home.path("notify")).env("WATCHDOG_USEC", "900000");
    let scheduler = common::Running::from(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut buffer = [0; 4096];
    let mut next = || {
        let read = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..read]).into_owned()
    };
    let mut told = next();
    while told == "WATCHDOG=1" {
        told = next();
    }
    assert!(told.starts_with("READY=1\nSTATUS=scheduling 1 job from `"), "{told}");
    assert_eq!([next(), next()], ["WATCHDOG=1", "WATCHDOG=1"]);
    // What it starts is not the one that is watched.
    home.done(&["schedule", "trigger", "job"]).expect(0);
    assert!(!home.read("seen").contains("NOTIFY_SOCKET"));
    signal(scheduler.pid(), "TERM");
    let mut told = next();
    while told == "WATCHDOG=1" {
        told = next();
    }
    assert!(told.starts_with("STOPPING=1\n"), "{told}");
    scheduler.end().expect(0);

    // A stopped process gives no sign of life.
    let mut command = home.leasehold(&["schedule", "run"]);
    command.env("NOTIFY_SOCKET", home.path("notify")).env("WATCHDOG_USEC", "300000");
    let scheduler = common::Running::from(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    while !next().starts_with("READY=1") {}
    assert_eq!(next(), "WATCHDOG=1");
    signal(scheduler.pid(), "STOP");
    eventually("it is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", scheduler.pid())).unwrap();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    });
    socket.set_nonblocking(true).unwrap();
    while socket.recv(&mut [0; 64]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let silence = socket.recv(&mut [0; 64]).expect_err("a stopped scheduler looked alive");
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);
    signal(scheduler.pid(), "CONT");
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0);
}

#[test]
fn a_service_is_written_once_and_systemd_takes_it() {
    let home = Home::new(On::Sqlite);
    jobs(&home, "every = '366d'\ncommand = 'true'\n");
    let install = ["schedule", "install", "--kind", "systemd"];
    let unit = home.path(".config/systemd/user/leasehold.service");
    let wrote = home.done(&install).expect(0);
    assert!(wrote.stdout.is_empty() && wrote.stderr.contains("systemctl --user enable --now leasehold"), "{wrote:?}");
    let text = std::fs::read_to_string(&unit).unwrap();
    for line in ["Type=notify", "WatchdogSec=3min", "NotifyAccess=main", "Restart=always"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert_eq!(home.done(&[&install[..], &["--print"]].concat()).expect(0).stdout, text);
    assert!(home.done(&install).expect(0).stderr.contains("is as it should be"));
    std::fs::write(&unit, "[Service]\n").unwrap();
    assert!(home.done(&install).expect(64).stderr.contains("--force"));
    assert_eq!(std::fs::read_to_string(&unit).unwrap(), "[Service]\n");
    home.done(&[&install[..], &["--force"]].concat()).expect(0);
    let mut verify = Command::new("systemd-analyze");
    verify.args(["--user", "verify"]).arg(&unit);
    verify.env("HOME", home.folder.path()).env("XDG_RUNTIME_DIR", home.folder.path());
    let verified = verify.output().unwrap();
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("leasehold.service:"), "{said}");

    home.done(&["schedule", "install", "--kind", "launchd"]).expect(0);
    let plist = home.path("Library/LaunchAgents/leasehold.schedule.plist");
    assert_eq!(plist_words(&plist)[1..3], ["schedule", "--file"]);
}

/// The program's arguments, as Python's own reader of such files finds them.
fn plist_words(path: &Path) -> Vec<String> {
    let script =
        "import plistlib,sys,json; print(json.dumps(plistlib.load(open(sys.argv[1],'rb'))['ProgramArguments']))";
    let output = Command::new("python3").args(["-c", script]).arg(path).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn the_first_file_is_right_as_it_is_and_with_every_line_in_force() {
    let home = Home::new(On::Sqlite);
    home.done(&["init"]).expect(0);
    let text = home.read("leasehold.toml");
    assert_eq!(home.done(&["init", "--print"]).expect(0).stdout, text);
    assert!(home.done(&["init"]).expect(64).stderr.contains("already"));
    let settings: Value = serde_json::from_str(&home.done(&["config", "--json"]).expect(0).stdout).unwrap();
    let of_jobs = ["owner", "revision"].map(str::to_owned);
    for name in settings.as_object().unwrap().keys().chain(&of_jobs) {
        assert!(text.contains(&format!("\n# {name} = ")), "`leasehold init` does not show the setting `{name}`");
    }
    // Every example is one that is accepted; of two stores the second.
    let in_force: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .filter(|line| {
            line.starts_with("[[") || line.split_once(" = ").is_some_and(|(key, _)| !key.contains([' ', '`']))
        })
        .filter(|line| !line.starts_with("store = \"dir:"))
        .collect();
    std::fs::write(home.path("leasehold.toml"), in_force.join("\n")).unwrap();
    std::fs::write(home.path("backup.env"), "").unwrap();
    home.done(&["schedule", "check"]).expect(0);
    let settings: Value = serde_json::from_str(&home.done(&["config", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(settings["ttl"]["value"], "1m30s");
    assert!(settings["ttl"]["source"].as_str().unwrap().starts_with("file "), "{settings}");
    home.done(&["init", "no/such/folder/x.toml"]).expect(78);
}

#[test]
fn next_prints_as_many_lines_as_asked_and_dates_need_no_time() {
    let home = Home::new(On::Sqlite);
    let table = |name: &str, cron: &str| {
        format!("[[job]]\nname = '{name}'\ncron = '{cron}'\ntz = 'Europe/Berlin'\ncommand = 'true'\n")
    };
    std::fs::write(home.path("leasehold.toml"), [table("hourly", "@hourly"), table("daily", "0 3 * * *")].concat())
        .unwrap();
    let next = home.done(&["schedule", "next", "-n", "6", "--from", "2026-11-01"]).expect(0).stdout;
    let names: Vec<&str> = next.lines().map(|line| line.split_whitespace().last().unwrap()).collect();
    assert_eq!(names, ["hourly", "hourly", "hourly", "hourly", "daily", "hourly"], "{next}");
    let at = |from: &str| home.done(&["schedule", "next", "daily", "-n", "1", "--from", from]).expect(0).stdout;
    assert!(at("2026-07-01").starts_with("2026-07-01T01:00:00Z"), "{}", at("2026-07-01"));
    assert_eq!(at("2026-07-01T02:00"), at("2026-07-01"));
    assert!(at("2026-07-01T04:00").starts_with("2026-07-02T01:00:00Z"));
    assert!(at("2026-07-01T03:00:00Z").starts_with("2026-07-02T01:00:00Z"));
    home.done(&["schedule", "next", "--from", "tomorrow"]).expect(64);

    home.done(&["schedule", "trigger", "daily"]).expect(0);
    let since = |text: &str| {
        let done = home.done(&["runs", "daily", "--json", "--since", text]).expect(0).stdout;
        serde_json::from_str::<Vec<Value>>(&done).unwrap().len()
    };
    assert_eq!((since("2026-01-01"), since("2126-01-01")), (1, 0));
    home.done(&["runs", "daily", "--since", "yesterday"]).expect(64);
}

#[test]
fn a_number_without_a_unit_is_answered_with_what_to_write() {
    let home = Home::new(On::Sqlite);
    for (text, says) in [
        ("ttl = 120\n", "`ttl` has no unit; write it with a unit, in quotes: ttl = \"120s\""),
        (
            "\nhistory_age = 7 # days\n",
            "line 2: `history_age` has no unit; write it with a unit, in quotes: history_age = \"7s\"",
        ),
        ("ttl = 1.5\n", "such as ttl = \"90s\""),
        ("label = 7\n", "`label` is a text; write it in quotes: label = \"7\""),
    ] {
        std::fs::write(home.path("leasehold.toml"), text).unwrap();
        let refused = home.done(&["config"]).expect(64);
        assert!(refused.stderr.contains(says), "{refused:?}");
    }
    std::fs::write(home.path("leasehold.toml"), "[[job]]\nname = 'a'\nevery = 45\ncommand = 'true'\n").unwrap();
    let refused = home.done(&["schedule", "check"]).expect(64);
    assert!(
        refused.stderr.contains("line 3: `every` has no unit; write it with a unit, in quotes: every = \"45s\""),
        "{refused:?}"
    );
}

#[test]
fn a_job_says_in_its_environment_what_becomes_of_its_output() {
    let home = Home::new(On::Sqlite);
    let table =
        |value: &str| format!("every = '1h'\ncommand = 'echo secret'\nenv = {{ LEASEHOLD_OUTPUT = '{value}' }}\n");
    jobs(&home, &table("ftp://elsewhere"));
    let wrong = home.done(&["schedule", "check"]).expect(64);
    assert!(wrong.stderr.contains("job `job`: env `LEASEHOLD_OUTPUT`"), "{wrong:?}");
    jobs(&home, &table("off"));
    home.done(&["schedule", "check"]).expect(0);
    home.done(&["schedule", "trigger", "job"]).expect(0);
    home.done(&["logs", "job"]).expect(64);
}
