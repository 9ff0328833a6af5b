//! Channels: which there are, whether they take anything, and what a message says of a run that was ended.

use crate::rig::*;

#[test]
fn a_channel_can_be_tried_and_says_what_came_back() {
    let receiver = receiver();
    let command = "[[notify]]\nname = \"mail\"\non = [\"dead_letter\"]\ncommand = [\"sh\", \"-c\", \"cat >mail\"]\n";
    let home = home(&format!("{}{command}", webhook(&receiver, "on = [\"failed\", \"recovered\"]")));
    let listed = home.done(&["config"]).expect(0);
    for line in
        ["notify ops", "failed, recovered: webhook http://127.0.0.1", "notify mail", "dead_letter: command sh …"]
    {
        assert!(listed.stdout.contains(line), "{listed:?}");
    }
    assert!(!listed.stdout.contains("hunter2"), "{listed:?}");
    let listed: Value = serde_json::from_str(&home.done(&["config", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(listed["notify"]["value"][1]["channel"], "mail", "{listed}");
    let tried = home.done(&["notify", "test"]).expect(0);
    assert_eq!(tried.stdout.matches("delivered").count(), 2, "{tried:?}");
    assert_eq!(types(&receiver.heard()), ["notify.test"]);
    assert!(event(&receiver.heard()[0])["text"].as_str().unwrap().ends_with(": channel ops works"));
    assert!(home.read("mail").contains("notify.test"), "{}", home.read("mail"));
    // Nothing is kept of it.
    assert!(!home.path("leases.db").exists());
    receiver.answer(503);
    let tried = home.done(&["notify", "test", "ops"]).expect(1);
    assert!(tried.stdout.contains("not delivered") && tried.stdout.contains("answered 503"), "{tried:?}");
    assert!(!tried.stdout.contains("mail") && !tried.stdout.contains("hunter2"), "{tried:?}");
    let answer: Value =
        serde_json::from_str(&home.done(&["notify", "test", "ops", "--json"]).expect(1).stdout).unwrap();
    assert_eq!((&answer[0]["channel"], &answer[0]["delivered"]), (&"ops".into(), &false.into()), "{answer}");
    assert!(home.done(&["notify", "test", "pos"]).expect(64).stderr.contains("the settings have ops, mail"));
    std::fs::write(home.path("leasehold.toml"), "").unwrap();
    assert!(home.done(&["notify", "test"]).expect(78).stderr.contains("no [[notify]] table applies here"));
    all_taken(&receiver);
}

#[test]
fn a_channel_without_a_name_is_called_by_what_may_be_seen_of_it() {
    let receiver = receiver();
    let command = "[[notify]]\non = [\"failed\"]\ncommand = [\"/bin/sh\", \"-c\", \"exit 3 # hunter2\"]\n";
    let home = home(&format!("{}{command}", webhook(&receiver, "on = [\"failed\"]").replace("name = \"ops\"\n", "")));
    let tried = home.done(&["notify", "test"]).expect(1).stdout;
    let named: Vec<&str> = tried.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(named[0].starts_with("webhook-127.0.0.1-") && named[1].starts_with("command-sh-"), "{tried}");
    // By that name it can be tried alone, and it is the one in the log.
    assert!(home.done(&["notify", "test", named[1]]).expect(1).stdout.contains("not delivered"));
    let said = run(&home, "nightly", "exit 5").expect(5).stderr;
    assert!(said.contains(&format!("was not delivered to channel `{}`", named[1])), "{said}");
    assert!(!tried.contains("hunter2") && !said.contains("hunter2"), "{tried}{said}");
}

#[test]
fn a_misspelt_program_is_found_before_anything_fails() {
    let job = "[[job]]\nname = \"nightly\"\nevery = \"1h\"\ncommand = \"true\"\n";
    let home = home("");
    for (program, says) in
        [("no-such-mial", "no program `no-such-mial` in PATH"), ("./tell", "no program `./tell` from folder")]
    {
        let table = format!("{job}[[notify]]\nname = \"ops\"\non = [\"failed\"]\ncommand = [\"{program}\"]\n");
        std::fs::write(home.path("leasehold.toml"), table).unwrap();
        for words in [&["config"][..], &["schedule", "check"]] {
            let done = home.done(words).expect(78);
            assert!(
                done.stderr.contains("notify `ops`: field `command`: there is") && done.stderr.contains(says),
                "{done:?}"
            );
        }
    }
    let script = home.path("tell");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    home.done(&["config"]).expect(78);
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    home.done(&["config"]).expect(0);
}

#[test]
fn a_message_says_that_a_run_stalled_or_ran_for_too_long_whoever_makes_it() {
    let receiver = receiver();
    let slow = |name: &str, limit: &str| {
        format!(
            "[[job]]\nname = \"{name}\"\nevery = \"1h\"\nttl = \"3s\"\n{limit} = \"1s\"\ncommand = \"exec sleep 100\"\n"
        )
    };
    let jobs = slow("stalled", "progress_timeout") + &slow("long", "timeout");
    let home = home(&format!("{}{jobs}", webhook(&receiver, "on = [\"failed\", \"lost\"]")));
    let words = ["--ttl", "3s", "--progress-timeout", "1s", "--", "sleep", "100"];
    home.done(&[&["run", "by-hand"][..], &words].concat()).expect(75);
    let scheduler = scheduler(&home, "leasehold.toml");
    for job in ["stalled", "long"] {
        home.done(&["schedule", "trigger", job]);
    }
    let why = |name: &str| -> Option<String> {
        let told = receiver.heard().iter().map(event).find(|told| told["data"]["name"] == name)?;
        Some(told["data"]["why"].as_str().unwrap_or("nothing").to_owned())
    };
    within(LONG, "all are told", || ["by-hand", "stalled", "long"].iter().all(|name| why(name).is_some()));
    stop(scheduler);
    for name in ["by-hand", "stalled"] {
        assert!(why(name).unwrap().starts_with("no progress was seen for"), "{:?}", why(name));
    }
    assert_eq!(why("long").unwrap(), "it ran for longer than 1s (`timeout`)");
}

#[test]
fn what_a_job_prints_calls_nobody_in_a_chat() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"failed\"]"));
    run_kept(&home, "nightly", "echo '<!channel> a & b'; exit 3").expect(3);
    let told = event(&receiver.heard()[0]);
    let text = told["text"].as_str().unwrap();
    assert!(text.contains("&lt;!channel&gt; a &amp; b") && !text.contains('<'), "{text}");
    assert_eq!(told["data"]["tail"], "<!channel> a & b\n");
    all_taken(&receiver);
}

#[test]
fn a_reload_with_the_same_rules_cuts_no_delivery_off() {
    let script = "echo x >>begun; until [ -e go ]; do sleep 0.05; done; echo x >>done";
    let job =
        |name: &str, command: &str| format!("[[job]]\nname = \"{name}\"\nevery = \"1s\"\ncommand = \"{command}\"\n");
    let rule = format!("[[notify]]\nname = \"mail\"\non = [\"failed\"]\ncommand = [\"sh\", \"-c\", \"{script}\"]\n");
    let home = home(&format!("{rule}{}", job("bad", "exit 3")));
    let scheduler = home.start(&["schedule"]);
    eventually("it is being delivered", || home.path("begun").exists());
    std::fs::write(home.path("leasehold.toml"), format!("{rule}{}", job("good", "touch reloaded"))).unwrap();
    signal(scheduler.pid(), "HUP");
    eventually("the file is read again", || home.path("reloaded").exists());
    home.touch("go");
    eventually("it is delivered", || home.path("done").exists());
    stop(scheduler);
    assert_eq!(home.read("begun"), "x\n");
}
