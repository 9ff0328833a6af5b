//! Each script of docs/agents.md does what the page says, and the page shows the script that does it.

use crate::common::{Done, Home, On};
use crate::{git_settings, read, repository, shell, skips, subjects};

/// Runs a script of the page beside the agent that it starts, in a home of its own.
#[track_caller]
fn play(name: &str) -> (Home, Done) {
    let home = Home::new(On::Dir);
    git_settings(&home);
    std::fs::copy(repository("docs/agents/agent.sh"), home.path("agent.sh")).unwrap();
    let script = read(&format!("docs/agents/{name}.sh"));
    let page = read("docs/agents.md");
    assert!(page.contains(&format!("```sh\n{script}```\n")), "docs/agents.md does not show docs/agents/{name}.sh");
    let done = shell(&home, &script).expect(0);
    (home, done)
}

#[test]
fn two_laptops_with_one_job_run_each_slot_once() {
    let (home, done) = play("two-laptops");
    assert_eq!(subjects(&home, "repo.git").len(), 1);
    assert_eq!(done.stderr.matches("leasehold: skipped: ").count(), 2, "{done:#?}");
    assert_eq!((home.count("brush-up", "succeeded"), skips(&home, "brush-up")), (1, 2), "{done:#?}");
}

#[test]
fn a_sandbox_that_thaws_reaches_the_shared_repository_in_no_way() {
    let (home, done) = play("sandboxes");
    assert_eq!(subjects(&home, "repo.git"), ["by box-2"]);
    assert!(done.stderr.contains("\"permissionDecision\":\"deny\""), "{done:#?}");
    assert!(done.stderr.contains("stale epoch refused: resource=`git:origin` held=1 seen=3"), "{done:#?}");
    assert!(done.stderr.contains("refused: ref `refs/heads/main` is fenced by lease `task-17`"), "{done:#?}");
}

#[test]
fn a_schedule_that_overtakes_itself_skips_and_counts_no_failure() {
    let (home, done) = play("overtaking");
    assert_eq!(home.read("done"), "09:00\n10:30\n");
    let counts = ["succeeded", "failed", "lost"].map(|event| home.count("review", event));
    assert_eq!((counts, skips(&home, "review")), ([2, 0, 0], 1), "{done:#?}");
    assert_eq!(home.show("review")["progress"]["marker"], "tool Bash");
}

#[test]
fn a_supervisor_reassigns_a_task_with_its_checkpoint() {
    let (home, done) = play("supervisor");
    assert_eq!(home.read("report.txt"), "part 1\npart 2\n");
    assert!(done.stderr.contains("stopped before `echo from the first"), "{done:#?}");
    assert!(done.stderr.contains("(runner-1 is too slow), now held by runner-2"), "{done:#?}");
    assert!(done.stdout.contains("part 1 is done"), "{done:#?}");
}

#[test]
fn a_fleet_finishes_every_task_once() {
    let (home, done) = play("fleet");
    for (task, from) in [("parser", "from the start"), ("docs", "outline written"), ("tests", "from the start")] {
        assert_eq!(home.read(&format!("out-{task}.txt")), format!("{task}: {from}\n"));
    }
    assert!(done.stderr.contains("resource=`queue:tasks/k.parser` held=1 seen=3, it is done now"), "{done:#?}");
}

#[test]
fn the_page_shows_the_agent_and_every_script_is_played() {
    let page = read("docs/agents.md");
    assert!(page.contains(&format!("```sh\n{}```\n", read("docs/agents/agent.sh"))));
    let mut names: Vec<String> = std::fs::read_dir(repository("docs/agents"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let played = ["agent.sh", "fleet.sh", "overtaking.sh", "sandboxes.sh", "supervisor.sh", "two-laptops.sh"];
    assert_eq!(names, played, "play the new one above");
}
