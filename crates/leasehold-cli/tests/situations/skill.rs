//! `skills/leasehold/SKILL.md`: every command that an agent learns there works, and `llms.txt` leads to pages that are there.

use crate::common::{Home, On};
use crate::{git, git_settings, read, repository, shell, subjects};

/// The scripts of a page.
fn blocks(page: &str) -> Vec<&str> {
    page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_command_of_the_skill_works() {
    let page = read("skills/leasehold/SKILL.md");
    let matter = page.strip_prefix("---\n").unwrap().split("\n---\n").next().unwrap();
    let fields: Vec<_> = matter.lines().map(|line| line.split_once(": ").unwrap()).collect();
    assert_eq!(fields[0], ("name", "leasehold"));
    assert!(fields[1].0 == "description" && (1..=1024).contains(&fields[1].1.len()), "{fields:?}");
    let scripts = blocks(&page);
    assert!(scripts.len() > 4, "{scripts:?}");
    let home = Home::new(On::Dir);
    git_settings(&home);
    git(&home, ".", &["init", "-q", "--bare", "repo.git"]);
    git(&home, ".", &["clone", "-q", "repo.git", "work"]);
    let done = shell(&home, &format!("set -eux\ncd work\n{}\n: all was run", scripts.concat())).expect(0);
    assert!(done.stderr.contains("+ : all was run"), "{done:#?}");
    assert_eq!(subjects(&home, "repo.git"), ["the work of task-17"]);
    // Nothing is held when it is over, and nothing waits.
    let held = home.done(&["ls", "--held", "--json"]).expect(0).stdout;
    assert_eq!(held.trim(), "[]", "{done:#?}");
    // What the prose names is run too.
    let prose: String = page.split("```").step_by(2).collect();
    for span in prose.split('`').skip(1).step_by(2).filter(|span| span.starts_with("leasehold ")) {
        let words: Vec<&str> = span.split_whitespace().take_while(|word| !word.starts_with(['-', '"', '\''])).collect();
        let verbs = words.iter().take(if words[1] == "queue" { 3 } else { 2 });
        let verb = verbs.copied().collect::<Vec<_>>().join(" ");
        assert!(scripts.iter().any(|script| script.contains(&verb)), "no script runs `{verb}`");
    }
}

#[test]
fn llms_txt_leads_to_what_is_there() {
    let text = read("llms.txt");
    let mut lines = text.lines();
    assert_eq!((lines.next(), lines.next()), (Some("# Leasehold"), Some("")));
    assert!(lines.next().unwrap().starts_with("> "));
    let links: Vec<&str> = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
    assert!(links.len() > 10, "{links:?}");
    for link in links {
        assert!(repository(link).is_file(), "llms.txt: the link to `{link}` leads nowhere");
    }
}
